"""Processes that start together: *a word of shared memory → the same start time for all of them, on one clock*.

Rules: the file is mapped by everybody and made of whole words of 64 bits, each written by one process only (`won`: by
whoever got the lock): no locks, no sends. The start is a time on CLOCK_MONOTONIC in the near future, for which each
process waits by itself, so that it does not matter who reads the word when. Trials are numbered from 1, upwards.
Source: mmap(2); aligned 64-bit stores are whole on the machines that Redis runs on.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

WORD = 8
_START, _WON, _SEATS = 0, 1, 2  # words
STOP = -1


class StartingGate:
    """The shared words of one crew. `seats`: how many processes take part. The leader makes it, with `create`."""

    def __init__(self, path: Path, seats: int, *, create: bool = False) -> None:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(descriptor, (_SEATS + seats) * WORD)
            self._memory = mmap.mmap(descriptor, (_SEATS + seats) * WORD)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._memory).cast("q")
        self.seats = seats

    # -- the leader ---------------------------------------------------------------------------------------------------

    def are_ready(self, seats: int, trial: int) -> bool:
        """Whether each of the first `seats` has said that it waits for `trial`."""
        return all(word >= 2 * trial for word in self._words[_SEATS : _SEATS + seats])

    def open(self, start_ns: int) -> None:
        """Name the start, which lies in the future and is not that of the trial before; or STOP, for good."""
        self._words[_START] = start_ns

    # -- everybody ----------------------------------------------------------------------------------------------------

    @property
    def start_ns(self) -> int:
        """The start of the newest trial, 0 before the first, STOP when there will be no more."""
        return self._words[_START]

    def ready(self, seat: int, trial: int) -> None:
        """I wait for `trial` to start; everything of the one before is cleaned up."""
        self._words[_SEATS + seat] = 2 * trial

    def finish(self, seat: int, trial: int) -> None:
        """I do not try for the lock of `trial` any more."""
        self._words[_SEATS + seat] = 2 * trial + 1

    def are_finished(self, seats: int, trial: int) -> bool:
        """Whether each of the first `seats` has stopped trying: the winner may give the lock back."""
        return all(word > 2 * trial for word in self._words[_SEATS : _SEATS + seats])

    def win(self, trial: int) -> None:
        """I have the lock of `trial`: the others need not try again."""
        self._words[_WON] = trial

    def is_won(self, trial: int) -> bool:
        """Whether somebody has the lock of `trial`."""
        return self._words[_WON] >= trial

    def close(self) -> None:
        """Let go of the memory; the file is whoever's folder it is in."""
        self._words.release()
        self._memory.close()
