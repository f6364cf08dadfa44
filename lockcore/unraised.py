"""Prints an exception that must not reach a caller: *exception, sentence → `sys.unraisablehook`*.

`is_its_own` selects the exceptions that must not reach a caller. CPython's hook takes only a struct
that Python code cannot make. So this file lets CPython make the struct. If an exception leaves a
weak reference's callback, CPython gives the exception to the hook. An exception of the hook goes no
further.
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
            # Otherwise the error's traceback and this frame would keep each other alive.
            del error


def is_its_own(error: BaseException) -> bool:
    """True if the called code has raised `error` itself.

    Otherwise the error may be an interrupt of the caller. An interrupt is a BaseException that
    comes from a signal's handler or is thrown into a greenlet. asyncio's CancelledError and
    GeneratorExit are not interrupts here. They come only to a suspended task or generator, and code
    within a call is not suspended.
    """
    if isinstance(error, (Exception, GeneratorExit)):
        return True
    # Code that raises asyncio's error has imported asyncio.
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def show_unraised(error: BaseException, sentence: str) -> None:
    """Have Python print `error` below `sentence`, like an exception that it cannot raise.

    Raises nothing.
    """
    referent = set[int]()
    reference: Final = weakref.ref(referent, _Callback(error, sentence))
    # The next line removes the last reference to the referent, so the callback is called now.
    del referent
    del reference
