"""Results that lie about: *a folder of results, a kind → the newest of that kind; a name → that result, checked*.

Rules: a result says in `kind` which command made it. What cannot be read is passed over when looking for the newest,
and refused in one sentence when it was named. Source: bench.measure.result.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.errors import UsageError
from bench.measure.result import RESULT_NAME, Result, read_result


def result_of_kind(place: Path, kind: str) -> Result:
    """The result in the file or folder `place`. Raises UsageError when it is none, or not of this kind."""
    result = read_result(place)
    if result.get("kind") != kind:
        raise UsageError(f"{place} is no result of lockbench {kind}; name one of those")
    return result


def newest_result(folder: Path, kind: str) -> Result | None:
    """The result of this kind that was begun last, of those right below `folder`; None when there is none."""
    found = []
    for path in folder.glob(f"*/{RESULT_NAME}"):
        with suppress(UsageError):
            found.append(result_of_kind(path, kind))
    return max(found, key=lambda result: str(result["started_at"]), default=None)
