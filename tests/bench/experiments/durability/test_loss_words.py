"""What `lockbench crash` says, from a result of a few cuts."""

import html
import json
import re
from pathlib import Path

import pytest

from bench.experiments.durability.loss_experiment import concluded
from bench.experiments.durability.loss_judge import AskedAgain, CutFacts, Loss, LossLedger
from bench.experiments.durability.loss_plan import CrashPlan
from bench.experiments.durability.loss_result import Crash, CrashResult
from bench.experiments.durability.loss_words import figures, sheet, suite
from bench.measure.section import typed
from bench.report.html.page import render
from tests.bench.report.screen import sheet_text
from tests.doubles.answers import page_of

OLD = Path(__file__).parents[3] / "histories" / "results" / "crash.json"
STORED = typed(json.loads(OLD.read_text("utf-8")), CrashResult)
HEADED = ("id", "command", "seed", "started_at", "duration_s", "interrupted", "environment")
HEADER = {name: getattr(STORED, name) for name in HEADED}


def cuts(crash: Crash, lost: int, doubled: int, *, in_flight: int = 0) -> list[CutFacts]:
    window_s = 0.61 if lost else None
    losses = tuple(
        Loss(margin, place, 190, lost, window_s) for margin in crash.margins for place in (0, None)
    )
    told = (False,) if crash.restart == "delayed" else (False, True)
    asked = tuple(
        AskedAgain(margin, abstention, 20, 0 if margin or abstention else doubled)
        for margin in crash.margins
        for abstention in told
    )
    ledgers = (LossLedger(0, in_flight, False, 0.002),)
    unavailable_s = (2.1 if crash.restart == "delayed" else 0.02, 2.05)
    return [
        CutFacts(crash, number, 1.5, ledgers, losses, asked, unavailable_s) for number in range(20)
    ]


def result(*groups: list[CutFacts]) -> CrashResult:
    plan = CrashPlan(tuple(cuts[0].crash for cuts in groups), 20, 240, seed=1, quick=True)
    of_all = [cut for cuts in groups for cut in cuts]
    return concluded(HEADER, STORED.fleet, plan, of_all)


FINE = result(
    cuts(Crash(3, "always", "power-cut", 1, "at-once"), 0, 0),
    cuts(Crash(3, "everysec", "power-cut", 1, "at-once"), 120, 14),
    cuts(Crash(3, "everysec", "kill", 1, "at-once"), 7, 3, in_flight=1)
    + cuts(Crash(3, "everysec", "kill", 1, "at-once"), 0, 0),
    cuts(Crash(3, "none", "kill", 1, "at-once"), 190, 20),
    cuts(Crash(3, "none", "kill", 1, "delayed"), 190, 0),
)


def printed(found: CrashResult, width: int) -> str:
    return sheet_text(sheet(found, "here"), width)


def test_the_verdict_and_the_three_findings_come_first() -> None:
    assert printed(FINE, 200).splitlines()[0].rstrip() == (
        "AS EXPECTED   the policy always lost no acknowledged lock, the policy everysec lost the "
        "locks of at most the last 0.61 s in a power cut"
    )
    assert sheet(FINE).keys == (
        (
            "always",
            "no acknowledged lock lost, 0 of 1,600 locks granted twice",
            "20 crashes; 95 % sure: fewer than 1 crash in 6",
        ),
        ("everysec", "at most 240 locks lost", "in one power cut, at 240 locks/s"),
        (
            "delayed restart",
            "0 of 800 locks granted twice",
            "20 crashes; 95 % sure: fewer than 1 crash in 6",
        ),
    )


def test_what_is_lost_what_is_kept_and_who_got_a_lock_twice() -> None:
    lines = [" ".join(line.split()) for line in printed(FINE, 100).splitlines()]
    assert "3 everysec power cut 1 20 240 240 63% 0.61 0.61 0/20" in lines
    assert "3 always power cut 1 20 0 0 0% – – 0/20" in lines
    assert "3 everysec power cut 1 280/400 0/400 0/800 0.02 2.05" in lines
    assert "3 none kill -9 1 0/400 0/400 2.10 –" in lines
    text = " ".join(lines)
    assert "an fsync ran during 20 of 40 crashes, and these crashes lost up to 14 locks" in text
    assert (
        "always no acknowledged lock lost, 0 of 1,600 locks granted twice (20 crashes; 95 % sure: "
        "fewer than 1 crash in 6)" in text
    )
    assert "and the clients trusted it: 400 of 400 locks granted twice (20 crashes)" in text


def test_what_is_wrong_is_said_first_and_marked_in_its_row() -> None:
    bad = result(cuts(Crash(3, "always", "power-cut", 1, "at-once"), 2, 1))
    lines = printed(bad, 120).splitlines()
    assert lines[0].startswith("VIOLATED   the policy always lost 80 locks")
    assert not any("95 % sure" in line for line in lines), "a bound beside a loss says nothing"
    assert any(
        line.startswith("because") and "acknowledged locks were lost in 20 cuts" in line
        for line in lines
    )
    assert any(line.rstrip().endswith("0/20 !") for line in lines)
    assert any("20/400 !" in line for line in lines)


@pytest.mark.parametrize(
    ("found", "headline"),
    [
        (result(), "nothing finished"),
        (
            result(cuts(Crash(3, "no", "shutdown", 1, "at-once"), 0, 0)),
            "0 of 7,600 locks lost in 20 crashes",
        ),
    ],
)
def test_without_a_finding_of_its_own_it_has_a_headline_all_the_same(
    found: CrashResult, headline: str
) -> None:
    assert sheet(found).headline == headline


def test_every_cell_is_a_case() -> None:
    whole = suite(FINE)
    assert len(whole.cases) == len(FINE.rows) == 4 * 4 + 2
    assert {case.status for case in whole.cases} == {"pass"}
    bad = result(cuts(Crash(3, "always", "power-cut", 1, "at-once"), 2, 0))
    assert {case.status for case in suite(bad).cases} == {"violated"}


def test_a_figure_shows_what_was_lost() -> None:
    (lost,) = figures(FINE)
    assert lost.title == (
        "1 of 4 kinds of crash lost no acknowledged lock; the worst crash lost 380 locks"
    )
    policies = [re.escape(f">{name}</text>") for name in ("none", "everysec", "always")]
    assert re.search(".*".join(policies), lost.svg), "grouped by policy"
    assert lost.svg.count('class="tick good"') == 3, "always: a tick where nothing was lost"
    assert ["always", "power cut", 0.0, 0.0, 0.0] in lost.rows


def test_the_first_screen_of_the_page_answers() -> None:
    document = html.unescape(render(page_of(FINE)))
    places = (
        "AS EXPECTED",
        "the policy always lost no acknowledged lock",
        "95 % sure: fewer than 1 crash in 6",
        'data-figure="lost"',
        "What to do",
        "lockbench planner",
        "What was not measured",
        "a disk slower than this disk",
        "<h2>Granted twice, restarted at once",
        "<h2>In words",
    )
    found = [document.index(text, document.index("<body>")) for text in places]
    assert found == sorted(found)


def test_a_group_of_cuts_that_all_stand_apart_is_told_of() -> None:
    apart = result(cuts(Crash(1, "everysec", "kill", 1, "at-once"), 7, 3, in_flight=1))
    assert apart.groups[0].lost_per_cut.max is None
    assert figures(apart) == []
    assert "during 20 of 20 crashes" in printed(apart, 200)
