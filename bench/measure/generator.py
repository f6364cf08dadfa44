"""Was the load what it claims to be: *the generator's own health → VALID | LATE | UNKNOWN | INVALID and why*.

- INVALID, no figure means anything: in open loop less than 0.99 of the schedule was started; in closed loop with at
  least 8 users Little's ratio (L = λ·W, where L must be the number of users) is outside 0.95…1.05.
- LATE, latencies are upper bounds: the timer's lateness (open loop) is more than 10 % of what acquires took, or the
  scheduler's lag more than half of it: at the p99, else at the highest percentile below it that both have.
- UNKNOWN: there is no such percentile. As what cannot be told may be late, latencies are upper bounds, too.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bench.measure.facts import Facts, Window
from bench.measure.histogram import Histogram
from bench.measure.latency import PERCENTILES, Latency
from bench.measure.record import Records, ends_ns
from bench.measure.run_result import GeneratorHealth, GeneratorWord
from bench.measure.workers import WorkerNote, cpu_ratio

STARTED_SHARE = 0.99
LATENESS_SHARE = 0.10
LAG_SHARE = 0.5  # the probe also waits for callers at work, which is load: only where lag is most of it, it is not
IN_DOUBT = ("LATE", "UNKNOWN")  # latencies are upper bounds
_COMPARED = ("p99", "p90", "p50")
LITTLE_USERS = 8
LITTLE_TOLERANCE = 0.05
BUSY_CORE = 0.9
GENERATOR_BOUND = "generator-bound: the rate is a lower bound"


def busy_ns(records: Records, window: Window) -> int:
    """Time in ns that operations took of the window, summed: each from its intended start to its end, clipped."""
    clipped = np.minimum(ends_ns(records), window.stop_ns) - np.maximum(records["intended_ns"], window.start_ns)
    return int(np.maximum(clipped, 0).sum())


def littles_law_ratio(busy: int, ended_in_window: int, kept_ns: float, facts: Facts, window: Window) -> float | None:
    """Callers in an operation, thinking or kept by the generator ÷ users, over the window; None in open loop.

    `busy` is `busy_ns` of all operations; each that ended in the window is followed by a mean think time and by
    `kept_ns`, what the generator kept its caller for.
    """
    span = window.stop_ns - window.start_ns
    if facts.rate_per_s is not None or span <= 0 or not facts.users:
        return None
    return (busy + ended_in_window * (facts.think_mean_ns + kept_ns)) / span / facts.users


def scheduled_starts(reports: Sequence[WorkerNote], facts: Facts) -> int:
    """Starts due in the whole run: by the schedule, or by what the workers say, whatever is more."""
    return max(sum(report.scheduled_starts for report in reports), facts.due.run if facts.due else 0)


def judge_generator(
    reports: Sequence[WorkerNote],
    histograms: Mapping[str, Histogram],
    counts: Mapping[str, int],
    facts: Facts,
    window: Window,
) -> GeneratorHealth:
    """The section `generator`. `histograms`: acquire, scheduler_lag, timer_lateness; `counts`: those of the fold."""
    kept_ns = sum(report.kept_ns for report in reports) / (counts["records"] or 1)
    ratio = littles_law_ratio(counts["busy_ns"], counts["finished"], kept_ns, facts, window)
    queued, due = sum(report.queued_starts for report in reports), scheduled_starts(reports, facts)
    fault = _fault(ratio, counts["records"], due, facts)
    verdict, reason = ("INVALID", fault) if fault else _delays(histograms, queued, facts)
    return GeneratorHealth(
        cpu_ratio=cpu_ratio(reports),
        scheduler_lag_p99_s=Latency.of(histograms["scheduler_lag"]).p99,
        timer_lateness_p99_s=Latency.of(histograms["timer_lateness"]).p99,
        late_starts=sum(report.late_starts for report in reports),
        queued_starts=queued,
        littles_law_ratio=ratio,
        verdict=verdict,
        reason=reason,
    )


def _fault(ratio: float | None, started: int, due: int, facts: Facts) -> str:
    """Why the load was not what it claims; nothing when it was."""
    if facts.rate_per_s is None:
        if facts.users < LITTLE_USERS or ratio is None or abs(ratio - 1) <= LITTLE_TOLERANCE:
            return ""
        working = f"on average {ratio * facts.users:.1f} of {facts.users} callers were at work"
        return f"Little's ratio is {ratio:.3f}: {working}"
    if not due:
        return "nothing of the schedule was due: no operation was offered"
    if started >= STARTED_SHARE * due:
        return ""
    return (
        f"only {started / due:.1%} of the {due} operations due were started (99 % are needed): "
        "lower --rate, or raise --users if callers were missing"
    )


def _delays(histograms: Mapping[str, Histogram], queued: int, facts: Facts) -> tuple[GeneratorWord, str | None]:
    """What the generator itself adds to each latency, against what is shown."""
    acquire, lag, lateness = (histograms[name] for name in ("acquire", "scheduler_lag", "timer_lateness"))
    judged = [("its scheduler lagged by", lag, LAG_SHARE)] if lag.count else []
    if facts.rate_per_s is not None and (lateness.count or not queued):
        judged.insert(0, ("the timer was late by", lateness, LATENESS_SHARE))
    found = [_against(acquire, *each) for each in judged]
    return next((each for word in IN_DOUBT for each in found if each[0] == word), ("VALID", None))


def _against(acquire: Histogram, what: str, delay: Histogram, most: float) -> tuple[GeneratorWord, str | None]:
    pairs = ((name, delay.percentile(PERCENTILES[name]), acquire.percentile(PERCENTILES[name])) for name in _COMPARED)
    at, late_ns, took_ns = next((pair for pair in pairs if None not in pair), (None, None, None))
    if late_ns is None or took_ns is None:
        few = f"{delay.count} delays and {acquire.count} acquires are too few to tell whether it was in time"
        return "UNKNOWN", few
    if late_ns <= most * took_ns:
        return "VALID", None
    part = f"more than {most:.0%} of the acquire {at} of {took_ns / 1e6:.3g} ms that it is part of"
    return "LATE", f"{what} {late_ns / 1e6:.3g} ms ({at}), {part}"
