"""INFO of all instances every other second: *URLs → each one's newest counters, for whoever looks*.

Rules: in a thread of its own, so that a stopped instance delays nobody else; one that does not answer is None.
Source: probe.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.errors import BenchError
from bench.topology.probe import info_snapshot

EVERY_S = 2.0

Info = Mapping[str, Any] | None


class InfoWatch:
    """`infos`: by instance, in the order of `urls`; empty before the first answers.

    `also(index)`: what is known besides of an instance that answered.
    """

    def __init__(self, urls: Sequence[str], also: Callable[[int], Mapping[str, Any]] | None = None) -> None:
        self._urls, self._also = urls, also
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="info", daemon=True)
        self.infos: Sequence[Info] = ()

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask once more, and no more."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self._ask()

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            self._ask()
            self._stop.wait(EVERY_S)

    def _ask(self) -> None:
        with suppress(BenchError, OSError):
            snapshots = info_snapshot(self._urls)
            self.infos = tuple(self._completed(index, one.values) for index, one in enumerate(snapshots))

    def _completed(self, index: int, values: Info) -> Info:
        return values if values is None or self._also is None else {**values, **self._also(index)}
