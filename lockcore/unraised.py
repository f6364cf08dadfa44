"""An exception that no caller may see: *an exception, a sentence → `sys.unraisablehook`*; which
exceptions those are.

CPython's own hook takes nothing but its own struct, which Python code cannot make. So CPython makes
it here: an exception that leaves a weak reference's callback goes to the hook, and whatever the
hook does or raises ends there.
"""

import sys
import weakref
from typing import Any, Final


class _Callback:
    """Raises `error` once. The hook prints its `repr` above the traceback."""

    def __init__(self, error: BaseException, sentence: str) -> None:
        self._errors = [error]
        self._sentence = sentence

    def __repr__(self) -> str:
        return self._sentence

    def __call__(self, _reference: object) -> None:
        error = self._errors.pop()
        try:
            raise error
        finally:
            del error  # else its traceback would keep this frame, and this frame it


def is_its_own(error: BaseException) -> bool:
    """Whether the code that was called has raised `error` itself, so that it is no interrupt of its
    caller.

    An interrupt is a BaseException that a signal's handler raises, or that is thrown into a
    greenlet. Two of those come only to a task or generator that is suspended, which nobody is who
    calls: asyncio's CancelledError, GeneratorExit.
    """
    if isinstance(error, (Exception, GeneratorExit)):
        return True
    asyncio: Any = sys.modules.get("asyncio")  # whoever raises its error has imported it
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def show_unraised(error: BaseException, sentence: str) -> None:
    """Have Python print `error` below `sentence`, as it does with what it cannot raise. Raises
    nothing."""
    referent = set[int]()
    reference: Final = weakref.ref(referent, _Callback(error, sentence))
    del referent  # its last reference: now the callback is called
    del reference
