"""What an fsync policy costs: merged, never averaged; and every finding turns red when its fault is
planted."""

from typing import Any

import numpy as np
import pytest

from bench.experiments.durability.price_judge import (
    always_costs,
    find_rows,
    findings_of,
    judge_fsync,
)
from bench.experiments.durability.price_result import Spread
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from tests.doubles.fsync_visits import load, rows_of, sustained, turns, visit

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
    return {finding.name: finding.verdict for finding in findings_of(rows_of(turns(visits)))}


def judged(
    visits: list[dict[str, Any]], *, planned: int | None = None, interrupted: bool = False
) -> tuple[str, int]:
    rows = rows_of(turns(visits))
    made = len(visits)
    verdict = judge_fsync(
        findings_of(rows), rows, planned=planned or made, done=made, interrupted=interrupted
    )
    assert verdict.word
    assert verdict.exit_code is not None
    return verdict.word, verdict.exit_code


# -- rows ------------------------------------------------------------------------------------------


def test_repeats_become_one_row_with_median_and_range() -> None:
    rows = rows_of([visit("always", 100), visit("always", 300), visit("always", 200)])
    row = find_rows(rows)[0]
    assert [row.load for row in rows] == ["max", "80%"]
    assert len(row.visits) == 3
    assert row.acquired_per_s == Spread(median=200, low=100, high=300)
    assert row.acquire_s.count == 600, "histograms are merged"


def test_percentiles_are_those_of_all_samples_together() -> None:
    fast = visit("always")
    slow = visit("always")
    fast["loads"]["max"] = load(9500, ms=1.0)
    slow["loads"]["max"] = load(2000, ms=100.0)
    row = find_rows(rows_of([fast, slow]))[0]
    assert row.acquire_s.p50 == pytest.approx(0.001, rel=0.01)
    assert row.acquire_s.p99 == pytest.approx(0.1, rel=0.01), (
        "more than 1 % of all samples took 100 ms"
    )


def test_fsyncs_are_per_instance_and_locks_are_those_of_the_same_time() -> None:
    row = find_rows(rows_of([visit("always", 1200, instances=3, fsyncs=900)]))[0]
    assert row.fsyncs_per_s.median == pytest.approx(300)
    assert row.locks_per_fsync.median == pytest.approx(4)


def test_what_cannot_be_counted_is_null_not_zero() -> None:
    row = find_rows(rows_of([visit("always", fsyncs=None, disk_s=None)]))[0]
    assert row.fsyncs_per_s is None
    assert row.locks_per_fsync is None
    assert row.disk_fdatasync_s is None


@pytest.mark.parametrize(
    "due, granted, kept",
    [(10_000, 9_900, True), (10_000, 9_700, False), (100, 82, True), (100, 70, False)],
)
def test_an_open_load_is_sustained_but_for_one_per_cent_or_chance(
    due: int, granted: int, kept: bool
) -> None:
    assert sustained(load(granted, rate=1.0, due=due)) is kept


@pytest.mark.parametrize("cpu, bound", [(0.95, True), (0.5, False)])
def test_a_busy_generator_makes_the_rate_a_lower_bound(cpu: float, bound: bool) -> None:
    assert find_rows(rows_of([visit("none", cpu=cpu)]))[0].generator.bound is bound


def test_callers_that_were_not_at_work_make_it_invalid() -> None:
    row = find_rows(rows_of([visit("none", shape=MANY, littles_law_ratio=0.5)]))[0]
    assert "Little's ratio is 0.50" in row.generator.reason


def test_a_cost_compares_equal_cells_only() -> None:
    made = [
        visit("everysec", 5000),
        visit("always", 250),
        visit("always", 500, ms=0.5),
        visit("always", hold="1ms"),
    ]
    (cost,) = always_costs(rows_of(turns(made)))
    assert (cost.injected_ms, cost.hold, cost.pairs) == (2.0, "0", 6)
    assert (cost.ratio, cost.low, cost.high) == pytest.approx((20.0, 20.0, 20.0))
    assert cost.is_known


def noisy_hour(rng: np.random.Generator, ratio: float) -> list[dict[str, Any]]:
    """Six turns, there and back, on a machine whose speed wanders twofold; single visits are off by
    a tenth."""
    speed = np.exp(np.cumsum(rng.normal(0, 0.15, 12)))
    made = []
    for turn in range(6):
        order = (("everysec", ratio), ("always", 1.0))
        for place, (policy, times) in enumerate(order if turn % 2 == 0 else order[::-1]):
            rate = 400 * times * speed[2 * turn + place] * np.exp(rng.normal(0, 0.1))
            made.append(visit(policy, max(1, round(rate))) | {"repeat": turn})
    return made


def test_a_ratio_of_pairs_comes_out_of_a_noisy_hour() -> None:
    """Its interval holds the truth in 95 of 100 hours, and is not wide because the hour was."""
    rng = np.random.default_rng(14)
    costs = [always_costs(rows_of(noisy_hour(rng, 3.1)))[0] for _ in range(200)]
    assert sum(cost.low <= 3.1 <= cost.high for cost in costs if cost.low and cost.high) >= 186
    assert float(np.median([(cost.high or 99) / (cost.low or 1) for cost in costs])) < 2.5


def test_without_six_pairs_or_at_the_load_process_limit_there_is_no_price() -> None:
    few = turns([visit("everysec", 5000), visit("always", 250)], 5)
    (cost,) = always_costs(rows_of(few))
    assert (cost.low, cost.pairs, cost.is_known) == (None, 5, False)
    assert find_rows(rows_of(few))[0].rate_interval is None
    (cost,) = always_costs(
        rows_of(turns([visit("everysec", 5000, cpu=0.99), visit("always", 250)]))
    )
    assert cost.low is not None
    assert not cost.is_known
    strangers = [visit("everysec", 5000) | {"repeat": turn} for turn in range(6)]
    strangers += [visit("always", 250) | {"repeat": turn} for turn in range(6, 12)]
    assert not always_costs(rows_of(strangers))[0].is_known, "rates of other turns make no pair"


# -- findings --------------------------------------------------------------------------------------


def test_policies_that_behave_are_as_expected() -> None:
    found = verdicts(healthy())
    assert found == dict.fromkeys(("always-slowest", "no-refusal"), AS_EXPECTED)
    assert judged(healthy()) == ("AS EXPECTED", 0)


@pytest.mark.parametrize(
    "place, planted, finding, verdict, word",
    [
        (2, visit("always", 5000), "always-slowest", NOT_SHOWN, "NOT AS EXPECTED"),
        # slower than everysec: that is the machine
        (0, visit("no", 4000), "order", NOT_KNOWN, "NOT KNOWN"),
        # noise refutes no cost either
        (2, visit("always", 7000), "always-slowest", NOT_KNOWN, "NOT KNOWN"),
        (2, visit("always", 250, cpu=0.99), "always-slowest", "not judged", "AS EXPECTED"),
    ],
)
def test_each_finding_turns_red_or_is_not_known(
    place: int, planted: dict[str, Any], finding: str, verdict: str, word: str
) -> None:
    visits = healthy()
    visits[place] = planted
    assert verdicts(visits)[finding] == verdict
    assert judged(visits) == (word, 0 if word == "AS EXPECTED" else 4)


def test_an_order_that_only_a_noisy_turn_turned_round_is_none() -> None:
    """Of the medians alone it would be one that cannot be."""
    rng = np.random.default_rng(3)
    made = [visit("no", 3000) | {"repeat": turn} for turn in range(6)]
    made += [
        visit("everysec", round(3000 * rng.choice([0.7, 1.9]))) | {"repeat": turn}
        for turn in range(6)
    ]
    assert not [finding for finding in findings_of(rows_of(made)) if finding.name == "order"]
    certain = turns([visit("no", 3000), visit("everysec", 5000)])
    assert [f.verdict for f in findings_of(rows_of(certain)) if f.name == "order"] == [NOT_KNOWN]


def test_what_is_not_certain_is_not_known() -> None:
    shares = (0.5, 2.0, 0.9, 1.1, 0.8, 1.3)
    made = [visit("everysec", 1000) | {"repeat": turn} for turn in range(6)]
    made += [
        visit("always", round(1000 * share)) | {"repeat": turn} for turn, share in enumerate(shares)
    ]
    slowest = [
        finding for finding in findings_of(rows_of(made)) if finding.name == "always-slowest"
    ]
    assert [finding.verdict for finding in slowest] == [NOT_KNOWN]


def test_an_order_within_what_pairs_of_the_same_code_differ_by_is_none() -> None:
    assert judged([visit("no", 4900), *healthy()[1:]])[0] == "AS EXPECTED"


def test_what_took_no_turns_with_the_others_is_not_compared_with_them() -> None:
    assert judged([visit("none", 100), *healthy()[1:]])[0] == "AS EXPECTED", (
        "the machine was another one then"
    )


def test_a_disk_that_syncs_for_nothing_is_not_judged() -> None:
    visits = [
        visit("everysec", 5000, ms=0.0, disk_s=1e-6),
        visit("always", 5100, ms=0.0, disk_s=1e-6),
    ]
    assert verdicts(visits)["always-slowest"] == "not judged"


def test_a_refusal_without_a_holder_is_a_violation() -> None:
    visits = [visit("always", denied={"contended": 1})]
    assert verdicts(visits)["no-refusal"] == VIOLATED
    assert judged(visits) == ("VIOLATED", 5)


def test_a_refusal_after_a_failed_release_is_explained() -> None:
    assert (
        verdicts([visit("always", denied={"contended": 1}, release_failures=1)])["no-refusal"]
        == AS_EXPECTED
    )


# -- what is not known -----------------------------------------------------------------------------


def test_figures_most_of_which_are_bounds_or_of_a_queue_say_nothing() -> None:
    limited = [
        visit(one["cell"]["policy"], 250 if one["cell"]["policy"] == "always" else 5000)
        for one in healthy()[:3]
    ]
    for one in limited:
        one["loads"]["max"]["wanted_ratio"] = 0.99
        one["loads"]["80%"] |= {"due": 5000, "granted": 4000}
    limited[2]["loads"]["max"]["wanted_ratio"] = 0.5
    assert judged(limited) == ("NOT KNOWN", 4)


def test_a_quarter_of_the_visits_may_be_left_out_and_no_more() -> None:
    assert judged(healthy(), planned=6)[0] == "AS EXPECTED"
    assert judged(healthy(), planned=7) == ("NOT KNOWN", 4)
    assert judged(healthy(), interrupted=True) == ("INTERRUPTED", 130)
