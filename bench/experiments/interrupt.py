"""Ctrl-C, taken in hand: *SIGINT, SIGTERM or SIGHUP → KeyboardInterrupt, or a note while something is at stake*.

Rules: while `raising` a signal raises KeyboardInterrupt as Python does; else it is only counted, so that clean-up is
never torn in the middle. A second signal asks for speed, never for leaving processes behind. Source: signal(7).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the wishes to end while it is entered. Off the main thread it sees none, as Python demands."""

    def __init__(self) -> None:
        self.count = 0
        self.raising = True
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals, but a SIGHUP that is ignored (nohup) stays so."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.raising:
            raise KeyboardInterrupt
