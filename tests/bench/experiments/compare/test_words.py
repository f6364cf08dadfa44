"""What compare and gate say: verdict first, changes as measured, and within a hundred columns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from msgspec.structs import replace

from bench.experiments.compare.experiment import compare_stored
from bench.experiments.compare.judge import judge_exact
from bench.experiments.compare.pairs import Comparison, Side
from bench.experiments.compare.result import ComparisonResult, Exact
from bench.experiments.compare.sides import rounds_of
from bench.experiments.compare.words import change_text, figures, sheet, suite
from bench.gates.threshold import find_metric, read_thresholds
from bench.measure.run_result import RunResult
from bench.report.junit import junit_xml
from bench.run.experiment import ExperimentOrder
from tests.bench.report.screen import sheet_text
from tests.bench.whole_run import SAMPLE, run_of

HERE = Path(__file__).parents[2] / "report"
COSTS = {
    "commands": 10,
    "bytes_sent": 1295,
    "bytes_received": 45,
    "round_trips": 2,
    "connections": 0,
}
METRICS = tuple(map(find_metric, ("rate", "acquire.p50")))
Result = dict[str, Any]


def compared(
    tmp_path: Path, factor: float = 1.0, kind: Any = "gate", limits: tuple[str, ...] = ()
) -> ComparisonResult:
    """A comparison of eight runs a side, the second side slower by `factor`."""
    series: list[list[RunResult]] = [[], []]
    for side, results in enumerate(series):
        for number in range(8):
            result = copy.deepcopy(SAMPLE)
            result["rate"]["achieved_per_s"] *= (1 + number / 500) / (factor if side else 1)
            result["latency_s"]["acquire_all"]["p50"] *= (1 + number / 500) * (
                factor if side else 1
            )
            result["fleet"]["server"] = None
            result["started_at"] = "2026-11-21T01:00:00Z"
            results.append(run_of(result))
    sides = [Side(label, series[0][0].scenario) for label in ("old.toml", "new.toml")]
    plan = Comparison(kind, sides, METRICS, (), 0.1, 1, 8)
    order = ExperimentOrder(plan, "7f3a90c1", ["lockbench", kind], tmp_path)
    return compare_stored(order, rounds_of(series, read_thresholds(limits))).result


def shown(result: ComparisonResult, width: int = 100) -> str:
    return sheet_text(sheet(result, "results/x/result.json"), width)


def test_changes_are_told_as_measured(tmp_path: Path) -> None:
    lines = shown(compared(tmp_path, 1.25)).splitlines()
    key, rate = (line for line in lines if line.startswith("rate "))
    latency = [line for line in lines if line.startswith("acquire.p50 ")][-1]
    assert "-20.0 % (interval " in key
    assert "-20.0 %" in rate
    assert "+25.0 %" in latency
    assert rate.split()[:2] == ["rate", "fail"]
    assert any("rate got worse: -20.0%" in line for line in lines)


def test_runs_that_could_show_no_violation_are_not_said_to_have_none(tmp_path: Path) -> None:
    result = compared(tmp_path)
    assert " violations in " in " ".join(shown(result).split())
    untested = [
        replace(run, safety=replace(run.safety, tested_leases=0, service_faults=0))
        for run in result.runs
    ]
    said = " ".join(shown(replace(result, runs=untested)).split())
    # beside the word, first and last, which may be green; in its line
    assert said.count("safety not tested") == 3
    assert "violations in" not in said
    half = [run if run.side else empty for run, empty in zip(result.runs, untested, strict=True)]
    assert f"; {result.sides[0].label}: not tested" in " ".join(
        shown(replace(result, runs=half)).split()
    )


def test_a_metric_without_samples_has_no_interval_to_speak_of(tmp_path: Path) -> None:
    result = compared(tmp_path)
    bare = {"first": None, "second": None, "ratio": None, "low": None, "high": None}
    first, second = result.metrics
    empty = replace(first, **bare, pairs=0)
    unbounded = replace(second, **bare, pairs=4)
    result = replace(result, metrics=(empty, unbounded))
    terminal = {line.split()[0]: line for line in shown(result).splitlines() if line}
    assert "none" not in terminal["rate"]
    assert "none" in terminal["acquire.p50"]
    (table,) = sheet(result).parts
    assert [row[5] for row in table.rows] == ["–", "none"]


@pytest.mark.parametrize("kind", ["compare", "gate"])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_it_fits_a_hundred_columns_with_nothing_cut_off(
    tmp_path: Path, kind: str, factor: float
) -> None:
    result = compared(tmp_path, factor, kind, limits=("acquire.p99 < 5s",))
    label = "git:a-branch-with-a-long-name (3e2a215aa)"
    widest = {
        "metric": "acquire.success",
        "low": 0.408,
        "high": 2.474,
        "ratio": 1.248,
        "verdict": "inconclusive",
    }
    widest |= {"pair_noise_ratio": 0.524}
    metrics = tuple(replace(entry, **widest) for entry in result.metrics)
    sides = (replace(result.sides[0], label=label), result.sides[1])
    text = shown(replace(result, exact=judge_exact(COSTS, COSTS), sides=sides, metrics=metrics))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert text.count("-59.2 … +147 %") == 2 * len(METRICS), "a key figure and a row each"
    assert text.count("inconclusive") >= len(METRICS)
    assert "52.4 %" in text


def test_a_comparison_says_better_or_worse(tmp_path: Path) -> None:
    assert " worse" in shown(compared(tmp_path, 1.3, "compare"))
    assert " better" in shown(compared(tmp_path, 0.7, "compare"))
    assert " same" in shown(compared(tmp_path, 1.0, "compare"))
    first = shown(compared(tmp_path, 1.3, "compare"), 200).splitlines()[0]
    assert first.startswith("COMPARED   new.toml against old.toml: rate -23.1 % (worse)")


def test_exact_costs_are_told_one_by_one(tmp_path: Path) -> None:
    result = compared(tmp_path)
    exact = judge_exact(COSTS, COSTS | {"commands": 11, "round_trips": 1})
    text = " ".join(shown(replace(result, exact=exact)).split())
    assert "commands 10 → 11 · round trips 2 → 1 · same: " in text
    assert exact.failures == ("commands per acquire: 10 → 11",)
    assert "not counted: there is no server" in shown(
        replace(result, exact=Exact(skipped="there is no server"))
    )


def test_junit_has_a_case_for_each_thing_judged(tmp_path: Path) -> None:
    result = compared(tmp_path, 1.3, limits=("acquire.p99 < 1us",))
    document = junit_xml(suite(replace(result, exact=judge_exact(COSTS, COSTS))))
    xmlschema.XMLSchema(str(HERE / "JUnit.xsd")).validate(document)
    for name in (
        "rate (new.toml)",
        "acquire.p50 (new.toml)",
        "acquire.p99 &lt; 1us",
        "exact costs",
        '"gate"',
    ):
        assert name in document
    assert 'tests="5" failures="4" errors="0"' in document


def test_what_is_allowed_stands_beside_every_judged_interval(tmp_path: Path) -> None:
    result = compared(tmp_path, 1.25)
    (part,) = sheet(result).parts
    allowed = {row[0]: row[part.head.index("allowed")] for row in part.rows}
    assert allowed == {"rate": "-9.1 %", "acquire.p50": "+10.0 %"}
    shares = replace(result.metrics[0], metric="acquire.success", first=0.5, tolerance_ratio=0.01)
    assert shares.limit == pytest.approx(0.98), "one point of all acquires"
    assert replace(shares, role="shown").limit is None
    assert replace(shares, tolerance_ratio=None).limit is None, (
        "results of before say nothing of it"
    )
    (figure,) = figures(result)
    assert figure.rows[0][-1] == pytest.approx(1 / 1.1)


def test_the_figure_names_first_what_failed(tmp_path: Path) -> None:
    result = compared(tmp_path, 1.25)
    metrics = (replace(result.metrics[0], verdict="pass"), result.metrics[1])
    (figure,) = figures(replace(result, metrics=metrics))
    assert figure.title.index("acquire.p50 +25.0 % (fail)") < figure.title.index("rate")


def test_how_long_a_run_took_is_said_and_who_sets_it(tmp_path: Path) -> None:
    result = compared(tmp_path)
    turns = replace(result, paired=True, in_turns=True, looks=(4, 8), planned_pairs=24)
    assert "each, alternating every 0.1 s (--duration sets it)" in " ".join(shown(turns).split())
    assert "8 pairs" in sheet(replace(turns, finished_pairs=8)).headline
    assert "7 of 24 pairs" in sheet(replace(turns, finished_pairs=7)).headline
    assert "there and back" in " ".join(shown(replace(turns, in_turns=False)).split())


def test_a_gate_that_failed_by_counting_says_what_grew(tmp_path: Path) -> None:
    exact = judge_exact(COSTS, COSTS | {"commands": 11})
    result = replace(
        compared(tmp_path), exact=exact, paired=True, finished_pairs=0, runs=(), metrics=()
    )
    assert "commands 10 → 11" in shown(result)


def test_a_change_to_for_ever_is_endless() -> None:
    assert (change_text(1.5), change_text(4.0), change_text(80_000.0)) == (
        "+50.0 %",
        "+300 %",
        "+∞",
    )
