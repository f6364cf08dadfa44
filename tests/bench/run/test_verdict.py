"""The verdict: what must be said comes first, and each word has its exit code."""

from typing import Any

import pytest
from msgspec import structs

from bench.gates.run_verdict import judge_run
from bench.gates.threshold import read_threshold
from bench.measure.run_result import JudgedThreshold
from bench.measure.verdict import Verdict
from bench.run.experiment import exit_code
from tests.bench.whole_run import run_of


def verdict(
    *,
    acquired: int = 500,
    granted_per_s: float = 0.0,
    generator: str = "VALID",
    safety: str = "SAFE",
    deaths: tuple[str, ...] = (),
    thresholds: tuple[str, ...] = (),
    tested_leases: int = 100,
    interrupted: bool = False,
) -> Verdict:
    sections = {
        "outcomes": {"acquired": acquired},
        "rate": {"achieved_per_s": granted_per_s},
        "generator": {"verdict": generator, "reason": "Little's ratio is 0.7"},
    }
    entries = [limit(status, f"limit {status}") for status in thresholds]
    judged = {"verdict": safety, "reason": "2 × service fault", "tested_leases": tested_leases}
    return judge_run(run_of(sections, safety=judged), deaths, entries, interrupted=interrupted)


def limit(status: Any, expression: str) -> JudgedThreshold:
    judged = read_threshold("rate > 1/s").judge(run_of())
    why = "why" if status == "inconclusive" else None
    return structs.replace(judged, expression=expression, status=status, reason=why)


@pytest.mark.parametrize(
    ("case", "status", "code"),
    [
        ({}, "pass", 0),
        ({"safety": "UNKNOWN"}, "pass", 0),
        ({"acquired": 0}, "inconclusive", 4),
        ({"generator": "INVALID"}, "invalid", 4),
        ({"deaths": ("worker 0 died",)}, "invalid", 4),
        ({"safety": "VIOLATED"}, "violated", 5),
        ({"safety": "VIOLATED", "generator": "INVALID", "acquired": 0}, "violated", 5),
        ({"generator": "INVALID", "acquired": 0}, "invalid", 4),
        ({"thresholds": ("pass",)}, "pass", 0),
        ({"thresholds": ("pass", "fail")}, "fail", 1),
        ({"thresholds": ("inconclusive", "fail")}, "fail", 1),
        ({"thresholds": ("inconclusive", "pass")}, "inconclusive", 4),
        ({"thresholds": ("fail",), "generator": "INVALID"}, "invalid", 4),
        ({"thresholds": ("fail",), "acquired": 0}, "fail", 1),
        ({"thresholds": ("fail", "inconclusive"), "safety": "VIOLATED"}, "violated", 5),
    ],
)
def test_the_worst_word_wins_and_has_its_exit_code(
    case: dict[str, Any], status: str, code: int
) -> None:
    found = verdict(**case)
    assert found.status == status
    assert exit_code(found, interrupted=False) == code
    assert exit_code(found, interrupted=True) == 130


def test_a_run_that_was_interrupted_is_never_green_and_what_is_certain_stays() -> None:
    assert (verdict(interrupted=True).word, verdict(interrupted=True).exit_code) == (
        "INTERRUPTED",
        130,
    )
    found = verdict(interrupted=True, safety="VIOLATED")
    assert (found.word, found.exit_code) == ("VIOLATED", 130)


def test_the_word_of_a_pass_is_that_of_safety_and_it_names_its_evidence() -> None:
    for safety in ("SAFE", "NOT TESTED", "UNKNOWN"):
        assert verdict(safety=safety).word == safety
    found = verdict(safety="SAFE", thresholds=("fail",))
    assert (found.word, found.exit_code) == ("FAIL", 1)
    (evidence,) = found.evidence
    assert (evidence.count, evidence.least, evidence.excludes) == (100, 100, "more than 1 in 33")


def test_every_reason_is_said_not_only_the_worst() -> None:
    case: dict[str, Any] = {
        "safety": "VIOLATED",
        "acquired": 0,
        "thresholds": ("fail", "inconclusive"),
    }
    assert verdict(**case).reasons == (
        "2 × service fault",
        "limit fail does not hold",
        "no lease was granted in the measured window",
        "limit inconclusive: why",
    )
    assert verdict().reasons == ()


def test_an_invalid_run_says_why_and_judges_nothing_but_violations() -> None:
    spoilt: dict[str, Any] = {
        "generator": "INVALID",
        "acquired": 0,
        "thresholds": ("inconclusive",),
    }
    reasons = ("worker 1 died", "the load was not as requested: Little's ratio is 0.7")
    assert verdict(**spoilt, deaths=("worker 1 died",)).reasons == reasons
    violated = verdict(**spoilt, safety="VIOLATED")
    assert violated.reasons == ("2 × service fault", reasons[1])


def test_nothing_granted_is_not_said_beside_a_rate_of_leases() -> None:
    assert verdict(acquired=0).reasons == ("no lease was granted in the measured window",)
    assert verdict(acquired=0, granted_per_s=20_782.0).reasons == (
        "no acquire that was due in the measured window got a lease; all leases of the window "
        "belong to acquires that were due earlier",
    )
