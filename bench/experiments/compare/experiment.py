"""The answer of `compare` and `gate`: *sides and their runs → one judged, written result*.

Rules: a gate has one baseline and one candidate; a comparison sets every side against the first, and the first against
itself once more (A/A), which is the noise. What was finished when Ctrl-C came is judged and kept.
Source: README, "Gate your CI"; the rules are in bench.gates (paired, verdict).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.experiments.compare.exact_costs import count_exactly
from bench.experiments.compare.judge import Sides, judge_compare, judge_gate
from bench.experiments.compare.likeness import describe, differences
from bench.experiments.compare.pairs import PairsOrder, Rounds, Say, run_pairs
from bench.experiments.compare.verdict import combine_thresholds, judge_comparison
from bench.gates.metric import Metric
from bench.measure.environment import describe_environment
from bench.measure.fold import FAILED_SHARE
from bench.measure.generator import BUSY_CORE
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of
from bench.run.interrupt import Interrupts
from bench.run.verdict import Done, store

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `kind`: compare or gate; `judged`: the figures the verdict rests on; `shown`: others.

    `labels`: of the sides; `again`: the side that is the first one once more, if any; `differs`: what was declared
    to differ, in words; `exact`: whether costs are counted, too.
    """

    kind: str
    labels: Sequence[str]
    judged: Sequence[Metric]
    shown: Sequence[Metric]
    tolerance: float
    again: int | None = None
    differs: Sequence[str] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run of the command this is. `folder`: can be made; `command`: as typed, without secrets."""

    run_id: str
    command: Sequence[str]
    folder: Path
    seed: int


def compare_now(question: Question, order: PairsOrder, identity: Identity, say: Say) -> Done:
    """Run the pairs of `order` and answer `question`. Raises BenchError and KeyboardInterrupt as `run_pairs` does."""
    began_s, started_at = time.monotonic(), _now()
    rounds = run_pairs(order, say)
    exact = None
    with Interrupts() as interrupts:
        if question.exact and not rounds.interrupted:
            say("exact: commands, bytes, round trips and connections per acquire")
            try:
                exact = count_exactly(order)
            except KeyboardInterrupt:
                rounds.interrupted = True
        interrupts.raising = False  # what was measured is stored first
        timing = {"started_at": started_at, "duration_s": time.monotonic() - began_s, "planned_pairs": order.pairs}
        return _answered(question, rounds, identity, timing, exact)


def compare_stored(question: Question, rounds: Rounds, identity: Identity) -> Done:
    """Answer `question` from runs that were stored."""
    timing = {"started_at": _now(), "duration_s": 0.0, "planned_pairs": rounds.finished}
    return _answered(question, rounds, identity, timing, None)


def _answered(
    question: Question,
    rounds: Rounds,
    identity: Identity,
    timing: Mapping[str, Any],
    exact: dict[str, Any] | None,
) -> Done:
    metrics, thresholds = list(_judged(question, rounds)), list(_thresholds(question, rounds))
    judged = [entry for entry in metrics if entry["role"] == "judged"]
    verdict = judge_comparison(
        question.kind, rounds.runs, judged, labels=question.labels, exact=exact, thresholds=thresholds,
        stopped=rounds.stopped, interrupted=rounds.interrupted,
    )  # fmt: skip
    result = {
        "schema_version": SCHEMA_VERSION,
        "kind": question.kind,
        "id": identity.run_id,
        "command": list(identity.command),
        "seed": identity.seed,
        **timing,
        "interrupted": rounds.interrupted,
        "environment": builtins_of(describe_environment()),
        "sides": [_side(label, rounds.results.get(index)) for index, label in enumerate(question.labels)],
        "differs": _differs(question, rounds),
        "tolerance_ratio": question.tolerance,
        "finished_pairs": rounds.finished,
        "paired": rounds.paired,
        "repeated_pairs": rounds.repeated,
        "metrics": metrics,
        "exact": exact,
        "thresholds": thresholds,
        "runs": rounds.runs,
        "warnings": list(_warnings(question, rounds)),
        "verdict": verdict,
    }
    return store(result, identity.folder)


def _judged(question: Question, rounds: Rounds) -> Iterator[dict[str, Any]]:
    """One entry for each metric of each side after the first; `role`: judged, shown, or noise (the first again)."""
    for index, label in list(enumerate(question.labels))[1:]:
        for metric in (*question.judged, *question.shown):
            values = Sides(rounds.values(0, metric), rounds.values(index, metric), rounds.paired)
            if question.kind == "gate":
                found = judge_gate(metric, values, question.tolerance, metrics=len(question.judged))
            else:
                found = judge_compare(metric, values, question.tolerance)
            role = "noise" if index == question.again else "judged" if metric in question.judged else "shown"
            yield {"side": index, "label": label, "role": role, **found.to_json()}


def _thresholds(question: Question, rounds: Rounds) -> Iterator[dict[str, Any]]:
    """The limits of every side that is not only there for comparison."""
    for index, label in enumerate(question.labels):
        runs = [run for run in rounds.runs if run["side"] == index]
        if runs and index != question.again and (index or question.kind == "compare"):
            yield from ({**entry, "label": label} for entry in combine_thresholds(runs))


def _differs(question: Question, rounds: Rounds) -> list[str]:
    """In what settings the sides differ, in words."""
    first = rounds.results.get(0)
    found = dict.fromkeys(question.differs)
    for result in rounds.results.values():
        if first is not None and rounds.paired:
            found |= dict.fromkeys(describe(name, first, result) for name in differences(first, result))
    return list(found)


def _side(label: str, result: RunResult | None) -> dict[str, Any]:
    """What one side is, by one of its runs; only the label when there was none."""
    if result is None:
        return {"label": label, "scenario": None, "fleet": None, "environment": None}
    return {"label": label, **{key: builtins_of(result[key]) for key in ("scenario", "fleet", "environment")}}


def _warnings(question: Question, rounds: Rounds) -> Iterator[str]:
    if rounds.repeated:
        yield f"{rounds.repeated} pairs were repeated, as the load of one of their runs was not what it claims"
    busy = sum((run["generator_cpu_ratio"] or 0) >= BUSY_CORE for run in rounds.runs)
    if busy:
        yield (
            f"generator-bound in {busy} of {len(rounds.runs)} runs: what the servers alone do differently may not show"
        )
    if not rounds.paired and rounds.runs:
        yield "these runs were not made in turn: what else the machine did is part of the difference (30 % is usual)"
    for index, label in enumerate(question.labels):
        if failed := sum(_failed(run) > FAILED_SHARE for run in rounds.runs if run["side"] == index):
            yield f"{label}: more than {FAILED_SHARE:.0%} of acquires failed in {failed} runs: endless latencies"
    unknown = sum(run["safety"]["verdict"] == "UNKNOWN" for run in rounds.runs)
    if unknown:
        yield f"safety is unknown in {unknown} of {len(rounds.runs)} runs"
    yield from dict.fromkeys(
        f"{question.labels[index]}: {warning}"
        for index, result in rounds.results.items()
        for warning in result["warnings"]
        if "is here to show its flaw" in warning or "behind a proxy" in warning
    )


def _failed(run: Mapping[str, Any]) -> float:
    got = run["figures"].get("acquire.success")
    return 0.0 if got is None else 1 - float(got)


def _now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
