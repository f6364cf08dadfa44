"""Runs one contender of `lockbench split-votes` in its own process. The process reads trials on
stdin, and writes its attempts to stdout.

One attempt is one round of SETs. The contender itself decides about retries, by lockcore's retry
policy. The reason is that all contenders must stop as soon as one contender has won.
"""

import time
from random import Random

import gevent
import numpy as np

from bench.experiments.split_votes.plan import PATIENCE_MS, TTL_MS, Attempt, Enrolment, Trial
from bench.recipes.protocol import Acquire, RecipeSettings
from bench.recipes.redlock import RedlockRandomOrder, RedlockSequential
from bench.topology.child import orders, say
from lockcore import LagCap, Lease, Redlock, RetryPolicy
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# This time-out (ms) is long because there may be more contenders than cores. A reply that waits for
# a core must not count as lost.
TIMEOUT_MS = 2000.0
# A contender ends its sleep this long before its start. Then it reads the clock in a loop.
SPIN_NS = 150_000
# A waiting contender checks this often whether another contender has won.
LOOK_S = 0.0002
ONE_ATTEMPT = RetryPolicy("none")


class Contender:
    """One contender with its connections to the servers."""

    def __init__(self, enrolment: Enrolment) -> None:
        """Connect three clients. The first client asks the instances in parallel, the second client
        asks them in sequence, and the third client asks them in random order.

        Raises EnvironmentNotReadyError or InstanceError.
        """
        self._seat = enrolment.seat
        self._rng = Random(f"{enrolment.seed} {enrolment.seat} contender")
        self._won = np.memmap(enrolment.won, np.int64, "r+", shape=(1,))
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

    def attempts(self, trial: Trial) -> list[Attempt]:
        """Make the attempts of one trial, and return them.

        The attempts end when a contender has won, when the policy allows no more attempts, or after
        PATIENCE_MS.
        """
        contest = trial.contest
        acquire = self._acquire[contest.order]
        policy = RetryPolicy(contest.retry.policy, contest.retry.window_ms)
        deadline_ns = trial.start_ns + int(PATIENCE_MS * NS_PER_MS)
        attempts: list[Attempt] = []
        _sleep_until(trial.start_ns + int(self._rng.uniform(0, contest.spread_ms) * NS_PER_MS))
        while True:
            started_ns = monotonic_ns()
            result = acquire(f"trial-{trial.number}", TTL_MS, 0)
            decided_ns = monotonic_ns()
            until_ns = 0
            if isinstance(result, Lease):
                self._won[0] = trial.number
                until_ns = result.valid_until_ns
            attempts.append(Attempt(self._seat, started_ns, decided_ns, result.outcome, until_ns))
            self._settle()
            next_ns = policy.next_start_ns(
                result.outcome, len(attempts), decided_ns, deadline_ns, self._rng.random()
            )
            if next_ns is None or not self._rest(next_ns, trial.number):
                return attempts

    def _settle(self) -> None:
        """Wait for late replies. The outcome of an attempt may be known before all replies have
        arrived. The attempt's clean-up also causes replies, which may arrive later.
        """
        while any(status.pending for status in self._redlock.instances):
            gevent.sleep(LOOK_S)

    def _rest(self, until_ns: int, trial: int) -> bool:
        """Wait for the start of the next attempt. Return False if a contender wins before the next
        attempt starts.
        """
        while self._won[0] < trial:
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0:
                return True
            gevent.sleep(min(LOOK_S, left_ns / NS_PER_S))
        return False


# All contenders must start within microseconds of each other, and a sleep often ends late. So a
# contender sleeps until shortly before its start and then reads the clock in a loop.
def _sleep_until(due_ns: int) -> None:
    """Wait until `due_ns`. The function first sleeps until a short time before `due_ns`. Then the
    function reads the clock in a loop.
    """
    while (left_ns := due_ns - monotonic_ns() - SPIN_NS) > 0:
        time.sleep(left_ns / NS_PER_S)
    while monotonic_ns() < due_ns:
        pass


def main() -> None:
    """Connect to the servers, and report the connection. Then read trials, and answer each trial
    with this contender's attempts.
    """
    enrolment = next(orders(Enrolment), None)
    if enrolment is None:
        return
    contender = Contender(enrolment)
    say("connected")
    for trial in orders(Trial):
        say(contender.attempts(trial))


if __name__ == "__main__":
    main()
