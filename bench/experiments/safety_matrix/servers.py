"""Claims about servers that restart or keep wrong time (the shim): *another client asks → what overlaps, in figures*.

    restart-margin     no persistence, one restart: exclusivity is lost at a vote margin of 0 (odd N)
    clean-shutdown     AOF and SHUTDOWN lose nothing; time passes while it is off
    delayed-restart    restarted servers that abstain for the longest TTL are safe, and cost that time
    validity-drift     server clocks wrong by less than the drift factor (1 %): leases must not overlap
    clock-drift        far beyond it (10 %) they do, as keys end by their servers' wall clocks: by how much is told

Rules: servers are killed with -9 unless it says otherwise; every trial has its own resource. Source: README's table of
claims; the Redlock text, "Performance, crash recovery and fsync"; bench.topology.shim.
"""

from __future__ import annotations

import signal
import time
from math import inf

from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.leases import INSTANCES, PREFIX, confirmed, connect, double_grant, left_ms
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import SKIPPED, RowSetup, cannot
from bench.recipes.schedules.pace import Pace
from bench.scenario import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.site import Site
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore import Denied, Lease, Redlock
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

TTL_MS, MAX_TTL_MS = 1000, 1200
OFF_S = 0.5
_PATIENCE_NS = 5 * NS_PER_S
_NOTICED_MS = 250  # what a key's end may be off: far less than the time it was off, or time had stood still


def restart_margin(setup: RowSetup) -> Finding:
    """One of the voters restarts empty: N=3 with a vote to spare and without, N=4 without."""
    trials = 3 if setup.quick else 20
    figures: dict[str, float | None] = {"trials": trials}
    answered = True
    for instances, margin in ((3, 1), (3, 0), (4, 0)):
        with start_fleet(instances, "none") as fleet:
            asked = [_asked_after_restart(fleet, margin, f"{instances}-{margin}-{trial}") for trial in range(trials)]
        answered = answered and None not in asked
        figures[f"double_grants_n{instances}_margin_{margin}"] = asked.count(True)
    safe = figures["double_grants_n3_margin_1"], figures["double_grants_n4_margin_0"]
    needs = {"the votes were as planned, and the second client was answered in time": answered}
    lost = figures["double_grants_n3_margin_0"] == trials
    return confirmed(lost, figures, needs, broken=sum(lost or 0 for lost in safe))


def _asked_after_restart(fleet: Fleet, margin: int, resource: str) -> bool | None:
    """Lock so that `margin` votes are to spare, restart one voter, ask as another: a double grant? None: not asked."""
    last, quorum = len(fleet.urls) - 1, len(fleet.urls) // 2 + 1
    if not margin:
        fleet.kill(last)
    with connect(fleet.urls) as first:
        lease = first.acquire(resource, 10_000, 2000)
        voters = fleet.urls if margin else fleet.urls[:last]
        cast = sum(left_ms(url, resource) > 0 for url in voters)
        if not margin:
            fleet.restart(last)
        fleet.restart(0)
        with connect(fleet.urls) as second:
            asked = second.try_acquire(resource, 10_000)
        known = cast == quorum + margin and (isinstance(asked, Lease) or not asked.tally.silent)
        return double_grant(lease, asked) if known and monotonic_ns() < lease.valid_until_ns else None


def clean_shutdown(_setup: RowSetup) -> Finding:
    """A key with an end, SHUTDOWN (SIGTERM), a while, a start: how far is its end off?"""
    with start_fleet(1, "everysec") as fleet:
        set_ns = monotonic_ns()
        with Redis.from_url(fleet.urls[0]) as server:
            server.set(PREFIX + "s", "x", px=5000)
        ends_ns = monotonic_ns() + 5000 * NS_PER_MS
        fleet.kill(0, signal.SIGTERM)
        time.sleep(OFF_S)
        fleet.restart(0)
        asked_ns = monotonic_ns()
        found_ms = left_ms(fleet.urls[0], "s")
    answered_ns = monotonic_ns()
    error_ms = found_ms - (ends_ns - answered_ns) / NS_PER_MS
    unsure_ms = (ends_ns - set_ns - 5000 * NS_PER_MS + answered_ns - asked_ns) / NS_PER_MS
    needs = {
        "the server was asked before the key's end": answered_ns < set_ns + 5000 * NS_PER_MS,
        f"it answered within {_NOTICED_MS / 2:g} ms": unsure_ms < _NOTICED_MS / 2,
    }
    lost = found_ms < 0 and all(needs.values())
    return confirmed(
        abs(error_ms) < _NOTICED_MS, {"lost_keys": int(lost), "end_off_ms": error_ms}, needs, broken=int(lost)
    )


def delayed_restart(_setup: RowSetup) -> Finding:
    """One, a majority, all restart without persistence; a client trusts them at once, or has them abstain."""
    figures: dict[str, float | None] = {}
    back_s: list[float] = []
    with Pace() as pace:
        for name, restarted in (("one", (0,)), ("majority", (0, 1)), ("all", (0, 1, 2))):
            with start_fleet(3, "none") as fleet:
                trusting, _, back = _asked_after(fleet, restarted, "trust")
                doubled, unavailable_s, again = _asked_after(fleet, restarted, "trust-first")
            figures[f"double_grants_trusting_{name}"] = int(trusting)
            figures[f"double_grants_delayed_{name}"] = int(doubled)
            figures[f"unavailable_{name}_s"] = unavailable_s
            back_s += (back, again)
    broken = sum(value or 0 for name, value in figures.items() if "delayed" in name)
    one_s, majority_s = figures["unavailable_one_s"], figures["unavailable_majority_s"]
    costs_a_ttl = one_s is not None and majority_s is not None and one_s < MAX_TTL_MS / 1000 <= majority_s
    lost = bool(figures["double_grants_trusting_all"] and figures["double_grants_trusting_majority"])
    needs = {
        "every server was back within half a lease": max(back_s) < TTL_MS / 2000,
        "a free lock was granted in the end": one_s is not None and majority_s is not None,
        **pace.kept(TTL_MS / 10),
    }
    return confirmed(lost and costs_a_ttl, figures, needs, broken=broken)


def _asked_after(fleet: Fleet, restarted: tuple[int, ...], rejoin: str) -> tuple[bool, float | None, float]:
    """Whether a client that knew the servers got the held lock too early; seconds from the kill to a free lock; and
    until they were back."""
    resource = f"d-{rejoin}-{len(restarted)}"
    with (
        connect(fleet.urls, max_ttl_ms=MAX_TTL_MS) as first,
        connect(fleet.urls, max_ttl_ms=MAX_TTL_MS, rejoin=rejoin) as second,
    ):
        lease = first.acquire(resource, TTL_MS)
        for index in restarted:
            fleet.kill(index)
        died_ns = monotonic_ns()
        for index in restarted:
            fleet.restart(index)
        back_s = (monotonic_ns() - died_ns) / NS_PER_S
        held, free = _until_granted(second, resource, resource + "-free")
    unavailable_s = (free.granted_ns - died_ns) / NS_PER_S if isinstance(free, Lease) else None
    return double_grant(lease, held), unavailable_s, back_s


def _until_granted(lock: Redlock, *resources: str) -> list[Lease | Denied]:
    """Ask for each of the resources until it is granted, at most for a while."""
    deadline_ns = monotonic_ns() + _PATIENCE_NS
    results = [lock.try_acquire(resource, TTL_MS) for resource in resources]
    while not all(results) and monotonic_ns() < deadline_ns:
        time.sleep(0.002)
        results = [
            result or lock.try_acquire(resource, TTL_MS) for result, resource in zip(results, resources, strict=True)
        ]
    return results


# -- clocks ----------------------------------------------------------------------------------------------------------

WITHIN, BEYOND = (0.995, 1.005), (0.9, 1.1)
TIMES = 3  # a busy machine lets the next one ask too late to see an overlap
LEAST_MS = 5.0  # retries come 2 ms apart


def validity_drift(setup: RowSetup) -> Finding:
    """Clocks off by half of the drift factor: no overlap."""
    return _look(setup, WITHIN)


def clock_drift(setup: RowSetup) -> Finding:
    """Clocks off by ten times the drift factor: the fast ones let a lease overlap the next."""
    return _look(setup, BEYOND)


def _look(setup: RowSetup, rates: tuple[float, ...]) -> Finding:
    ttl_ms = 1000 if setup.quick else 2000
    figures: dict[str, float | None] = {}
    needs: dict[str, bool] = {}
    for rate in rates:
        try:
            overlap_ms, lived_ms = _overlap_ms(rate, ttl_ms, setup)
        except EnvironmentNotReadyError as error:
            return cannot(SKIPPED, str(error))
        figures[f"overlap_ms_at_rate_{rate:g}"], figures[f"lived_ms_at_rate_{rate:g}"] = overlap_ms, lived_ms
        needs |= came_about(rate, ttl_ms, lived_ms)
    overlaps = [value or 0 for name, value in figures.items() if name.startswith("overlap")]
    figures["ttl_ms"] = ttl_ms
    if rates == WITHIN:
        return confirmed(True, figures, needs, broken=sum(overlaps))
    return confirmed(overlaps[0] == 0 and overlaps[1] > 0, figures, needs)


def came_about(rate: float, ttl_ms: int, lived_ms: float) -> dict[str, bool]:
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
    server = find_server(setup.server)
    overlap_ns, lived_ms = 0, inf
    with (
        Site(needs_of(orders)) as site,
        start_fleet(
            INSTANCES, "none", server=server, environment=site.environment, config=site.config(server)
        ) as fleet,
    ):
        site.attach(fleet)
        for order in orders:
            _begin(injection(site, order))
        for number in range(TIMES):
            with connect(fleet.urls) as first, connect(fleet.urls) as second:
                held = first.acquire(f"c{number}", ttl_ms)
                following = second.acquire(f"c{number}", ttl_ms, 2 * ttl_ms)
            overlap_ns = max(held.valid_until_ns - following.granted_ns, overlap_ns)
            lived_ms = min(lived_ms, (following.granted_ns - held.started_ns) / NS_PER_MS)
            if all(came_about(rate, ttl_ms, lived_ms).values()):
                break
    return overlap_ns / NS_PER_MS, lived_ms


def _begin(fault: Injection) -> None:
    if reason := fault.why_not():
        raise EnvironmentNotReadyError(reason)
    fault.begin()
