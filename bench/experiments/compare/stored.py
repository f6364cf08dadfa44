"""Runs that were stored before: *a folder or file → results; two series of them → entries as of runs made now*.

Rules: a place is a result.json, a folder with one, or a folder of such folders (a series: several runs of one thing).
Runs of one place must agree in everything; what differs between places must have been declared.
Source: bench.experiments.compare.likeness.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.experiments.compare.likeness import describe, differences, undeclared, unknown_variable
from bench.experiments.compare.pairs import Rounds, entry_of
from bench.gates.threshold import Threshold
from bench.measure.result import RESULT_NAME
from bench.measure.run_result import RunResult, read_run
from bench.measure.section import builtins_of


def read_series(place: Path) -> list[RunResult]:
    """Return the results at `place`, oldest first. Raises UsageError for what holds none of a run."""
    if place.is_dir() and not (place / RESULT_NAME).exists():
        found = [read_run(path) for path in sorted(place.glob(f"*/{RESULT_NAME}"))]
        if not found:
            raise UsageError(f"{place} holds no result; give a result folder of lockbench run, or a folder of them")
    else:
        found = [read_run(place)]
    return sorted(found, key=lambda result: result.started_at)


def require_alike(series: Sequence[Sequence[Any]], labels: Sequence[str], variables: Sequence[str]) -> list[str]:
    """Return what differs between the series, in words. Raises UsageError when it was not declared."""
    first = series[0][0]
    for variable in variables:
        if wrong := unknown_variable(variable, first):
            raise UsageError(f"option --variable: {wrong}")
    for results, label in zip(series, labels, strict=True):
        for other in results[1:]:
            if names := differences(results[0], other):
                said = "; ".join(describe(name, results[0], other) for name in names)
                raise UsageError(f"the runs in {label} are not of one thing: {said}")
    declared: dict[str, None] = {}
    for results, label in zip(series[1:], labels[1:], strict=True):
        names = differences(first, results[0])
        if wrong_ones := undeclared(names, variables):
            said = "; ".join(describe(name, first, results[0]) for name in wrong_ones)
            raise UsageError(
                f"{labels[0]} and {label} cannot be compared, as more than the variable differs: {said}. "
                f"Run them alike, or declare what is meant to differ (--variable {wrong_ones[0]})"
            )
        declared |= dict.fromkeys(describe(name, first, results[0]) for name in names)
    return list(declared)


def rounds_of(series: Sequence[Sequence[RunResult]], thresholds: Sequence[Threshold] = ()) -> Rounds:
    """Return stored runs as if they had been run: they are not paired, `Rounds.paired` says so.

    `thresholds`: asked for now; those of the runs themselves were judged then.
    """
    runs = [
        {
            **entry_of(result, side, number),
            "position": 0,
            "thresholds": [builtins_of(threshold.judge(result)) for threshold in thresholds],
        }
        for side, results in enumerate(series)
        for number, result in enumerate(results)
    ]
    return Rounds(runs, {side: results[-1] for side, results in enumerate(series)}, paired=False)
