"""What falls due when: *things with their times, now → those that are due and not over*. Pure.

Rules: a heap, so that each thing costs the same however many there are. What is over is dropped when it falls due, or
when as much again has been added; so at most half of it (and 64) is kept for nothing. An interrupt loses nothing: a
thing leaves after it was acted upon.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from lockcore.clock import FAR_FUTURE_NS

T = TypeVar("T")
FEWEST = 64


class Timetable(Generic[T]):
    """`is_open(due_ns, thing)`: it is not over, and that is still its time."""

    __slots__ = ("_entries", "_is_open", "_numbers", "_room")

    def __init__(self, is_open: Callable[[int, T], bool]) -> None:
        self._is_open = is_open
        self._entries: list[tuple[int, int, T]] = []
        self._numbers = count()
        self._room = FEWEST

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_ns(self) -> int:
        """Nothing is due before."""
        entries = self._entries
        return entries[0][0] if entries else FAR_FUTURE_NS

    def add(self, due_ns: int, thing: T) -> None:
        """`thing` falls due then."""
        if len(self._entries) >= self._room:
            kept = [entry for entry in self._entries if self._is_open(entry[0], entry[2])]
            heapify(kept)
            self._entries, self._room = kept, 2 * len(kept) + FEWEST
        heappush(self._entries, (due_ns, next(self._numbers), thing))

    def run(self, now_ns: int, act: Callable[[T], object]) -> None:
        """`act` on everything that is due; it may add to the table."""
        while self._entries and (entry := self._entries[0])[0] <= now_ns:
            if self._is_open(entry[0], entry[2]):
                act(entry[2])
            if self._entries and self._entries[0] is entry:
                heappop(self._entries)
