"""The tables of `lockbench fsync` and the planner's page: whole cells, nothing shown that was not
measured."""

import html
import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.experiments.durability.planner import plan_page
from bench.experiments.durability.planner_words import (
    choice_figure,
    disk_text,
    planner_page,
    planner_sheet,
)
from bench.experiments.durability.price_judge import always_costs, disk_of, findings_of, judge_fsync
from bench.experiments.durability.price_result import DiskFigures, FsyncResult
from bench.experiments.durability.price_words import sheet, suite
from bench.measure.section import typed
from bench.report.html.page import render
from bench.report.sheet import DOUBTFUL, GOOD
from tests.bench.report.screen import sheet_text
from tests.doubles.fsync_visits import crash_of, cut, load, rows_of, turns, visit

# of the last release without types
OLD = Path(__file__).parents[3] / "histories" / "results" / "fsync.json"
CRASHES = (
    cut("everysec", "delayed"),
    cut("everysec", "at-once", grants=12, lost=90_000),
    cut("always", "at-once"),
)


def result(*visits: dict[str, Any], crash: bool = True) -> FsyncResult:
    shape = (16, 4)
    made = visits or (
        *(visit("everysec", 60_000 // n, instances=n, shape=shape) for n in (1, 3, 5)),
        *(visit("always", 3000 // n, instances=n, shape=shape) for n in (1, 3, 5)),
    )
    rows = rows_of(turns(made))
    findings = findings_of(rows)
    return replace(
        typed(json.loads(OLD.read_text("utf-8")), FsyncResult),
        rows=tuple(rows),
        costs=tuple(always_costs(rows)),
        findings=tuple(findings),
        planner=plan_page(rows, crash_of(*CRASHES) if crash else None),
        warnings=(),
        verdict=judge_fsync(findings, rows, planned=6, done=6),
    )


def text_of(shown: FsyncResult, width: int = 80) -> str:
    return sheet_text(sheet(shown, "results/fsync/result.json"), width)


def test_the_verdict_comes_first_and_the_advice_follows() -> None:
    lines = text_of(result()).splitlines()
    assert lines[0] == "AS EXPECTED   the policy always costs 20× (20–20)"
    assert (
        next(line for line in lines if line.startswith("choose"))
        .split(maxsplit=1)[1]
        .startswith("everysec, delayed")
    )


def test_a_load_that_was_not_sustained_has_no_latency() -> None:
    behind = visit("always", 1000)
    behind["loads"]["80%"] = load(500, rate=800.0, due=800, ms=77.0)
    text = text_of(result(behind))
    assert "77.0" not in text
    assert "– means that there are too few samples, or that the load fell behind" in " ".join(
        text.split()
    )


def test_a_rate_the_generator_limited_is_a_lower_bound() -> None:
    text = text_of(result(visit("everysec", 4000, cpu=0.99), visit("always", 400)))
    assert "≥4,000" in text
    assert "4,000–4,000" not in text
    assert "10×" not in text, "no price is made of it"


def test_fsyncs_nobody_could_count_are_a_dash() -> None:
    text = text_of(result(visit("always", 4321, fsyncs=None)))
    row = next(line for line in text.splitlines() if "4,321–4,321" in line and "always" in line)
    assert row.rstrip().endswith("–")


def test_the_disk_is_told_of_and_why_rates_do_not_carry_over() -> None:
    text = " ".join(text_of(result()).split())
    assert "fdatasync p50 0.10 ms" in text
    assert "the rates differ on another machine" in text
    assert "memory" not in disk_text(DiskFigures(p50=3e-5, p99=None, max=1.0))
    assert "the files are in memory instead of on a disk" in disk_text(
        DiskFigures(p50=1e-6, p99=5e-6, max=1.0)
    )


def test_findings_are_cases_and_without_a_crash_result_one_is_asked_for() -> None:
    assert "run lockbench crash" in text_of(result(crash=False))
    red = result(visit("everysec", 100), visit("always", 5000))
    statuses = {case.status for case in suite(red).cases}
    assert "inconclusive" in statuses


def test_a_disk_too_slow_for_a_p99_is_not_left_out_of_it() -> None:
    fast = DiskFigures(p50=1e-4, p99=2e-4, max=3e-4)
    slow = DiskFigures(p50=4e-3, p99=None, max=9e-3)
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
    assert planner_sheet(result(crash=False)).style == DOUBTFUL, "no recommendation yet"


def test_words_that_nobody_explains_are_not_used() -> None:
    text = text_of(result()) + sheet_text(planner_sheet(result()), 80)
    for word in ("queue", "late\n", "16×4", "R!", "apart", "beware"):
        assert word not in text, word
    for term in ("appendfsync:", "clients abstain:", "granted twice:", "restart:"):
        assert term in text, term


def test_the_first_screen_of_the_planners_page_answers() -> None:
    """Verdict, answer, bound and price stand before the picture, the picture before what to do, the
    tables last."""
    good = result()
    shown = replace(good, planner=plan_page(good.rows, crash_of(*CRASHES), 10_000))
    document = html.unescape(render(planner_page(shown, ["fsync of today"], "lockbench planner")))
    places = [
        "RECOMMENDED",
        "appendfsync everysec, and start a crashed server only when your longest TTL is over",
        "0 of 400 locks",
        "95 % sure: fewer than 1 crash in 13",
        "at most 10.2 s",
        'data-figure="choices"',
        "What to do",
        "everysec, delayed restart",
        "What was not measured",
        "<h2>The price and the losses of each choice",
        "<h2>In words",
        "Again: <code>lockbench planner",
    ]
    found = [document.index(text, document.index("<body>")) for text in places]
    assert found == sorted(found)


def test_the_picture_of_the_planner_draws_price_against_loss() -> None:
    good = result()
    drawn = choice_figure(plan_page(good.rows, crash_of(*CRASHES), 10_000))
    assert drawn is not None
    assert drawn.title.startswith("2 of 3 choices never granted a lock twice")
    assert drawn.svg.count('class="tick good"') == 2, "a green tick where no lock was granted twice"
    assert ">3 %</text>" in drawn.svg, "12 of 400"
    assert ">10.2</text>" in drawn.svg
    assert choice_figure(plan_page(good.rows, None)) is None
