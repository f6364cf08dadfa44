"""The tables of `lockbench fsync` and the planner's page: whole cells, nothing shown that was not measured."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.experiments.fsync.judge import always_costs, disk_of, findings_of, judge_fsync
from bench.experiments.fsync.planner import plan_page
from bench.experiments.fsync.result import DiskFigures, FsyncResult
from bench.experiments.fsync.words import disk_text, planner_sheet, sheet, suite
from bench.measure.section import typed
from bench.report.sheet import DOUBTFUL, GOOD
from tests.bench.report.screen import sheet_text
from tests.doubles.fsync_visits import crash_of, cut, load, rows_of, turns, visit

OLD = Path(__file__).parents[3] / "histories" / "results" / "fsync.json"  # of the last release without types


def result(*visits: dict[str, Any], crash: bool = True) -> FsyncResult:
    shape = (16, 4)
    made = visits or (
        *(visit("everysec", 60_000 // n, instances=n, shape=shape) for n in (1, 3, 5)),
        *(visit("always", 3000 // n, instances=n, shape=shape) for n in (1, 3, 5)),
    )
    cells = [cut("everysec", "delayed"), cut("everysec", "at-once", grants=12, lost=90_000), cut("always", "at-once")]
    rows = rows_of(turns(made))
    findings = findings_of(rows)
    return replace(
        typed(json.loads(OLD.read_text("utf-8")), FsyncResult),
        rows=tuple(rows),
        costs=tuple(always_costs(rows)),
        findings=tuple(findings),
        planner=plan_page(rows, crash_of(*cells) if crash else None),
        warnings=(),
        verdict=judge_fsync(findings, rows, planned=6, done=6),
    )


def text_of(shown: FsyncResult, width: int = 80) -> str:
    return sheet_text(sheet(shown, "results/fsync/result.json"), width)


def test_the_verdict_comes_first_and_the_advice_follows() -> None:
    lines = text_of(result()).splitlines()
    assert lines[0] == "AS EXPECTED   always costs 20× (20–20)"
    assert next(line for line in lines if line.startswith("advice")).split(maxsplit=1)[1].startswith("take everysec")


def test_a_load_that_was_not_sustained_has_no_latency() -> None:
    behind = visit("always", 1000)
    behind["loads"]["80%"] = load(500, rate=800.0, due=800, ms=77.0)
    text = text_of(result(behind))
    assert "queue" in text
    assert "77.0" not in text


def test_a_rate_the_generator_limited_is_a_lower_bound() -> None:
    text = text_of(result(visit("everysec", 4000, cpu=0.99), visit("always", 400)))
    assert "≥4,000" in text
    assert "4,000–4,000" not in text
    assert "10×" not in text, "no price is made of it"


def test_fsyncs_nobody_could_count_are_a_dash() -> None:
    text = text_of(result(visit("always", 4321, fsyncs=None, latency_events=None)))
    row = next(line for line in text.splitlines() if "4,321–4,321" in line and "always" in line)
    assert row.rstrip().endswith("–")


def test_the_disk_is_told_of_and_why_rates_do_not_carry_over() -> None:
    text = " ".join(text_of(result()).split())
    assert "fdatasync p50 0.10 ms" in text
    assert "do not carry over" in text
    assert "memory" not in disk_text(DiskFigures(p50=3e-5, p99=None, max=1.0))
    assert "this is memory, no disk" in disk_text(DiskFigures(p50=1e-6, p99=5e-6, max=1.0))


def test_findings_are_cases_and_without_a_crash_result_one_is_asked_for() -> None:
    assert "run lockbench crash" in text_of(result(crash=False))
    red = result(visit("everysec", 100), visit("always", 5000))
    statuses = {case.status for case in suite(red).cases}
    assert "inconclusive" in statuses


def test_a_disk_too_slow_for_a_p99_is_not_left_out_of_it() -> None:
    fast, slow = DiskFigures(p50=1e-4, p99=2e-4, max=3e-4), DiskFigures(p50=4e-3, p99=None, max=9e-3)
    found = disk_of([fast, slow, slow])
    assert found == DiskFigures(p50=4e-3, p99=9e-3, max=9e-3)
    assert disk_of([fast, slow, fast]) == DiskFigures(p50=1e-4, p99=2e-4, max=9e-3)


def test_a_planners_page_of_figures_in_doubt_says_so_and_is_not_green() -> None:
    good = result()
    good = replace(good, planner=replace(good.planner, warnings=()))
    assert (planner_sheet(good).verdict, planner_sheet(good).style) == ("RECOMMENDED", GOOD)
    doubtful = planner_sheet(replace(good, planner=replace(good.planner, warnings=("few cuts",))))
    assert (doubtful.verdict, doubtful.style) == ("NOT KNOWN", DOUBTFUL)
    assert ("because", "few cuts") in [(line.label, line.text) for line in doubtful.lines]
    assert planner_sheet(result(crash=False)).style == DOUBTFUL, "nothing is recommended yet"
