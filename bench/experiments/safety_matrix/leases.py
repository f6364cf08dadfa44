"""Claims about leases: *a course of events on lockcore's Redlock → figures, confirmed or refuted*.

Two leases at once are a violation whatever was claimed. Source: the Redlock text.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any

from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.result import Figures, Finding
from bench.experiments.safety_matrix.row import SKIPPED, Pace, RowSetup, cannot, find, sets_of, sleep_until
from bench.measure.expectation import Preconditions
from bench.scenario import Fault
from bench.topology.child import Shape
from bench.topology.faults.injection import Need, prepared_fleet
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.fleet import Fleet, start_fleet, wait_until
from bench.topology.server import find_server
from lockcore import Denied, Lease, Outcome, Redlock, RetryPolicy
from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.quorum import outcome_of, quorum_of

PREFIX = "lockbench:claim:"
INSTANCES = 3
_PATIENCE_S = 5.0  # less than a lease of ten would end by itself
_LINKS = frozenset({Need.PROXY})
_SHORT_TTLS_MS = (6, 12, 24, 48)
_GRANTED = 30  # with fewer, one in ten may come after its end and not be seen (95 %)
_BACK_MS = 5_000  # an instance that was stopped has a backlog to answer before it votes again


def connect(urls: Sequence[str], **settings: Any) -> Redlock:
    """A client of its own; it trusts every server unless `settings` say otherwise."""
    told = {"key_prefix": PREFIX, "rejoin": "trust", "retry": RetryPolicy("full-jitter", 2.0, 100_000), **settings}
    return Redlock.connect(urls, shell="threads", **told)  # noqa: S604 - this shell is a way of waiting


def confirmed(
    holds: bool, figures: Figures, needs: Preconditions, *, broken: float | None = 0, reason: str | None = None
) -> Finding:
    """The finding of a claim that `holds` or does not, if what it `needs` came about; `broken`: how often exclusion."""
    return find(("confirmed", "refuted"), figures, needs, holds=holds, broken=bool(broken), reason=reason)


def double_grant(first: Lease, second: Lease | Denied) -> bool:
    """Whether `second`, got while the holder of `first` had not given back, was granted while `first` was valid."""
    return isinstance(second, Lease) and second.granted_ns < first.valid_until_ns


def left_ms(url: str, resource: str) -> int:
    """How long the key of `resource` has left on one server, −2 without one."""
    with Redis.from_url(url) as server:
        return int(server.pttl(PREFIX + resource))


def votes(setup: RowSetup) -> Finding:
    """All vote tables by count; then TTLs so short that replies, late by chance, come after the validity has ended.

    A busy machine grants none of the shortest: then the next longer one is tried.
    """
    below, tables = 0, 0
    for instances in range(1, 6):
        for table in itertools.product(range(5), repeat=instances):
            granted, refused = table.count(0), table.count(1)
            won = outcome_of(granted, refused, quorum_of(instances)) is Outcome.ACQUIRED
            tables, below = tables + 1, below + (won and granted < instances // 2 + 1)
    granted = late = invalid = 0
    with prepared_fleet(_LINKS, INSTANCES, "none") as site:
        for index in range(INSTANCES):
            site.proxies.shape(index, Shape(delay_s=200e-6, jitter_s=1.5e-3, slow=("from",)))
        for ttl_ms in _SHORT_TTLS_MS:
            with connect(site.urls, drift_factor=0.5, max_ttl_ms=ttl_ms) as lock:
                results = [
                    lock.try_acquire(f"v{ttl_ms}-{number}", ttl_ms) for number in range(300 if setup.quick else 3000)
                ]
            leases = [result for result in results if isinstance(result, Lease)]
            granted += len(leases)
            late += sum(result.outcome is Outcome.TOO_LATE for result in results)
            invalid += sum(lease.granted_ns >= lease.valid_until_ns for lease in leases)
            if all(came_about(granted, late).values()):
                break
    figures: dict[str, float | None] = {
        "vote_tables": tables,
        "granted_below_quorum": below,
        "granted": granted,
        "too_late": late,
        "granted_after_their_end": invalid,
    }
    return confirmed(True, figures, came_about(granted, late), broken=below + invalid)


def came_about(granted: int, late: int) -> dict[str, bool]:
    """What the claim about votes rests on: a rule that was never asked says nothing."""
    return {f"at least {_GRANTED} were granted": granted >= _GRANTED, "somebody came too late": late > 0}


def release_to_all(setup: RowSetup) -> Finding:
    """A minority, then a majority stands still; acquire, give back (or give up); it goes on: which votes stay?"""
    orphans = cast = 0
    rounds = 2 if setup.quick else 10
    with start_fleet(INSTANCES, "none") as fleet, connect(fleet.urls, instance_timeout_ms=20.0) as lock:
        for number, still in itertools.product(range(rounds), ((2,), (1, 2))):
            late, left = _given_back_over(fleet, still, lock, f"o{number}-{len(still)}")
            cast, orphans = cast + late, orphans + left
    needs = {"an instance granted late": cast > 0}
    return confirmed(not orphans, {"late_votes": cast, "orphan_votes": orphans}, needs)


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
    with suppress(EnvironmentNotReadyError):
        wait_until(lambda: _sets(fleet, still) >= before + len(still), _PATIENCE_S, "its SETs were not executed")
    with suppress(EnvironmentNotReadyError):
        wait_until(lambda: not _left(fleet, resource), _PATIENCE_S, "its votes stayed")
    return _sets(fleet, still) - before, _left(fleet, resource)


def extension(_setup: RowSetup) -> Finding:
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
        answered = in_time or monotonic_ns() < lease.valid_until_ns
        held = first.acquire("e", 500)
        sleep_until(held.valid_until_ns + 5 * NS_PER_MS)
        after = _extended(first, held)
        other = second.acquire("e", 2000, 1000)
        before_ms = left_ms(fleet.urls[0], "e")
        foreign = _extended(first, held) + (left_ms(fleet.urls[0], "e") > before_ms)
        second.release(other)
        lease = second.acquire("m", 400)
        for index in (1, 2):
            fleet.stop(index)
        asked_ns = monotonic_ns()
        minority = _extended(second, lease)
        for index in (1, 2):
            fleet.cont(index)
        unlimited, renewals = _kept_beyond(second)
    never = {
        "extended_after_their_end": after,
        "foreign_extensions": foreign,
        "extended_by_a_minority": minority,
        "extended_beyond_their_number": unlimited,
    }
    needs = {
        "an extension was answered before the lease's end": bool(answered),
        "a minority was asked before the lease's end": asked_ns < lease.valid_until_ns,
        "a lease was kept alive by its two extensions": renewals == 2,
    }
    return confirmed(bool(in_time), {"extended_in_time": in_time, **never}, needs, broken=sum(never.values()))


def partition(_setup: RowSetup) -> Finding:
    """The holder is cut off before it can give back; another waits. Blocked time, in TTLs."""
    ttl_ms = 500
    with (
        prepared_fleet(_LINKS, INSTANCES, "none") as site,
        connect(site.urls) as holder,
        connect(site.fleet.urls) as waiting,
        Pace() as pace,
    ):
        lease = holder.acquire("p", ttl_ms)
        for index in range(INSTANCES):
            site.proxies.shape(index, Shape(held=("to", "from")))
        cut_ns = monotonic_ns()
        holder.try_release(lease)
        granted = waiting.acquire("p", ttl_ms, 4 * ttl_ms)
        holder.close(0.0)
    blocked = (granted.granted_ns - cut_ns) / NS_PER_MS / ttl_ms
    figures: dict[str, float | None] = {"blocked_ms": blocked * ttl_ms, "blocked_per_ttl": blocked}
    needs = {"the holder was cut off within its lease": cut_ns < lease.valid_until_ns, **pace.kept(ttl_ms / 10)}
    return confirmed(0.5 < blocked < 1.5, figures, needs, broken=int(double_grant(lease, granted)))


def _extended(lock: Redlock, lease: Lease) -> int:
    return int(isinstance(lock.try_extend(lease), Lease))


def _kept_beyond(lock: Redlock) -> tuple[int, int]:
    """Whether a lease kept alive is still there long after its two extensions, and how many of them it got.

    A busy machine may execute the last one late, so the lock is asked for until it is free, or for seconds.
    """
    lease = lock.acquire("k", 150, _BACK_MS)
    keeper = lock.keep_alive(lease, every_ms=50, extensions=2)
    sleep_until(lease.granted_ns + 600 * NS_PER_MS)
    free = lock.try_acquire("k", 150, wait_ms=_BACK_MS)
    keeper.stop()
    return int(free.outcome is Outcome.CONTENDED), keeper.renewals


def _left(fleet: Fleet, resource: str) -> int:
    """The votes for `resource` that are there."""
    return sum(left_ms(url, resource) != -2 for url in fleet.urls)


def _sets(fleet: Fleet, instances: Sequence[int]) -> int:
    """How many SETs these instances have executed."""
    calls = 0
    for index in instances:
        with Redis.from_url(fleet.urls[index]) as server:
            calls += sets_of(server)
    return calls


# -- clocks ----------------------------------------------------------------------------------------------------------

WITHIN, BEYOND = (0.995, 1.005), (0.9, 1.1)
TIMES = 3  # a busy machine lets the next one ask too late to see an overlap
LEAST_MS = 5.0  # retries come 2 ms apart


def validity_drift(setup: RowSetup) -> Finding:
    """Clocks off by half of the drift factor: no overlap."""
    return _clocks(setup, WITHIN)


def clock_drift(setup: RowSetup) -> Finding:
    """Clocks off by ten times the drift factor: the fast ones let a lease overlap the next."""
    return _clocks(setup, BEYOND)


def _clocks(setup: RowSetup, rates: tuple[float, ...]) -> Finding:
    ttl_ms = 1000 if setup.quick else 2000
    figures: dict[str, float | None] = {}
    needs: dict[str, bool] = {}
    for rate in rates:
        try:
            overlap_ms, lived_ms = _overlap_ms(rate, ttl_ms, setup)
        except EnvironmentNotReadyError as error:
            return cannot(SKIPPED, str(error))
        figures[f"overlap_ms_at_rate_{rate:g}"], figures[f"lived_ms_at_rate_{rate:g}"] = overlap_ms, lived_ms
        needs |= asked_in_time(rate, ttl_ms, lived_ms)
    overlaps = [value or 0 for name, value in figures.items() if name.startswith("overlap")]
    figures["ttl_ms"] = ttl_ms
    if rates == WITHIN:
        return confirmed(True, figures, needs, broken=sum(overlaps))
    return confirmed(overlaps[0] == 0 and overlaps[1] > 0, figures, needs)


def asked_in_time(rate: float, ttl_ms: int, lived_ms: float) -> dict[str, bool]:
    """That the next one got the lock as soon as a key that lives TTL ÷ rate was gone: later, no overlap can show.

    Keys on a clock that is slow outlive their lease, however late the next one asks.
    """
    if rate < 1:
        return {}
    missed_ms = lived_ms - ttl_ms / rate
    allowed_ms = max(abs(1 - 1 / rate) * ttl_ms / 2, LEAST_MS)
    return {
        f"at rate {rate:g} the next lease began within {allowed_ms:.0f} ms of the key's end": missed_ms < allowed_ms
    }


def _overlap_ms(rate: float, ttl_ms: int, setup: RowSetup) -> tuple[float, float]:
    """By how much a lease overlapped the next, and how long its key lived, both in ms: the promptest of TIMES.

    An overlap is certain, so the longest one counts. Raises BenchError.
    """
    targets = tuple(f"instance:{index}" for index in range(INSTANCES))
    orders = read_faults([Fault("clock-rate", 0, None, targets, "fixed", {"rate": rate})])
    overlap_ns, lived_ms = 0, inf
    with prepared_fleet(needs_of(orders), INSTANCES, "none", find_server(setup.server)) as site:
        for order in orders:
            fault = injection(site, order)
            if reason := fault.why_not():
                raise EnvironmentNotReadyError(reason)
            fault.begin()
        for number in range(TIMES):
            with connect(site.urls) as first, connect(site.urls) as second:
                held = first.acquire(f"c{number}", ttl_ms)
                following = second.acquire(f"c{number}", ttl_ms, 2 * ttl_ms)
            overlap_ns = max(held.valid_until_ns - following.granted_ns, overlap_ns)
            lived_ms = min(lived_ms, (following.granted_ns - held.started_ns) / NS_PER_MS)
            if all(asked_in_time(rate, ttl_ms, lived_ms).values()):
                break
    return overlap_ns / NS_PER_MS, lived_ms
