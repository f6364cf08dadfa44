"""Real processes that contend for one lock: *blocks of trials → every attempt of every contender,
by trial*.

Rules: one process per contender, made once for all blocks. They start together through words of
memory that all of them map: the start is a time on CLOCK_MONOTONIC in the near future, for which
each process waits by itself, so that it does not matter who reads the word when. Source: mmap(2);
aligned 64-bit stores are whole where Redis runs.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.plan import PATIENCE_MS, Attempt, Block, Enrolment
from bench.topology.child import Child

# The time between naming a start and the start.
LEAD_NS = 1_500_000
# Contenders must be ready for the next trial within this time.
PATIENCE_S = 30.0 + PATIENCE_MS / 1000
_LOOK_S = 0.0002
_CHECK_EVERY = 256  # looks
STOP = -1


class StartingGate:
    """Words that contenders in `seats` processes and their leader share, 64 bits each and written
    by one process only: no locks. `start[0]`: when the newest trial starts (ns), 0 before the
    first, STOP when there will be no more; `won[0]`: the newest trial that somebody has won; by
    seat `ready`: the trial it waits for, all before it cleaned up, and `finished`: the one it does
    not try for any more."""

    def __init__(self, path: Path, seats: int) -> None:
        """Map the file `path`, which their leader has made."""
        words = np.memmap(path, np.int64, "r+", shape=(2 + 2 * seats,))
        self.start, self.won, self.ready, self.finished = np.split(words, (1, 2, 2 + seats))


class Contenders(ExitStack):
    """`seats` contenders.

    A context manager: at its end they have given back what they hold, and are gone.
    """

    def __init__(
        self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int
    ) -> None:
        """Start them; `folder` is private and outlives them.

        Raises EnvironmentNotReadyError when one does not.
        """
        super().__init__()
        path = folder / "starting-gate"
        path.write_bytes(bytes((2 + 2 * seats) * 8))
        self._gate = StartingGate(path, seats)
        self._members: list[Child] = []
        try:
            for seat in range(seats):
                child = Child(
                    f"contender {seat}", "bench.experiments.split_votes.contender_process"
                )
                self._members.append(self.enter_context(child))
                child.tell(Enrolment(urls, key_prefix, str(path), seats, seat, seed))
            self.callback(self._dismiss)
            for member in self._members:
                member.hear(str)
        except BaseException:
            self.close()
            raise

    def run(self, block: Block) -> Mapping[int, list[Attempt]]:
        """Run the block's trials; every attempt by its trial's number.

        Raises EnvironmentNotReadyError.
        """
        seated = self._members[: block.contest.contenders]
        for member in seated:
            member.tell(block)
        for trial in block.trials:
            self._wait_for(trial, len(seated))
            self._gate.start[0] = time.monotonic_ns() + LEAD_NS
        attempts: dict[int, list[Attempt]] = {trial: [] for trial in block.trials}
        for member in seated:
            for trial, attempt in member.hear(list[tuple[int, Attempt]]):
                attempts[trial].append(attempt)
        return attempts

    def _dismiss(self) -> None:
        self._gate.start[0] = STOP
        for member in self._members:
            member.leave()
        for member in self._members:
            member.finish()

    def _wait_for(self, trial: int, seats: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        looks = 0
        while (self._gate.ready[:seats] < trial).any():
            looks += 1
            if looks % _CHECK_EVERY == 0:
                for member in self._members:
                    if member.ended:
                        raise member.failure()
                if time.monotonic() > deadline_s:
                    raise EnvironmentNotReadyError(
                        f"the {seats} contenders were not ready within {PATIENCE_S:g} s; "
                        "use fewer of them"
                    )
            time.sleep(_LOOK_S)
