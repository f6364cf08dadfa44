"""The text that `lockbench run` prints: *the result of a run → one sheet with a headline, a latency
table and lines of text*.

Rules: the verdict comes first. If the result lacks a section, the sheet lacks the line about this
section. If a run has five instances and no trouble, its sheet fits on a screen of 80×24. If any
acquire failed, the first line shows the share of acquires that succeeded. The percentiles in the
first line cover all acquires. "∞" means that the percentile falls among the failed acquires. If a
latency has the sign "≤", the latency includes a delay of the load generator. The first line of an
invalid run shows no figure.
"""

from collections.abc import Iterator
from math import inf

from bench.gates.threshold import find_metric, sentence
from bench.measure.latency import AllAcquires, Latencies, Latency, Percentiles
from bench.measure.outcomes import OutcomeShares
from bench.measure.run_result import RunResult, SafetyReport
from bench.measure.verdict import word_of
from bench.measure.words import fields_in
from bench.measure.workers import IN_DOUBT
from bench.report.figures import (
    MISSING,
    count,
    counted,
    in_words,
    latency,
    milliseconds,
    percent,
    share,
    threshold_text,
)
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import BAD, DOUBTFUL, GOOD, KeyFigure, Part, Sentence, Sheet, sheet_of
from bench.scenario import Scenario
from bench.scenario.quantity import delay_text, duration_text, skew_text

_PERCENTILES = fields_in(Percentiles)
# The heads are as wide as the widest figures below them, so the columns of two runs have the same
# width.
_HEAD = (f"{'ms':<10}", *(f"{one.label:>7}" for one in _PERCENTILES), f"{'count':>10}", "")
_NOTE = len(_HEAD) - 1
# This text is added to the words about safety if all callers were in one process.
WITHIN = "within one process"
# A summary shows the times of at most this many faults of one kind.
MOST_FAULTS = 3
# If there are more instances than this, only instances with trouble get a separate line.
MOST_INSTANCES = 9


def sheet(result: RunResult, place: str = "") -> Sheet:
    """Return the sheet of `result`. `place` is the result's folder, or "" if the result is not
    stored."""
    return sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=_conditions(result),
        parts=[_latencies(result)],
        lines=_lines(result),
        tables_first=True,
    )


def suite(result: RunResult) -> Suite:
    """Return the JUnit cases of the run.

    The suite has one case for the verdict, and one case for each threshold.
    """
    verdict = result.verdict
    scenario = result.scenario
    own = result.verdict.status
    # A broken limit has its own case.
    if own in ("fail", "inconclusive"):
        limits = set(map(sentence, result.thresholds))
        own = "pass" if set(verdict.reasons) <= limits else "inconclusive"
    word = word_of("run", verdict).text
    tested = result.safety.tested_leases
    within = f" {WITHIN}" if result.safety.within_one_process else ""
    reasons = "; ".join(verdict.reasons) or f"valid; {word}{within}, after {tested:,} tested leases"
    cases = [Case("the run", own, reasons)]
    cases += [
        Case(entry.expression, entry.status, threshold_text(entry)) for entry in result.thresholds
    ]
    properties = {"recipe": scenario.recipe, "instances": str(scenario.instances)}
    return suite_of(result, cases, properties)


def _headline(result: RunResult) -> str:
    rate = result.rate
    got = result.outcome_shares.acquired
    if result.verdict.status == "invalid" or result.generator.verdict == "INVALID":
        return f"the figures of this run ({count(result.duration_s)} s) are not valid"
    leases = f"{count(rate.achieved_per_s)} leases/s"
    seconds = f"over {count(result.duration_s)} s"
    success = [f"{percent(got)} acquired"] if got is not None and got < 1 else []
    if result.safety.within_one_process and result.safety.verdict == "SAFE":
        leases = f"{WITHIN}   {leases}"
    # If the rate was not reached, a percentile beside the rate would be misleading.
    if rate.sustained is False:
        leases += f" {seconds}, but {count(rate.offered_per_s)}/s were offered"
        return "   ".join([leases, *success])
    p50, p99 = (f"{name} {_acquire(result, name)}" for name in ("p50", "p99"))
    return "   ".join([f"{leases} {seconds}", *success, p50 if success else f"acquire {p50}", p99])


def key_figures(result: RunResult) -> tuple[KeyFigure, ...]:
    """Return the large figures of a page: the safety result, the rate and the latency.

    An invalid run has no large figures.
    """
    if result.verdict.status == "invalid" or result.generator.verdict == "INVALID":
        return ()
    safety = result.safety
    rate = result.rate
    held = safety.verdict.lower()
    bound = safety.reason or ""
    if safety.verdict == "SAFE" and safety.upper_bound_95:
        held = (
            f"{count(safety.service_faults)} violations in {count(safety.tested_leases)} "
            "tested leases"
        )
        within = f"{WITHIN}, " if safety.within_one_process else ""
        bound = f"{within}95 % sure: fewer than 1 in {count(round(1 / safety.upper_bound_95))}"
    offered = (
        f" of {count(rate.offered_per_s)}/s offered" if rate.offered_per_s else ", closed loop"
    )
    times = f"p50 {_acquire(result, 'p50')}, from the intended start"
    return (
        KeyFigure("did the lock hold?", held, bound),
        KeyFigure(
            "rate",
            f"{count(rate.achieved_per_s)} leases/s",
            f"over {count(result.duration_s)} s{offered}",
        ),
        KeyFigure("acquire p99", _acquire(result, "p99"), times),
    )


def in_one_line(result: RunResult) -> str:
    """Return one line for a log or for Locust's page.

    The line has the headline and the reasons for the verdict. If the verdict has no reasons, the
    line has a sentence about safety in place of the reasons.
    """
    reasons = result.verdict.reasons or (safety_sentence(result.safety).text,)
    return "; ".join((_headline(result).replace("   ", ", "), *reasons))


def _acquire(result: RunResult, name: str) -> str:
    """Return a percentile over all acquires."""
    value = find_metric(f"acquire.{name}").value(result)
    late = value not in (None, inf) and result.generator.verdict in IN_DOUBT
    return ("≤ " if late else "") + latency(value)


def _conditions(result: RunResult) -> list[str]:
    scenario = result.scenario
    named = [result.name] if result.name else []
    # An interrupt or an early end of the load cut the run short.
    if result.interrupted or result.duration_s * 1000 < scenario.duration_ms - 1:
        named.append(f"ended early (planned: {duration_text(scenario.duration_ms)})")
    return [*named, scenario.recipe, *load_parts(scenario)]


def load_parts(scenario: Scenario) -> list[str]:
    """Return short texts that describe the load, such as `closed loop` and `8 users`."""
    rate = scenario.rate_per_s
    users = counted(scenario.users, "user")
    skew = skew_text(scenario.skew)
    hold = delay_text(scenario.hold).removeprefix("fixed:")
    loop = "closed loop"
    if rate:
        loop = f"open loop {count(rate)}/s"
        if scenario.arrivals == "fixed":
            loop += " fixed"
    if scenario.processes > 1:
        users += f" in {scenario.processes} processes"
    resources = counted(scenario.resources, "resource")
    if skew != "uniform":
        resources += f" {skew}"
    parts = [loop, users, resources]
    if hold != "0":
        parts.append(f"hold {hold}")
    if scenario.retry.unreachable:
        parts.append("unreachable retried")
    return parts


def _latencies(result: RunResult) -> Part:
    rows = list[tuple[str, ...]]()
    hidden = {
        # In a closed loop, the intended start is the actual start. So the two rows would be the
        # same.
        "acquire_service": not result.rate.offered_per_s,
        "hold": not result.scenario.hold.ms,
        "acquire_all": "p99" not in result.latency_s.acquire_all.infinite,
    }
    for row in fields_in(Latencies, "table"):
        section: Latency | AllAcquires = row.of(result.latency_s)
        if section.count and not hidden.get(row.name):
            inset = "  " if row.name.startswith("acquire_") else ""
            figures = (milliseconds(one.value(section)) for one in _PERCENTILES)
            note = f" {row.note}" if row.note else ""
            rows.append((inset + row.label, *figures, count(section.count), note))
    return Part("", "", _HEAD, tuple(rows), frozenset({0, _NOTE}), aside=_NOTE)


def _lines(result: RunResult) -> Iterator[Sentence]:
    yield from _thresholds(result)
    yield _outcomes(result)
    yield _attempts(result)
    yield from _waiting(result)
    yield from _cost(result)
    yield safety_sentence(result.safety)
    yield from _faults(result)
    yield _generator(result)
    yield from _workers(result)
    yield from _instances(result)
    yield from _keys_left(result)


def _thresholds(result: RunResult) -> Iterator[Sentence]:
    width = max((len(entry.expression) for entry in result.thresholds), default=0)
    styles = {"pass": GOOD, "fail": BAD}
    for entry in result.thresholds:
        text = f"{entry.status.upper()}  {entry.expression:<{width}}  {threshold_text(entry)}"
        yield Sentence("threshold", text, styles.get(entry.status, DOUBTFUL))


def endings(result: RunResult) -> list[str]:
    """Return the outcomes of acquires with their shares, such as `contended 1.1 %`."""
    retried = result.scenario.retry.unreachable
    how = {"unreachable": " (retried within wait)" if retried else " (not retried)"}
    shares = {one: one.value(result.outcome_shares) for one in fields_in(OutcomeShares)}
    return [
        f"{one.label} {percent(ratio)}{how.get(one.label, '')}"
        for one, ratio in shares.items()
        if ratio
    ]


def margins(result: RunResult) -> str:
    """Return each vote margin with its share of the leases, such as `2: 97.9 %, 1: 2.1 %`."""
    counts = result.votes.margin
    whole = sum(counts.values())
    ordered = sorted(counts, key=int, reverse=True)
    return ", ".join(f"{margin}: {share(counts[margin], whole)}" for margin in ordered)


def _outcomes(result: RunResult) -> Sentence:
    parts = endings(result)
    nothing = "nothing was recorded in the measured window"
    unserved = result.waiting.unserved
    callers = result.waiting.asked
    spurious = result.safety.spurious_refusals
    served = []
    if unserved is not None and callers is not None:
        hungry = f"{count(unserved)} of {counted(callers, 'caller')} never got a lease"
        served.append(hungry if unserved else "all callers served")
    # A refusal is spurious if no client can have held the lock in the meantime.
    served.append(f"{count(spurious)} spurious refusals")
    style = DOUBTFUL if unserved or spurious else ""
    return Sentence(
        "outcomes", " · ".join([" · ".join(parts) or nothing, *served]), style if parts else BAD
    )


def _attempts(result: RunResult) -> Sentence:
    mean = result.attempts.mean
    lost = [*in_words(result.votes)]
    parts = ["none" if mean is None else f"{mean:.2f} per lease"]
    if shares := margins(result):
        parts.append(f"vote margin {shares}")
    parts += lost
    return Sentence("attempts", " · ".join(parts), DOUBTFUL if lost else "")


def _waiting(result: RunResult) -> Iterator[Sentence]:
    if result.waiting.wakeups:
        yield Sentence("waits", " · ".join(in_words(result.waiting)))


def _cost(result: RunResult) -> Iterator[Sentence]:
    if text := " · ".join(in_words(result.cost)):
        yield Sentence("per lease", text)


def safety_sentence(safety: SafetyReport) -> Sentence:
    """Return a sentence about the result of the oracle.

    If the result is SAFE, the sentence has the upper bound of the violation rate.
    """
    leases = count(safety.tested_leases)
    reason = safety.reason
    late = safety.client_overstays
    overstays = f" · {count(late)} client overstays (work after its lease)" if late else ""
    if safety.verdict == "VIOLATED":
        causes = [
            *dict.fromkeys(
                one.blame for one in safety.examples if one.blame not in ("", None, "unexplained")
            )
        ]
        causes += [f"{count(safety.unexplained)} unexplained"] if safety.unexplained else []
        cause = f" · cause: {', '.join(causes)}" if causes else ""
        return Sentence(
            "safety", f"violated in {leases} tested leases: {reason}{cause}{overstays}", BAD
        )
    if safety.verdict != "SAFE":
        return Sentence("safety", f"{safety.verdict.lower()}: {reason}{overstays}", DOUBTFUL)
    bound = count(round(1 / safety.upper_bound_95)) if safety.upper_bound_95 else MISSING
    sure = f"(95 % sure: < 1 in {bound})"
    if safety.within_one_process:
        sure = f"{WITHIN} {sure}"
    return Sentence("safety", f"0 violations in {leases} tested leases {sure}{overstays}", GOOD)


def _faults(result: RunResult) -> Iterator[Sentence]:
    """Yield one sentence with the times of all faults that began.

    If a fault never began, the sentence does not mention the fault, because a warning reports the
    fault.
    """
    begun: dict[str, list[str]] = {}
    for fault in result.faults:
        if fault.begun_s is not None:
            end = "" if fault.ended_s is None else f"–{fault.ended_s:.2f}"
            target = fault.target.replace("instance:", "#").replace(":", " ")
            begun.setdefault(fault.kind, []).append(f"{target} {fault.begun_s:.2f}{end} s")
    kinds = [
        f"{kind} {', '.join(times[:MOST_FAULTS])}"
        + (f" and {len(times) - MOST_FAULTS} more" * (len(times) > MOST_FAULTS))
        for kind, times in begun.items()
    ]
    if kinds:
        yield Sentence("faults", " · ".join(kinds))


def _generator(result: RunResult) -> Sentence:
    generator = result.generator
    verdict = str(generator.verdict).lower()
    parts = [*in_words(generator)]
    if generator.gap_s:
        failed = f", {count(generator.gap_failures)} failed" if generator.gap_failures else ""
        near = f"{count(generator.gap_operations)} acquires touched that{failed}"
        parts.append(f"away for {generator.gap_s:.2f} s ({near})")
    word = "lateness unknown" if verdict == "unknown" else verdict
    return Sentence(
        "generator", f"{word}: {', '.join(parts)}", "" if verdict == "valid" else DOUBTFUL
    )


def _workers(result: RunResult) -> Iterator[Sentence]:
    workers = result.workers
    if not workers:
        return
    hosts = len({worker.host for worker in workers})
    errors = [worker.clock_error_max_s or 0.0 for worker in workers]
    clocks = (
        "one clock"
        if all(worker.same_clock for worker in workers)
        else f"clocks within ±{latency(max(errors))}"
    )
    yield Sentence("workers", f"{len(workers)} on {counted(hosts, 'host')}, {clocks}")
    for worker in workers:
        lost = ["its share is unknown"] if worker.phase != "stopped" else []
        is_doubtful = bool(lost or worker.clock_steps)
        if len(workers) <= MOST_INSTANCES or is_doubtful:
            text = f"#{worker.worker} {worker.host}  {' · '.join([*in_words(worker), *lost])}"
            yield Sentence("", text, DOUBTFUL if is_doubtful else "")


def _instances(result: RunResult) -> Iterator[Sentence]:
    instances = result.instances
    servers = sorted({str(instance.server) for instance in instances if instance.server}) or [
        "unknown"
    ]
    well = ", all voting" if all(instance.is_well for instance in instances) else ""
    yield Sentence(
        "instances", f"{len(instances)} × {', '.join([*servers, result.fleet.text])}{well}"
    )
    for instance in instances:
        parts = [] if instance.state == "voting" else [_words(instance.state)]
        parts += in_words(instance)
        parts += [f"{_words(kind)} {count(number)}" for kind, number in instance.errors.items()]
        if len(instances) <= MOST_INSTANCES or not instance.is_well:
            text = f"#{instance.index} {instance.address}  {' · '.join(parts)}"
            yield Sentence("", text, "" if instance.is_well else DOUBTFUL)


def _keys_left(result: RunResult) -> Iterator[Sentence]:
    """Yield a sentence if the run left keys on our own servers under names that lockbench does not
    know."""
    left = {one.index: one.other_keys for one in result.instances if one.other_keys}
    if left:
        where = ", ".join(f"{count(number)} on #{index}" for index, number in left.items())
        yield Sentence(
            "keys left", f"{count(sum(left.values()))} under other names: {where}", DOUBTFUL
        )


def _words(name: str) -> str:
    return name.replace("_", " ")
