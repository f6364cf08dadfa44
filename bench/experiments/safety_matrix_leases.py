"""Claims about leases: *a course of events on lockcore's Redlock → figures, confirmed or refuted*.

    votes        granted on N/2+1 only, and never when the validity has run out
    release      sent to all, whether or not a vote was believed granted
    extension    on a quorum only, before the lease's own end only, so often and no more
    partition    a holder that is cut off costs its TTL

Rules: two leases at once are a violation whatever was claimed. Source: README's table of claims; the Redlock text.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis

from bench.experiments.safety_matrix_row import AS_EXPECTED, NOT_SHOWN, VIOLATED, Figures, Finding, Ground
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.ports import HOST
from bench.topology.proxy import Proxies, Shape
from lockcore import Denied, Lease, Outcome, Redlock, RetryPolicy
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from lockcore.quorum import outcome_of, quorum_of

PREFIX = "lockbench:claim:"
INSTANCES = 3
_LOOK_S = 0.002
_BACK_MS = 5_000  # an instance that was stopped has a backlog to answer before it votes again


def connect(urls: Sequence[str], **settings: Any) -> Redlock:
    """A client of its own; it trusts every server unless `settings` say otherwise."""
    told = {"key_prefix": PREFIX, "rejoin": "trust", "retry": RetryPolicy("full-jitter", 2.0, 100_000), **settings}
    return Redlock.connect(urls, shell="threads", **told)  # noqa: S604 - this shell is a way of waiting


def confirmed(holds: bool, figures: Figures, *, broken: float | None = 0, reason: str | None = None) -> Finding:
    """The finding of a claim that `holds` or does not; `broken`: how often exclusion was, where it must not be."""
    if broken:
        return Finding("refuted", VIOLATED, figures, reason)
    return (
        Finding("confirmed", AS_EXPECTED, figures, reason) if holds else Finding("refuted", NOT_SHOWN, figures, reason)
    )


def double_grant(first: Lease, second: Lease | Denied) -> bool:
    """Whether `second`, got while the holder of `first` had not given back, was granted while `first` was valid."""
    return isinstance(second, Lease) and second.granted_ns < first.valid_until_ns


def sleep_until(due_ns: int) -> None:
    """Return at this monotonic time."""
    time.sleep(max(due_ns - monotonic_ns(), 0) / NS_PER_S)


def votes(ground: Ground) -> Finding:
    """All vote tables by count; then a TTL so short that replies, late by chance, come after the validity has ended."""
    below, tables = 0, 0
    for instances in range(1, 6):
        for table in itertools.product(range(5), repeat=instances):
            granted, refused = table.count(0), table.count(1)
            won = outcome_of(granted, refused, quorum_of(instances)) is Outcome.ACQUIRED
            tables, below = tables + 1, below + (won and granted < instances // 2 + 1)
    attempts = 300 if ground.quick else 3000
    with _behind_proxies() as (fleet, proxies, urls), connect(urls, drift_factor=0.5, max_ttl_ms=6) as lock:
        for index in range(len(fleet.urls)):
            proxies.shape(index, Shape(delay_ns=200_000, jitter_ns=1_500_000, slow=("from",)))
        results = [lock.try_acquire(f"v{number}", 6) for number in range(attempts)]
    late = sum(result.outcome is Outcome.TOO_LATE for result in results)
    invalid = sum(isinstance(result, Lease) and result.granted_ns >= result.valid_until_ns for result in results)
    granted = sum(isinstance(result, Lease) for result in results)
    figures: dict[str, float | None] = {
        "vote_tables": tables,
        "granted_below_quorum": below,
        "granted": granted,
        "too_late": late,
        "granted_after_their_end": invalid,
    }
    return confirmed(late > 0 and granted > 0, figures, broken=below + invalid)


def release_to_all(ground: Ground) -> Finding:
    """A minority, then a majority stands still; acquire, give back (or give up); it goes on: which votes stay?"""
    orphans = cast = 0
    rounds = 2 if ground.quick else 10
    with start_fleet(INSTANCES, "none") as fleet, connect(fleet.urls, instance_timeout_ms=20.0) as lock:
        for number, still in itertools.product(range(rounds), ((2,), (1, 2))):
            late, left = _given_back_over(fleet, still, lock, f"o{number}-{len(still)}")
            cast, orphans = cast + late, orphans + left
    return confirmed(cast > 0 and not orphans, {"late_votes": cast, "orphan_votes": orphans})


def _given_back_over(fleet: Fleet, still: Sequence[int], lock: Redlock, resource: str) -> tuple[int, int]:
    """Acquire and give back while the instances `still` stand: SETs they executed later, votes that stayed."""
    before = _sets(fleet, still)
    for index in still:
        fleet.stop(index)
    result = lock.try_acquire(resource, 10_000)
    if isinstance(result, Lease):
        lock.try_release(result)
    for index in still:
        fleet.cont(index)
    _until(lambda: _sets(fleet, still) >= before + len(still))
    _until(lambda: not _left(fleet, resource))
    return _sets(fleet, still) - before, _left(fleet, resource)


def extension(_ground: Ground) -> Finding:
    """A holder oversleeps its lease, then extends: while its keys still live, and when another holds the lock.

    With a drift factor of a half a lease ends long before its keys do.
    """
    with (
        start_fleet(INSTANCES, "none") as fleet,
        connect(fleet.urls, drift_factor=0.5) as first,
        connect(fleet.urls, retry=RetryPolicy("full-jitter", 2.0, 100_000, retry_unreachable=True)) as second,
    ):
        lease = second.acquire("i", 400)
        in_time = _extended(second, lease)
        held = first.acquire("e", 500)
        sleep_until(held.valid_until_ns + 5 * NS_PER_MS)
        after = _extended(first, held)
        other = second.acquire("e", 2000, 1000)
        before_ms = _ends_in_ms(fleet, "e")
        foreign = _extended(first, held) + (_ends_in_ms(fleet, "e") > before_ms)
        second.release(other)
        lease = second.acquire("m", 400)
        for index in (1, 2):
            fleet.stop(index)
        minority = _extended(second, lease)
        for index in (1, 2):
            fleet.cont(index)
        unlimited = _kept_beyond(second)
    never = {
        "extended_after_their_end": after,
        "foreign_extensions": foreign,
        "extended_by_a_minority": minority,
        "extended_beyond_their_number": unlimited,
    }
    return confirmed(bool(in_time), {"extended_in_time": in_time, **never}, broken=sum(never.values()))


def partition(_ground: Ground) -> Finding:
    """The holder is cut off before it can give back; another waits. Blocked time, in TTLs."""
    ttl_ms = 500
    with _behind_proxies() as (fleet, proxies, urls), connect(urls) as holder, connect(fleet.urls) as waiting:
        lease = holder.acquire("p", ttl_ms)
        for index in range(INSTANCES):
            proxies.shape(index, Shape(held=("to", "from")))
        cut_ns = monotonic_ns()
        holder.try_release(lease)
        granted = waiting.acquire("p", ttl_ms, 4 * ttl_ms)
        holder.close(0.0)
    blocked = (granted.granted_ns - cut_ns) / NS_PER_MS / ttl_ms
    figures: dict[str, float | None] = {"blocked_ms": blocked * ttl_ms, "blocked_per_ttl": blocked}
    return confirmed(0.5 < blocked < 1.5, figures, broken=int(double_grant(lease, granted)))


class _behind_proxies:  # noqa: N801 - reads as a verb where it is used
    """A fleet and proxies before it: entered, they are (fleet, proxies, the proxies' URLs)."""

    def __enter__(self) -> tuple[Fleet, Proxies, tuple[str, ...]]:
        self._fleet = start_fleet(INSTANCES, "none")
        try:
            self._proxies = Proxies([instance.port for instance in self._fleet.instances])
        except BaseException:
            self._fleet.close()
            raise
        return self._fleet, self._proxies, tuple(f"redis://{HOST}:{port}" for port in self._proxies.ports)

    def __exit__(self, *_raised: object) -> None:
        self._proxies.close()
        self._fleet.close()


def _extended(lock: Redlock, lease: Lease) -> int:
    return int(isinstance(lock.try_extend(lease), Lease))


def _kept_beyond(lock: Redlock) -> int:
    """How many more extensions than the two it was allowed a lease kept alive got."""
    lease = lock.acquire("k", 150, _BACK_MS)
    keeper = lock.keep_alive(lease, every_ms=50, extensions=2)
    sleep_until(lease.granted_ns + 600 * NS_PER_MS)
    held = lock.try_acquire("k", 150)
    keeper.stop()
    return int(held.outcome is Outcome.CONTENDED)


def _until(reached: Callable[[], bool]) -> None:
    """Return when it is so, or after a second."""
    deadline_ns = monotonic_ns() + NS_PER_S
    while not reached() and monotonic_ns() < deadline_ns:
        time.sleep(_LOOK_S)


def _left(fleet: Fleet, resource: str) -> int:
    """The votes for `resource` that are there."""
    return sum(_exists(url, resource) for url in fleet.urls)


def _sets(fleet: Fleet, instances: Sequence[int]) -> int:
    """How many SETs these instances have executed."""
    calls = 0
    for index in instances:
        with Redis.from_url(fleet.urls[index]) as server:
            statistics: Any = server.info("commandstats")
        calls += int(statistics.get("cmdstat_set", {"calls": 0})["calls"])
    return calls


def _ends_in_ms(fleet: Fleet, resource: str) -> int:
    with Redis.from_url(fleet.urls[0]) as server:
        answer: Any = server.pttl(PREFIX + resource)
    return int(answer)


def _exists(url: str, resource: str) -> int:
    with Redis.from_url(url) as server:
        answer: Any = server.exists(PREFIX + resource)
    return int(answer)
