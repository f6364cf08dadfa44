"""Starts real processes that contend for one lock, and collects the attempts of each trial.

Each contender is one process, which takes part in all trials. The experiment sends a start time in
the near future on CLOCK_MONOTONIC. Each contender reads this clock itself and waits until the start
time. All contenders share one integer in mapped memory. The integer is the number of the latest
trial with a winner. The other contenders read this integer to know when to stop. The winner never
releases its lease, so a trial has one grant. Each trial has its own resource, and the leases
expire. Source: mmap(2). On the platforms of Redis, an aligned 64-bit store is never torn.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.experiments.split_votes.plan import PATIENCE_MS, Attempt, Contest, Enrolment, Trial
from bench.topology.child import Child
from lockcore.clock import monotonic_ns

# The start lies this far in the future. At the start, all contenders have read the message.
LEAD_NS = 5_000_000
# A contender must answer within this time (s).
PATIENCE_S = 30.0 + PATIENCE_MS / 1000


class Contenders(ExitStack):
    """The contender processes. `seats` is the number of contenders.

    The object is a context manager, which ends the processes on exit.
    """

    def __init__(
        self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int
    ) -> None:
        """Start the contenders. `folder` is a private folder that must exist longer than the
        contenders.

        Raises EnvironmentNotReadyError if a contender does not start.
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
        """Run one trial, and return the attempts of all its contenders. Raises
        EnvironmentNotReadyError.
        """
        seated = self._members[: contest.contenders]
        trial = Trial(next(self._numbers), monotonic_ns() + LEAD_NS, contest)
        for member in seated:
            member.tell(trial)
        return [attempt for member in seated for attempt in member.hear(list[Attempt], PATIENCE_S)]
