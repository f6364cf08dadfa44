"""No green word over nothing: each command's judge is fed nothing, a contradiction and noise;
README has every word.

What is green over evidence is shown beside it, so that a judge that never says a good word would be
noticed.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench.experiments.audit.judge import judge_cells
from bench.experiments.capacity.judge import (
    CapacityPlan,
    SweepPoint,
    judge_capacity,
    point_of,
)
from bench.experiments.capacity.probe import read_slo
from bench.experiments.capacity.result import ClosedLoop, Probe, Seen
from bench.experiments.capacity.search import Findings
from bench.experiments.compare.judge import judge_comparison
from bench.experiments.durability.loss_judge import judge_crash
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.planner import judge_page, plan_page
from bench.experiments.durability.price_judge import findings_of, judge_fsync
from bench.experiments.explore.experiment import row_of
from bench.experiments.explore.judge import judge_explored
from bench.experiments.explore.search import Hunt
from bench.experiments.judge.judge import judge_rows as judge_lock
from bench.experiments.judge.needs import CONTENTION
from bench.experiments.judge.result import JudgedRow, JudgedWord
from bench.experiments.safety_matrix.judge import judge_rows
from bench.experiments.safety_matrix.leases import confirmed
from bench.experiments.safety_matrix.result import MatrixWord, SafetyRow
from bench.experiments.split_votes.judge import judge_split_votes
from bench.gates.run_verdict import judge_run
from bench.generated import evidence_table, words_table
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, RowWord
from bench.measure.result import read_result
from bench.measure.section import typed
from bench.measure.verdict import WORDS, Kind, word_of, worst_code
from bench.recipes.registry import find_recipe
from bench.scenario import load
from tests.bench.whole_run import run_of
from tests.doubles.attributes import attributes
from tests.doubles.capacity_points import ACQUIRE, probe
from tests.doubles.compared import compared_run, judged, limit
from tests.doubles.fsync_visits import crash_of, cut, rows_of, turns, visit

# a section, or the JSON value of one
Verdict = Any
README = Path(__file__).parents[2] / "README.md"
OLD_CRASH = read_result(Path(__file__).parents[1] / "histories" / "results" / "crash.json")


def safety_rows(*verdicts: MatrixWord) -> Verdict:
    rows = [
        SafetyRow("?", one, part="claim", recipe="redlock", fault="votes", expected="confirmed")
        for one in verdicts
    ]
    return judge_rows(rows)


def audit(*cells: tuple[str, JudgedWord]) -> Verdict:
    return judge_cells(
        [
            JudgedRow(
                library=name,
                group="?",
                topic="forked",
                question="?",
                is_safety=True,
                verdict=verdict,
            )
            for name, verdict in cells
        ]
    )


def own_lock(tested: int, *others: JudgedWord) -> Verdict:
    """What is said of a lock with so many tested leases, and other rows with these words."""
    contended = JudgedRow(
        group="?", topic=CONTENTION, question="?", is_safety=True, verdict="holds", tested=tested
    )
    rows = [structs.replace(contended, topic="?", verdict=word, tested=0) for word in others]
    return judge_lock([contended, *rows])


def crash(word: RowWord) -> Verdict:
    row = structs.replace(typed(OLD_CRASH, CrashResult).rows[0], verdict=word)
    return judge_crash([], [row])


def planned(*cells: dict[str, Any], **conditions: Any) -> Verdict:
    """What the planner's page says over these cells of a crash result."""
    crash = crash_of(*cells)
    crash = structs.replace(crash, conditions=structs.replace(crash.conditions, **conditions))
    return judge_page(
        plan_page(rows_of(turns([visit("everysec", 5000), visit("always", 250)], 6)), crash)
    )


def noisy_row() -> MatrixWord:
    """What a claim comes to for which nobody was granted a lease."""
    return confirmed(True, {}, {"somebody was granted": False}).verdict


def fsync(*visits: dict[str, Any], planned: int = 0, count: int = 6) -> Verdict:
    rows = rows_of(turns(visits, count))
    return judge_fsync(findings_of(rows), rows, planned=planned or len(visits), done=len(visits))


def split_votes(
    contention_rounds: int, *, rounds: int = 2000, misses: tuple[str, ...] = ()
) -> Verdict:
    contention = {
        "contenders": 5,
        "order": "parallel",
        "spread_s": 0.0,
        "double_grants": 0,
        "endings": {"unreachable": 0},
        "contention_rounds": contention_rounds,
    }
    calibration = {"contenders": 5, "rounds": rounds, "misses": list(misses)}
    return judge_split_votes(
        [attributes(calibration)], [attributes(contention)], [], interrupted=False
    )


def capacity(*looks: tuple[float, Seen], closed: float = 1_100.0) -> Verdict:
    probes = [typed({**probe(rate), "seen": seen.value}, Probe) for rate, seen in looks]
    loop = typed(
        {"users": 16, "achieved_per_s": closed, "acquire_s": ACQUIRE, "generator_cpu_ratio": 0.5},
        ClosedLoop,
    )
    asked = SweepPoint(load(None, {"rate": "1"}), {})
    plan = CapacityPlan(
        (asked,), read_slo(["acquire.p99 < 10ms"]), None, fixed_users=False, budget_s=60
    )
    return judge_capacity([point_of(asked, Findings(probes, [loop]), plan)])


def comparison(kind: Any, words: tuple[str, ...], *statuses: str) -> Verdict:
    metrics = [judged(word, noisy=True) for word in words]
    runs = [compared_run(side % 2, status) for side, status in enumerate(statuses)]
    return judge_comparison(kind, runs, metrics, labels=["a", "b"])


def run(
    safety: str = "SAFE", *, tested: int = 500, acquired: int = 500, generator: str = "VALID"
) -> Verdict:
    sections = {
        "outcomes": {"acquired": acquired},
        "rate": {"achieved_per_s": acquired},
        "generator": {"verdict": generator, "reason": "?"},
    }
    judged = {"verdict": safety, "reason": "?", "tested_leases": tested}
    return judge_run(run_of(sections, safety=judged), ())


def explored(played: int, tested: int, raised: str = "", *, recipe: str = "set-nx-lua") -> Verdict:
    total = Hunt(played=played, tested=tested, raised=raised)
    return judge_explored([row_of(recipe, find_recipe(recipe).about, total)], 1)


HELD = tuple((rate, Seen.HELD) for rate in (700.0, 800.0, 850.0, 900.0, 920.0, 940.0, 960.0))
CLEAN = (*HELD, *((rate, Seen.MISSED) for rate in (1_000.0, 1_020.0, 1_050.0, 1_100.0, 1_200.0)))
GREEN: dict[str, Callable[[], Verdict]] = {
    "run": run,
    "safety": lambda: safety_rows(AS_EXPECTED),
    "explore": lambda: explored(200, 150),
    "audit": lambda: audit(
        ("redlock-py", "does not"), ("control: forked", "does not"), ("control: none", "holds")
    ),
    "crash": lambda: crash(AS_EXPECTED),
    "split-votes": lambda: split_votes(200),
    "fsync": lambda: fsync(visit("none", 6000), visit("everysec", 5000), visit("always", 250)),
    "capacity": lambda: capacity(*CLEAN),
    "compare": lambda: comparison("compare", ("same",), "pass", "pass"),
    "gate": lambda: comparison("gate", ("pass",), "pass", "pass"),
    "planner": lambda: planned(cut("everysec", "delayed", instances=1)),
    "judge": lambda: own_lock(100),
}
# nothing, a contradiction, noise
NEVER_GREEN: dict[str, tuple[Callable[[], Verdict], ...]] = {
    "run": (
        lambda: run("NOT TESTED", tested=0, acquired=0),
        # a judge of safety that claims too much
        lambda: run("SAFE", tested=5),
        lambda: run("UNKNOWN"),
        lambda: run("VIOLATED", tested=0),
        lambda: run(generator="INVALID"),
    ),
    "safety": (safety_rows, lambda: safety_rows("skipped"), lambda: safety_rows(noisy_row())),
    "explore": (
        lambda: judge_explored([], 0),
        lambda: judge_explored([], 1),
        # nobody asked for a lock that was held
        lambda: explored(5_000, 20),
        lambda: explored(5_000, 4_000, "TypeError: ?"),
        # which is known to be flawed
        lambda: explored(5_000, 4_000, recipe="get-set"),
    ),
    "audit": (
        audit,
        # no library could be had
        lambda: audit(("control: forked", "does not"), ("control: none", "holds")),
        # nobody knows whether a fault would have been seen
        lambda: audit(("redlock-py", "holds")),
        lambda: audit(("redlock-py", "not known"), ("control: forked", "does not")),
        lambda: audit(("redlock-py", "holds"), ("control: forked", "holds")),
        lambda: audit(("lockcore gevent", "does not"), ("control: forked", "does not")),
    ),
    "judge": (
        lambda: judge_lock([]),
        lambda: own_lock(0),
        lambda: own_lock(99),
        lambda: own_lock(100, "not known"),
        lambda: own_lock(100, "does not"),
    ),
    "crash": (
        lambda: judge_crash([], []),
        lambda: crash(NOT_KNOWN),
    ),
    "split-votes": (
        lambda: judge_split_votes([], [], [], interrupted=False),
        lambda: split_votes(200, misses=("the rate is 0.9, expected 0.4",)),
        lambda: split_votes(0),
        lambda: split_votes(200, rounds=30),
    ),
    "fsync": (
        fsync,
        lambda: fsync(visit("no", 4000), visit("everysec", 5000), visit("always", 250)),
        lambda: fsync(visit("none", 6000, cpu=0.99), visit("everysec", 5000, cpu=0.99), planned=2),
        lambda: fsync(
            visit("none", 6000), visit("everysec", 5000), visit("always", 250), planned=10
        ),
        # no interval
        lambda: fsync(visit("none", 6000), visit("everysec", 5000), visit("always", 250), count=5),
    ),
    "capacity": (
        lambda: judge_capacity([]),
        capacity,
        lambda: capacity(*CLEAN, closed=17_536.0),
        lambda: capacity(*HELD[-1:], *CLEAN[-2:]),
        lambda: capacity(*HELD),
        lambda: capacity(
            *HELD, *((rate, Seen.SATURATED) for rate, seen in CLEAN if seen is Seen.MISSED)
        ),
        lambda: capacity(*CLEAN, *((rate, Seen.MISSED) for rate, _ in HELD)),
    ),
    "compare": (
        lambda: comparison("compare", ()),
        lambda: comparison("compare", ("same",), "pass", "invalid"),
        lambda: comparison("compare", ("inconclusive",), "pass", "pass"),
    ),
    "gate": (
        lambda: comparison("gate", ("pass",)),
        lambda: comparison("gate", (), "pass", "pass"),
        lambda: comparison("gate", ("pass",), "pass", "violated"),
        lambda: comparison("gate", ("pass", "inconclusive"), "pass", "pass"),
    ),
    "planner": (
        lambda: judge_page(plan_page([], None)),
        planned,
        lambda: planned(cut("everysec", "delayed", grants=1)),
        lambda: planned(cut("everysec", "delayed", instances=1), cuts_per_cell=3),
        lambda: planned(cut("everysec", "delayed", instances=1, cuts=6)),
        lambda: planned(cut("everysec", "delayed", instances=1), instances=(5,)),
    ),
}


@pytest.mark.parametrize("command", GREEN)
def test_a_judge_says_its_good_word_over_evidence(command: str) -> None:
    verdict = GREEN[command]()
    assert (word_of(command, verdict).kind, verdict["exit_code"]) == (Kind.GOOD, 0), verdict
    assert verdict["evidence"]
    assert all(one["count"] >= one["least"] >= 1 for one in verdict["evidence"])


@pytest.mark.parametrize(
    ("command", "judge"),
    [(name, judge) for name, judges in NEVER_GREEN.items() for judge in judges],
)
def test_no_judge_is_green_over_nothing_over_a_contradiction_or_over_noise(
    command: str, judge: Callable[[], Verdict]
) -> None:
    verdict = judge()
    assert word_of(command, verdict).kind is not Kind.GOOD, verdict
    # the figures of such a run hold
    if verdict["word"] not in ("NOT TESTED", "UNKNOWN"):
        assert verdict["exit_code"] != 0
        assert verdict["reasons"]


def test_every_word_that_can_be_printed_stands_in_the_table() -> None:
    """Sheets are made of words; the only texts that head one are those of `WORDS`."""
    printed = {
        call.args[0].value
        for path in (README.parent / "bench").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") in ("Sheet", "Word")
        and call.args
        if isinstance(call.args[0], ast.Constant)
    }
    known = {word.text for words in WORDS.values() for word in words}
    assert printed == known, (
        "a sheet that is headed by a text of its own, or a word that no command says"
    )
    tables = (words_table(), evidence_table())
    assert all(f"| **{text}** |" in table for text in known for table in tables)


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((4, 1), 1),
        ((1, 4, 0), 1),
        ((4, 5), 5),
        ((3, 5), 3),
        ((2, 130), 130),
        ((0, 4), 4),
        ((3, 1, 4), 3),
    ],
)
def test_of_several_exit_codes_the_first_of_the_order_counts(
    codes: tuple[int, ...], worst: int
) -> None:
    assert worst_code(codes) == worst


FAILED_AND_UNDECIDED: dict[str, Callable[[], Verdict]] = {
    "run": lambda: judge_run(run_of(), (), [limit("fail", 9.0), limit("inconclusive")]),
    "gate": lambda: comparison("gate", ("fail", "inconclusive"), "pass", "pass"),
    "gate-limits": lambda: judge_comparison(
        "gate",
        [compared_run(0), compared_run(1)],
        [judged("inconclusive")],
        labels=["a", "b"],
        thresholds=[limit("inconclusive"), limit("fail", 9.0)],
    ),
    "compare-limits": lambda: judge_comparison(
        "compare",
        [compared_run(0), compared_run(1)],
        [judged("inconclusive")],
        labels=["a", "b"],
        thresholds=[limit("inconclusive"), limit("fail", 9.0)],
    ),
}


@pytest.mark.parametrize("command", FAILED_AND_UNDECIDED)
def test_what_failed_stays_failed_beside_what_is_undecided(command: str) -> None:
    assert FAILED_AND_UNDECIDED[command]()["exit_code"] == 1


def test_every_command_with_a_good_word_is_fed() -> None:
    assert set(NEVER_GREEN) == set(GREEN) == set(WORDS)


def test_the_planner_advises_nothing_without_crashes_or_without_a_safe_option() -> None:
    page = plan_page([], None)
    assert page.advice == (
        "there is no recommendation yet: run lockbench crash --quick, then lockbench planner",
    )
    assert judge_page(page).word == "NOT KNOWN"


@pytest.mark.parametrize(
    ("page", "made"),
    [(README, words_table), (README.parent / "bench/measure/README.md", evidence_table)],
)
def test_a_page_has_the_table_that_the_code_makes(page: Path, made: Callable[[], str]) -> None:
    text = page.read_text(encoding="utf-8")
    table = text.partition("<!-- words: begin -->\n")[2].partition("\n<!-- words: end -->")[0]
    assert table == made(), "run make schemas"
