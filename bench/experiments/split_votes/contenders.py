"""Real processes that contend for one lock: *blocks of trials → every attempt of every contender, by trial*.

Rules: one process per contender, made once for all blocks. They start together through words of memory that all of them
map: the start is a time on CLOCK_MONOTONIC in the near future, for which each process waits by itself, so that it does
not matter who reads the word when. Source: mmap(2); aligned 64-bit stores are whole where Redis runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.plan import Attempt, Block, Contest, Enrolment
from bench.topology.child import Child

LEAD_NS = 1_500_000  # between naming a start and the start
PATIENCE_S = 30.0  # for contenders to answer, beyond what a block itself may take
_LOOK_S = 0.0002
_CHECK_EVERY = 256  # looks
_START, _WON, _SEATS = 0, 1, 2  # words
STOP = -1


class StartingGate:
    """The shared words of contenders in `seats` processes, in a file that their leader has made.

    Each is of 64 bits and written by one process only (`won`: by whoever got the lock): no locks. Trials are numbered
    from 1, upwards.
    """

    def __init__(self, path: Path, seats: int) -> None:
        self._words = np.memmap(path, np.int64, "r+", shape=(_SEATS + seats,))

    # -- the leader ---------------------------------------------------------------------------------------------------

    def are_ready(self, seats: int, trial: int) -> bool:
        """Whether each of the first `seats` has said that it waits for `trial`."""
        return bool((self._words[_SEATS : _SEATS + seats] >= 2 * trial).all())

    def open(self, start_ns: int) -> None:
        """Name the start, which lies in the future and is not that of the trial before; or STOP, for good."""
        self._words[_START] = start_ns

    # -- everybody ----------------------------------------------------------------------------------------------------

    @property
    def start_ns(self) -> int:
        """The start of the newest trial, 0 before the first, STOP when there will be no more."""
        return int(self._words[_START])

    def ready(self, seat: int, trial: int) -> None:
        """I wait for `trial` to start; everything of the one before is cleaned up."""
        self._words[_SEATS + seat] = 2 * trial

    def finish(self, seat: int, trial: int) -> None:
        """I do not try for the lock of `trial` any more."""
        self._words[_SEATS + seat] = 2 * trial + 1

    def are_finished(self, seats: int, trial: int) -> bool:
        """Whether each of the first `seats` has stopped trying: the winner may give the lock back."""
        return bool((self._words[_SEATS : _SEATS + seats] > 2 * trial).all())

    def win(self, trial: int) -> None:
        """I have the lock of `trial`: the others need not try again."""
        self._words[_WON] = trial

    def is_won(self, trial: int) -> bool:
        """Whether somebody has the lock of `trial`."""
        return bool(self._words[_WON] >= trial)


class Contenders:
    """`seats` contenders. A context manager: at its end they are gone."""

    def __init__(self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int) -> None:
        """Start them; `folder` is private and outlives them. Raises EnvironmentNotReadyError when one does not."""
        path = folder / "starting-gate"
        self._members: list[Child] = []
        path.write_bytes(bytes((_SEATS + seats) * 8))
        self._gate = StartingGate(path, seats)
        try:
            for seat in range(seats):
                self._members.append(Child(f"contender {seat}", "bench.experiments.split_votes.contender_process"))
                self._members[seat].tell(Enrolment(urls, key_prefix, str(path), seats, seat, seed))
            for member in self._members:
                member.hear(str)
        except BaseException:
            self.close()
            raise

    def run(self, block: Block) -> Mapping[int, list[Attempt]]:
        """Run the block's trials; every attempt by its trial's number. Raises EnvironmentNotReadyError."""
        seated = self._members[: block.contest.contenders]
        for member in seated:
            member.tell(block)
        for trial in block.trials:
            self._wait(lambda trial=trial: self._gate.are_ready(len(seated), trial), block.contest)  # type: ignore[misc]
            self._gate.open(time.monotonic_ns() + LEAD_NS)
        found: dict[int, list[Attempt]] = {trial: [] for trial in block.trials}
        for member in seated:
            for trial, attempt in member.hear(list[tuple[int, Attempt]]):
                found[trial].append(attempt)
        return found

    def close(self) -> None:
        """Have them give back what they hold and end; whoever does not is killed. More than once is fine."""
        self._gate.open(STOP)
        for member in self._members:
            member.leave()
        for member in self._members:
            member.finish()
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _wait(self, ready: Callable[[], bool], contest: Contest) -> None:
        deadline_s = time.monotonic() + PATIENCE_S + contest.patience_ms / 1000
        looks = 0
        while not ready():
            looks += 1
            if looks % _CHECK_EVERY == 0:
                for member in self._members:
                    if member.ended:
                        raise member.failure()
                if time.monotonic() > deadline_s:
                    raise EnvironmentNotReadyError(
                        f"the {contest.contenders} contenders were not ready within {PATIENCE_S:g} s; use fewer of them"
                    )
            time.sleep(_LOOK_S)
