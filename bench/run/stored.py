"""Results that lie about: *a folder of results, a kind → the newest of that kind; a name → that result, checked*.

Rules: a result says in `kind` which command made it. What cannot be read, or used, is passed over when looking for the
newest, and refused in one sentence when it was named. Source: bench.measure.result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.errors import UsageError
from bench.measure.result import RESULT_NAME, Result, read_result


def result_of_kind(place: Path, kind: str, use: Callable[[Result], object]) -> Result:
    """The result in the file or folder `place`. Raises UsageError when it is none, not of this kind, or `use`, what
    will be made of it, fails."""
    result = read_result(place)
    if result.get("kind") != kind:
        raise UsageError(f"{place} is no result of lockbench {kind}; name one of those")
    try:
        use(result)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{place} is not a whole result of lockbench {kind} ({said}); make it anew") from None
    return result


def newest_result(folder: Path, kind: str, use: Callable[[Result], object]) -> Result | None:
    """The result of this kind that was begun last, of those right below `folder`; None when there is none."""
    found = []
    for path in folder.glob(f"*/{RESULT_NAME}"):
        with suppress(UsageError):
            found.append(result_of_kind(path, kind, use))
    return max(found, key=lambda result: str(result["started_at"]), default=None)
