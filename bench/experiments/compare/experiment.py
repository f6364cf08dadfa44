"""The answer of `compare` and `gate`: *sides and their runs → one judged, written result*.

Rules: a gate has one baseline and one candidate; a comparison sets every side against the first, and the first against
itself once more (A/A), which is the noise. What was finished when Ctrl-C came is judged and kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from bench.experiments.compare.costs import count_exactly
from bench.experiments.compare.judge import Sides, combine_thresholds, judge_comparison, judge_figure
from bench.experiments.compare.pairs import PairsOrder, Rounds, run_pairs
from bench.experiments.compare.result import (
    ComparedSide,
    ComparisonResult,
    Exact,
    Judged,
    Kind,
    SideThreshold,
)
from bench.experiments.compare.sides import differences, settings_of
from bench.gates.threshold import Metric
from bench.measure.fold import FAILED_SHARE
from bench.measure.generator import BUSY_CORE
from bench.measure.run_result import fields_of
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `judged`: the figures the verdict rests on; `shown`: others.

    `labels`: of the sides; `again`: the side that is the first one once more, if any; `differs`: what was declared
    to differ, in words.
    """

    kind: Kind
    labels: Sequence[str]
    judged: Sequence[Metric]
    shown: Sequence[Metric]
    tolerance: float
    seed: int
    again: int | None = None
    differs: Sequence[str] = ()


Order = ExperimentOrder[Question]


def compare_now(order: Order, pairs: PairsOrder, say: Show) -> Done[ComparisonResult]:
    """Run `pairs` and answer the question. Raises BenchError and KeyboardInterrupt as `run_pairs` does."""
    experiment, exact = Experiment(order), None
    rounds = run_pairs(pairs, say)
    with experiment:
        with experiment.cuttable():
            if order.plan.kind == "gate" and not rounds.interrupted:
                say("exact: commands, bytes, round trips and connections per acquire")
                exact = count_exactly(pairs)
        rounds.interrupted |= experiment.cut
        return experiment.store(_answer(experiment, order.plan, rounds, pairs.pairs, exact))


def compare_stored(order: Order, rounds: Rounds) -> Done[ComparisonResult]:
    """Answer the question from runs that were stored."""
    experiment = Experiment(order)
    return experiment.store(_answer(experiment, order.plan, rounds, rounds.finished, None))


def _answer(
    experiment: Experiment, question: Question, rounds: Rounds, planned: int, exact: Exact | None
) -> ComparisonResult:
    metrics, thresholds = tuple(_judged(question, rounds)), tuple(_thresholds(question, rounds))
    verdict = judge_comparison(
        question.kind,
        rounds.runs,
        [one for one in metrics if one.role == "judged"],
        labels=question.labels,
        exact=exact,
        thresholds=thresholds,
        stopped=rounds.stopped,
        interrupted=rounds.interrupted,
    )
    return ComparisonResult(
        **experiment.header(seed=question.seed, interrupted=rounds.interrupted),
        kind=question.kind,
        planned_pairs=planned,
        sides=tuple(ComparedSide.of(label, rounds.results.get(index)) for index, label in enumerate(question.labels)),
        differs=_differs(question, rounds),
        tolerance_ratio=question.tolerance,
        finished_pairs=rounds.finished,
        paired=rounds.paired,
        repeated_pairs=rounds.repeated,
        metrics=metrics,
        exact=exact,
        thresholds=thresholds,
        runs=tuple(rounds.runs),
        warnings=tuple(_warnings(question, rounds)),
        verdict=verdict,
    )


def _judged(question: Question, rounds: Rounds) -> Iterator[Judged]:
    """One entry for each metric of each side after the first."""
    for index, label in list(enumerate(question.labels))[1:]:
        for metric in (*question.judged, *question.shown):
            values = Sides(rounds.values(0, metric), rounds.values(index, metric), rounds.paired)
            found = judge_figure(question.kind, metric, values, question.tolerance, metrics=len(question.judged))
            role = "noise" if index == question.again else "judged" if metric in question.judged else "shown"
            yield structs.replace(found, side=index, label=label, role=role)


def _thresholds(question: Question, rounds: Rounds) -> Iterator[SideThreshold]:
    """The limits of every side that is not only there for comparison."""
    for index, label in enumerate(question.labels):
        runs = [run for run in rounds.runs if run.side == index]
        if runs and index != question.again and (index or question.kind == "compare"):
            yield from (SideThreshold(**fields_of(one), label=label) for one in combine_thresholds(runs))


def _differs(question: Question, rounds: Rounds) -> tuple[str, ...]:
    """In what settings the sides differ, in words."""
    first, found = rounds.results.get(0), dict.fromkeys(question.differs)
    for result in rounds.results.values():
        if first is not None and rounds.paired:
            found |= dict.fromkeys(differences(settings_of(first), settings_of(result)).values())
    return tuple(found)


def _warnings(question: Question, rounds: Rounds) -> Iterator[str]:
    if rounds.repeated:
        yield f"{rounds.repeated} pairs were repeated, as the load of one of their runs was not what it claims"
    busy = sum((run.generator_cpu_ratio or 0) >= BUSY_CORE for run in rounds.runs)
    if busy:
        yield (
            f"generator-bound in {busy} of {len(rounds.runs)} runs: what the servers alone do differently may not show"
        )
    if not rounds.paired and rounds.runs:
        yield "these runs were not made in turn: what else the machine did is part of the difference (30 % is usual)"
    for index, label in enumerate(question.labels):
        got = [run.figures.get("acquire.success") for run in rounds.runs if run.side == index]
        if failed := sum(share is not None and 1 - share > FAILED_SHARE for share in got):
            yield f"{label}: more than {FAILED_SHARE:.0%} of acquires failed in {failed} runs: endless latencies"
    unknown = sum(run.safety.verdict == "UNKNOWN" for run in rounds.runs)
    if unknown:
        yield f"safety is unknown in {unknown} of {len(rounds.runs)} runs"
    yield from dict.fromkeys(
        f"{question.labels[index]}: {warning}"
        for index, result in rounds.results.items()
        for warning in result.warnings
        if "is here to show its flaw" in warning or "behind a proxy" in warning
    )
