"""Compares two sides of a comparison by their pairs of runs: *the values of both sides → a ratio
with its interval → one verdict*.

The README of this folder contains the gate's rules. This module adds the following rules:
- For a share of acquires, the judge uses a difference in percentage points instead of a ratio. A
  user may accept a rate that is 10 % lower. But no user accepts that 10 % more of the acquires
  fail.
- A run in which no caller acquired a lock gets the worst possible value.
- If both sides of a pair lack a value of a figure, the judge ignores the pair for this figure. If
  only one side of a pair lacks a value of a figure, this figure cannot pass.
- The judge does not judge the figures of an INVALID run. Only violations and counted costs can fail
  a gate that contains an INVALID run.
- The numbers of commands, bytes and round trips per acquire must not grow. A stored run contains
  only averages, and no exact numbers. So in a gate of stored runs, one of these numbers fails only
  if its growth is certain and larger than `COUNTED_MORE`. The gate's tolerance does not apply to
  these numbers.

The function `earned` judges a stored comparison again. `earned` uses the same functions that judge
a new comparison.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from math import ceil, exp, expm1, inf, isinf, log
from statistics import geometric_mean, median

from msgspec.structs import asdict, replace

from bench.experiments.compare.result import (
    ComparedRun,
    ComparedVerdict,
    ComparisonResult,
    Exact,
    ExactRow,
    Judged,
    Kind,
    SideThreshold,
    Word,
)
from bench.gates.threshold import Metric, find_metric, finite, value_of
from bench.measure.run_result import JudgedThreshold, fields_of
from bench.measure.statistics import (
    Shift,
    least_pairs,
    least_runs,
    paired_shift,
    spread,
    unpaired_shift,
)
from bench.measure.verdict import (
    COMPARED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    INVALID,
    PASS,
    VIOLATED,
    Evidence,
    conclude,
)
from bench.measure.workers import IN_DOUBT

GOOD = {"gate": PASS, "compare": COMPARED}
# The largest allowed chance that a whole gate fails although both sides run the same code.
FALSE_ALARM = 0.01
# The largest allowed chance that a whole gate passes a candidate that is worse by the full
# tolerance.
MISSED = 0.05
COMPARE_CONFIDENCE = 0.95
SHARE_TOLERANCE = 0.01
# CPU gets this share of the tolerance. If the lock itself needs 10 % more CPU, the whole process
# needs only 4 to 7 % more CPU (docs/gate.md).
CPU_SHARE = 0.5
CPU = "cost.client_cpu_us_per_cycle"
# The number of pairs grows by this factor from one look to the next.
GROWTH = 1.3
# Counted figures that a gate also judges in stored runs.
COUNTED = ("cost.commands_per_acquire", "cost.bytes_per_acquire", "cost.round_trips_per_acquire")
# In stored runs, retries and lost rounds may enlarge a count by this share.
COUNTED_MORE = 0.01
Values = Sequence[float | None]
# The cost of one cycle, over all N instances. A cycle is one acquire of a free resource and the
# release.
Costs = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The question that a comparison must answer. This class describes the question for new runs
    and for stored runs.

    `labels` are the names of the sides. `noise` holds the indices of A/A sides. The tolerance of
    the CPU figure is `cpu_share` times the general tolerance. `looks` holds the numbers of pairs
    after which a gate may stop.
    """

    kind: Kind
    labels: Sequence[str]
    noise: frozenset[int]
    judged: Sequence[Metric]
    shown: Sequence[Metric]
    tolerance: float
    cpu_share: float
    looks: Sequence[int]
    paired: bool


@dataclass(frozen=True, slots=True)
class Sides:
    """The values of one figure on two sides, with one value per run. A value is None if the run did
    not measure the figure. A value is inf if too many acquires failed.

    If `paired` is true, two values with the same index come from the same round.
    """

    first: Values
    second: Values
    paired: bool = True

    def known(self, *, zero: bool) -> tuple[list[float], list[float], int]:
        """Return three values: the comparable values of the first side, the comparable values of
        the second side, and the number of torn pairs. In a torn pair, only one side has a value. If
        the sides are paired, the method drops every pair that lacks a value on at least one side.
        If the sides are not paired, the method drops only the missing values. If `zero` is false,
        the method treats a value of 0 like a missing value."""
        first, second = (
            [finite(one) if one or zero else None for one in side]
            for side in (self.first, self.second)
        )
        if not self.paired:
            return [a for a in first if a is not None], [b for b in second if b is not None], 0
        pairs = list(zip(first, second, strict=True))
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        return (
            [a for a, _ in both],
            [b for _, b in both],
            sum((a is None) != (b is None) for a, b in pairs),
        )


def gate_confidence(metrics: int, looks: int = 1) -> float:
    """Return the confidence of a gate's two-sided interval. A figure can FAIL only if both ends of
    its interval show that the second side is worse. A gate with `metrics` figures and `looks` looks
    makes `metrics` × `looks` judgements. For each judgement, the chance of a false alarm is at most
    FALSE_ALARM divided by the number of judgements. So the chance for the whole gate is at most
    FALSE_ALARM, even if the figures depend on each other (union bound). Sources: repeated
    confidence intervals (Jennison and Turnbull 1989, Journal of the Royal Statistical Society B
    51), alpha spending (Lan and DeMets 1983, Biometrika 70)."""
    return 1 - 2 * FALSE_ALARM / (metrics * looks)


def gate_shift(values: Callable[[float], Shift], metrics: int, looks: int) -> Shift:
    """Return the shift of one figure, with the interval that a gate uses for its verdict. The
    function computes two intervals with different confidences. The `low` end of the result comes
    from the interval with the confidence that `gate_confidence` returns. The `high` end comes from
    the other interval. The probability of a wrong `high` end is at most MISSED for a whole gate.
    The argument `values` is a function. `values` takes a confidence, and returns the shift and an
    interval with this confidence.

    A gate passes only if the high end of *every* metric lies within its tolerance. If a metric is
    too much worse, a gate can wrongly pass only if the high end of this metric is wrong. So the
    function divides MISSED by the number of looks. It does not divide MISSED by the number of
    metrics. Sources: intersection-union tests (Berger 1982, Technometrics 24), one-sided tests of
    equivalence (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15).
    """
    worse = values(gate_confidence(metrics, looks))
    return replace_fields(worse, high=values(1 - 2 * MISSED / looks).high)


def gate_looks(pairs: int, metrics: int) -> tuple[int, ...]:
    """Return the numbers of pairs after which a gate judges its figures. The numbers form a
    geometric series, and the last number is `pairs`."""
    # All looks share the allowed false alarms, so more looks need a higher confidence. A higher
    # confidence needs more pairs before the first look. A later first look leaves room for fewer
    # looks. `number` is the number of looks that sets the confidence. The loop tries larger and
    # larger values of `number`. The loop ends when at most `number` looks fit, each GROWTH times
    # later than the previous look.
    number = 0
    while True:
        number += 1
        first = min(pairs, least_pairs(gate_confidence(metrics, number)))
        steps = ceil(log(pairs / first) / log(GROWTH))
        if steps < number:
            return tuple(
                sorted(
                    {
                        round(first * (pairs / first) ** (step / max(steps, 1)))
                        for step in range(steps + 1)
                    }
                )
            )


def figure_verdict(kind: Kind, worse: Shift, tolerance: float, *, counted: bool = False) -> Word:
    """Return the verdict on the shift of one figure. If the shift is above 0, the second side is
    worse. A `tolerance` of 0.1 means 10 %. `counted` is true if the figure is a counted cost in
    stored runs. The verdict on a counted cost is "fail" if the growth of the cost is certain and
    larger than `COUNTED_MORE`."""
    limit = log(1 + tolerance)
    if counted and worse.low > 0 and worse.shift > log(1 + COUNTED_MORE):
        return "fail"
    if kind == "gate":
        if worse.high <= limit:
            return "pass"
        return "fail" if worse.low > 0 and worse.shift > limit else "inconclusive"
    if worse.low > 0 or worse.high < 0:
        return "different"
    return "same" if -limit <= worse.low and worse.high <= limit else "inconclusive"


def judge_figure(
    kind: Kind,
    metric: Metric,
    values: Sides,
    tolerance: float,
    *,
    metrics: int = 1,
    looks: int = 1,
) -> Judged:
    """Compare one figure on two sides, and judge the difference. `values.first` holds the values of
    the baseline.

    A gate judges `metrics` figures, and it judges each figure up to `looks` times. Each call of
    this function makes one of these judgements. In a comparison, the function judges whether the
    sides differ, and how large the difference is.
    """
    shares = metric.path[0] == "outcome_shares"
    first, second, torn = values.known(zero=shares)
    entry = replace(
        _without_word(metric, first, second, paired=values.paired),
        tolerance_ratio=SHARE_TOLERANCE if shares else tolerance,
    )
    if not entry.pairs:
        return entry
    sign = -1.0 if metric.higher_is_better else 1.0
    scale = float if shares else log
    a, b = ([sign * scale(value) for value in side] for side in (first, second))
    differences = list[float]()
    shift = partial(unpaired_shift, a, b)
    if values.paired:
        differences = [after - before for before, after in zip(a, b, strict=True)]
        shift = partial(paired_shift, differences)
    confidence = COMPARE_CONFIDENCE
    if kind == "gate":
        worse = gate_shift(shift, metrics, looks)
        confidence = 1 - (FALSE_ALARM / metrics + MISSED) / looks
    else:
        worse = shift(confidence)
    noise = spread(differences)
    word, reason = _word(kind, worse, expm1(SHARE_TOLERANCE) if shares else tolerance, entry)
    if torn and word in ("pass", "same"):
        word = "inconclusive"
        reason = f"in {torn} of {len(values.first)} pairs, only one side has samples"
    share = entry.first if shares else None
    ends = [_ratio(sign * end, share) for end in (worse.low, worse.high)]
    low, high = ends if sign > 0 else reversed(ends)
    return replace(
        entry,
        ratio=_ratio(sign * worse.shift, share),
        low=low,
        high=high,
        confidence=confidence,
        verdict=word,
        reason=reason,
        pair_noise_ratio=None if noise is None else exp(noise) - 1,
        noisy=word == "inconclusive" and not torn and worse.low > -inf,
    )


def _without_word(
    metric: Metric, first: Sequence[float], second: Sequence[float], *, paired: bool
) -> Judged:
    """Return an entry for one figure. The entry has the medians of both sides, and the provisional
    verdict "inconclusive"."""
    first_median = median(first) if first else None
    second_median = median(second) if second else None
    return Judged(
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        first=first_median,
        second=second_median,
        pairs=min(len(first), len(second)),
        paired=paired,
        verdict="inconclusive",
        reason="there are no samples",
    )


def _ratio(shift: float, share: float | None) -> float | None:
    """Return the ratio second ÷ first. If `share` is None, `shift` is the difference of two
    logarithms. If the figure is a share, `share` is the share of the first side, and `shift` is the
    second side's share minus `share`."""
    if isinf(shift) or share == 0:
        return None
    return exp(shift) if share is None else 1 + shift / share


def _word(kind: Kind, worse: Shift, tolerance: float, of: Judged) -> tuple[Word, str | None]:
    """Return the verdict on a shift. Also return the reason if the verdict is inconclusive."""
    counted = kind == "gate" and not of.paired and of.metric in COUNTED
    # If there are too few pairs for a FAIL, there are also too few pairs for a PASS.
    if worse.low == -inf:
        least, runs = (least_pairs, "pairs") if of.paired else (least_runs, "runs of each side")
        takes = (
            f"an interval with confidence {worse.confidence:.3g} needs "
            f"{least(worse.confidence)} {runs}"
        )
        return "inconclusive", f"{takes}, but there are {worse.count}"
    word = figure_verdict(kind, worse, tolerance, counted=counted)
    if word != "inconclusive":
        return word, None
    low, high = (shift if of.unit == "ratio" else expm1(shift) for shift in (worse.low, worse.high))
    return (
        word,
        f"the change is {low:+.1%} to {high:+.1%} (+ is worse); {tolerance:.1%} is allowed",
    )


def values_of(runs: Iterable[ComparedRun], side: int, metric: Metric) -> list[float | None]:
    """Return the values of one figure on one side, with one value per round. A round's value is the
    geometric mean over the side's runs in this round. The value of a round is None if any of the
    side's runs in this round has no value."""
    rounds: dict[int, list[float | None]] = {}
    for run in runs:
        if run.side == side:
            rounds.setdefault(run.pair, []).append(run.figures.get(metric.name))
    return [middle(values) for values in rounds.values()]


def middle(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of a round's values, or None if a value is missing."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    if len(set(numbers)) == 1:
        # The mean of equal values must be exact. An hour stands for "never", and a rounded mean
        # could be a little shorter than an hour.
        return numbers[0]
    return geometric_mean(numbers) if all(numbers) else 0.0


def tolerance_of(metric: Metric, tolerance: float, cpu_share: float) -> float:
    """Return the tolerance of a metric. For the client's CPU, the function multiplies `tolerance`
    by `cpu_share`. The reason is that interleaved runs measure this figure more precisely than
    every other figure."""
    return tolerance * (cpu_share if metric.name == CPU else 1)


def judge_figures(question: ComparisonRequest, runs: Sequence[ComparedRun]) -> Iterator[Judged]:
    """Yield one entry for each metric on each side, except on the first side. If a user interrupts
    a gate between two looks, every entry is inconclusive. Without this rule, a user could watch the
    figures and stop the gate at a convenient moment."""
    finished = len({run.pair for run in runs})
    next_look = next((look for look in question.looks if look >= finished), finished)
    for index, label in list(enumerate(question.labels))[1:]:
        for metric in (*question.judged, *question.shown):
            values = Sides(
                values_of(runs, 0, metric), values_of(runs, index, metric), question.paired
            )
            entry = judge_figure(
                question.kind,
                metric,
                values,
                tolerance_of(metric, question.tolerance, question.cpu_share),
                metrics=len(question.judged),
                looks=len(question.looks) or 1,
            )
            if next_look > finished and entry.verdict != "inconclusive":
                reason = (
                    f"the run stopped after {finished} pairs, but the next judgement needs "
                    f"{next_look}"
                )
                entry = replace(entry, verdict="inconclusive", reason=reason, noisy=False)
            role = "judged" if metric in question.judged else "shown"
            if index in question.noise:
                role = "noise"
            yield replace(entry, side=index, label=label, role=role)


def judge_thresholds(
    question: ComparisonRequest, runs: Sequence[ComparedRun]
) -> Iterator[SideThreshold]:
    """Yield the verdicts on the thresholds of each side. The function skips A/A sides, and it skips
    the baseline of a gate."""
    for index, label in enumerate(question.labels):
        own = [run for run in runs if run.side == index]
        if own and index not in question.noise and (index or question.kind == "compare"):
            yield from (
                SideThreshold(**fields_of(one), label=label) for one in combine_thresholds(own)
            )


def judge_exact(baseline: Costs, candidate: Costs) -> Exact:
    """Return the section with the costs of both sides. The section has one failure for each cost
    that is higher for the candidate than for the baseline."""
    return exact_of(
        [
            ExactRow(name=name, first=first, second=candidate[name])
            for name, first in baseline.items()
        ]
    )


def exact_of(rows: Sequence[ExactRow]) -> Exact:
    """Return the section of the result for these costs. The section has one failure for each cost
    that is higher on the second side than on the first side."""
    grown = (row for row in rows if row.second > row.first)
    failures = (
        f"{row.name.replace('_', ' ')} per acquire: {row.first:g} → {row.second:g}" for row in grown
    )
    return Exact(rows=tuple(rows), failures=tuple(failures))


def verdict_over(
    question: ComparisonRequest,
    runs: Sequence[ComparedRun],
    exact: Exact | None,
    *,
    stopped: str,
    interrupted: bool,
) -> ComparedVerdict:
    """Return the verdict that answers the question `question` with the runs `runs`."""
    return judge_comparison(
        question.kind,
        runs,
        [one for one in judge_figures(question, runs) if one.role == "judged"],
        labels=question.labels,
        exact=exact,
        thresholds=tuple(judge_thresholds(question, runs)),
        stopped=stopped,
        interrupted=interrupted,
    )


_NOT_ALL = "not all pairs were run: "


def earned(result: ComparisonResult) -> ComparisonResult:
    """Compute the figures, the limits and the verdict again from the runs of `result`, and return
    the new result. Raises UsageError if this version of lockbench does not know a figure of the
    result."""
    question = _asked_of(result)
    exact = result.exact
    if exact is not None and not exact.skipped:
        exact = exact_of(exact.rows)
    return replace(
        result,
        finished_pairs=len({run.pair for run in result.runs}),
        metrics=tuple(judge_figures(question, result.runs)),
        exact=exact,
        thresholds=tuple(judge_thresholds(question, result.runs)),
        verdict=verdict_over(
            question, result.runs, exact, stopped=result.stopped, interrupted=result.interrupted
        ),
    )


def _asked_of(result: ComparisonResult) -> ComparisonRequest:
    """Return the question that a stored result answers. The stored role of a figure shows whether
    the figure was judged. The function computes `cpu_share` from the stored tolerance of the CPU
    figure."""
    noise = frozenset(entry.side for entry in result.metrics if entry.role == "noise")
    first = [entry for entry in result.metrics if entry.side == 1]
    cpu = [entry.tolerance_ratio or 0.0 for entry in first if entry.metric == CPU]
    return ComparisonRequest(
        kind=result.kind,
        labels=[side.label for side in result.sides],
        noise=noise,
        judged=[find_metric(entry.metric) for entry in first if entry.role == "judged"],
        shown=[find_metric(entry.metric) for entry in first if entry.role == "shown"],
        tolerance=result.tolerance_ratio,
        cpu_share=min(cpu[0] / result.tolerance_ratio, 1.0) if cpu else 1.0,
        looks=result.looks,
        paired=result.paired,
    )


def judge_comparison(
    kind: Kind,
    runs: Sequence[ComparedRun],
    metrics: Sequence[Judged],
    *,
    labels: Sequence[str],
    exact: Exact | None = None,
    thresholds: Sequence[JudgedThreshold] = (),
    stopped: str = "",
    interrupted: bool = False,
) -> ComparedVerdict:
    """Return the verdict over all sides.

    `metrics` holds the figures that decide the verdict. If some planned pairs were not run,
    `stopped` is the reason.
    """
    invalid = _first(runs, labels, "invalid")
    worse = [
        f"{one.metric} got worse: {(one.ratio or 0) - 1:+.1%} ({one.label})"
        for one in _with(metrics, "fail")
    ]
    worse += [f"{one.expression} does not hold" for one in thresholds if one.status == "fail"]
    open_ones = [
        f"{one.expression}: {one.reason}" for one in thresholds if one.status == "inconclusive"
    ]
    open_ones += [f"{_NOT_ALL}{stopped}"] if stopped else []
    # If counted costs grew, no pair was run. The costs alone decide the verdict.
    counted = exact is not None and exact.failures and not runs
    undecided = [] if counted else _undecided(kind, runs, metrics)
    # No figure of an INVALID run is judged. Only counted costs can fail then.
    failures = [] if invalid else worse
    failures = [*failures, *(exact.failures if exact else ())]
    reasons = {
        VIOLATED: _first(runs, labels, "violated"),
        FAIL: failures,
        INTERRUPTED: [f"{_NOT_ALL}interrupted"] if interrupted else [],
        INVALID: invalid,
        INCONCLUSIVE: [*open_ones, *undecided],
    }
    pairs = max((one.pairs for one in metrics), default=0)
    evidence = [
        Evidence("figures judged", len(metrics)),
        Evidence("usable runs per side", pairs),
    ]
    verdict = conclude(GOOD[kind], evidence, reasons, thin=INCONCLUSIVE)
    only_these = list(verdict.reasons) == list(dict.fromkeys(undecided))
    noise = bool(runs and undecided and only_these) and all(
        one.noisy for one in _with(metrics, "inconclusive")
    )
    return ComparedVerdict(**asdict(verdict), only_noise=noise)


def combine_thresholds(runs: Iterable[ComparedRun]) -> list[JudgedThreshold]:
    """Return one entry per threshold. An entry has the verdict on the threshold over all runs of
    one side. A safety threshold fails if it fails in at least one run. For any other threshold, the
    function considers only the runs in which the verdict on the threshold is not inconclusive. The
    entry of the median run among these runs is the result. If these runs are fewer than half of all
    runs, the threshold can fail, but it cannot pass."""
    combined = []
    for entries in zip(*(run.thresholds for run in runs), strict=True):
        decided = sorted((one for one in entries if one.status != "inconclusive"), key=value_of)
        failed = [one for one in decided if one.status == "fail"]
        middle_one = decided[(len(decided) - 1) // 2] if decided else None
        if failed and entries[0].path.startswith("safety."):
            chosen = failed[-1]
        elif middle_one is None or (
            middle_one.status == "pass" and len(decided) * 2 < len(entries)
        ):
            chosen = next(one for one in entries if one.status == "inconclusive")
        else:
            chosen = middle_one
        combined.append(chosen)
    return combined


def _undecided(kind: Kind, runs: Sequence[ComparedRun], metrics: Sequence[Judged]) -> list[str]:
    if not runs:
        return ["there is no finished pair"]
    reasons: dict[str | None, list[str]] = {}
    for one in _with(metrics, "inconclusive"):
        reasons.setdefault(one.reason, []).append(one.metric)
    unclear = [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items()]
    late = sum(run.generator in IN_DOUBT for run in runs)
    if late and any(one.unit == "s" for one in metrics):
        return [
            *unclear,
            f"in {late} of {len(runs)} runs the generator was late, so their latencies are upper "
            "bounds",
        ]
    # If both sides have the same share of granted locks, the share does not count as a compared
    # figure. Two healthy locks both have 100 %.
    decided_figures = [
        one
        for one in metrics
        if one.verdict == "different" or (one.verdict == "same" and one.unit != "ratio")
    ]
    return [] if kind == "compare" and decided_figures else unclear


def _first(runs: Sequence[ComparedRun], labels: Sequence[str], status: str) -> list[str]:
    """Return a list with one sentence about the runs that have this status. The list is empty if no
    run has this status."""
    bad = [run for run in runs if run.status == status]
    if not bad:
        return []
    why = "; ".join(bad[0].reasons)
    return [
        f"{len(bad)} of {len(runs)} runs were {status}; the first of these runs belongs to "
        f"{labels[bad[0].side]}: {why}"
    ]


def _with(metrics: Sequence[Judged], word: Word) -> list[Judged]:
    return [one for one in metrics if one.verdict == word]
