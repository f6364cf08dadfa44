"""The summary: verdict first, one screen, and it never says more than the result does."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.measure.server_facts import InstanceFacts, SyncLatency
from bench.report.sheet import sheet_markdown
from bench.report.summary import in_one_line, key_figures, sheet
from bench.run.servers import Servers
from bench.safety.judge import not_tested
from tests.bench.report.screen import sheet_text
from tests.bench.whole_run import SAMPLE, run_of

HERE = Path(__file__).parent
PLACE = "results/20261120-182401-run-7f3a90c1/result.json"
Result = dict[str, Any]


@pytest.fixture
def result() -> Result:
    return copy.deepcopy(SAMPLE)


def violated(result: Result) -> None:
    reason = "3 × service fault"
    result["verdict"] = {"status": "violated", "reasons": [reason]}
    result["safety"] |= {
        "verdict": "VIOLATED",
        "reason": reason,
        "service_faults": 3,
        "client_overstays": 12,
    }


def troubled(result: Result) -> None:
    result["instances"][0] |= {
        "state": "down",
        "reason": "connection refused",
        "errors": {"closed": 4, "timeout": 1200},
    }
    result["votes"] |= {"absent": 81_000, "silent": 64}
    result["warnings"] = [
        "instance #0 (127.0.0.1:40000) went down during the run; its votes were silent, then absent"
    ]


def open_loop(result: Result) -> None:
    result["scenario"] |= {"rate_per_s": 20_000.0, "users": 256, "processes": 2}
    result["rate"] = {"offered_per_s": 20_000.0, "achieved_per_s": 17_800.5, "sustained": False}
    result["latency_s"]["acquire"] |= {"p50": 0.9, "p99": 2.1, "max": 2.4}
    result["generator"] |= {
        "verdict": "INVALID",
        "reason": "only 89.0% of the due operations were started",
    }
    result["generator"] |= {"littles_law_ratio": None, "late_starts": 120, "queued_starts": 44_000}
    result["verdict"] |= {"status": "invalid", "word": "INVALID"}
    result["verdict"]["reasons"] = ["only 89.0% of the due operations were started"]


def untested(result: Result) -> None:
    result["safety"] |= {
        "verdict": "NOT TESTED",
        "tested_leases": 0,
        "upper_bound_95": None,
        "reason": not_tested(0, 0, unasked=False),
    }
    result["verdict"]["word"] = "NOT TESTED"
    result["latency_s"]["handoff"] |= {"count": 0}
    result["latency_s"]["acquire_failed"] |= {"count": 0}
    result["latency_s"]["acquire_all"] = result["latency_s"]["acquire"]
    result["outcome_shares"] |= {"acquired": 1.0, "contended": 0.0, "split_vote": 0.0}
    result["latency_s"]["acquire_service"] = result["latency_s"]["acquire"]
    result["interrupted"] = True
    result["duration_s"] = 7.31


CASES: dict[str, Callable[[Result], None]] = {
    "safe": lambda _: None,
    "violated": violated,
    "troubled": troubled,
    "open-loop": open_loop,
    "untested": untested,
}


def text_of(result: Result, width: int) -> str:
    return sheet_text(sheet(run_of(result), PLACE), width)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("case", CASES)
def test_the_screen_is_the_one_that_was_agreed(result: Result, case: str, width: int) -> None:
    CASES[case](result)
    golden = HERE / "golden" / f"{case}-{width}.txt"
    assert text_of(result, width) == golden.read_text(encoding="utf-8")


def test_five_instances_without_trouble_leave_room_for_the_prompt(result: Result) -> None:
    disk = SyncLatency(200, 0.000499, 0.009, 0.011)
    servers = Servers(
        (), (InstanceFacts(0, "127.0.0.1:40000", False, fsync="everysec"),), None, disk
    )
    # nobody gave up
    result["latency_s"]["acquire_failed"]["count"] = 0
    result["latency_s"]["acquire_all"] |= {"failed": 0, "infinite": []}
    result["outcome_shares"] |= {"acquired": 1.0}
    result["warnings"] = servers.warnings()
    assert len(result["warnings"]) == 1
    lines = text_of(result, 80).splitlines()
    assert lines[-3].startswith("warning    fsync is cheap on this disk")
    assert lines[-1] == lines[0]
    # of 24
    assert len(lines) <= 23


def test_many_instances_fill_the_screen_only_where_there_is_trouble(result: Result) -> None:
    first = result["instances"][0]
    result["instances"] = [
        first | {"index": index, "address": f"10.0.0.{index}:6379"} for index in range(40)
    ]
    result["instances"][17] |= {"state": "down", "errors": {"timeout": 3}}
    text = text_of(result, 80)
    assert "#17 10.0.0.17:6379" in text
    assert "#16 " not in text


def test_a_rate_that_was_not_reached_is_not_shown_as_if_it_was(result: Result) -> None:
    open_loop(result)
    result["verdict"]["status"] = "pass"
    result["generator"]["verdict"] = "VALID"
    head = text_of(result, 80).splitlines()[0]
    assert "17,800 leases/s over 20 s, but 20,000/s were offered" in head
    assert "p99" not in head


def test_the_first_line_of_an_invalid_run_shows_no_figure(result: Result) -> None:
    open_loop(result)
    assert (
        text_of(result, 80).splitlines()[0]
        == "INVALID   the figures of this run (20 s) are not valid"
    )
    # a violation is certain; the rate beside it still means nothing
    result["verdict"]["status"] = "violated"
    assert "leases/s" not in text_of(result, 80)


def test_the_first_line_says_what_share_of_acquires_succeeded_unless_all_did(
    result: Result,
) -> None:
    result["outcome_shares"] |= {"acquired": 0.861, "unreachable": 0.139}
    result["latency_s"]["acquire_all"] |= {"infinite": ["p99", "p999", "p9999", "max"], "p99": None}
    head = text_of(result, 80).splitlines()[0]
    assert "86.1 % acquired" in head
    assert head.endswith("   p50 0.41 ms   p99 ∞")
    untested(result)
    assert "% acquired" not in text_of(result, 80).splitlines()[0]


@pytest.mark.parametrize(
    ("retried", "said"), [(False, "not retried"), (True, "retried within wait")]
)
def test_the_summary_says_whether_unreachable_acquires_were_tried_again(
    result: Result, retried: bool, said: str
) -> None:
    result["outcome_shares"]["unreachable"] = 0.087
    result["scenario"]["retry"]["unreachable"] = retried
    text = text_of(result, 200)
    assert f"unreachable 8.7 % ({said})" in text
    assert ("unreachable retried" in text.splitlines()[1]) == retried


def test_turns_that_were_passed_between_processes_are_told_with_who_waited(result: Result) -> None:
    assert "\nwaits" not in text_of(result, 200)
    result["waiting"] = {"jain": 0.9981, "longest_s": 0.1521, "wakeups": 1430, "polls": 6}
    text = text_of(result, 200)
    assert (
        "\nwaits      Jain 0.998 · longest 152 ms · turns passed between processes 1,430 "
        "· polls 6\n" in text
    )


@pytest.mark.parametrize(("verdict", "word"), [("LATE", "late"), ("UNKNOWN", "lateness unknown")])
def test_latencies_that_the_generator_is_part_of_are_upper_bounds(
    result: Result, verdict: str, word: str
) -> None:
    result["generator"]["verdict"] = verdict
    text = text_of(result, 80)
    assert "p50 ≤ 0.41 ms" in text.splitlines()[0]
    assert f"generator  {word}: " in text


def test_a_run_in_which_nothing_happened_says_so(result: Result) -> None:
    result["outcome_shares"] = dict.fromkeys(result["outcome_shares"])
    for name, section in result["latency_s"].items():
        result["latency_s"][name] = dict.fromkeys(section) | {
            "count": 0,
            "failed": 0,
            "infinite": [],
        }
    result["attempts"]["mean"] = None
    result["votes"]["margin"] = {}
    result["rate"] |= {"achieved_per_s": None}
    text = text_of(result, 80)
    assert "nothing was recorded in the measured window" in text
    assert "– leases/s" in text


def test_markdown_says_the_same_and_its_tables_hold(result: Result) -> None:
    result["warnings"] = ["a | b"]
    summary = sheet(run_of(result), PLACE)
    text = sheet_markdown(summary)
    assert text.startswith("## SAFE: 11,482 leases/s")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    columns = {line.replace("\\|", "").count("|") for line in tables}
    assert columns == {10}
    for line in summary.lines:
        assert line.text in text.replace("\u2060", "")


def test_a_violation_comes_with_its_cause(result: Result) -> None:
    CASES["violated"](result)
    found = {"kind": "service_fault", "at_ns": 1, "operations": []}
    result["safety"]["examples"] = [
        found | {"blame": blame} for blame in ("injected fault", None, "unexplained")
    ]
    result["safety"]["unexplained"] = 2
    assert " · cause: injected fault, 2 unexplained" in " ".join(text_of(result, 400).split())


def test_faults_that_were_there_are_told_with_their_times(result: Result) -> None:
    about = dict.fromkeys(("for_s", "begun_ns", "in_force_ns", "ended_ns", "skipped", "failed"))
    about |= {"params": {}, "phase": "fixed", "at_s": 1.0, "detail": {}}
    begun = about | {"kind": "stop", "target": "instance:1", "begun_s": 1.0, "ended_s": 1.254}
    never = about | {"kind": "drop", "target": "instance:0", "begun_s": None, "ended_s": None}
    worker = about | {"kind": "kill", "target": "worker:0", "begun_s": 2.0, "ended_s": None}
    result["faults"] = [
        begun,
        never,
        worker,
        *(begun | {"target": f"instance:{index}"} for index in (2, 3, 4)),
    ]
    text = text_of(result, 400)
    assert (
        "faults     stop #1 1.00–1.25 s, #2 1.00–1.25 s, #3 1.00–1.25 s and 1 more · "
        "kill worker 0 2.00 s" in text
    )
    assert "drop" not in text


def test_a_green_word_of_one_process_says_so_on_its_line_and_beside_its_leases() -> None:
    wide = sheet_text(sheet(run_of(safety={"within_one_process": True}), PLACE), 120)
    first = wide.splitlines()[0]
    assert first.startswith("SAFE   within one process   "), first
    assert "tested leases within one process (95 % sure" in wide
    assert "within one process" not in sheet_text(sheet(run_of(), PLACE), 120)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            untested,
            "11,482 leases/s over 7.3 s, acquire p50 0.41 ms, p99 2.91 ms; not tested: "
            "no caller held its lease for any time",
        ),
        (
            violated,
            "11,482 leases/s over 20 s, 99.1 % acquired, p50 0.41 ms, p99 4.02 ms; 3 × "
            "service fault",
        ),
        (
            open_loop,
            "the figures of this run (20 s) are not valid; only 89.0% of the due operations "
            "were started",
        ),
    ],
)
def test_one_line_has_one_rate_and_the_reason_of_its_word(
    change: Callable[[Result], None], line: str, result: Result
) -> None:
    change(result)
    assert in_one_line(run_of(result)).startswith(line)


def test_the_key_figures_of_a_page_have_their_bounds(result: Result) -> None:
    assert key_figures(run_of(copy.deepcopy(result))) == (
        (
            "did the lock hold?",
            "0 violations in 31,207 tested leases",
            "95 % sure: fewer than 1 in 10,402",
        ),
        ("rate", "11,482 leases/s", "over 20 s, closed loop"),
        ("acquire p99", "4.02 ms", "p50 0.41 ms, from the intended start"),
    )
    untested(result)
    held = key_figures(run_of(copy.deepcopy(result)))[0]
    assert held == (
        "did the lock hold?",
        "not tested",
        "no caller held its lease for any time; set --hold",
    )
    violated(result)
    assert key_figures(run_of(copy.deepcopy(result)))[0][1:] == ("violated", "3 × service fault")
    open_loop(result)
    assert key_figures(run_of(result)) == (), "no figure of an invalid run counts"
