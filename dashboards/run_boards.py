"""The boards of one run: *instruments → how fast, how late, how it ended; may it be believed; is it better*.

Rules: ratios are chosen ÷ baseline, of whole runs; 1 = alike. For a verdict with an interval use `lockbench compare`
or `gate`: one run against one run only shows where to look.
"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption

from bench.telemetry.table import BY_NAME
from dashboards.panels import (
    ACQUIRE,
    NAME,
    RATIO,
    RUN,
    Query,
    acquire_quantile,
    below,
    board,
    buckets,
    choice,
    heat,
    line,
    lines,
    mean,
    now,
    number,
    quantile,
    rate,
    ratio,
    row,
    total,
    whole_rate,
)

SLO_S = ("0.001", "0.0022", "0.0047", "0.01", "0.022", "0.047", "0.1", "0.22", "0.47")  # bounds of every histogram
_PERCENTILES = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"))


def _within() -> Query:
    """Acquired within `$slo`, over all that returned: failures are misses."""
    return ratio(below(ACQUIRE, "$slo", redlock_outcome="acquired"), total("redlock.acquire.outcomes"), RATIO)


def _gone() -> tuple[Query, Query]:
    gone, expired = rate("redlock.leases.gone"), rate("redis.keys.expired")
    return Query(gone.expr, "{lock}/s", "leases gone"), Query(expired.expr, "{lock}/s", "keys expired")


_violations = total("redlock.safety.violations", redlock_violation_kind="service_fault")
_whole = acquire_quantile(0.99, whole=True)
_leases = total("redlock.acquire.outcomes", redlock_outcome="acquired")
_GLANCE = row(
    "At a glance",
    line(
        4,
        number(
            "Safety violations",
            "Leases on one resource valid at the same time. Must be 0; no data: no oracle ran.",
            _violations,
            red_above=1,
        ),
        number("Leases judged", "By the oracle, for violations.", total("redlock.safety.judged_leases")),
        number("Leases", "Acquired in the runs in view, warm-up and drain included: `totals` of result.json.", _leases),
        number(
            "Rate of the whole run",
            "Leases over the time its users ran, warm-up and drain included; averaged over the runs in view.",
            whole_rate(),
        ),
        number("Acquire p99", "Of all acquires in view, from the intended start; 100 s: over 1 % failed.", _whole),
        number(
            "Within the SLO",
            "Acquired within the chosen time (at first 10 ms), of all acquires; failures are misses.",
            _within(),
        ),
    ),
)


_percentiles = [acquire_quantile(q).named(name) for q, name in _PERCENTILES]
_others = (
    quantile(0.99, "redlock.release.duration").named("release p99"),
    quantile(0.99, "redlock.hold.duration").named("hold p99"),
    quantile(0.99, "redlock.handoff.duration").named("hand-off p99"),
)
_offered, _achieved = (
    now("redlock.load.offered").named("offered"),
    now("redlock.load.achieved").named("achieved"),
)
_LATENCY = row(
    "Rate and latency",
    line(
        9,
        lines(
            "Rate offered and achieved",
            "Leases acquired per second, and in open loop the schedule's rate. A gap between the two: not sustained.",
            _achieved,
            _offered,
        ),
        lines(
            "Acquire latency, percentiles",
            "From the intended start, of all acquires: 100 s where too many failed. Points are exemplars: click one.",
            *_percentiles,
            exemplars=True,
        ),
    ),
    line(
        9,
        heat(
            "Acquire latency, heatmap",
            "How many acquires per second ended in each bucket, successes only.",
            buckets(ACQUIRE, redlock_outcome="acquired"),
        ),
        lines(
            "Release, hold and hand-off, p99",
            "Release: send to answer. Hold: grant to release. Hand-off: a holder's release to the next grant there.",
            *_others,
        ),
    ),
)


_outcomes = rate("redlock.acquire.outcomes", ("redlock_outcome",))
_callers = now("redlock.leases.held").named("holding"), now("redlock.callers.waiting").named("waiting")
_held = Query(_callers[0].expr, "{caller}", "holding")
_OUTCOMES = row(
    "Outcomes and callers",
    line(
        8,
        lines(
            "Outcomes",
            "Acquires that returned, by outcome: acquired, contended, split vote, unreachable, too late.",
            _outcomes,
            stacked=True,
        ),
        lines("Callers", "Callers that hold a lease and callers that wait for one.", _held, _callers[1], stacked=True),
    ),
    line(
        7,
        lines(
            "Validity left at the grant",
            "How long leases are still valid when granted: TTL minus the time taken minus drift.",
            mean("redlock.lease.validity").named("mean"),
        ),
        lines(
            "Leases gone and keys expired",
            "Leases found gone at their release, and keys that ran out on the servers: locks nobody released in time.",
            *_gone(),
        ),
        lines(
            "Faults",
            "1 while an injected fault is in force.",
            now("redlock.fault.active", ("redlock_fault_kind", "redlock_fault_target")),
        ),
    ),
)


def overview() -> str:
    """The board as JSON."""
    slo = dashboard.CustomVariable("slo").label("SLO (s)").description("an acquire should take no longer")
    about = "One run as it goes: rate, latency from the intended start, outcomes, callers. Start here."
    slo.current(VariableOption(selected=True, text="0.01", value="0.01"))
    extra = (slo.values(",".join(("0.01", *(bound for bound in SLO_S if bound != "0.01")))),)
    return board("lockbench: Run overview", "lockbench-run-overview", about, (_GLANCE, _LATENCY, _OUTCOMES), extra)


# -- generator health and comparison -----------------------------------------------------------------------------------

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


_speed = _against(whole_rate(), whole_rate(run=_BASE))
_RATIOS = row(
    "Chosen run ÷ baseline",
    line(
        4,
        number("Rate", "Leases per second of the whole run; above 1 the chosen run is faster.", _speed),
        number("Acquire p50", "Below 1 the chosen run is faster.", _latency(0.5)),
        number("Acquire p99", "Below 1 the chosen run is faster.", _latency(0.99)),
        number("Client CPU per lease", "Below 1 the chosen run is cheaper.", _per_lease("redlock.client.cpu")),
        number("Server CPU per lease", "Below 1 the chosen run is cheaper.", _per_lease("redis.cpu.time")),
    ),
)


def generator() -> str:
    """The board as JSON."""
    about = "Whether the load generator was good enough to be believed, and the chosen run against a baseline."
    info = BY_NAME["redlock.run.info"].prometheus
    named = choice("baseline_name", "Baseline's name", "its --name", f"label_values({info}, {NAME})")
    runs = f'label_values({info}{{{NAME}=~"$baseline_name"}}, {RUN})'
    baseline = choice("baseline", "Baseline", "the run that is 1.0 in the ratios", runs, multi=False)
    return board(
        "lockbench: Generator health and comparison",
        "lockbench-generator",
        about,
        (_HEALTH, _RATIOS),
        (named, baseline),
    )
