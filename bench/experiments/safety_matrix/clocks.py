"""Claims about clocks: *servers whose wall clocks run wrong (the shim), one lock after another → overlap in ms*.

Rules: a lease ends by the client's monotonic clock, less the drift factor's share; a key ends by its server's wall
clock. Within the factor (1 %) leases must not overlap; far beyond it (10 %) they do, and by how much is the figure.
Source: README's table of claims; bench.topology.shim.
"""

from __future__ import annotations

from math import inf

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.leases import INSTANCES, confirmed, connect
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import SKIPPED, RowSetup, cannot
from bench.scenario import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.site import Site
from bench.topology.fleet import start_fleet
from bench.topology.server import find_server
from lockcore.clock import NS_PER_MS

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
