"""JSON → typed values: *bytes or plain values, a type → a value of that type*; the only file that has msgspec read.

Rules: one thread at a time. msgspec looks at a type when it first meets it, and two threads that meet one type at once
end the process with SIGSEGV (0.22: the second uses what the first has half built). Writing looks at no type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

Found = TypeVar("Found")
_ONE_AT_A_TIME = threading.RLock()


def decoded(text: bytes | str, kind: type[Found], dec_hook: Callable[[type, Any], Any] | None = None) -> Found:
    """Return the JSON `text` as a `kind`. Raises msgspec.DecodeError, msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.json.decode(text, type=kind, dec_hook=dec_hook)


def converted(value: object, kind: type[Found]) -> Found:
    """Return the JSON value `value` as a `kind`. Raises msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)
