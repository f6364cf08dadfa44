"""This module runs in a separate process, which plays a judged lock in virtual time. If the search
finds a schedule that breaks the lock, the answer of the process holds the smallest such schedule.

The process switches to virtual time before it imports the user's file. The explorer derives all its
times from one TTL. The explorer's TTL must be the TTL of the judged lock. The process sets the
explorer's TTL before it imports the other modules of the explorer. Source:
bench/experiments/explore/README.md.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.experiments.explore import schedule
from bench.experiments.judge.clients.lock import ClientOrder, Connect, Lock
from bench.experiments.judge.simulation import SimulationAnswer, SimulationOrder
from bench.experiments.judge.subject import ANSWERING, lock_of
from bench.topology.child import orders, say

if TYPE_CHECKING:
    from bench.experiments.explore.play import Played
    from lockcore import Denied, Lease

NAME = "judged"
# A client works for this share of the holder's TTL.
HOLD_SHARE = 0.3


def main() -> None:
    """Read orders, play the lock of each order, and write the answers."""
    # The lock may write to stdout. This text goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for order in orders(SimulationOrder):
        schedule.TTL_MS = order.ttl_ms
        answer = played(order)
        with redirect_stdout(answers):
            say(answer)


def played(order: SimulationOrder) -> SimulationAnswer:
    """Play schedules until enough schedules have broken the lock. Stop earlier if the number of
    schedules or the processor time reaches the limit in `order`.
    """
    from bench.experiments.explore import sockets
    from bench.experiments.explore.outside import watch
    from bench.experiments.explore.search import hunt, numbered

    if order.answers:
        ANSWERING.add(order.lock)
    sockets.take_over()
    watch()
    connects: list[Connect] = []

    def connect(urls: Sequence[str]) -> "_Locker":
        client = ClientOrder(order.lock, urls)
        if not connects:
            way, connect_lock = lock_of(client)
            if way != "threads":
                raise TypeError(
                    "the search cannot test an asynchronous lock, because an event loop runs in "
                    "real time"
                )
            connects.append(connect_lock)
        lock = connects[0](client)
        assert isinstance(lock, Lock)
        return _Locker(lock, order.ttl_ms)

    sockets.OWN_LOCKS[NAME] = connect
    setting = schedule.Setting(
        recipe=NAME,
        may={**schedule.ANY, "serve": ("stop", "flush")},
        clients=3,
        instances=order.instances,
        rounds=2,
        hold_ms=HOLD_SHARE * order.ttl_ms,
    )
    until_s = time.process_time() + order.seconds

    def schedules() -> "Iterator[tuple[schedule.Schedule, Played]]":
        for number in range(order.most):
            one = numbered(setting, number, order.seed)
            yield one
            if time.process_time() > until_s or one[1].raised:
                return

    search = hunt(schedules())
    answer = SimulationAnswer(search.played, search.tested, search.outside or search.raised)
    broken = search.broken
    if broken is None:
        return answer
    steps = [(step.ms, step.who, step.text) for step in broken.steps]
    return replace(answer, rule=broken.rule, number=broken.number, steps=steps)


class _Locker:
    """An adapter that gives the user's lock the interface of the explorer. If the lock raises an
    exception in acquire, this counts as a refusal, because a simulated server may be frozen. An
    exception in release is ignored, because the lease may have ended.
    """

    def __init__(self, lock: Lock, ttl_ms: int) -> None:
        self._lock = lock
        self._ttl_ms = ttl_ms
        self._held: dict[bytes, object] = {}

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> "Lease | Denied":
        """Acquire the lock with the user's own code. The validity of the lease is shorter than the
        TTL, because the servers' clocks run a little fast.
        """
        from bench.recipes.plain import DRIFT_FACTOR, GRANTED, HELD
        from lockcore import Denied, Lease
        from lockcore.bench import Closed
        from lockcore.clock import NS_PER_MS, drift_ns

        started_ns = time.monotonic_ns()
        try:
            held = self._lock.acquire(resource, ttl_ms, wait_ms)
        except Exception:  # noqa: BLE001 - as above
            held = None
        now_ns = time.monotonic_ns()
        if held is None:
            return Denied(resource, HELD.outcome, HELD.tally, 1, 0, started_ns, now_ns)
        token = str(id(held)).encode()
        self._held[token] = held
        valid_ns = self._ttl_ms * NS_PER_MS - drift_ns(self._ttl_ms, DRIFT_FACTOR)
        until_ns = started_ns + valid_ns
        closed = Closed(GRANTED)
        return Lease(resource, token, self._ttl_ms, started_ns, now_ns, until_ns, closed)

    def release(self, lease: "Lease") -> None:
        """Release the lock."""
        try:
            self._lock.release(self._held.pop(lease.owner_token))
        except Exception:  # noqa: BLE001 - as above
            return

    def close(self) -> None:
        """Do nothing, because the lock has nothing to clean up after a simulated world has
        ended.
        """


if __name__ == "__main__":
    main()
