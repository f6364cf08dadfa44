"""Makes the load of `lockbench fsync` in a process of its own: *an order and several phases on
stdin → the figures of each phase on stdout*. Each message is a line of JSON.

In closed loop, each caller acquires and releases a resource of its own. The caller starts again as
soon as it gets the reply. In open loop, acquires arrive as a Poisson process, and free callers take
them. The latency of an acquire counts from its intended start. The time-out for an instance's reply
is as long as possible. So a slow fsync does not lead to a time-out, and the measured latency
includes the whole fsync. All callers finish their cycle before a phase ends, so no lock stays on
the servers.

Under the policy `waitaof`, the lock sends WAITAOF after each SET. The vote of an instance counts if
the instance has set the key and its reply to WAITAOF reports a local fsync. An instance also
replies when the time-out of WAITAOF ends, so the lock checks the number in the reply. WAITAOF does
not start an fsync. WAITAOF waits for the server's next fsync and blocks the connection until then.
Because WAITAOF blocks a connection, each caller has connections of its own. The source is the
reference page of WAITAOF (Redis 7.2).
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from secrets import token_urlsafe

import gevent
import numpy as np
from gevent import monkey
from redis import Redis

from bench.experiments.durability.price_plan import TIMEOUT_MS, TTL_MS, WAITAOF_MS, LoadOrder, Phase
from bench.experiments.durability.price_result import PhaseFigures
from bench.measure.environment import scheduled_ns
from bench.measure.histogram import Histogram
from bench.scenario.quantity import parse_delay, parse_skew
from bench.topology.child import orders, say
from bench.topology.target import client_of, parse_targets
from bench.workloads.alarm import Pacer, PreciseAlarm
from bench.workloads.demand import Contention, due_between, offsets_ns
from lockcore import Denied, LagCap, Outcome, Redlock, RetryPolicy
from lockcore.bench import COMPARE_AND_DELETE, quorum_of
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns

CONNECT_S = 5.0
NO_DELAY = parse_delay("0")
# A caller waits for this time after a denied acquire.
REST_S = 0.005
MOST_AWAITED = 1 << 20

# A function that acquires a resource. If there is a lease, it returns a release function. Otherwise
# it returns the name of the outcome. The release function returns True if a quorum released the
# lock.
Acquire = Callable[[str], Callable[[], bool] | str]


def plain_lock(order: LoadOrder) -> Acquire:
    """Connect a lockcore Redlock for gevent. Return a function that acquires a resource with this
    Redlock."""
    lock = Redlock.connect(  # noqa: S604 - a shell is a way of waiting here
        order.urls,
        shell="gevent",
        key_prefix=order.key_prefix,
        max_ttl_ms=TTL_MS,
        instance_timeout_ms=TIMEOUT_MS,
        connect_timeout_s=CONNECT_S,
        lag_cap=LagCap(operations=MOST_AWAITED, age_ms=TIMEOUT_MS),
        rejoin="trust",
        retry=RetryPolicy("none"),
    )

    def acquire(resource: str) -> Callable[[], bool] | str:
        result = lock.try_acquire(resource, TTL_MS)
        if isinstance(result, Denied):
            return result.outcome.name.lower()
        return lambda: lock.try_release(result) is Outcome.RELEASED

    return acquire


class WaitAofLock:
    """The lock of one caller under the policy `waitaof`. The lock has a connection of its own to
    each instance."""

    def __init__(self, order: LoadOrder) -> None:
        """Connect to all instances. Raises RedisError if an instance refuses a connection or the
        release script."""
        self._servers = [client_of(target, CONNECT_S) for target in parse_targets(order.urls)]
        for server in self._servers:
            server.script_load(COMPARE_AND_DELETE.source)
        self._asked: list[gevent.Greenlet | None] = [None] * len(self._servers)
        self._quorum = quorum_of(len(self._servers))
        self._prefix = order.key_prefix

    def acquire(self, resource: str) -> Callable[[], bool] | str:
        """Try to acquire a resource. The type Acquire describes the return value. If the caller
        gets no lease, the method removes the keys that it has set."""
        valid_until_ns = monotonic_ns() + int(TTL_MS * NS_PER_MS) - drift_ns(TTL_MS, 0.01)
        key = f"{self._prefix}{resource}"
        token = token_urlsafe()
        sha = COMPARE_AND_DELETE.sha.decode()

        def release() -> bool:
            return self._has_quorum(lambda server: server.evalsha(sha, 1, key, token) == 1)

        granted = self._has_quorum(lambda server: self._set(server, key, token))
        if granted and monotonic_ns() < valid_until_ns:
            return release
        release()
        return "too_late" if granted else "unreachable"

    def _set(self, server: Redis, key: str, token: str) -> bool:
        commands = server.pipeline(transaction=False)
        commands.set(key, token, nx=True, px=TTL_MS)
        commands.waitaof(1, 0, WAITAOF_MS)
        was_set, synced = commands.execute()
        return bool(was_set) and bool(synced[0] >= 1)

    def _has_quorum(self, ask: Callable[[Redis], bool]) -> bool:
        """Ask all instances, and return whether a quorum answered yes. The method returns True as
        soon as there is a quorum. The method waits for the answers of all instances before it
        returns False.

        If an instance has not answered the previous question yet, the method waits for this answer
        before it asks the instance again.
        """

        def asked(server: Redis, before: gevent.Greenlet | None) -> bool:
            if before is not None:
                before.get()
            return ask(server)

        self._asked = [
            gevent.spawn(asked, *one) for one in zip(self._servers, self._asked, strict=True)
        ]
        votes = 0
        for answered in gevent.iwait(self._asked):
            votes += answered.get()
            if votes >= self._quorum:
                return True
        return False


class PhaseTally:
    """The results of all callers in one phase. Only operations inside `window` (ns) count. If there
    is no `pacer`, the phase is a closed loop, and each caller starts again as soon as it has a
    reply."""

    def __init__(self, window: tuple[int, int], pacer: Pacer | None = None) -> None:
        self.window = window
        self.pacer = pacer
        self.intended = array("q")
        self.ended = array("q")
        self.busy_ns = 0
        self.denied: Counter[str] = Counter()
        self.release_failures = 0

    def call(self, resource: str, acquire: Acquire, holds_ns: Iterator[int] | None = None) -> None:
        """Run one caller until the end of the window. The caller repeats a cycle in which it
        acquires the lock, holds the lock for the next time in `holds_ns`, and releases the lock."""
        start_ns, stop_ns = self.window
        while (due_ns := monotonic_ns()) < stop_ns and (
            self.pacer is None or (due_ns := self.pacer.take())
        ):
            release = acquire(resource)
            ended_ns = monotonic_ns()
            if isinstance(release, str):
                self.denied[release] += 1
                gevent.sleep(REST_S)
            else:
                self.intended.append(due_ns)
                self.ended.append(ended_ns)
                if holds_ns is not None:
                    gevent.sleep(next(holds_ns) / NS_PER_S)
                self.release_failures += not release()
            self.busy_ns += max(0, min(monotonic_ns(), stop_ns) - max(due_ns, start_ns))

    def histogram(self) -> tuple[Histogram, int]:
        """Return the latencies of all acquires that were due in the window. Also return the number
        of acquires that were granted in the window. This number includes acquires that were due
        before the window."""
        start_ns, stop_ns = self.window
        intended = np.frombuffer(self.intended, np.int64)
        ended = np.frombuffer(self.ended, np.int64)
        latencies = (ended - intended)[(intended >= start_ns) & (intended < stop_ns)]
        return Histogram.of(latencies), int(((ended >= start_ns) & (ended < stop_ns)).sum())


class Callers:
    """All connected callers. There are `clients` × `pipeline` callers, and each caller has a
    resource of its own."""

    def __init__(self, order: LoadOrder) -> None:
        cell = order.cell
        self._seed = order.seed
        resources = [f"r{caller}" for caller in range(cell.callers)]
        locks: list[Acquire]
        if cell.policy == "waitaof":
            locks = [WaitAofLock(order).acquire for _ in resources]
        else:
            locks = [plain_lock(order) for _ in range(cell.clients)] * cell.pipeline
        work = Contention(
            parse_skew("own"), len(resources), parse_delay(cell.hold), NO_DELAY, order.seed
        )
        self._callers = list(zip(resources, locks, map(work.holds_ns, count()), strict=False))

    def run(self, phase: Phase) -> PhaseFigures:
        """Run one phase of load, and return its figures. The method returns after all callers have
        finished their last cycle."""
        self._seed += 1
        # The origin lies in the future, because it takes 20 µs to start each caller.
        origin_ns = monotonic_ns() + len(self._callers) * 20_000
        start_ns, stop_ns = (
            int(edge_s * NS_PER_S) for edge_s in (phase.warmup_s, phase.warmup_s + phase.seconds)
        )
        pacer = None
        due = None
        if phase.rate_per_s is not None:
            arrivals = offsets_ns(phase.rate_per_s, "poisson", self._seed)
            pacer = Pacer(PreciseAlarm().wait_until, arrivals, origin_ns, start_ns, stop_ns)
            due = due_between(phase.rate_per_s, "poisson", self._seed, start_ns, stop_ns)
        tally = PhaseTally((origin_ns + start_ns, origin_ns + stop_ns), pacer)
        before_ns = *scheduled_ns(), monotonic_ns()
        gevent.joinall(
            [gevent.spawn(tally.call, *caller) for caller in self._callers], raise_error=True
        )
        after_ns = *scheduled_ns(), monotonic_ns()
        ran_ns, waited_ns, took_ns = (
            after - before for after, before in zip(after_ns, before_ns, strict=True)
        )
        histogram, granted = tally.histogram()
        littles_law_ratio = None
        if not pacer:
            littles_law_ratio = tally.busy_ns / (stop_ns - start_ns) / len(self._callers)
        lateness_p99_ns = None
        if pacer and pacer.lateness_ns:
            lateness_p99_ns = int(np.percentile(pacer.lateness_ns, 99))
        return PhaseFigures(
            seconds=phase.seconds,
            granted=granted,
            due=due,
            histogram=histogram.encode(),
            max_ns=histogram.max_ns,
            sum_ns=histogram.sum_ns,
            leases=len(tally.ended),
            denied=dict(tally.denied),
            release_failures=tally.release_failures,
            wanted_ratio=(ran_ns + waited_ns) / took_ns,
            littles_law_ratio=littles_law_ratio,
            lateness_p99_ns=lateness_p99_ns,
        )


def main() -> None:
    """Read a LoadOrder from stdin, connect its callers, and write "connected" to stdout. Then read
    phases from stdin, run each phase, and write the figures of each phase to stdout."""
    for order in islice(orders(LoadOrder), 1):
        # The WAITAOF lock uses redis-py, which needs gevent's patch. lockcore's own gevent shell
        # needs no patch.
        if order.cell.policy == "waitaof":
            monkey.patch_socket()
            monkey.patch_select()
        callers = Callers(order)
        say("connected")
        for phase in orders(Phase):
            say(callers.run(phase))


if __name__ == "__main__":
    main()
