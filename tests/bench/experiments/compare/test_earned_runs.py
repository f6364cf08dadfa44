"""Stored runs in a gate: only runs whose word is earned count, counted costs may not grow, the
headline says what was judged."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.compare import judge
from bench.program import execute
from tests.bench.whole_run import SAMPLE

RUNS = 12
README = Path(judge.__file__).with_name("README.md")
Change = dict[str, Any]


def put(document: Change, path: str, value: Any) -> None:
    *place, last = path.split(".")
    section: Any = document
    for name in place:
        section = section[name]
    section[last] = value(section[last]) if callable(value) else value


def series(folder: str, changes: Change) -> str:
    """A folder of runs that vary by a tenth of a per cent, each with these changes."""
    for number in range(RUNS):
        run = copy.deepcopy(SAMPLE)
        run |= {"id": f"{folder}{number:02}", "started_at": f"2026-11-27T12:00:{number:02}Z"}
        run["rate"]["achieved_per_s"] *= 1 + number / 1000
        for path, value in changes.items():
            put(run, path, value)
        place = Path(folder, f"{number:02}")
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


NOT_TESTED = {
    "verdict.word": "NOT TESTED",
    "safety.verdict": "NOT TESTED",
    "safety.tested_leases": 3,
    "safety.upper_bound_95": None,
    "safety.reason": "no caller held its lease for any time; set --hold",
    "verdict.evidence": [{"tested": "tested leases", "count": 3, "least": 100, "excludes": ""}],
}
UNKNOWN = {
    "verdict.word": "UNKNOWN",
    "safety.verdict": "UNKNOWN",
    "safety.upper_bound_95": None,
    "safety.reason": "a hole",
}
INTERRUPTED = {
    "interrupted": True,
    "verdict.word": "INTERRUPTED",
    "verdict.status": "inconclusive",
    "verdict.exit_code": 130,
    "verdict.reasons": ["interrupted before its time"],
}
INVALID = {
    "generator.verdict": "INVALID",
    "generator.reason": "it stood still",
    "verdict.word": "INVALID",
    "verdict.status": "invalid",
    "verdict.exit_code": 4,
    "verdict.reasons": ["the load was not as requested"],
}
LIMIT = {
    "expression": "acquire.p99 < 1us",
    "metric": "acquire.p99",
    "path": "latency_s.acquire_all.p99",
    "operator": "<",
    "limit": 1e-06,
    "unit": "s",
    "value": SAMPLE["latency_s"]["acquire_all"]["p99"],
    "infinite": False,
    "margin": None,
    "status": "fail",
    "reason": None,
}
FAILED = {
    "thresholds": [LIMIT],
    "verdict.word": "FAIL",
    "verdict.status": "fail",
    "verdict.exit_code": 1,
    "verdict.reasons": ["acquire.p99 < 1us does not hold"],
}
VIOLATED = {
    "safety.verdict": "VIOLATED",
    "safety.service_faults": 9,
    "safety.violations": 9,
    "safety.upper_bound_95": None,
    "safety.reason": "9 × service fault",
    "verdict.word": "VIOLATED",
    "verdict.status": "violated",
    "verdict.exit_code": 5,
    "verdict.reasons": ["9 × service fault"],
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gate(changes: Change, *options: str, baseline: Change | None = None) -> int:
    return execute(
        [
            "gate",
            "--baseline",
            series("a", baseline or {}),
            "--candidate",
            series("b", changes),
            *options,
        ]
    )


@pytest.mark.parametrize("kind", ["gate", "compare"])
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (NOT_TESTED, "NOT TESTED"),
        (UNKNOWN, "UNKNOWN"),
        (INTERRUPTED, "INTERRUPTED"),
        (INVALID, "INVALID"),
        (FAILED, "FAIL (acquire.p99 < 1us does not hold)"),
    ],
)
def test_runs_that_are_no_basis_are_named_and_refused(
    kind: str, changes: Change, word: str, capsys: Any
) -> None:
    sides = [series("a", {}), series("b", changes)]
    words = ["--baseline", sides[0], "--candidate", sides[1]] if kind == "gate" else sides
    assert execute([kind, *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"b, run b00: {word}" in shown.err
    assert "12 of 24 runs have another verdict" in shown.err
    assert "and 9 other runs" in shown.err
    assert shown.err.count("\n") == 1


def test_a_load_that_tests_no_side_is_judged_and_the_headline_says_so(capsys: Any) -> None:
    assert gate(NOT_TESTED, baseline=NOT_TESTED) == 0
    assert "safety not tested" in " ".join(capsys.readouterr().out.split())


def test_a_violation_decides_whatever_the_figures_say(capsys: Any) -> None:
    assert gate(VIOLATED) == 5
    assert capsys.readouterr().out.startswith("VIOLATED")


@pytest.mark.parametrize("name", ["commands", "bytes", "round_trips"])
@pytest.mark.parametrize(("factor", "code"), [(2.0, 1), (1.05, 1), (1.0, 0), (0.5, 0)])
def test_what_an_acquire_costs_may_not_grow_for_certain(
    name: str, factor: float, code: int, capsys: Any
) -> None:
    cost = {f"cost.{each}_per_acquire": 10.0 for each in ("commands", "bytes", "round_trips")}
    assert gate(cost | {f"cost.{name}_per_acquire": 10.0 * factor}, baseline=cost) == code
    text = " ".join(capsys.readouterr().out.split())
    assert (f"cost.{name}_per_acquire got worse" in text) == bool(code)


def test_a_headline_names_what_was_judged_and_not_a_tail_that_was_not(capsys: Any) -> None:
    assert gate({"latency_s.acquire_all.p99": lambda value: 2 * value}) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "b is at most 10 % worse than a in rate, p50, success, client CPU," in text
    assert "bytes and trips; the p99 was not judged" in text


def test_slower_by_a_fifth_fails(capsys: Any) -> None:
    assert gate({"rate.achieved_per_s": lambda value: 0.8 * value}) == 1
    assert capsys.readouterr().out.startswith("FAIL")


def test_a_limit_that_failed_stays_failed_beside_runs_that_cannot_tell(capsys: Any) -> None:
    """5 of 12 runs have a value, which is beyond the limit; the others have too few samples for
    one."""
    for folder in ("a", "b"):
        series(folder, {})
        for place in sorted(Path(folder).glob("*"))[5:]:
            run = json.loads((place / "result.json").read_text("utf-8"))
            run["latency_s"]["release"]["p9999"] = None
            (place / "result.json").write_text(json.dumps(run), encoding="utf-8")
    for limits, code in (
        (["release.p9999 < 1us"], 1),
        (["release.p9999 < 1us", "handoff.p9999 < 1s"], 1),
    ):
        options = [part for one in limits for part in ("--threshold", one)]
        assert execute(["gate", "--baseline", "a", "--candidate", "b", *options]) == code
        assert capsys.readouterr().out.startswith("FAIL")
    assert (
        execute(
            ["gate", "--baseline", "a", "--candidate", "b", "--threshold", "release.p9999 < 10s"]
        )
        == 4
    )


ONLY_TAIL = {"latency_s.acquire_all.p99": lambda value: 2 * value}
ONLY_CONTENDED = {"latency_s.handoff.p50": SAMPLE["latency_s"]["handoff"]["p90"]}


@pytest.mark.parametrize(
    ("changes", "options", "metric"),
    [
        (ONLY_TAIL, ["--metric", "acquire.p99", "--tolerance", "50%"], "acquire.p99"),
        (ONLY_CONTENDED, ["--metric", "handoff.p50"], "handoff.p50"),
    ],
    ids=["the tail", "contention"],
)
def test_a_candidate_that_is_worse_in_one_way_only_is_caught_by_the_metric_of_the_readme(
    changes: Change, options: list[str], metric: str, capsys: Any
) -> None:
    assert gate(changes, *options) == 1
    assert f"{metric} got worse" in " ".join(capsys.readouterr().out.split())
    assert f"--metric {metric}" in README.read_text("utf-8")
