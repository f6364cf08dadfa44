"""One contender of `lockbench split-votes`, alone in its process: *trials on stdin → its attempts
on stdout*. One attempt is one round of SETs."""

import time
from random import Random

import gevent

from bench.experiments.split_votes.plan import TTL_MS, Attempt, Enrolment, Trial
from bench.recipes.protocol import Acquire, RecipeSettings
from bench.recipes.redlock import RedlockRandomOrder, RedlockSequential
from bench.topology.child import orders, say
from lockcore import LagCap, Lease, Redlock, RetryPolicy
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# There may be more contenders than cores. A reply that waits for a core must not count as lost.
TIMEOUT_MS = 2000.0
# A contender stops sleeping so long before its start, and spins.
SPIN_NS = 150_000
# The time between two looks at replies that are still to come.
LOOK_S = 0.0002
ONE_ATTEMPT = RetryPolicy("none")


class Contender:
    """One of the contenders."""

    def __init__(self, enrolment: Enrolment) -> None:
        """Connect in all three orders. Raises EnvironmentNotReadyError, InstanceError."""
        self._seat = enrolment.seat
        self._rng = Random(f"{enrolment.seed} {enrolment.seat} contender")
        self._redlock = Redlock.connect(  # noqa: S604 - this shell is a way of waiting
            enrolment.urls,
            shell="gevent",
            key_prefix=enrolment.key_prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=TIMEOUT_MS,
            lag_cap=LagCap(age_ms=TIMEOUT_MS),
            rejoin="trust",
            retry=ONE_ATTEMPT,
        )
        settings = RecipeSettings(
            key_prefix=enrolment.key_prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=TIMEOUT_MS,
            retry=ONE_ATTEMPT,
            seed=enrolment.seed,
            process=enrolment.seat,
        )
        self._acquire: dict[str, Acquire] = {
            "parallel": self._redlock.try_acquire,
            "sequential": RedlockSequential.connect(enrolment.urls, settings).acquire,
            "random": RedlockRandomOrder.connect(enrolment.urls, settings).acquire,
        }

    def attempt(self, trial: Trial) -> Attempt:
        """Return the contender's one attempt in `trial`, once all its replies are in."""
        contest = trial.contest
        acquire = self._acquire[contest.order]
        _sleep_until(trial.start_ns + int(self._rng.uniform(0, contest.spread_ms) * NS_PER_MS))
        started_ns = monotonic_ns()
        result = acquire(f"trial-{trial.number}", TTL_MS, 0)
        decided_ns = monotonic_ns()
        self._settle()
        until_ns = result.valid_until_ns if isinstance(result, Lease) else 0
        return Attempt(self._seat, started_ns, decided_ns, result.outcome, until_ns)

    def _settle(self) -> None:
        """Wait for the replies that a decided attempt did not wait for, and for those to its
        clean-up."""
        while any(status.pending for status in self._redlock.instances):
            gevent.sleep(LOOK_S)


# All contenders must start within microseconds of each other, and a sleep ends later than it was
# asked to. So a contender sleeps until shortly before its start and then reads the clock in a loop.
def _sleep_until(due_ns: int) -> None:
    """Return at `due_ns`: asleep until shortly before, then awake."""
    while (left_ns := due_ns - monotonic_ns() - SPIN_NS) > 0:
        time.sleep(left_ns / NS_PER_S)
    while monotonic_ns() < due_ns:
        pass


def main() -> None:
    """Connect, say so, then answer every trial with the attempt made."""
    enrolment = next(orders(Enrolment), None)
    if enrolment is None:
        return
    contender = Contender(enrolment)
    say("connected")
    for trial in orders(Trial):
        say(contender.attempt(trial))


if __name__ == "__main__":
    main()
