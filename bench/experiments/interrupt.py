"""Ctrl-C, taken in hand: *SIGINT, SIGTERM or SIGHUP → KeyboardInterrupt, or a note while something is at stake*.

Rules: inside `shielded` a signal is only counted, so that clean-up is never torn in the middle; outside it raises
KeyboardInterrupt as Python does. A second signal asks for speed, never for leaving processes behind. Source: signal(7).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the wishes to end while it is entered. Off the main thread it sees none, as Python demands."""

    def __init__(self) -> None:
        self.count = 0
        self._shields = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals, but a SIGHUP that is ignored (nohup) stays so."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Within it a signal does not raise; look at `count` instead."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self._shields:
            raise KeyboardInterrupt
