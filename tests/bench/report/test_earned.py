"""A stored result is never believed: whatever is changed in it, no word stays that its sections do
not earn."""

import copy
import dataclasses
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.errors import UsageError
from bench.measure.latency import Latency
from bench.measure.result import read_result
from bench.measure.section import Section, builtins_of, contradictions_in
from bench.measure.verdict import Kind, word_of
from bench.program import execute
from bench.questions import ANSWERS
from bench.report.run_answer import RUN
from tests.bench.whole_run import SAMPLE
from tests.doubles.answers import kind_of, of_its_kind

RESULTS = Path(__file__).parents[2] / "histories" / "results"
# of each stored result
MUTATIONS = 30
Json = dict[str, Any]


def document(kind: str) -> Json:
    """A stored result of that kind."""
    return (
        copy.deepcopy(SAMPLE)
        if kind == "run"
        else json.loads((RESULTS / f"{kind}.json").read_text("utf-8"))
    )


def changed(kind: str, *changes: tuple[str, Any]) -> Json:
    """The same with other values at these places."""
    made = document(kind)
    for path, value in changes:
        *place, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        section: Any = made
        for part in place:
            section = section[part]
        section[last] = value(section[last]) if callable(value) else value
    return made


def read(made: Json) -> Any:
    return of_its_kind(made, "x/result.json")


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        (
            "run",
            [("verdict.word", "PERFECT")],
            "the stored verdict is PERFECT, but the sections give SAFE",
        ),
        (
            "run",
            [("verdict.status", "violated")],
            "the stored status is violated, but the sections give the verdict SAFE",
        ),
        (
            "run",
            [("verdict.exit_code", 5)],
            "the stored exit code is 5, but SAFE has the exit code 0",
        ),
        ("run", [("verdict.evidence.0.count", 10**6)], "verdict.evidence.0.count"),
        ("run", [("interrupted", True)], "the sections give INTERRUPTED"),
        (
            "run",
            [("generator.verdict", "INVALID"), ("generator.reason", "late")],
            "the sections give INVALID",
        ),
        (
            "run",
            [("generator.verdict", "INVALID")],
            "the verdict is INVALID, but the reason is None",
        ),
        (
            "run",
            [("safety.verdict", "VIOLATED")],
            "the verdict is VIOLATED, but every count of broken rules is 0",
        ),
        (
            "run",
            [
                ("safety.verdict", "VIOLATED"),
                ("safety.service_faults", 7),
                ("safety.violations", 7),
            ],
            "the verdict is VIOLATED, but the reason is None",
        ),
        (
            "run",
            [
                ("safety.verdict", "VIOLATED"),
                ("safety.service_faults", 7),
                ("safety.violations", 7),
                ("safety.reason", "7 × service fault"),
                ("safety.upper_bound_95", None),
            ],
            "the stored verdict is SAFE, but the sections give VIOLATED",
        ),
        (
            "run",
            [("safety.service_faults", 1), ("safety.violations", 1)],
            "safety.examples has 0 × service_fault, but",
        ),
        ("run", [("safety.tested_leases", 3)], "SAFE with 3 tested leases"),
        ("run", [("safety.tested_leases", 50_000)], "from tested leases gives 50,000 or more"),
        ("run", [("breaks", ["worker 0 died"])], "the sections give INVALID"),
        ("run", [("breaks", []), ("limits", {"suspended_s": 3.0})], "the sections give INVALID"),
        (
            "run",
            [
                (
                    "exceptions",
                    {
                        "raised": 10**6,
                        "operations": 10**6,
                        "first": "KeyError: 1 (mine.py:3 in attempt)",
                    },
                )
            ],
            "the sections give INVALID",
        ),
        (
            "run",
            [("exceptions", {"raised": 3, "operations": 10**6, "first": ""})],
            "3 exceptions, but the first exception is",
        ),
        (
            "run",
            [("outcomes.acquired", 0)],
            "latency_s.acquire.count is 229,641, but a calculation from outcomes gives 0",
        ),
        ("crash", [("rows.0.verdict", "violated")], "rows.0.verdict is violated"),
        (
            "crash",
            [("groups.1.lost_total", 0), ("groups.1.lost_share", 0.0)],
            "the sections give NOT AS EXPECTED",
        ),
        (
            "crash",
            [("warnings", ["N=3 no kill of 1, at-once: given up: it hangs"])],
            "the sections give NOT KNOWN",
        ),
        (
            "crash",
            [("verdict.word", "VIOLATED"), ("verdict.status", "violated")],
            "the stored verdict is VIOLATED",
        ),
        ("fsync", [("conditions.visits_planned", 100)], "the sections give NOT KNOWN"),
        ("fsync", [("findings.0.verdict", "not shown")], "findings.0.verdict"),
        ("safety", [("rows.0.seen", "the flaw")], "the sections give VIOLATED"),
        ("safety", [("rows.0.figures.tested", 4)], "the sections give NOT KNOWN"),
        (
            "safety",
            [("rows.2.preconditions.at least 1 × too late", False)],
            "the sections give NOT KNOWN",
        ),
        ("explore", [("rows.0.tested", 4), ("rows.1.tested", 4)], "the sections give NOT KNOWN"),
        ("split-votes", [("contention.0.double_grants", 2)], "the sections give VIOLATED"),
        (
            "split-votes",
            [("calibration.0.endings.nobody", 1000)],
            "the sections give NOT AS EXPECTED",
        ),
        ("audit", [("cells.4.wrong", 0)], "cells.4.verdict is does not"),
        ("judge", [("rows.0.tested", 4)], "the sections give NOT KNOWN"),
        ("judge", [("rows.2.wrong", 1)], "the sections give VIOLATED"),
        ("judge", [("rows.0.figures.1.value", 2.0)], "the sections give VIOLATED"),
        ("judge", [("rows.1.verdict", "told")], "the sections give NOT KNOWN"),
        ("judge", [("rows.1.topic", "contention")], "the sections give NOT KNOWN"),
        # a row that decides is gone, and the number of planned rows with it
        (
            "judge",
            [("rows", lambda rows: rows[:-1]), ("planned", lambda number: number - 1)],
            "the sections give NOT KNOWN",
        ),
        ("judge", [("planned", lambda number: number - 1)], "planned is 30"),
        # a row that decides is said to be not applicable, with or without what it would need
        ("judge", [("rows.22.verdict", "not applicable")], "the sections give NOT KNOWN"),
        (
            "judge",
            [
                ("rows.29.verdict", "not applicable"),
                ("lacks", ["virtual time", "interrupt"]),
            ],
            "the sections give NOT KNOWN",
        ),
        (
            "judge",
            [("rows.23.verdict", "not applicable"), ("instances", 1)],
            "the sections give NOT KNOWN",
        ),
        ("judge", [("keys", 0)], "the sections give NOT KNOWN"),
        # two holders together, or nobody who held it
        (
            "judge",
            [("rows.0.holders", lambda holders: [*holders, {**holders[0], "client": 2}])],
            "the sections give VIOLATED",
        ),
        ("judge", [("rows.0.holders", [])], "the sections give NOT KNOWN"),
        # a fault of safety is said to be another fault
        ("judge", [("rows.2.is_safety", False)], "rows.2.is_safety is False"),
        # the lock is said to lack something that follows from other facts
        ("judge", [("lacks", ["virtual time", "keys"])], "lacks"),
        # rows that wait for the end of a lease hold, and the lease has no end
        ("judge", [("ttl_ms", None)], "the sections give NOT KNOWN"),
        # a row that only tells is said to be not applicable
        ("judge", [("rows.16.verdict", "not applicable")], "the sections give NOT KNOWN"),
        ("judge", [("rows.19.verdict", "not applicable")], "the sections give NOT KNOWN"),
        # a row that nobody knows was chosen
        (
            "judge",
            [
                ("chosen", ["late-sett"]),
                ("rows", lambda rows: rows[:1]),
                ("planned", 1),
                ("verdict.evidence.0.count", 1),
            ],
            "the sections give NOT KNOWN",
        ),
        # a row is played that the lock cannot play
        ("judge", [("lacks", ["fork"])], "the sections give NOT KNOWN"),
        (
            "capacity",
            [("verdict.word", "FOUND"), ("verdict.status", "pass")],
            "the stored verdict is FOUND",
        ),
        (
            "gate",
            [("verdict.word", "PASS"), ("verdict.status", "pass")],
            "the stored verdict is PASS",
        ),
        (
            "compare",
            [("verdict.word", "COMPARED"), ("verdict.status", "pass")],
            "the stored verdict is COMPARED",
        ),
    ],
)
def test_a_word_that_its_sections_do_not_earn_is_refused(
    kind: str, changes: list[tuple[str, Any]], why: str
) -> None:
    read(document(kind))
    with pytest.raises(UsageError) as refusal:
        read(changed(kind, *changes))
    assert why in str(refusal.value)
    assert str(refusal.value).startswith("x/result.json is ")


def test_a_run_whose_exit_code_is_that_of_a_late_wish_to_end_is_read() -> None:
    assert read(changed("run", ("verdict.exit_code", 130))).verdict.word == "SAFE"


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rate.achieved_per_s", -5.0),
        ("outcome_shares.acquired", 1.2),
        ("outcomes.acquired", -1),
        ("latency_s.acquire_all.p99", -0.1),
        ("cost.commands_per_acquire", -1.0),
        ("generator.cpu_ratio", -0.1),
        ("duration_s", -1.0),
        ("waiting", {"jain": 1.5}),
        ("attempts.total", -1),
        ("instances.0.commands", -1),
    ],
)
def test_a_figure_that_cannot_be_is_refused(path: str, value: Any) -> None:
    made = changed("run", (path, value)) if path != "waiting" else document("run") | {path: value}
    with pytest.raises(UsageError, match="is not a complete RunResult"):
        read(made)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("latency_s.acquire_all.p50", 1.0, "the p50 (1) is above the p90"),
        ("latency_s.acquire.mean", 99.0, "the mean (99) is above the largest sample"),
        (
            "latency_s.acquire.count",
            5,
            "latency_s.acquire.count is 5, but a calculation from outcomes gives",
        ),
        (
            "latency_s.acquire_all.failed",
            10**9,
            "latency_s.acquire_all.failed is 1e+09, but a calculation from outcomes gives 2,024",
        ),
        ("outcome_shares.contended", 0.5, "outcome_shares.contended is 0.5"),
        ("totals.acquired", 7, "but a calculation from totals gives 7 or less"),
        (
            "votes.margin",
            {"0": 10**9},
            "votes.margin is 1e+09, but a calculation from outcomes gives",
        ),
        (
            "split_votes.count",
            10**9,
            "split_votes.ratio is 0.00214316, but a calculation from count",
        ),
        ("histograms", {"acquire": "HISTFAAAAB"}, "not an HDR histogram"),
    ],
)
def test_figures_that_contradict_each_other_are_refused(path: str, value: Any, why: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(changed("run", (path, value)))
    assert why in str(refusal.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_is_refused(number: str, tmp_path: Path) -> None:
    text = json.dumps(changed("run", ("duration_s", 123.456))).replace("123.456", number)
    (tmp_path / "result.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="is not a result"):
        read_result(tmp_path)


def test_a_section_in_order_contradicts_nothing() -> None:
    good = Latency(count=100, mean=1.0, p50=1.0, p90=2.0, p99=None, p999=None, p9999=None, max=3.0)
    assert list(contradictions_in({"a": [good]})) == []
    assert list(contradictions_in({"a": [replace(good, p50=2.5)]})) == [
        "a.0: the p50 (2.5) is above the p90 (2)"
    ]


# -- whatever is changed ---------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def mutated(value: Any, chance: random.Random) -> Any:
    """Another value in its place."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return chance.choice(
            [-value - 1, 0, value * 1000 + 1, value // 2, value + 1, float(value) / 3, None, "much"]
        )
    if isinstance(value, str):
        return chance.choice(["", "SAFE", "as expected", "pass", "violated", None, 7])
    if isinstance(value, list):
        return chance.choice([[], value[1:], value + value[:1], None, {}])
    if isinstance(value, dict):
        return chance.choice([{}, None, [], {**value, "more": 1}])
    return chance.choice([0, 1.5, "x", True])


@pytest.mark.parametrize("kind", ANSWERS)
def test_no_mutation_leaves_a_green_word_that_is_not_earned_nor_a_traceback(kind: str) -> None:
    """What is read again is judged again: the word that is shown is always that of the sections
    that are shown."""
    chance = random.Random(f"{kind} 41")
    seen = 0
    good = document(kind)
    paths = list(places(good))
    for _ in range(MUTATIONS):
        made = copy.deepcopy(good)
        *place, last = chance.choice(paths)
        section: Any = made
        for key in place:
            section = section[key]
        section[last] = mutated(section[last], chance)
        try:
            result = read(made)
        except UsageError:
            seen += 1
            continue
        again = of_its_kind(builtins_of(result), "again")
        assert again.verdict == result.verdict
        if word_of(kind_of(result), result.verdict).kind is Kind.GOOD:
            assert result.verdict.word == read(good).verdict.word
            assert all(one.count >= one.least for one in result.verdict.evidence)
    assert seen, "some of them must be noticed"


def test_a_mutated_file_ends_the_report_with_two_and_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r").mkdir()
    Path("r/result.json").write_text(
        json.dumps(changed("run", ("safety.tested_leases", 3))), "utf-8"
    )
    assert execute(["report", "r"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert (
        "the verdict is SAFE with 3 tested leases, but SAFE needs 100; the file was changed or is "
        "damaged, so make the result again" in shown.err
    )


def test_a_judge_that_believes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of this file: a door that does not judge lets a forged word through."""
    believing: Callable[[Any], Any] = lambda result: result  # noqa: E731
    monkeypatch.setattr("bench.report.run_answer.RUN", dataclasses.replace(RUN, earned=believing))
    forged = changed("run", ("verdict.word", "PERFECT"))
    assert read(forged).verdict.word == "PERFECT"


# -- doors -----------------------------------------------------------------------------------------


def store(folder: Path, kind: str, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(document(kind) | changes), encoding="utf-8")
    return folder


def test_the_newest_of_its_kind_is_found(tmp_path: Path) -> None:
    crash = ANSWERS["crash"]()
    store(tmp_path / "a", "crash", started_at="2026-11-21T02:00:00Z", id="old")
    store(tmp_path / "b", "crash", started_at="2026-11-21T03:00:00Z", id="new")
    store(tmp_path / "c", "fsync", started_at="2026-11-21T04:00:00Z")
    store(tmp_path / "d", "run", started_at="2026-11-21T05:00:00Z")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "result.json").write_text("{", encoding="utf-8")
    newest = crash.newest(tmp_path)
    assert newest is not None
    assert newest.id == "new"
    assert crash.newest(tmp_path / "nowhere") is None


def test_a_named_result_of_another_kind_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "c", "fsync")
    with pytest.raises(UsageError, match="name a result of lockbench crash"):
        ANSWERS["crash"]().read_file(tmp_path / "c")
    with pytest.raises(UsageError, match="name a result of lockbench run"):
        RUN.read_file(tmp_path / "c")


def test_every_kind_is_judged_by_a_function_of_its_own() -> None:
    for kind in ANSWERS:
        assert isinstance(read(document(kind)), Section)
    assert math.isclose(
        read(document("run")).safety.upper_bound_95, 3 / SAMPLE["safety"]["tested_leases"]
    )
