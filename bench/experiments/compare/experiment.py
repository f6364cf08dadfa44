"""The answer of `compare` and `gate`: *sides and their runs → one judged, written result*.

Rules: a gate has one baseline and one candidate; it counts exact costs first, where one more fails without a pair, and
stops at the first look that answers. A comparison sets every side against the first, and the first against itself once
more (A/A), which is the noise. What was finished when Ctrl-C came is judged and kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from bench.experiments.compare.costs import count_exactly
from bench.experiments.compare.judge import CPU_SHARE, Sides, combine_thresholds, judge_comparison, judge_figure
from bench.experiments.compare.pairs import PairsOrder, Rounds, run_pairs, take_turns
from bench.experiments.compare.result import (
    ComparedSide,
    ComparedVerdict,
    ComparisonResult,
    Exact,
    Judged,
    Kind,
    SideThreshold,
)
from bench.experiments.compare.sides import differences, settings_of
from bench.experiments.compare.words import change_text, metric_text
from bench.gates.threshold import Metric
from bench.measure.fold import FAILED_SHARE
from bench.measure.run_result import fields_of
from bench.measure.workers import BUSY_CORE
from bench.report.figures import counted
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.interrupt import Interrupts


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `judged`: the figures the verdict rests on; `shown`: others; `again`: the side that is the first
    one once more, if any; `looks`: after how many pairs a gate may stop; `sharp`: CPU is judged by less."""

    kind: Kind
    labels: Sequence[str]
    judged: Sequence[Metric]
    shown: Sequence[Metric]
    tolerance: float
    seed: int
    again: int | None = None
    looks: Sequence[int] = ()
    sharp: bool = False

    def tolerance_of(self, metric: Metric) -> float:
        """How much worse is still the same: of CPU, the sharpest figure of runs in turns, less."""
        return self.tolerance * (CPU_SHARE if self.sharp and metric.path[-1] == "client_cpu_us_per_cycle" else 1)


Order = ExperimentOrder[Question]


def compare_now(order: Order, pairs: PairsOrder, say: Show) -> Done[ComparisonResult]:
    """Run `pairs` and answer the question. Raises BenchError and KeyboardInterrupt as `run_pairs` does."""
    experiment, exact, rounds = Experiment(order), None, Rounds([], {})
    if order.plan.kind == "gate":
        say("exact: commands, bytes, round trips and connections per acquire")
        with Interrupts():
            exact = count_exactly(pairs)
    if exact is None or not exact.failures:
        rounds = run_pairs(pairs, say, lambda rounds: _so_far(order.plan, rounds))
    with experiment:
        experiment.raising = False
        result = _answer(experiment, order.plan, rounds, pairs.pairs, exact)
        asked_s = None if (asked_ms := pairs.sides[0].asked_ms) is None else asked_ms / 1000
        return experiment.store(structs.replace(result, in_turns=take_turns(pairs), asked_duration_s=asked_s))


def _so_far(question: Question, rounds: Rounds) -> tuple[str, bool]:
    """What the pairs say by now, in words, and whether a gate has its answer: at its looks, but a fault at once."""
    said = [
        f"{metric_text(one.metric).removeprefix('acquire.')} {change_text(one.ratio)}, "
        for one in _judged(question, rounds)
        if one.role == "judged" and (one.metric, change_text(one.ratio)) != ("acquire.success", "+0.0 %")  # no news
    ]
    status = _verdict(question, rounds, None).status
    sure = status in ("violated", "invalid") or (rounds.finished in question.looks and status in ("pass", "fail"))
    return "".join(said), question.kind == "gate" and sure


def compare_stored(order: Order, rounds: Rounds) -> Done[ComparisonResult]:
    """Answer the question from runs that were stored."""
    experiment = Experiment(order)
    return experiment.store(_answer(experiment, order.plan, rounds, rounds.finished, None))


def _answer(
    experiment: Experiment, question: Question, rounds: Rounds, planned: int, exact: Exact | None
) -> ComparisonResult:
    settings = [settings_of(result) for _, result in sorted(rounds.results.items())]
    return ComparisonResult(
        **experiment.header(seed=question.seed, interrupted=rounds.interrupted),
        kind=question.kind,
        planned_pairs=planned,
        sides=tuple(ComparedSide.of(label, rounds.results.get(index)) for index, label in enumerate(question.labels)),
        differs=tuple(dict.fromkeys(said for other in settings for said in differences(settings[0], other).values())),
        tolerance_ratio=question.tolerance,
        finished_pairs=rounds.finished,
        paired=rounds.paired,
        looks=tuple(question.looks),
        repeated_pairs=rounds.repeated,
        metrics=tuple(_judged(question, rounds)),
        exact=exact,
        thresholds=tuple(_thresholds(question, rounds)),
        runs=tuple(rounds.runs),
        warnings=tuple(_warnings(question, rounds)),
        verdict=_verdict(question, rounds, exact),
    )


def _verdict(question: Question, rounds: Rounds, exact: Exact | None) -> ComparedVerdict:
    return judge_comparison(
        question.kind, rounds.runs, [one for one in _judged(question, rounds) if one.role == "judged"],
        labels=question.labels, exact=exact, thresholds=tuple(_thresholds(question, rounds)),
        stopped=rounds.stopped, interrupted=rounds.interrupted,
    )  # fmt: skip


def _judged(question: Question, rounds: Rounds) -> Iterator[Judged]:
    """One entry for each metric of each side after the first. A figure of a gate that was cut between two looks is not
    judged: who watches may cut it when it suits him."""
    next_look = next((look for look in question.looks if look >= rounds.finished), rounds.finished)
    for index, label in list(enumerate(question.labels))[1:]:
        for metric in (*question.judged, *question.shown):
            values = Sides(rounds.values(0, metric), rounds.values(index, metric), rounds.paired)
            found = judge_figure(
                question.kind, metric, values, question.tolerance_of(metric),
                metrics=len(question.judged), looks=len(question.looks) or 1,
            )  # fmt: skip
            if next_look > rounds.finished and found.verdict != "inconclusive":
                reason = f"cut after {rounds.finished} of {next_look} pairs that it is judged after"
                found = structs.replace(found, verdict="inconclusive", reason=reason, noisy=False)
            role = "noise" if index == question.again else "judged" if metric in question.judged else "shown"
            yield structs.replace(found, side=index, label=label, role=role)


def _thresholds(question: Question, rounds: Rounds) -> Iterator[SideThreshold]:
    """The limits of every side that is not only there for comparison."""
    for index, label in enumerate(question.labels):
        runs = [run for run in rounds.runs if run.side == index]
        if runs and index != question.again and (index or question.kind == "compare"):
            yield from (SideThreshold(**fields_of(one), label=label) for one in combine_thresholds(runs))


def _warnings(question: Question, rounds: Rounds) -> Iterator[str]:
    if rounds.repeated:
        yield f"repeated, as the load of one of the runs was not what it claims: {counted(rounds.repeated, 'pair')}"
    if busy := sum((run.generator_cpu_ratio or 0) >= BUSY_CORE for run in rounds.runs):
        yield f"generator-bound in {busy} of {len(rounds.runs)} runs: what the servers do differently may not show"
    if not rounds.paired and rounds.runs:
        yield "these runs were not made in turn: what else the machine did is part of the difference (30 % is usual)"
    for index, label in enumerate(question.labels):
        got = [run.figures.get("acquire.success") for run in rounds.runs if run.side == index]
        if failed := sum(share is not None and 1 - share > FAILED_SHARE for share in got):
            yield f"{label}: more than {FAILED_SHARE:.0%} of acquires failed in {failed} runs: endless latencies"
    if unknown := sum(run.safety.verdict == "UNKNOWN" for run in rounds.runs):
        yield f"safety is unknown in {unknown} of {len(rounds.runs)} runs"
    yield from dict.fromkeys(
        f"{question.labels[index]}: {warning}"
        for index, result in rounds.results.items()
        for warning in result.warnings
        if "is here to show its flaw" in warning or "behind a proxy" in warning
    )
