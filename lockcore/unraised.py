"""An exception that no caller may see: *an exception, a sentence → `sys.unraisablehook`*.

`is_its_own` says which exceptions those are. CPython's own hook takes nothing but its own struct,
which Python code cannot make. So CPython makes it here: an exception that leaves a weak reference's
callback goes to the hook, and whatever the hook does or raises ends there.
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
            # Otherwise the traceback of the error would keep this frame, and this frame the error.
            del error


def is_its_own(error: BaseException) -> bool:
    """True when the code that was called has raised `error` itself.

    Otherwise the error may be an interrupt of the caller: a BaseException that a signal's handler
    raises, or that is thrown into a greenlet. Two of them, asyncio's CancelledError and
    GeneratorExit, come only to a task or generator that is suspended. Code that is in the middle of
    a call is not suspended.
    """
    if isinstance(error, (Exception, GeneratorExit)):
        return True
    # Whoever raises asyncio's error has imported asyncio.
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def show_unraised(error: BaseException, sentence: str) -> None:
    """Have Python print `error` below `sentence`, as it does with what it cannot raise.

    Raises nothing.
    """
    referent = set[int]()
    reference: Final = weakref.ref(referent, _Callback(error, sentence))
    # This is the last reference to the referent: now the callback is called.
    del referent
    del reference
