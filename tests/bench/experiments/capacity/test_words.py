"""What `lockbench capacity` says: the planning question answered in words, and nothing cut off."""

from typing import Any

import pytest
from msgspec import structs

from bench.experiments.capacity.probe import GAVE_OUT
from bench.experiments.capacity.result import CapacityResult
from bench.experiments.capacity.words import answer, sheet, suite
from bench.report.sheet import sheet_markdown
from tests.bench.report.screen import sheet_text
from tests.doubles.capacity_points import capacity_result as result
from tests.doubles.capacity_points import point, probe


def shown(document: CapacityResult, width: int) -> str:
    return sheet_text(sheet(document, "results/x/result.json"), width)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "said"),
    [
        (11_200.0, 11_480.0, False, "11,200–11,500 leases/s, 95 % sure,"),
        # the load generator reached its limit first
        (11_200.0, None, True, "≥ 11,200 leases/s, 95 % sure,"),
        (None, 0.7, False, "at most 0.7 leases/s, 95 % sure,"),
        (None, None, False, "lockbench found no rate that keeps the SLO"),
    ],
)
def test_the_planning_question_is_answered_in_words(
    low: float, high: float, at_least: bool, said: str
) -> None:
    assert answer(point(low, high, capacity={"at_least": at_least}), result(point())) == (
        f"N=5, fsync everysec, 512 users, 1,000 keys, 5ms hold: {said} at acquire.p99 < 10ms; "
        "next limit: server CPU of one instance, full at 11,700/s (#2: 97 % of a core)"
    )


def test_what_the_generator_left_open_says_what_to_do() -> None:
    gave_out = structs.replace(
        point().next_limit, text=GAVE_OUT.format("92 % of a core at 900/s"), full_per_s=None
    )
    assert answer(structs.replace(point(), next_limit=gave_out), result(point())).endswith(
        "next limit: not reached, because the load generator reached its own limit first (92 % of "
        "a core at 900/s); use --processes or more hosts"
    )


ROOM = "the capacity is 11,200–11,500/s"


@pytest.mark.parametrize(
    ("capacity", "holds", "said"),
    [
        ({}, True, f"5,000/s holds (p99 6.00 ms, 95 % sure below 9.00 ms); {ROOM}"),
        (
            {"high": None},
            True,
            "5,000/s holds (p99 6.00 ms, 95 % sure below 9.00 ms); the capacity is at least "
            "11,200/s",
        ),
        (
            {"low": None},
            True,
            "95 % sure below 9.00 ms); the capacity is not known",
        ),
        (
            {},
            False,
            "(0 of 0 probes held; p99 6.00 ms, 95 % sure below 9.00 ms); capacity: "
            "11,200–11,500 leases/s",
        ),
        (
            {},
            None,
            "it is not known whether the fleet keeps the SLO at 5,000/s (0 of 0 probes held;",
        ),
    ],
)
def test_the_first_sentence_is_about_the_target(
    capacity: dict[str, Any], holds: bool | None, said: str
) -> None:
    headroom = structs.replace(point().headroom, holds=holds)
    shown_text = shown(result(structs.replace(point(capacity=capacity), headroom=headroom)), 300)
    assert said in " ".join(shown_text.splitlines()[0].split())
    assert f"{said}; the first limit is" in " ".join(shown_text.split()) or not holds


@pytest.mark.parametrize(
    ("others", "as_it_is", "said"),
    [
        (
            0.6,
            False,
            ", for this machine in its present state: other programs use 60 % of its CPU time",
        ),
        (0.1, True, ", for this machine in its present state"),
        (0.1, False, ""),
        (None, False, ""),
    ],
)
def test_the_first_line_says_when_the_machine_is_busy_with_other_work(
    others: float | None, as_it_is: bool, said: str
) -> None:
    made = point(
        capacity={"as_it_is": as_it_is}, probes=[{**probe(11_200.0), "others_ratio": others}]
    )
    line = shown(result(structs.replace(made, headroom=None)), 300).splitlines()[0].strip()
    assert line.endswith(f"95 % sure, at acquire.p99 < 10ms{said}")


def test_what_pauses_took_from_the_probes_is_counted() -> None:
    probes = [
        {**probe(9_000.0), "left_out": 300},
        {**probe(9_500.0, "paused"), "left_out": 1_200},
        probe(11_200.0),
    ]
    text = " ".join(shown(result(point(probes=probes)), 300).split())
    assert "1,500 acquires in 2 probes overlapped a pause" in text
    assert "the verdict on the SLO ignores these acquires; 1 probe gave no result" in text
    assert "1 by pauses" in text


def test_the_load_process_s_own_share_stands_beside_the_latency() -> None:
    text = " ".join(shown(result(point()), 300).split())
    assert "the p99 at 11,200/s is 8.50 ms; this machine added 3.10 ms" in text


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut_off(width: int) -> None:
    text = shown(result(point()), width)
    assert "…" not in text
    for needed in (
        "95 % sure: 99.41 % to 99.58 %",
        "SLO at 5,000/s",
        "they agree",
        "127.0.0.1:40000 2",
        "97 %",
    ):
        assert needed in " ".join(text.split())


def test_without_probes_there_is_no_table_of_them() -> None:
    assert "offered" not in shown(result(structs.replace(point(), probes=())), 80)


def test_a_sweep_is_one_table_with_a_sentence_for_each_point() -> None:
    points = [point(variables={"instances": "1"}), point(None, 0.7, variables={"instances": "3"})]
    summary = sheet(result(*points))
    assert summary.parts[0].rows[0][:2] == ("1", "11,200–11,500")
    assert summary.parts[0].rows[1][:2] == ("3", "at most 0.7")
    assert [line.label for line in summary.lines].count("instances=3") == 1
    assert "| 1 | 11,200–11,500 |" in sheet_markdown(summary)
    assert [case.name for case in suite(result(*points)).cases] == ["1", "3"]
