"""What an fsync policy costs: merged, never averaged; and every finding turns red when its fault is planted."""

from typing import Any

import pytest

from bench.experiments.fsync.judge import always_costs, find_rows, findings_of, judge_fsync
from bench.experiments.fsync.result import Spread
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from tests.doubles.fsync_visits import load, rows_of, sustained, visit

MANY = (256, 16)


def healthy() -> list[dict[str, Any]]:
    """always is 20 times slower with one caller, and as fast as everysec with four thousand."""
    return [
        visit("none", 6000),
        visit("everysec", 5000),
        visit("always", 250),
        visit("everysec", 60_000, shape=MANY),
        visit("always", 55_000, shape=MANY),
    ]


def verdicts(visits: list[dict[str, Any]]) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in findings_of(rows_of(visits))}


def judged(visits: list[dict[str, Any]], *, planned: int | None = None, interrupted: bool = False) -> tuple[str, int]:
    rows = rows_of(visits)
    made = len(visits)
    verdict = judge_fsync(findings_of(rows), rows, planned=planned or made, done=made, interrupted=interrupted)
    assert verdict.word
    assert verdict.exit_code is not None
    return verdict.word, verdict.exit_code


# -- rows --------------------------------------------------------------------------------------------------------------


def test_repeats_become_one_row_with_median_and_range() -> None:
    rows = rows_of([visit("always", 100), visit("always", 300), visit("always", 200)])
    row = find_rows(rows)[0]
    assert [row.load for row in rows] == ["max", "80%"]
    assert row.repeats == 3
    assert row.acquired_per_s == Spread(median=200, low=100, high=300)
    assert row.acquire_s.count == 600, "histograms are merged"


def test_percentiles_are_those_of_all_samples_together() -> None:
    fast, slow = visit("always"), visit("always")
    fast["loads"]["max"], slow["loads"]["max"] = load(9500, ms=1.0), load(2000, ms=100.0)
    row = find_rows(rows_of([fast, slow]))[0]
    assert row.acquire_s.p50 == pytest.approx(0.001, rel=0.01)
    assert row.acquire_s.p99 == pytest.approx(0.1, rel=0.01), "more than 1 % of all samples took 100 ms"


def test_fsyncs_are_per_instance_and_locks_are_those_of_the_same_time() -> None:
    row = find_rows(rows_of([visit("always", 1200, instances=3, fsyncs=900)]))[0]
    assert row.fsyncs_per_s.median == pytest.approx(300)
    assert row.locks_per_fsync.median == pytest.approx(4)


def test_what_cannot_be_counted_is_null_not_zero() -> None:
    row = find_rows(rows_of([visit("always", fsyncs=None, latency_events=None, disk_s=None)]))[0]
    assert row.fsyncs_per_s is None
    assert row.locks_per_fsync is None
    assert row.latency_events is None
    assert row.disk_fdatasync_s is None


@pytest.mark.parametrize(
    "due, granted, kept", [(10_000, 9_900, True), (10_000, 9_700, False), (100, 82, True), (100, 70, False)]
)
def test_an_open_load_is_sustained_but_for_one_per_cent_or_chance(due: int, granted: int, kept: bool) -> None:
    assert sustained(load(granted, rate=1.0, due=due)) is kept


@pytest.mark.parametrize("cpu, bound", [(0.95, True), (0.5, False)])
def test_a_busy_generator_makes_the_rate_a_lower_bound(cpu: float, bound: bool) -> None:
    assert find_rows(rows_of([visit("none", cpu=cpu)]))[0].generator.bound is bound


def test_callers_that_were_not_at_work_make_it_invalid() -> None:
    row = find_rows(rows_of([visit("none", shape=MANY, littles_law_ratio=0.5)]))[0]
    assert row.generator.verdict == "INVALID"
    assert "Little's ratio is 0.50" in row.generator.reason


def test_a_cost_compares_equal_cells_only() -> None:
    rows = rows_of([visit("everysec", 5000), visit("always", 250), visit("always", 500, ms=0.5)])
    costs = always_costs(rows)
    assert [(cost.injected_ms, cost.ratio) for cost in costs] == [(2.0, 20.0)]


# -- findings ----------------------------------------------------------------------------------------------------------


def test_policies_that_behave_are_as_expected() -> None:
    found = verdicts(healthy())
    assert found == dict.fromkeys(("always-slowest", "group-commit", "no-refusal"), AS_EXPECTED)
    assert judged(healthy()) == ("AS EXPECTED", 0)


@pytest.mark.parametrize(
    "place, planted, finding, verdict, word",
    [
        (2, visit("always", 5000), "always-slowest", NOT_SHOWN, "NOT AS EXPECTED"),
        (4, visit("always", 6000, shape=MANY), "group-commit", NOT_SHOWN, "NOT AS EXPECTED"),  # a tenth, not as much
        (0, visit("none", 4000), "order", NOT_KNOWN, "NOT KNOWN"),  # slower than everysec: that is the machine
        (2, visit("always", 7000), "always-slowest", NOT_KNOWN, "NOT KNOWN"),  # noise refutes no cost either
        (3, visit("everysec", 60_000, shape=MANY, cpu=0.99), "group-commit", "not judged", "AS EXPECTED"),
    ],
)
def test_each_finding_turns_red_or_is_not_known(
    place: int, planted: dict[str, Any], finding: str, verdict: str, word: str
) -> None:
    visits = healthy()
    visits[place] = planted
    assert verdicts(visits)[finding] == verdict
    assert judged(visits) == (word, 0 if word == "AS EXPECTED" else 4)


def test_an_order_within_what_pairs_of_the_same_code_differ_by_is_none() -> None:
    assert judged([visit("none", 4900), *healthy()[1:]])[0] == "AS EXPECTED"


def test_a_disk_that_syncs_for_nothing_is_not_judged() -> None:
    visits = [visit("everysec", 5000, ms=0.0, disk_s=1e-6), visit("always", 5100, ms=0.0, disk_s=1e-6)]
    assert verdicts(visits)["always-slowest"] == "not judged"


def test_a_refusal_without_a_holder_is_a_violation() -> None:
    visits = [visit("always", denied={"contended": 1})]
    assert verdicts(visits)["no-refusal"] == VIOLATED
    assert judged(visits) == ("VIOLATED", 5)


def test_a_refusal_after_a_failed_release_is_explained() -> None:
    assert verdicts([visit("always", denied={"contended": 1}, release_failures=1)])["no-refusal"] == AS_EXPECTED


@pytest.mark.parametrize("fsyncs, verdict", [(4, AS_EXPECTED), (90, NOT_SHOWN)])
def test_a_rewrite_that_is_to_stop_fsyncs_must_be_seen_to(fsyncs: int, verdict: str) -> None:
    visits = [visit("always", rewrite="on"), visit("always", rewrite="on-no-sync")]
    for one, count in zip(visits, (100, fsyncs), strict=True):
        for each in one["loads"].values():
            each["rewrite"] = {"took_s": 0.5, "fsyncs": count}
    assert verdicts(visits)["rewrite-no-sync"] == verdict


@pytest.mark.parametrize("untrue, verdict", [(0, AS_EXPECTED), (2, "server fault")])
def test_a_confirmation_that_the_ledger_denies_is_the_servers_fault(untrue: int, verdict: str) -> None:
    counts = {"asked": 5, "confirmed": 5, "unconfirmed": 0, "probes": 2, "untrue": untrue}
    visits = [visit("waitaof", waitaof=counts)]
    found = findings_of(rows_of(visits))
    assert next(finding for finding in found if finding.name == "waitaof-truth")["verdict"] == verdict
    assert judged(visits) == ("AS EXPECTED", 0)


def test_waitaof_counts_must_add_up() -> None:
    whole = visit("waitaof", waitaof={"asked": 5, "confirmed": 4, "unconfirmed": 1})
    torn = visit("waitaof", waitaof={"asked": 5, "confirmed": 4})
    assert verdicts([whole])["waitaof-counts"] == AS_EXPECTED
    assert verdicts([torn])["waitaof-counts"] == NOT_SHOWN


# -- what is not known -------------------------------------------------------------------------------------------------


def test_figures_most_of_which_are_bounds_or_of_a_queue_say_nothing() -> None:
    limited = [
        visit(one["cell"]["policy"], 250 if one["cell"]["policy"] == "always" else 5000) for one in healthy()[:3]
    ]
    for one in limited:
        one["loads"]["max"]["cpu_ratio"] = 0.99
        one["loads"]["80%"] |= {"due": 5000, "granted": 4000}
    limited[2]["loads"]["max"]["cpu_ratio"] = 0.5
    assert judged(limited) == ("NOT KNOWN", 4)


def test_a_quarter_of_the_visits_may_be_left_out_and_no_more() -> None:
    assert judged(healthy(), planned=6)[0] == "AS EXPECTED"
    assert judged(healthy(), planned=7) == ("NOT KNOWN", 4)
    assert judged(healthy(), interrupted=True) == ("INTERRUPTED", 130)
