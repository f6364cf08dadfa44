"""Real processes that contend for one lock: *contests → every attempt of every contender, trial by
trial*.

Rules: one process per contender, made once for all trials. The leader names a start in the near
future on CLOCK_MONOTONIC, and each contender waits for that moment by itself. One word of memory
that all of them map says which trial somebody has won: the others stop then. The winner never gives
its lease back, so a trial has one grant; each trial has a resource of its own, and the leases end
by themselves. Source: mmap(2); an aligned 64-bit store is whole where Redis runs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.experiments.split_votes.plan import PATIENCE_MS, Attempt, Contest, Enrolment, Trial
from bench.topology.child import Child
from lockcore.clock import monotonic_ns

# The time between naming a start and the start: by then all contenders have read it.
LEAD_NS = 5_000_000
# A contender has answered within this time.
PATIENCE_S = 30.0 + PATIENCE_MS / 1000


class Contenders(ExitStack):
    """`seats` contenders.

    A context manager: at its end they are gone.
    """

    def __init__(
        self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int
    ) -> None:
        """Start them; `folder` is private and outlives them.

        Raises EnvironmentNotReadyError when one does not.
        """
        super().__init__()
        won = folder / "won"
        won.write_bytes(bytes(8))
        self._numbers = count(1)
        self._members: list[Child] = []
        try:
            for seat in range(seats):
                child = Child(f"contender {seat}", f"{__package__}.contender_process")
                self._members.append(self.enter_context(child))
                child.tell(Enrolment(urls, key_prefix, str(won), seat, seed))
            for member in self._members:
                member.hear(str, PATIENCE_S)
        except BaseException:
            self.close()
            raise

    def run(self, contest: Contest) -> list[Attempt]:
        """Every attempt of one trial. Raises EnvironmentNotReadyError."""
        seated = self._members[: contest.contenders]
        trial = Trial(next(self._numbers), monotonic_ns() + LEAD_NS, contest)
        for member in seated:
            member.tell(trial)
        return [attempt for member in seated for attempt in member.hear(list[Attempt], PATIENCE_S)]
