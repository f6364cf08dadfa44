"""Results that lie about: *a folder of results, a kind → the newest of that kind; a name → that result*, as a type.

Rules: a result says in `kind` which command made it. What cannot be read as the type is passed over when looking for
the newest, and refused in one sentence when it was named. Source: bench.measure.result.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.errors import UsageError
from bench.measure.reading import converted
from bench.measure.result import RESULT_NAME, read_result

Found = TypeVar("Found")


def result_of_kind(place: Path, kind: str, form: type[Found]) -> Found:
    """The result in the file or folder `place`, as far as `form` takes it. Raises UsageError when it is none, not of
    this kind, or not whole."""
    return _read(place, kind, form)[1]


def newest_result(folder: Path, kind: str, form: type[Found]) -> Found | None:
    """The result of this kind that was begun last, of those right below `folder`; None when there is none."""
    found = []
    for path in folder.glob(f"*/{RESULT_NAME}"):
        with suppress(UsageError):
            found.append(_read(path, kind, form))
    return max(found, key=lambda one: one[0])[1] if found else None


def _read(place: Path, kind: str, form: type[Found]) -> tuple[str, Found]:
    result = read_result(place)
    if result.get("kind") != kind:
        raise UsageError(f"{place} is no result of lockbench {kind}; name one of those")
    try:
        return str(result.get("started_at")), converted(result, form)
    except msgspec.ValidationError as error:
        raise UsageError(f"{place} is not a whole result of lockbench {kind} ({error}); make it anew") from None
