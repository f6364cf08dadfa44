"""The tables of split votes: one screen, whole cells."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.split_votes.result import SplitVotesResult
from bench.measure.section import typed
from bench.report.sheet import sheet_markdown
from tests.bench.report.screen import sheet_text
from tests.doubles.answers import sheet_of_its_kind

SAMPLE = Path(__file__).parents[2] / "report" / "split-votes.json"
PLACE = "results/20261120-182401-split-votes-7f3a90c1/result.json"


@pytest.fixture
def result() -> dict[str, Any]:
    sample: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return sample


def text_of(result: dict[str, Any], width: int) -> str:
    return sheet_text(sheet_of_its_kind(typed(result, SplitVotesResult), PLACE), width)


@pytest.mark.parametrize("width", [80, 100])
def test_the_screen_is_the_agreed_one(result: dict[str, Any], width: int) -> None:
    text = text_of(result, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text, "no cell is cut"
    golden = Path(__file__).parents[2] / "report" / "golden" / f"split-votes-{width}.txt"
    assert text == golden.read_text(encoding="utf-8")


def test_one_that_was_interrupted_after_its_calibration_is_shown(result: dict[str, Any]) -> None:
    result |= {"interrupted": True, "contention": [], "retries": []}
    assert text_of(result, 80).startswith("AS EXPECTED   calibration only, then interrupted")


def test_what_was_not_expected_comes_first_and_says_why(result: dict[str, Any]) -> None:
    result["verdict"] = {
        "status": "inconclusive",
        "reasons": ["calibration, K=3: the split-vote rate is 0.500"],
    }
    result["calibration"][0]["misses"] = ["the split-vote rate is 0.500"]
    text = text_of(result, 100)
    assert text.startswith("NOT AS EXPECTED")
    assert re.search("because +calibration, K=3: the split-vote rate is 0.500", text)
    assert text.count("NOT AS EXPECTED") == 3, "first, last, and the row"


def test_markdown_has_the_same_rows(result: dict[str, Any]) -> None:
    text = sheet_markdown(sheet_of_its_kind(typed(result, SplitVotesResult), PLACE))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    rows = len(result["calibration"]) + len(result["contention"]) + len(result["retries"])
    assert len(tables) == rows + 2 * 3
    for name in ("calibration", "contention", "retries"):
        assert f"### {name}: " in text
    assert {line.count("|") for line in tables} == {6, 8, 11}


def advice(result: dict[str, Any]) -> list[str]:
    """The lines of advice on a result, without their label."""
    sheet = sheet_of_its_kind(typed(result, SplitVotesResult), PLACE)
    return [line.text for line in sheet.lines if line.label == "retry"]


def row_of(result: dict[str, Any], order: str, policy: str) -> dict[str, Any]:
    """The row of 20 callers with this order and policy."""
    rows: list[dict[str, Any]] = result["retries"]
    return next(
        row
        for row in rows
        if (row["contenders"], row["order"], row["retry"]["policy"]) == (20, order, policy)
    )


def test_policies_are_compared_within_one_order_if_their_times_are_apart(
    result: dict[str, Any],
) -> None:
    """In parallel order most first attempts win, and both medians are about 2 ms."""
    assert advice(result) == [
        "for random requests, use the retry policy full-jitter with a window of 5 ms. With 20 "
        "callers, 90 % of its first grants came within 150 ms. With every other tested policy, "
        "half of the first grants took 161 ms or longer"
    ]
    assert "measure again" not in text_of(result, 100)
    row_of(result, "random", "full-jitter")["first_grant_s"]["p90"] = 0.17
    assert advice(result) == []
    assert "no retry policy was clearly faster" in text_of(result, 100)


@pytest.mark.parametrize("policy", ["full-jitter", "fixed"])
def test_a_policy_with_a_trial_without_a_grant_is_not_compared(
    policy: str, result: dict[str, Any]
) -> None:
    row_of(result, "random", policy)["granted"] -= 1
    assert advice(result) == []


def test_a_policy_with_too_few_trials_is_not_compared(result: dict[str, Any]) -> None:
    row_of(result, "random", "fixed")["first_grant_s"]["p50"] = None
    assert advice(result) == []
