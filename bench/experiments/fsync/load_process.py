"""The load process of `lockbench fsync`: *an order and phases on stdin → figures on stdout*, a line of JSON each.

    clients × pipeline   so many locks (one connection to each instance), so many callers that share each of them
    closed loop          every caller acquires and releases its own resource, as fast as it is answered: the maximum
    open loop            a Poisson process hands arrivals to free callers: latency from the intended start

Rules
- Nobody contends for a resource, so what is waited for is the servers and their disks. The instance time-out is the
  longest there is (a quarter of the TTL), so that a slow fsync is measured. Every caller ends its cycle before a phase
  ends, so nothing is left on the servers. When the parent goes, so does this process.
- WAITAOF: a vote needs both, the key was set and WAITAOF's reply counts the local fsync. It answers at its time-out,
  too, with what it has: the count is checked, never assumed. It causes no fsync, it waits for the server's next one.
- WAITAOF blocks its connection, so callers that share one are served in groups: whatever was asked for while a group
  waited goes together, its SETs and releases first and one WAITAOF behind them. A connection that breaks raises.

Source: Redlock on gevent (lockcore), pacer.py for the open loop; the reference page of WAITAOF (Redis 7.2, Valkey 8.0).
"""

from __future__ import annotations

import ssl
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple, Protocol

import gevent
import hiredis
import numpy as np
from gevent.event import Event
from gevent.socket import wait_read, wait_write
from greenlet import getcurrent

from bench.experiments.fsync.load import CONNECTED, TIMEOUT_MS, TTL_MS, LoadOrder, Phase
from bench.experiments.fsync.result import PhaseFigures, WaitaofCounts
from bench.measure.histogram import Histogram
from bench.topology.child import orders, say
from bench.workloads.alarm import PreciseAlarm
from bench.workloads.arrivals import offsets_ns
from bench.workloads.pacer import Pacer
from lockcore import Denied, LagCap, Lease, Outcome, Redlock, RetryPolicy
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from lockcore.commands import FIRST_NUMBER, OWNER_TOKEN_BYTES, claim_stem, set_nx_px
from lockcore.quorum import quorum_of
from lockcore.resp import request
from lockcore.shells.handshake import Connected, shake
from lockcore.shells.target import InstanceTarget, target_of

CONNECT_S = 5.0
WAITAOF_MS = 2000
REST_S = 0.005  # after a denied acquire
MOST_AWAITED = 1 << 20
READ_BYTES = 65536
DRIFT_FACTOR, DRIFT_MS = 0.01, 2
_PREFIX_CHARACTERS = OWNER_TOKEN_BYTES - 15
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LoadedLock(Protocol):
    """What a caller uses."""

    def acquire(self, resource: str) -> Any | str:
        """A lease, or the name of the outcome of an acquire that got none."""

    def release(self, lease: Any) -> bool:
        """Give it back; True when a quorum had it."""


class PlainLock:
    """lockcore's Redlock on gevent."""

    def __init__(self, order: LoadOrder) -> None:
        self._lock = Redlock.connect(  # noqa: S604 - a shell is a way of waiting here
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

    def acquire(self, resource: str) -> Lease | str:
        """See LoadedLock."""
        result = self._lock.try_acquire(resource, TTL_MS)
        return result.outcome.name.lower() if isinstance(result, Denied) else result

    def release(self, lease: Lease) -> bool:
        """See LoadedLock."""
        return self._lock.try_release(lease) is Outcome.RELEASED


# -- acquires that wait for the disk -----------------------------------------------------------------------------------


class _Replies:
    """The answers to one command that went to all instances, and whoever waits for them."""

    __slots__ = ("answered", "changed", "votes")

    def __init__(self) -> None:
        self.votes = self.answered = 0
        self.changed = Event()

    def add(self, granted: bool) -> None:
        """One instance has answered."""
        self.answered += 1
        self.votes += granted
        self.changed.set()


class _Sent(NamedTuple):
    """A claim's SET, or its release."""

    claim: bytes
    releasing: bool
    replies: _Replies


class _DiskWaiting:
    """One instance, one group of commands at a time."""

    def __init__(self, shaken: Connected, counts: Counter[str]) -> None:
        self._sock = shaken.sock
        self._release = shaken.dialect.encode_release
        self._head, self._tail = set_nx_px(TTL_MS)
        self._wait = request(b"WAITAOF", b"1", b"0", b"%d" % WAITAOF_MS)
        self._counts = counts
        self._reader = hiredis.Reader()
        self._asked: list[_Sent] = []
        self._work = Event()
        owner = getcurrent()
        gevent.spawn(self._serve).link_exception(lambda ended: gevent.kill(owner, ended.exception))

    def ask(self, sent: _Sent) -> None:
        """Send this with the next group."""
        self._asked.append(sent)
        self._work.set()

    def _serve(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            group, self._asked = self._asked, []
            acquires = not all(sent.releasing for sent in group)
            self._send(b"".join([*map(self._encoded, group), self._wait if acquires else b""]))
            replies = [self._reply() for _ in group]
            durable = acquires and self._is_durable(self._reply())
            for sent, reply in zip(group, replies, strict=True):
                sent.replies.add(reply == 1 if sent.releasing else reply == b"OK" and durable)

    def _encoded(self, sent: _Sent) -> bytes:
        return self._release(sent.claim) if sent.releasing else self._head + sent.claim + self._tail

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left.tobytes()) :]
            except _BLOCKED:
                wait_write(self._sock.fileno())

    def _is_durable(self, reply: Any) -> bool:
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionError(f"WAITAOF failed: {reply}")
        durable = bool(reply[0] >= 1)
        self._counts["asked"] += 1
        self._counts["confirmed" if durable else "unconfirmed"] += 1
        return durable

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            try:
                data = self._sock.recv(READ_BYTES)
            except _BLOCKED:
                wait_read(self._sock.fileno())
                continue
            if not data:
                raise ConnectionError("an instance closed the connection")
            self._reader.feed(data)
        return reply


class WaitAofLock:
    """A quorum of instances, one connection to each. `counts`: WAITAOF replies asked, confirmed, unconfirmed."""

    def __init__(self, targets: Sequence[InstanceTarget], counts: Counter[str]) -> None:
        """Connect. Raises InstanceError when an instance cannot take part."""
        pool = gevent.get_hub().threadpool
        shaken = [job.get() for job in [pool.spawn(shake, target) for target in targets]]
        self._instances = [_DiskWaiting(one, counts) for one in shaken]
        self._quorum = quorum_of(len(targets))
        self._validity_ns = int((TTL_MS * (1 - DRIFT_FACTOR) - DRIFT_MS) * NS_PER_MS)
        self._prefix = targets[0].key_prefix
        self._token = token_urlsafe(_PREFIX_CHARACTERS)[:_PREFIX_CHARACTERS].encode()
        self._number = FIRST_NUMBER

    def acquire(self, resource: str) -> bytes | str:
        """The claim of a lease, or the name of the outcome of an acquire that got none; it is cleaned up then."""
        started_ns = monotonic_ns()
        self._number += 1
        claim = claim_stem(f"{self._prefix}{resource}".encode(), self._token) + b"%d\r\n" % self._number
        votes = self._votes(claim, releasing=False)
        if votes >= self._quorum and monotonic_ns() < started_ns + self._validity_ns:
            return claim
        self.release(claim)
        return "too_late" if votes >= self._quorum else "unreachable"

    def release(self, claim: bytes) -> bool:
        """Give it back on all instances; True when a quorum had it."""
        return self._votes(claim, releasing=True) >= self._quorum

    def _votes(self, claim: bytes, *, releasing: bool) -> int:
        """Ask all; return once a quorum said yes, or all have answered."""
        replies = _Replies()
        for instance in self._instances:
            instance.ask(_Sent(claim, releasing, replies))
        while replies.votes < self._quorum and replies.answered < len(self._instances):
            replies.changed.clear()
            replies.changed.wait()
        return replies.votes


# -- the load ----------------------------------------------------------------------------------------------------------


class PhaseTally:
    """What the callers of one phase did. Times in ns."""

    def __init__(self, window: tuple[int, int]) -> None:
        self.window = window
        self.intended, self.ended = array("q"), array("q")
        self.busy_ns = 0
        self.denied: Counter[str] = Counter()
        self.release_failures = 0

    def cycle(self, lock: LoadedLock, resource: str, intended_ns: int) -> None:
        """One acquire and its release, counted."""
        lease = lock.acquire(resource)
        ended_ns = monotonic_ns()
        if isinstance(lease, str):
            self.denied[lease] += 1
            gevent.sleep(REST_S)
        else:
            self.intended.append(intended_ns)
            self.ended.append(ended_ns)
            self.release_failures += not lock.release(lease)
        start_ns, stop_ns = self.window
        self.busy_ns += max(0, min(monotonic_ns(), stop_ns) - max(intended_ns, start_ns))

    def histogram(self) -> tuple[Histogram, int]:
        """The latencies of acquires due in the window, and how many were granted in the window, whenever due."""
        start_ns, stop_ns = self.window
        intended, ended = np.frombuffer(self.intended, np.int64), np.frombuffer(self.ended, np.int64)
        latencies = (ended - intended)[(intended >= start_ns) & (intended < stop_ns)]
        return Histogram.of(latencies), int(((ended >= start_ns) & (ended < stop_ns)).sum())


class Callers:
    """All callers, connected."""

    def __init__(self, order: LoadOrder) -> None:
        self._order, self._seed = order, order.seed
        self._counts: Counter[str] = Counter()
        self._locks = [self._connected() for _ in range(order.clients)]
        self._callers = list(zip(order.resources, self._locks * order.pipeline, strict=True))

    def _connected(self) -> LoadedLock:
        if not self._order.waitaof:
            return PlainLock(self._order)
        targets = [target_of(url, CONNECT_S, self._order.key_prefix) for url in self._order.urls]
        return WaitAofLock(targets, self._counts)

    def run(self, phase: Phase) -> PhaseFigures:
        """Load for one phase; returns when every caller has ended its cycle."""
        self._counts.clear()
        self._seed += 1
        origin_ns = monotonic_ns() + len(self._callers) * 20_000  # the time it takes to start them
        start_ns, stop_ns = (int(edge_s * NS_PER_S) for edge_s in (phase.warmup_s, phase.warmup_s + phase.seconds))
        tally, pacer = PhaseTally((origin_ns + start_ns, origin_ns + stop_ns)), None
        if phase.rate_per_s is not None:
            arrivals = offsets_ns(phase.rate_per_s, "poisson", self._seed)
            pacer = Pacer(PreciseAlarm(), arrivals, origin_ns, start_ns, stop_ns)
        before_ns = _scheduled_ns()
        gevent.joinall([gevent.spawn(_call, *caller, pacer, tally) for caller in self._callers], raise_error=True)
        ran_ns, waited_ns, took_ns = (after - before for after, before in zip(_scheduled_ns(), before_ns, strict=True))
        due = None
        if phase.rate_per_s is not None:
            due = due_between((start_ns, stop_ns), phase.rate_per_s, self._seed)
        return self._figures(phase, tally, pacer, due, (ran_ns / took_ns, waited_ns / took_ns))

    def _figures(
        self, phase: Phase, tally: PhaseTally, pacer: Pacer | None, due: int | None, ratios: tuple[float, float]
    ) -> PhaseFigures:
        histogram, granted = tally.histogram()
        start_ns, stop_ns = tally.window
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
            cpu_ratio=ratios[0],
            cpu_wait_ratio=ratios[1],
            littles_law_ratio=None if pacer else tally.busy_ns / (stop_ns - start_ns) / len(self._callers),
            lateness_p99_ns=int(np.percentile(pacer.lateness_ns, 99)) if pacer and pacer.lateness_ns else None,
            waitaof=WaitaofCounts(**self._counts) if self._order.waitaof else None,
        )


def _call(resource: str, lock: LoadedLock, pacer: Pacer | None, tally: PhaseTally) -> None:
    """Cycle until the window's end: as fast as it is answered, or as arrivals are due."""
    _, stop_ns = tally.window
    while (due_ns := monotonic_ns()) < stop_ns and (pacer is None or (due_ns := pacer.take())):
        tally.cycle(lock, resource, due_ns)


def _scheduled_ns() -> tuple[int, int, int]:
    """How long this thread has run, how long it has waited for a core, and the time."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text("ascii").split()
    return int(ran), int(waited), monotonic_ns()


def due_between(window: tuple[int, int], rate_per_s: float, seed: int) -> int:
    """How many arrivals the schedule has in the window (ns after its origin), started or not."""
    due = 0
    for offset_ns in offsets_ns(rate_per_s, "poisson", seed):
        if offset_ns >= window[1]:
            break
        due += offset_ns >= window[0]
    return due


def main() -> None:
    """Connect by the order, say so, then answer every phase with its figures."""
    order = next(orders(LoadOrder), None)
    if order is not None:
        callers = Callers(order)
        say(CONNECTED)
        for phase in orders(Phase):
            say(callers.run(phase))


if __name__ == "__main__":
    main()
