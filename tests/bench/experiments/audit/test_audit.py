"""The audit's judgement and words: what a control or lockcore must do, what others do, what is not
known."""

import shlex
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from bench.errors import UsageError
from bench.experiments.audit import experiment
from bench.experiments.audit.experiment import AuditPlan, _Playing, chosen, known
from bench.experiments.audit.judge import judge_cells
from bench.experiments.audit.libraries import promise_of, read_libraries
from bench.experiments.audit.result import CONTROL, AuditConditions, AuditedSchedule, AuditResult
from bench.experiments.audit.words import evidence, sheet, suite
from bench.experiments.judge.library import Library, LibraryDriver, LibraryWords
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.result import CourseStep, JudgedRow, JudgedWord
from bench.experiments.judge.row import JudgeRow
from bench.experiments.judge.schedules import SCHEDULES
from bench.measure.environment import describe_environment
from bench.measure.fleet_facts import OwnFleet
from bench.measure.server_facts import ServerBinary
from bench.report.html.page import render
from bench.report.sheet import print_sheet
from tests.contest.contestants import DRIVERS
from tests.doubles.answers import page_of

ONE = "one-stopped"
ENTRIES = {entry.library.name: entry for entry in (*read_libraries(), *read_libraries(DRIVERS))}


def cell(library: str, verdict: JudgedWord, schedule: str = ONE, wrong: int = 0) -> JudgedRow:
    return JudgedRow(
        library=library,
        group="?",
        topic=schedule,
        question="?",
        is_safety=True,
        verdict=verdict,
        happened="why",
        wrong=wrong,
        plays=max(wrong, 1),
    )


def result(*cells: JudgedRow) -> AuditResult:
    """An audit that came to these cells."""
    schedules = tuple(AuditedSchedule(name, "?", "?", "?") for name in (ONE, "forked"))
    return AuditResult(
        id="1",
        command=("lockbench", "audit"),
        seed=1,
        started_at="2026-11-23T00:00:00Z",
        duration_s=1.0,
        interrupted=False,
        environment=describe_environment(),
        fleet=OwnFleet(server=ServerBinary("/usr/bin/redis-server", "redis", "7.0.15")),
        conditions=AuditConditions(repeats=1),
        schedules=schedules,
        libraries=tuple(
            Library(name, "python") for name in dict.fromkeys(one.library for one in cells)
        ),
        absent=(),
        cells=cells,
        verdict=judge_cells(cells),
    )


@pytest.mark.parametrize(
    ("library", "verdict", "code"),
    [
        (CONTROL + ONE, "does not", 0),
        # a planted fault that was not found
        (CONTROL + ONE, "holds", 4),
        (CONTROL + ONE, "not known", 4),
        (CONTROL + "none", "holds", 0),
        # the audit accuses what has no fault
        (CONTROL + "none", "does not", 4),
        ("lockcore gevent", "holds", 0),
        ("lockcore gevent", "does not", 5),
        ("lockcore gevent", "not known", 4),
        # shown, and decides nothing
        ("redlock-py", "does not", 0),
        ("redlock-py", "not known", 0),
    ],
)
def test_what_must_be_and_what_is_only_told(library: str, verdict: JudgedWord, code: int) -> None:
    cells = [cell("lockcore threads", "holds"), cell(library, verdict)]
    assert judge_cells(cells).exit_code == code


def test_without_a_lockcore_or_a_control_nothing_is_shown() -> None:
    assert judge_cells([cell("redlock-py", "holds")]).exit_code == 4


def test_what_did_not_come_about_among_others_is_played_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[tuple[str, int]] = []

    def play(stage: Any, one: JudgeRow[Stage], *_terms: object) -> JudgedRow:
        crowd = sum(thread.name.startswith("ThreadPool") for thread in threading.enumerate())
        played.append((stage.name, crowd))
        return cell("", "not known" if stage.name == "b" and crowd else "holds", one.name)

    monkeypatch.setattr(experiment, "judged", play)
    monkeypatch.setattr(
        _Playing,
        "_stage",
        lambda _, driver: nullcontext(SimpleNamespace(name=driver.library.name, driver=driver)),
    )
    plan = AuditPlan((), chosen([ONE]), AuditConditions(repeats=1), seed=1)
    server = ServerBinary("/usr/bin/redis-server", "redis", "7.0.15")
    cells: list[JudgedRow] = []
    three = [LibraryDriver(Library(name, "python"), LibraryWords(), ()) for name in "abc"]
    _Playing(plan, server, lambda _: None).run(three, cells)
    assert [(one.library, one.verdict) for one in cells] == [
        ("a", "holds"),
        ("b", "holds"),
        ("c", "holds"),
    ]
    assert [name for name, _ in played].count("b") == 2
    assert played[-1] == ("b", 0)


def test_a_rate_that_is_not_one_stands_with_its_interval() -> None:
    shown = sheet(
        result(
            structs.replace(cell("redlock-py", "does not", wrong=6), plays=10),
            cell("rslock", "holds"),
        )
    )
    rows = {part.name: part.rows for part in shown.parts}
    assert rows["what went wrong"][0][2] == "6 of 10 (95 %: 31 % to 83 %)"


def test_a_wrong_name_is_refused_with_the_one_it_is_close_to() -> None:
    with pytest.raises(UsageError, match="one-stopped"):
        chosen(["one-stoped"])
    with pytest.raises(UsageError, match="redsync"):
        known(list(ENTRIES.values()), ["redlock-py", "redsinc redigo"])


def test_a_word_chooses_the_libraries_that_have_it_in_their_names() -> None:
    chosen_names = [one.library.name for one in known(read_libraries(), ["redlock-ng", "control"])]
    assert chosen_names == ["redlock-ng", "redlock-ng asyncio"]
    assert known(read_libraries(), []) == read_libraries()


def test_a_folder_without_a_table_of_libraries_is_refused(tmp_path: Path) -> None:
    for text in ("", "no table", "connect = 1", '["x"]\nkind = "cobol"'):
        if text:
            (tmp_path / "libraries.toml").write_text(text, "utf-8")
        with pytest.raises(UsageError, match="give a folder with a valid table as --drivers"):
            read_libraries(tmp_path)


def test_every_schedule_has_a_course_a_source_and_a_planted_fault() -> None:
    source = (
        Path(__file__)
        .parents[4]
        .joinpath("bench/experiments/audit/clients/control.py")
        .read_text("utf-8")
    )
    for name, one in SCHEDULES.items():
        assert one.about
        assert one.source
        assert f'"{name}"' in source, f"no fault is planted for {name}"


def test_the_words_name_every_fault_and_how_often(capsys: pytest.CaptureFixture[str]) -> None:
    shown = sheet(
        result(
            cell("lockcore threads", "holds"),
            cell("redlock-py", "does not", wrong=9),
            cell("redlock-py", "not applicable", "forked"),
            cell(CONTROL + ONE, "does not", wrong=1),
        )
    )
    print_sheet(shown, Console(width=80))
    text = capsys.readouterr().out
    assert "9 of 9" in text
    assert "the audit found 1 of 1 planted faults" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_junit_holds_what_decides() -> None:
    cases = suite(result(cell("lockcore threads", "does not"), cell("redlock-py", "does not")))
    assert [case.name for case in cases.cases] == ["lockcore threads one-stopped"]
    assert structs.asdict(result(cell("lockcore threads", "holds")))["kind"] == "audit"


# -- evidence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ENTRIES if not name.startswith("lockcore")])
def test_every_library_is_told_in_its_own_words(name: str) -> None:
    words = ENTRIES[name].words
    text = words.call("acquire", 1500, 500)
    assert "audit-r" in text
    assert "1500" in text or "1.5" in text
    assert words.promise
    assert words.release != LibraryWords().release
    assert "$" not in "".join(
        words.call(do, 1500, 500) for do in ("connect", "release", "extend", "held", "hold")
    )


def test_a_promise_of_its_own_comes_before_the_algorithms() -> None:
    assert "LockError" in promise_of(ENTRIES["aioredlock"].words, "extend-by-minority")
    assert "Mutual exclusion" in promise_of(ENTRIES["redsync redigo"].words, "paused-in-acquire")
    assert promise_of(LibraryWords(), "script-flush") == ""
    assert promise_of(LibraryWords(), "forked")


def test_faults_of_libraries_open_to_their_courses_and_those_of_controls_do_not() -> None:
    course = (CourseStep(12.4, "A", "dlm.lock(<name>)"), CourseStep(13.0, "", "server 3: killed"))
    wrong, unknown, planted = (
        structs.replace(cell(library, verdict, wrong=2), course=course)
        for library, verdict in (
            ("redlock-py", "does not"),
            ("pottery", "not known"),
            (CONTROL + ONE, "does not"),
        )
    )
    shown = result(wrong, unknown, planted, cell("rslock", "holds"))
    parts = evidence(shown)
    assert [part.name.partition(",")[0] for part in parts] == ["redlock-py", "pottery"]
    assert parts[0].rows == (("12.4", "A", "dlm.lock(<name>)"), ("13", "", "server 3: killed"))
    assert "lockbench audit --library redlock-py --schedule one-stopped" in parts[0].about
    page = render(page_of(shown))
    assert page.count("<summary>redlock-py, one-stopped: 2 of 2</summary>") == 1
    assert "dlm.lock(&lt;name&gt;)" in page
    # in the matrix
    assert page.count('<a href="#course-1">✗</a>') == 1
    assert page.count('<a href="#course-2">?</a>') == 1


@pytest.mark.parametrize(
    "drivers",
    [
        ("--drivers", "d"),
        ("--drivers=d",),
        ("--drivers=/my drivers",),
        ("--drivers", "/my drivers"),
        ("--drivers", "/it's"),
        ("--drivers=/it's",),
    ],
)
def test_the_command_that_plays_a_fault_again_keeps_the_folder_of_drivers(
    drivers: tuple[str, ...],
) -> None:
    course = (CourseStep(12.4, "A", "dlm.lock(<name>)"),)
    wrong = structs.replace(cell("redlock-py", "does not", wrong=2), course=course)
    shown = structs.replace(result(wrong), command=("lockbench", "audit", *drivers, "--quick"))
    again = shlex.split(evidence(shown)[0].about.rpartition("Again: ")[2])
    assert again[2:] == [*drivers, "--library", "redlock-py", "--schedule", ONE]
