"""What `lockbench capacity` says: the planning question answered in words, and nothing cut off."""

import pytest

from bench.experiments.capacity.result import CapacityResult
from bench.experiments.capacity.words import answer, sheet, suite
from bench.report.sheet import sheet_markdown
from tests.bench.report.screen import sheet_text
from tests.doubles.capacity_points import capacity_result as result
from tests.doubles.capacity_points import point


def shown(document: CapacityResult, width: int) -> str:
    return sheet_text(sheet(document, "results/x/result.json"), width)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "said"),
    [
        (11_200.0, 11_480.0, False, "11,200–11,500 leases/s"),
        (11_200.0, 11_480.0, True, "≥ 11,200 leases/s"),  # the generator was the limit
        (None, 0.7, False, "no rate"),
    ],
)
def test_the_planning_question_is_answered_in_words(low: float, high: float, at_least: bool, said: str) -> None:
    assert answer(point(low, high, capacity={"at_least": at_least}), result(point())) == (
        f"N=5, fsync everysec, 1,000 keys, 5ms hold: {said} at acquire.p99 < 10ms; "
        "next limit: server CPU of one instance"
    )


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut_off(width: int) -> None:
    text = shown(result(point()), width)
    assert "…" not in text
    for needed in ("95 % sure: 99.41 % to 99.58 %", "+124 % at 5,000/s", "no law fitted", "#2 127.0.0.1:40000", "97 %"):
        assert needed in " ".join(text.split())


def test_a_sweep_is_one_table_with_a_sentence_for_each_point() -> None:
    points = [point(variables={"instances": "1"}), point(None, 0.7, variables={"instances": "3"})]
    summary = sheet(result(*points))
    assert summary.parts[0].rows[0][:2] == ("1", "11,200–11,500")
    assert summary.parts[0].rows[1][:2] == ("3", "no rate")
    assert [line.label for line in summary.lines].count("instances=3") == 1
    assert "| 1 | 11,200–11,500 |" in sheet_markdown(summary)
    assert [case.name for case in suite(result(*points)).cases] == ["1", "3"]
