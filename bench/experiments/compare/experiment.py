"""Makes and judges the measurements of `compare` and `gate`: *sides and their runs → one judged and
stored result*.

A gate has two sides, the baseline and the candidate. The gate counts the exact costs of both sides
before it runs a pair. If the candidate has a higher cost, the gate fails without running a pair.
Otherwise the gate stops at the first planned look that gives an answer. A comparison compares every
side with the first side. To measure the noise, a comparison also runs the first side a second time
(A/A). After Ctrl-C the command judges and keeps the finished runs.
"""

from collections.abc import Iterator

from bench.experiments.compare.costs import count_exactly
from bench.experiments.compare.judge import (
    MISSED,
    ComparisonRequest,
    earned,
    judge_figures,
    verdict_over,
)
from bench.experiments.compare.pairs import CompareOrder, Comparison, Rounds, run_pairs, take_turns
from bench.experiments.compare.result import (
    ComparedSide,
    ComparedVerdict,
    ComparisonResult,
    Exact,
)
from bench.experiments.compare.sides import differences, settings_of
from bench.experiments.compare.words import change_text, metric_text
from bench.measure.fold import FAILED_SHARE
from bench.measure.workers import BUSY_CORE
from bench.report.figures import counted
from bench.run.conclude import SHOWS_A_FLAW
from bench.run.experiment import Done, Experiment, Show
from bench.run.interrupt import Interrupts
from bench.run.servers import BEHIND_A_PROXY


def compare_now(order: CompareOrder, say: Show) -> Done[ComparisonResult]:
    """Run the pairs and answer the question.

    If `run_pairs` raises BenchError or KeyboardInterrupt, this function raises the same exception.
    """
    experiment = Experiment(order)
    exact = None
    rounds = Rounds([], {})
    if order.plan.kind == "gate":
        say("exact: commands, bytes, round trips and connections per acquire")
        with Interrupts():
            exact = count_exactly(order)
    if exact is None or not exact.failures:
        rounds = run_pairs(order, say, lambda rounds: _so_far(order.plan, rounds))
    with experiment:
        experiment.raising = False
        return experiment.store(_answer(experiment, order.plan, rounds, exact))


def _so_far(plan: Comparison, rounds: Rounds) -> tuple[str, bool]:
    """Return two values: the interim figures as text, and True if a gate can stop now. A gate stops
    only at its planned looks. Only a violated or an invalid run ends the gate earlier."""
    question = _asked(plan, rounds)
    texts = [
        f"{metric_text(one.metric).removeprefix('acquire.')} {change_text(one.ratio)}, "
        for one in judge_figures(question, rounds.runs)
        # If the share of granted acquires is unchanged, it is not shown.
        if one.role == "judged"
        and (one.metric, change_text(one.ratio)) != ("acquire.success", "+0.0 %")
    ]
    status = verdict_over(
        question, rounds.runs, None, stopped=rounds.stopped, interrupted=rounds.interrupted
    ).status
    sure = status in ("violated", "invalid") or (
        rounds.finished in plan.looks and status in ("pass", "fail")
    )
    return "".join(texts), plan.kind == "gate" and sure


def compare_stored(order: CompareOrder, rounds: Rounds) -> Done[ComparisonResult]:
    """Answer the question from stored runs."""
    experiment = Experiment(order)
    return experiment.store(_answer(experiment, order.plan, rounds, None))


def _answer(
    experiment: Experiment, plan: Comparison, rounds: Rounds, exact: Exact | None
) -> ComparisonResult:
    settings = [settings_of(result) for _, result in sorted(rounds.results.items())]
    question = _asked(plan, rounds)
    result = ComparisonResult(
        **experiment.header(seed=plan.seed, interrupted=rounds.interrupted),
        kind=plan.kind,
        planned_pairs=plan.pairs,
        sides=tuple(
            ComparedSide.of(side.label, rounds.results.get(index))
            for index, side in enumerate(plan.sides)
        ),
        differs=tuple(
            dict.fromkeys(
                difference
                for other in settings
                for difference in differences(settings[0], other).values()
            )
        ),
        tolerance_ratio=plan.tolerance,
        finished_pairs=rounds.finished,
        paired=rounds.paired,
        in_turns=rounds.paired and take_turns(plan),
        looks=tuple(plan.looks),
        repeated_pairs=rounds.repeated,
        stopped=rounds.stopped,
        sharp=plan.cpu_share < 1,
        missed_ratio=MISSED,
        metrics=tuple(judge_figures(question, rounds.runs)),
        exact=exact,
        thresholds=(),
        runs=tuple(rounds.runs),
        warnings=tuple(_warnings(plan, rounds)),
        verdict=ComparedVerdict(status="inconclusive", reasons=()),
    )
    # `earned` fills in limits and verdict. The same function judges a stored result.
    return earned(result)


def _asked(plan: Comparison, rounds: Rounds) -> ComparisonRequest:
    return ComparisonRequest(
        kind=plan.kind,
        labels=[side.label for side in plan.sides],
        noise=frozenset(index for index, side in enumerate(plan.sides) if side.is_noise),
        judged=plan.judged,
        shown=plan.shown,
        tolerance=plan.tolerance,
        cpu_share=plan.cpu_share,
        looks=plan.looks,
        paired=rounds.paired,
    )


def _warnings(plan: Comparison, rounds: Rounds) -> Iterator[str]:
    if rounds.repeated:
        yield (
            f"{counted(rounds.repeated, 'pair')} had to be repeated, because the load of one run "
            "was INVALID"
        )
    if busy := sum((run.generator_cpu_ratio or 0) >= BUSY_CORE for run in rounds.runs):
        yield (
            f"in {busy} of {len(rounds.runs)} runs the load process was the limit, so differences "
            "between the servers may be invisible"
        )
    for index, side in enumerate(plan.sides):
        got = [run.figures.get("acquire.success") for run in rounds.runs if run.side == index]
        if failed := sum(share is not None and 1 - share > FAILED_SHARE for share in got):
            yield (
                f"{side.label}: more than {FAILED_SHARE:.0%} of acquires failed in {failed} runs, "
                "so the latencies of these runs count as infinite"
            )
    if unknown := sum(run.safety.verdict == "UNKNOWN" for run in rounds.runs):
        yield f"safety is unknown in {unknown} of {len(rounds.runs)} runs"
    yield from dict.fromkeys(
        f"{plan.sides[index].label}: {warning}"
        for index, result in rounds.results.items()
        for warning in result.warnings
        if SHOWS_A_FLAW in warning or BEHIND_A_PROXY in warning
    )
