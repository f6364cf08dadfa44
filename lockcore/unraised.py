"""Prints an exception that must not reach a caller.

Input: an exception and a sentence. Output: a call of `sys.unraisablehook`.

`is_its_own` selects the exceptions that must not reach a caller. The hook's argument is a struct
that only CPython can create. CPython creates the struct when the callback of a weak reference
raises an exception. So this file raises the exception in the callback of a weak reference. If the
hook itself raises, CPython ignores this.
"""

import sys
import weakref
from typing import Any, Final


class _Callback:
    """Raises `error` once. The hook prints the `repr` of this object as a line above the
    traceback."""

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
    """True if `error` certainly comes from the called code.

    If the result is False, `error` may be an interrupt that was meant for the caller. An interrupt
    is a BaseException that comes from a signal's handler or is thrown into a greenlet. asyncio's
    CancelledError and GeneratorExit are not interrupts here. asyncio and Python throw these two
    exceptions only into a suspended task or generator. The called code was not suspended but
    running, so it has raised the exception itself.
    """
    if isinstance(error, (Exception, GeneratorExit)):
        return True
    # Code that raises asyncio's error has imported asyncio.
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def show_unraised(error: BaseException, sentence: str) -> None:
    """Make Python print `sentence`, and `error` below it.

    Raises nothing.
    """
    referent = set[int]()
    reference: Final = weakref.ref(referent, _Callback(error, sentence))
    # The next line removes the last reference to the referent, so the callback is called now.
    del referent
    del reference
