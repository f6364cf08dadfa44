"""The board "Generator health and comparison": *instruments → may this run be believed; is it better than that one*.

Rules: ratios are chosen ÷ baseline, of whole runs; 1 = alike. For a verdict with an interval use `lockbench compare`
or `gate`: one run against one run only shows where to look. Source: README, "generator".
"""

from bench.telemetry.table import BY_NAME
from dashboards.panels import (
    RUN,
    Query,
    acquire_quantile,
    board,
    choice,
    line,
    lines,
    number,
    quantile,
    rate,
    ratio,
    row,
    total,
    typical,
)

UID = "lockbench-generator"
_BASE = "$baseline"
_WORKER = ("redlock_worker",)


def _against(chosen: Query, baseline: Query) -> Query:
    return Query(f"{chosen.expr} / {baseline.expr}", "x")


def _latency(q: float) -> Query:
    return _against(acquire_quantile(q, whole=True), acquire_quantile(q, whole=True, run=_BASE))


def _per_lease(name: str, part: str = "") -> Query:
    parts = []
    for run in ("$run", _BASE):
        leases = total("redlock.acquire.outcomes", run=run, redlock_outcome="acquired")
        parts.append(Query(f"({ratio(total(name, part=part, run=run), leases).expr})", ""))
    return _against(*parts)


_cpu = rate("redlock.client.cpu", _WORKER)
_lag = [quantile(q, "redlock.scheduler.lag").named(name) for q, name in ((0.5, "p50"), (0.99, "p99"))]
_HEALTH = row(
    "Health",
    line(
        4,
        number(
            "Scheduler lag p99",
            "How late a load process wakes, over the runs in view.",
            quantile(0.99, "redlock.scheduler.lag", whole=True),
            red_above=0.01,
        ),
        number(
            "Late starts",
            "Operations that the timer started late, in the runs in view.",
            total("redlock.load.late_starts"),
        ),
        number(
            "Queued starts", "Operations that were due while no caller was free.", total("redlock.load.queued_starts")
        ),
        number(
            "Telemetry dropped",
            "Made and not arrived: attempts and spans cost replies and traces, exports moments; counts stay whole.",
            total("redlock.telemetry.dropped"),
        ),
    ),
    line(
        8,
        lines("CPU of the load", "Of one core, by load process. From 90 % on the rate is a lower bound.", _cpu),
        lines("Scheduler lag", "How late a load process wakes; probed every 10 ms.", *_lag),
    ),
)


_speed = _against(typical("redlock.load.achieved"), typical("redlock.load.achieved", run=_BASE))
_RATIOS = row(
    "Chosen run ÷ baseline",
    line(
        4,
        number("Rate", "Typical leases per second; above 1 the chosen run is faster.", _speed),
        number("Acquire p50", "Below 1 the chosen run is faster.", _latency(0.5)),
        number("Acquire p99", "Below 1 the chosen run is faster.", _latency(0.99)),
        number("Client CPU per lease", "Below 1 the chosen run is cheaper.", _per_lease("redlock.client.cpu")),
        number("Server CPU per lease", "Below 1 the chosen run is cheaper.", _per_lease("redis.cpu.time")),
    ),
)


def generator() -> str:
    """The board as JSON."""
    about = "Whether the load generator was good enough to be believed, and the chosen run against a baseline."
    runs = f"label_values({BY_NAME['redlock.run.info'].prometheus}, {RUN})"
    baseline = choice("baseline", "Baseline", "the run that is 1.0 in the ratios", runs, multi=False)
    return board("lockbench: Generator health and comparison", UID, about, (_HEALTH, _RATIOS), (baseline,))
