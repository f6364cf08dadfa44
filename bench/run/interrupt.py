"""Signals that ask the process to end: *SIGINT, SIGTERM or SIGHUP → KeyboardInterrupt now, or a
count to check later*.

Rules: no signal is lost. If an exception comes during a finaliser (`__del__`), Python drops the
exception. So this module raises KeyboardInterrupt again for a signal that came during a finaliser.
A `with` block of Interrupts may be inside another `with` block of Interrupts. If the inner block
has counted any signals, it passes one signal to the outer block when it ends. Source: signal(7);
sys.unraisablehook.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# After this time (s) a lost signal is raised again. The finaliser has ended by then.
AGAIN_S = 0.01


class Interrupts:
    """A context for a `with` block.

    During the block, the object counts the signals that ask the process to end. Outside the main
    thread, the block receives no signals. While `raising` is true, each signal raises
    KeyboardInterrupt. If `raising` is false, the block counts the first `patience` signals and
    raises no exception for them. Each later signal raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.raising = True
        self.patience = math.inf
        self._before: dict[
            signal.Signals, Callable[[int, FrameType | None], object] | int | None
        ] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> Self:
        """Start to handle the signals. If the process ignores SIGHUP (nohup), the process continues
        to ignore SIGHUP."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self.note)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.note)
            self._hook = sys.unraisablehook
            sys.unraisablehook = self._lost
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the former signal handlers.

        If Python dropped the exception of a signal, this method raises KeyboardInterrupt. If this
        exception has already been raised again, the method raises nothing. If this block is inside
        another Interrupts block, this method passes the signal to the outer block.
        """
        if not self._before:
            return
        pending = signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0
        around = getattr(self._before[signal.SIGINT], "__self__", None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook
        if kind is not None:
            return
        if isinstance(around, Interrupts):
            if pending or self.count:
                around.note()
        elif pending:
            raise KeyboardInterrupt

    def note(self, *_signal: object) -> None:
        """Count a signal that asks the process to end.

        Raises KeyboardInterrupt if `raising` is true or if `count` is above `patience`.
        """
        self.count += 1
        if self.raising or self.count > self.patience:
            raise KeyboardInterrupt

    def _lost(self, unraisable: UnraisableHookArgs) -> None:
        """Receive an exception that Python could not raise.

        This method acquires no lock, because a finaliser may interrupt code that holds a lock.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt) and self._before:
            self.count -= 1
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            self._hook(unraisable)


@contextlib.contextmanager
def until_shown() -> Iterator[None]:
    """Return a context for a `with` block that shows measurements.

    The block shows all its measurements even if a signal comes during the block. The first signal
    raises KeyboardInterrupt at the end of the block. The second signal raises KeyboardInterrupt at
    once.
    """
    with Interrupts() as interrupts:
        interrupts.raising = False
        interrupts.patience = 1
        yield
    if interrupts.count:
        raise KeyboardInterrupt
