"""Every section of a result is what its definition says, from operations small enough to count by
hand."""

import numpy as np
import pytest

from bench.measure import workers
from bench.measure.facts import Window, mean_of
from bench.measure.fold import Fold, fold
from bench.measure.histogram import Histogram
from bench.measure.record import records_of
from bench.measure.section import builtins_of
from bench.measure.workers import WorkerNote
from bench.scenario import Delay
from tests.doubles.records import MS, cycle, scenario_of

WINDOW = Window(1_000 * MS, 2_000 * MS)
CLOSED = scenario_of()


def values_of(records, scenario=CLOSED, reports=()):
    return builtins_of(fold(records, WINDOW, scenario, reports).values)


def test_an_operation_belongs_to_the_window_by_its_intended_start(records):
    inside = [cycle(1_000), cycle(1_999.999), cycle(2_500, intended=1_500)]
    outside = [cycle(999.999), cycle(2_000), cycle(1_200, intended=900)]
    values = values_of(records(*inside, *outside))
    assert values["outcomes"]["acquired"] == 3
    assert values["totals"]["acquired"] == 6


def test_outcomes_and_totals_name_all_five_and_shares_sum_to_one(records):
    failed = [
        {"start": 1_100, "ended": 1_101, "outcome": name}
        for name in ("contended", "split_vote", "too_late")
    ]
    values = values_of(
        records(cycle(1_050), *failed, {"start": 500, "ended": 501, "outcome": "unreachable"})
    )
    assert values["outcomes"] == {
        "acquired": 1,
        "contended": 1,
        "split_vote": 1,
        "unreachable": 0,
        "too_late": 1,
    }
    assert values["totals"]["unreachable"] == 1
    assert values["outcome_shares"]["acquired"] == 0.25
    assert sum(values["outcome_shares"].values()) == 1


def test_releases_are_counted_over_the_whole_run(records):
    values = values_of(
        records(
            cycle(100),
            cycle(1_100, release="gone"),
            cycle(1_200, release="unreachable"),
            {"start": 1_300, "ended": 1_301},
        )
    )
    assert values["releases"] == {"released": 1, "gone": 1, "unreachable": 1}


def test_achieved_rate_counts_grants_and_completed_rate_returns_within_the_window(records):
    values = values_of(
        records(
            cycle(999.5),
            cycle(1_500),
            cycle(1_999.5),
            {"start": 1_200, "ended": 1_300, "outcome": "contended"},
        )
    )
    assert values["rate"] == {
        "offered_per_s": None,
        "achieved_per_s": 2.0,
        "completed_per_s": 3.0,
        "sustained": None,
    }


# ---------------------------------------------------------------- latencies


def latency(records, name, *operations):
    return values_of(records(*operations))["latency_s"][name]


def test_acquire_runs_from_the_intended_start_and_service_from_the_actual_one(records):
    operation = {"intended": 1_100, "start": 1_130, "attempt": 1_150, "ended": 1_160}
    for name, milliseconds in (("acquire", 60), ("acquire_service", 30), ("wait", 20)):
        section = latency(records, name, operation)
        assert (section["count"], section["mean"], section["max"]) == (
            1,
            milliseconds / 1e3,
            milliseconds / 1e3,
        ), name


def test_failed_acquires_stand_apart(records):
    failed = {"intended": 1_100, "start": 1_120, "ended": 1_200, "outcome": "contended"}
    assert latency(records, "acquire_failed", failed, cycle(1_100))["max"] == 0.1
    assert latency(records, "acquire", failed, cycle(1_100))["count"] == 1


def test_release_and_hold_are_of_leases_that_were_released(records):
    vanished = {"start": 1_300, "ended": 1_301}
    assert latency(records, "release", cycle(1_100), vanished)["mean"] == 0.002
    assert latency(records, "hold", cycle(1_100, granted=1_100.5), vanished)[
        "mean"
    ] == pytest.approx(0.01)
    assert latency(records, "hold", cycle(1_100), vanished)["count"] == 1


def test_a_run_without_operations_has_empty_sections_and_no_division_by_zero(report):
    values = values_of(records_of([]), reports=[report()])
    assert values["latency_s"]["acquire"] == dict.fromkeys(
        ("mean", "p50", "p90", "p99", "p999", "p9999", "max")
    ) | {"count": 0}
    assert values["outcome_shares"]["acquired"] is None
    assert values["cost"]["client_cpu_us_per_cycle"] is None
    assert values["split_votes"] == {"count": 0, "ratio": None}


# ---------------------------------------------------------------- hand-off


HOLDER = {"start": 1_100, "ended": 1_101, "release_sent": 1_150, "release_replied": 1_152}


def handoff(records, *operations):
    section = values_of(records(*operations))["latency_s"]["handoff"]
    return section["count"], section["mean"]


NEXT = {"start": 1_151, "granted": 1_155, "ended": 1_156}
LATE = HOLDER | {"release_sent": 1_170, "release_replied": 1_171}


def refused(ended, resource=0):
    return {"start": 1_120, "ended": ended, "outcome": "contended", "resource": resource}


@pytest.mark.parametrize(
    "operations, found",
    [
        # a waiter: from the release sent until it has its lease
        ([HOLDER, NEXT | {"start": 1_120}], (1, 0.006)),
        # nobody waited at the release
        ([HOLDER, NEXT], (0, None)),
        # a waiter that gives up
        ([HOLDER, refused(1_153), NEXT | {"start": 1_154, "ended": 1_160}], (1, 0.01)),
        # it gave up before the release
        ([HOLDER, refused(1_140), NEXT], (0, None)),
        # it waits for another resource
        ([HOLDER, refused(1_200, resource=1), NEXT], (0, None)),
        # released after the next grant
        ([LATE, NEXT | {"start": 1_120}], (0, None)),
    ],
)
def test_handoff_is_from_the_release_sent_to_the_next_grant_while_somebody_waits(
    records, operations, found
):
    assert handoff(records, *operations) == found


# ---------------------------------------------------------------- votes, attempts, cost


def test_margins_are_votes_above_the_quorum_of_leases_and_votes_sum_by_kind(records):
    values = values_of(
        records(
            cycle(1_100, votes={"granted": 5}),
            cycle(1_200, votes={"granted": 3, "silent": 2}),
            cycle(1_300, votes={"granted": 3, "errored": 1, "absent": 1}),
            {
                "start": 1_400,
                "ended": 1_401,
                "outcome": "contended",
                "votes": {"granted": 1, "refused": 4},
            },
            cycle(500, votes={"granted": 4, "undecided": 1}),
            # a lease without a quorum
            cycle(1_500, votes={"granted": 2}),
        )
    )
    assert values["votes"] == {
        "margin": {"-1": 1, "0": 2, "2": 1},
        "granted": 14,
        "refused": 4,
        "errored": 1,
        "silent": 2,
        "absent": 1,
        "undecided": 0,
    }


def test_attempts_are_of_leases_and_split_votes_of_all(records):
    values = values_of(
        records(
            cycle(1_100),
            cycle(1_200, attempts=5, split=2),
            {"start": 1_300, "ended": 1_301, "outcome": "split_vote", "attempts": 4, "split": 4},
        )
    )
    assert {key: values["attempts"][key] for key in ("count", "mean", "max", "total")} == {
        "count": 2,
        "mean": 3.0,
        "max": 5.0,
        "total": 10,
    }
    assert values["split_votes"] == {"count": 6, "ratio": 0.6}


def test_cost_is_per_lease_of_the_whole_run(records, report):
    instances = [report.instance(commands=10, bytes_sent=300, bytes_received=100)] * 2
    total = Fold(CLOSED, WINDOW)
    total.add(records(cycle(100), cycle(1_100, attempts=4), cycle(1_200, outcome="contended")))
    reports = [report(instances=instances, cpu_s=0.002)] * 2
    assert builtins_of(total.sections(reports, server_cpu_s=0.001).values.cost) == {
        "commands_per_acquire": 20.0,
        # 1 + 4 + 1 attempts, 3 releases
        "round_trips_per_acquire": 4.5,
        "bytes_per_acquire": 800.0,
        "client_cpu_us_per_cycle": 2_000.0,
        "server_cpu_us_per_cycle": 500.0,
        # the run itself knows
        "beside_cpu_ratio": None,
    }


def test_what_is_not_known_of_the_cost_is_none(records):
    cost = values_of(records(cycle(1_100)))["cost"]
    assert cost == dict.fromkeys(cost) | {"round_trips_per_acquire": 2.0}


def test_waiting_is_how_evenly_long_and_for_what_callers_waited(records, report):
    facts = scenario_of(3)
    asked = [
        cycle(1_100, caller=0, attempts=3),
        cycle(1_200, caller=1 << 41),
        cycle(1_300, caller=0, intended=1_000),
    ]
    lost = {
        "start": 1_250,
        "ended": 1_750,
        "outcome": "contended",
        "caller": 1 << 40,
        "attempts": 2,
    }
    notes = [report(figures={"wakeups": 3, "polls": 10}), report(figures={"wakeups": 4})]
    waiting = values_of(records(*asked, lost, cycle(500, attempts=9)), facts, notes)["waiting"]
    assert waiting == {
        "jain": 3**2 / (3 * (2**2 + 1)),
        "longest_s": 0.5,
        "asked": 3,
        "unserved": 1,
        "wakeups": 7,
        "polls": 10 + 2 + 1 + 8,
    }


def test_where_nobody_was_served_nothing_was_uneven(records):
    lost = {"start": 1_250, "ended": 1_250, "outcome": "contended"}
    assert values_of(records(lost))["waiting"] == {
        "jain": None,
        "longest_s": None,
        "asked": 2,
        "unserved": 2,
        "wakeups": 0,
        "polls": 0,
    }


# ---------------------------------------------------------------- workers and instances


def test_a_difference_from_locusts_table_is_a_warning(records, report):
    two = records(cycle(1_100), cycle(1_200))
    agreeing = report(locust={"acquire": [2, 0], "release": [2, 0]}, lag_histogram="")
    assert fold(two, WINDOW, CLOSED, [agreeing]).warnings == ()
    differing = report(locust={"acquire": [3, 0], "release": [2, 0]}, lag_histogram="")
    assert fold(two, WINDOW, CLOSED, [differing]).warnings == (
        "Locust's table has 3 acquires, but the history has 2",
    )


def test_a_lock_whose_every_release_says_gone_is_warned_of(records):
    gone = cycle(1_100, release="gone")
    released = cycle(1_200)
    assert fold(records(released, gone), WINDOW, CLOSED).warnings == ()
    (warning,) = fold(records(gone, gone), WINDOW, CLOSED).warnings
    assert warning.startswith("all 2 releases returned GONE")


def test_a_worker_that_never_ended_is_named(records, report):
    # fewer than recorded: no second warning for the same cause
    counts = {"acquire": [0, 0], "release": [0, 0]}
    running = report(
        worker=3, pid=77, phase="running", stopped_ns=0, locust=counts, lag_histogram=""
    )
    (warning,) = fold(records(cycle(1_100)), WINDOW, CLOSED, [running]).warnings
    assert warning.startswith("worker 3 (pid 77) did not report its end")


def test_instances_are_summed_over_workers_with_the_worst_state(records, report):
    replies = Histogram.of(np.full(20, MS)).encode()
    reports = [
        report(
            instances=[report.instance(commands=5, errors={"timeout": 1})],
            reply_histograms=[replies],
        ),
        report(
            worker=1,
            instances=[
                report.instance(
                    commands=7, state="down", reason="refused", errors={"timeout": 2, "closed": 1}
                )
            ],
            reply_histograms=[replies],
        ),
    ]
    (merged,) = builtins_of(workers.instances(reports))
    assert (merged["commands"], merged["state"], merged["reason"]) == (12, "down", "refused")
    assert merged["errors"] == {"timeout": 3, "closed": 1}
    assert (merged["reply_s"]["count"], merged["reply_s"]["p50"]) == (
        40,
        pytest.approx(0.001, rel=1e-3),
    )


# ---------------------------------------------------------------- parts and facts


def test_parts_by_resource_add_up_to_the_whole(records):
    operations = records(
        *(
            cycle(950 + number * 3, resource=number % 7, attempts=1 + number % 3)
            for number in range(400)
        )
    )
    parts = Fold(CLOSED, WINDOW)
    for part in range(3):
        parts.add(operations[operations["resource"] % 3 == part])
    assert parts.sections().values == fold(operations, WINDOW, CLOSED).values


def test_a_rate_that_rises_from_tenth_to_tenth_of_the_window_is_a_warning(records):
    rising = [
        cycle(1_000 + 100 * tenth + number)
        for tenth in range(10)
        for number in range(20 + 3 * tenth)
    ]
    assert any(
        "not in a steady state" in text for text in fold(records(*rising), WINDOW, CLOSED).warnings
    )
    steady = [cycle(1_000 + 100 * tenth + number) for tenth in range(10) for number in range(20)]
    assert fold(records(*steady), WINDOW, CLOSED).warnings == ()


def test_the_mean_of_a_delay_is_that_of_its_distribution():
    assert mean_of(Delay("fixed", 5.0)) == mean_of(Delay("exp", 5.0)) == 5.0
    drawn = np.random.default_rng(1).lognormal(np.log(5), 0.7, 400_000).mean()
    assert mean_of(Delay("lognormal", 5.0, 0.7)) == pytest.approx(drawn, rel=0.01)


# ---------------------------------------------------------------- failures


def outage(records, acquired, failed):
    return records(
        *(cycle(1_000 + number * 0.1) for number in range(acquired)),
        *({"start": 1_500, "ended": 1_500.001, "outcome": "unreachable"} for _ in range(failed)),
    )


def test_percentiles_over_all_acquires_take_failures_as_endless(records):
    section = values_of(outage(records, 2_000, 200))["latency_s"]["acquire_all"]
    assert (section["count"], section["failed"]) == (2_200, 200)
    assert section["infinite"] == ["p99", "p999", "p9999", "max"]
    assert section["p99"] is section["max"] is None
    assert section["p50"] == pytest.approx(0.001, rel=1e-3)
    assert values_of(outage(records, 2_000, 200))["latency_s"]["acquire"]["p99"] == pytest.approx(
        0.001, rel=1e-3
    )


def test_without_failures_the_figures_over_all_are_those_of_the_acquired_ones(records):
    latency = values_of(outage(records, 2_000, 0))["latency_s"]
    figures = ("count", "p50", "p90", "p99", "p999", "p9999", "max")
    assert [latency["acquire_all"][name] for name in figures] == [
        latency["acquire"][name] for name in figures
    ]
    assert latency["acquire_all"]["infinite"] == []


@pytest.mark.parametrize("failed, warned", [(0, False), (20, False), (21, True), (400, True)])
def test_more_than_one_percent_of_failures_is_a_warning(records, failed, warned):
    said = [
        text
        for text in fold(outage(records, 2_000 - failed, failed), WINDOW, CLOSED).warnings
        if "failed" in text
    ]
    assert bool(said) == warned
    if warned:
        assert said[0].startswith(
            f"{failed / 2_000:.1%} of acquires failed (unreachable {failed / 2_000:.1%})"
        )


def test_a_note_replaces_the_one_before_and_leaves_no_draft(tmp_path):
    for phase in ("running", "stopped"):
        workers.write_note(tmp_path, WorkerNote(worker=3, pid=77, phase=phase))
    assert [entry.name for entry in tmp_path.iterdir()] == ["worker-3-77.json"]
    assert [note.phase for note in workers.read_workers(tmp_path)] == ["stopped"]
    # and so is who would read it
    workers.write_note(tmp_path / "gone", WorkerNote(worker=3, pid=77))
