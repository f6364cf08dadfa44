"""The verdict on the load itself follows its published rules, and no others."""

import numpy as np
import pytest

from bench.measure.facts import Due, Window
from bench.measure.fold import fold
from bench.measure.histogram import Histogram
from bench.measure.record import records_of
from bench.scenario import Delay
from tests.doubles.records import MS, cycle, scenario_of

WINDOW = Window(1_000 * MS, 2_000 * MS)
CLOSED = scenario_of()
OPEN = scenario_of(rate_per_s=4.0)


def values_of(records, scenario=CLOSED, reports=(), due=0):
    return fold(records, WINDOW, scenario, reports, Due(due, due)).values


def test_littles_ratio_is_one_when_every_caller_is_always_at_work(records):
    callers = [
        cycle(at, ended=at + 1, release_sent=at + 40, release_replied=at + 50)
        for at in range(900, 2_100, 50)
    ]
    assert values_of(records(*callers, *callers))["generator"][
        "littles_law_ratio"
    ] == pytest.approx(1)
    assert values_of(records(*callers))["generator"]["littles_law_ratio"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "at_work, verdict",
    [(7, "INVALID"), (7.7, "VALID"), (8, "VALID"), (8.3, "VALID"), (9, "INVALID")],
)
def test_a_closed_loop_of_eight_is_valid_within_five_percent(records, at_work, verdict):
    long = [
        {"start": 1_000, "ended": 1_000 + share * 1_000}
        for share in [1] * int(at_work) + [at_work % 1]
    ]
    generator = values_of(records(*long), scenario_of(8))["generator"]
    assert (generator["verdict"], generator["littles_law_ratio"]) == (
        verdict,
        pytest.approx(at_work / 8),
    )
    assert (generator["reason"] is None) == (verdict == "VALID")


def test_missing_data_is_no_evidence_that_callers_were_missing(records, report):
    """Of a lost worker nothing is known, whether the loop is open or closed."""
    for scenario, due in ((scenario_of(32), 0), (OPEN, 100)):
        generator = values_of(
            records(cycle(1_100)), scenario, [report(phase="lost"), report(worker=1)], due
        )["generator"]
        assert (generator["verdict"], generator["littles_law_ratio"]) == ("INVALID", None)
        assert generator["reason"].startswith(
            "the busy callers are unknown, because the history of worker 0"
        )


def test_a_closed_loop_of_seven_is_not_judged_by_little(records):
    generator = values_of(records(cycle(1_100)), scenario_of(7))["generator"]
    assert (generator["verdict"], generator["reason"]) == ("VALID", None)
    assert generator["littles_law_ratio"] < 0.1


def test_open_loop_needs_99_percent_of_the_schedule_started(records, report):
    operations = records(*(cycle(1_000 + number) for number in range(99)))
    lateness = Histogram.of(np.full(99, 1_000)).encode()
    valid, invalid = (
        values_of(operations, OPEN, [report(lateness_histogram=lateness)], due)["generator"]
        for due in (100, 101)
    )
    assert (valid["verdict"], invalid["verdict"]) == ("VALID", "INVALID")
    assert invalid["reason"].startswith(
        "the load process started only 98.0% of the 101 due operations"
    )
    assert invalid["littles_law_ratio"] is None


def test_a_schedule_in_which_nothing_was_due_is_invalid(report):
    generator = values_of(records_of([]), OPEN, [report()])["generator"]
    assert (generator["verdict"], generator["reason"]) == (
        "INVALID",
        "no operation of the schedule was due, so the load was empty",
    )


def open_run(records, report, count, lateness_ns, **changes):
    """An open loop of `count` acquires of 1 ms in the window, begun as late as `lateness_ns`
    says."""
    operations = records(*(cycle(1_000 + number * 999 / count) for number in range(count)))
    late = Histogram.of(np.array(lateness_ns, np.int64)).encode()
    reports = [report(lateness_histogram=late, **changes)]
    return fold(operations, WINDOW, OPEN, reports, Due(count, count))


@pytest.mark.parametrize("lateness_ms, verdict", [(0.09, "VALID"), (0.12, "LATE")])
def test_a_timer_later_than_a_tenth_of_the_acquire_p99_is_late(
    records, report, lateness_ms, verdict
):
    sections = open_run(records, report, 2_000, [round(lateness_ms * MS)] * 2_000)
    generator = sections.values["generator"]
    assert generator["verdict"] == verdict
    warned = any(text.startswith("latencies are upper bounds") for text in sections.warnings)
    assert warned == (verdict == "LATE")
    if verdict == "LATE":
        assert generator["reason"].startswith(
            "the timer was late by 0.12 ms (p99), which is more than 10% of the acquire p99"
        )


@pytest.mark.parametrize(
    "count, late, verdict, at",
    [
        # too few for a p99: judged at the p90, of which 229 late ones are part
        (800, 229, "LATE", "p90"),
        # not a tenth of them
        (800, 70, "VALID", ""),
        (60, 40, "LATE", "p50"),
        # too few for any percentile
        (19, 0, "UNKNOWN", ""),
        (19, 19, "UNKNOWN", ""),
    ],
)
def test_below_a_thousand_starts_the_highest_percentile_that_both_have_decides(
    records, report, count, late, verdict, at
):
    lateness = [2 * MS] * late + [1_000] * (count - late)
    generator = open_run(records, report, count, lateness).values["generator"]
    assert generator["verdict"] == verdict
    assert (generator["reason"] is None) == (verdict == "VALID")
    assert f"({at})" in str(generator["reason"]) or not at


def test_an_open_loop_whose_lateness_nobody_reported_is_not_known_to_be_in_time(records, report):
    generator = open_run(records, report, 2_000, []).values["generator"]
    assert (generator["verdict"], generator["timer_lateness_p99_s"]) == ("UNKNOWN", None)


def test_a_start_that_never_waited_for_the_timer_cannot_be_late(records, report):
    generator = open_run(records, report, 2_000, [], queued_starts=2_000).values["generator"]
    assert generator["verdict"] == "VALID"


@pytest.mark.parametrize("loop", ["open", "closed"])
@pytest.mark.parametrize("lag_ms, verdict", [(0.45, "VALID"), (0.6, "LATE"), (0.8, "LATE")])
def test_a_lag_that_is_most_of_the_p99_is_late_in_either_loop(
    records, report, loop, lag_ms, verdict
):
    lag = Histogram.of(np.full(2_000, round(lag_ms * MS))).encode()
    if loop == "open":
        generator = open_run(records, report, 2_000, [1_000] * 2_000, lag_histogram=lag).values[
            "generator"
        ]
    else:
        operations = records(*(cycle(1_000 + number / 3) for number in range(2_000)))
        generator = values_of(operations, CLOSED, [report(lag_histogram=lag)])["generator"]
    assert generator["verdict"] == verdict
    if verdict == "LATE":
        assert generator["reason"].startswith(
            f"the load process's scheduler lagged by {lag_ms} ms (p99), which is more than 50% of"
        )


def test_keeping_that_the_edges_of_the_window_cut_is_no_fault_of_the_load(records, report):
    """Operations of 300 ms in turns: eight callers are kept for 100 ms after each; the window cuts
    it."""
    callers = [
        cycle(at, ended=at + 1, release_sent=at + 2, release_replied=at + 300)
        for at in range(899, 1_900, 400)
    ]
    facts = scenario_of(8)
    kept = [report(kept_ns=len(callers) * 8 * 100 * MS)]
    cut = values_of(records(*callers * 8), facts, kept)["generator"]
    assert (cut["verdict"] == "INVALID", cut["littles_law_ratio"] > 1.05) == (False, True)
    assert (
        values_of(records(*callers * 6), facts, [report(kept_ns=MS)])["generator"]["verdict"]
        == "INVALID"
    )
    once = [cycle(1_100, ended=1_101, release_sent=1_102, release_replied=1_900)] * 8
    # for nearly the whole window, each: the edges do not excuse that
    kept = [report(kept_ns=len(once) * 900 * MS)]
    assert values_of(records(*once), facts, kept)["generator"]["verdict"] == "INVALID"


def test_what_the_generator_keeps_a_caller_for_counts_in_littles_law(records, report):
    """Late ends of rests and turns of the hub after failures: in no latency, and still no idle
    caller."""
    callers = [
        cycle(at, release_sent=at + 15, release_replied=at + 20) for at in range(900, 2_100, 50)
    ]
    facts = scenario_of(1, think=Delay("fixed", 20.0))
    # twenty of them ended in the window
    kept = [report(kept_ns=20 * 10 * MS)]
    assert values_of(records(*callers), facts, kept)["generator"][
        "littles_law_ratio"
    ] == pytest.approx(1)
    assert values_of(records(*callers), facts, [report()])["generator"][
        "littles_law_ratio"
    ] == pytest.approx(0.8)


def test_counts_of_starts_add_up_over_workers_and_cpu_is_the_busiest(records, report):
    reports = [
        report(late_starts=2, queued_starts=5, cpu_s=3.0),
        report(worker=1, late_starts=1, queued_starts=7, cpu_s=8.0),
    ]
    generator = values_of(records(cycle(1_100)), OPEN, reports)["generator"]
    assert (generator["late_starts"], generator["queued_starts"], generator["cpu_ratio"]) == (
        3,
        12,
        0.8,
    )


def test_a_busy_load_process_is_a_warning_not_a_verdict(records, report):
    busy, idle = (
        fold(records(cycle(1_100)), WINDOW, CLOSED, [report(cpu_s=cpu_s, lag_histogram="")])
        for cpu_s in (9.1, 8.9)
    )
    assert any(
        text.startswith("generator-bound: the rate is a lower bound") for text in busy.warnings
    )
    assert busy.values["generator"]["verdict"] == "VALID"
    assert not any("bound" in text for text in idle.warnings)


# ---------------------------------------------------------------- sustained


def test_sustained_by_completed_operations(records, report):
    operations = records(*(cycle(1_000 + number * 5) for number in range(200)))
    for scheduled, sustained in ((200, True), (203, True), (210, False)):
        sections = fold(operations, WINDOW, OPEN, [report()], Due(scheduled, scheduled))
        assert sections.values["rate"]["sustained"] is sustained, scheduled
        assert (
            any(
                text.startswith("not sustained: only 200.0 of 4.0 operations/s")
                for text in sections.warnings
            )
            is not sustained
        )


def test_completed_too_late_is_not_sustained(records, report):
    queued = [cycle(2_100 + number, intended=1_500 + number) for number in range(100)]
    operations = records(*(cycle(1_000 + number) for number in range(300)), *queued)
    rate = values_of(operations, OPEN, [report()], 400)["rate"]
    assert (rate["offered_per_s"], rate["completed_per_s"], rate["sustained"]) == (
        4.0,
        300.0,
        False,
    )
