"""The gate's rule: worse must be both certain and large to fail, and not knowing is never a
pass."""

from functools import partial
from math import exp, inf, log
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bench.experiments.compare.judge import (
    CPU_SHARE,
    MISSED,
    Sides,
    combine_thresholds,
    figure_verdict,
    gate_confidence,
    gate_looks,
    gate_shift,
    judge_comparison,
    judge_figure,
    tolerance_of,
)
from bench.experiments.compare.result import Exact
from bench.gates.threshold import FOREVER_S, find_metric
from bench.measure.statistics import Shift, least_pairs, paired_shift
from tests.doubles.compared import compared_run as run
from tests.doubles.compared import judged, limit

RATE = find_metric("rate")
P50 = find_metric("acquire.p50")


def worse(shift: float, low: float, high: float) -> Shift:
    return Shift(log(1 + shift), log(1 + low) if low > -1 else -inf, log(1 + high), 0.98, 24)


@pytest.mark.parametrize(
    ("shift", "low", "high", "verdict"),
    [
        (0.00, -0.03, 0.03, "pass"),
        (-0.30, -0.35, -0.25, "pass"),
        # certainly worse, but within the tolerance
        (0.05, 0.02, 0.08, "pass"),
        (0.05, 0.02, 0.12, "inconclusive"),
        # large, but it may be nothing
        (0.12, -0.01, 0.30, "inconclusive"),
        # certain, but not large
        (0.09, 0.05, 0.15, "inconclusive"),
        (0.12, 0.01, 0.30, "fail"),
        (0.50, 0.40, 0.60, "fail"),
        (0.00, -1.0, inf, "inconclusive"),
        (0.50, -1.0, inf, "inconclusive"),
    ],
)
def test_a_gate_fails_only_what_is_certainly_and_much_worse(
    shift: float, low: float, high: float, verdict: str
) -> None:
    assert figure_verdict("gate", worse(shift, low, high), 0.1) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.05, "different"),
        (-0.05, -0.01, "different"),
        (-0.05, 0.05, "same"),
        (-0.2, 0.05, "inconclusive"),
    ],
)
def test_a_comparison_has_three_verdicts(low: float, high: float, verdict: str) -> None:
    assert figure_verdict("compare", worse((low + high) / 2, low, high), 0.1) == verdict


def test_a_lower_rate_and_a_higher_latency_are_both_worse() -> None:
    base = [100.0, 101.0, 99.0, 100.5, 98.0, 102.0, 100.0, 100.0]
    slower = [value / 1.3 for value in base]
    faster = [value * 1.3 for value in base]
    assert judge_figure("gate", RATE, Sides(base, slower), 0.1).verdict == "fail"
    assert judge_figure("gate", RATE, Sides(base, faster), 0.1).verdict == "pass"
    assert judge_figure("gate", P50, Sides(base, slower), 0.1).verdict == "pass"
    assert judge_figure("gate", P50, Sides(base, faster), 0.1).verdict == "fail"


def test_ratios_are_told_as_measured_and_in_order() -> None:
    base = [100.0 + place for place in range(8)]
    told = judge_figure("gate", RATE, Sides(base, [value / 1.3 for value in base]), 0.1, metrics=2)
    assert (told.low, told.ratio, told.high) == pytest.approx([1 / 1.3] * 3)
    assert told.confidence == pytest.approx(1 - 0.01 / 2 - 0.05), (
        "each end with the risk of what rests on it"
    )
    assert told.pair_noise_ratio == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([None] * 24, [None] * 24, "there are no samples"),
        ([0.0] * 24, [0.0] * 24, "there are no samples"),
        ([], [], "there are no samples"),
        ([1.0] * 24, [None] * 24, "there are no samples"),
        (
            [1.0] * 7 + [None] * 17,
            [1.0] * 24,
            "an interval with confidence 0.99 needs 8 pairs, but there are 7",
        ),
        ([1.0], [1.0], "an interval with confidence 0.99 needs 8 pairs, but there are 1"),
    ],
)
def test_without_samples_nothing_passes(first: list[Any], second: list[Any], reason: str) -> None:
    found = judge_figure("gate", P50, Sides(first, second), 0.1, metrics=2)
    assert (found.verdict, found.reason) == ("inconclusive", reason)
    assert judge_figure("compare", P50, Sides(first[:5], second[:5]), 0.1).verdict == "inconclusive"


@pytest.mark.parametrize("missing", [None, 0.0])
def test_a_candidate_that_got_nothing_in_some_pairs_does_not_pass_by_the_others(
    missing: float | None,
) -> None:
    base = [100.0 + place for place in range(24)]
    found = judge_figure("gate", RATE, Sides(base, [*base[:22], missing, missing]), 0.1)
    assert (found.verdict, found.reason) == (
        "inconclusive",
        "in 2 of 24 pairs, only one side has samples",
    )
    slower = [value / 1.3 for value in base[:22]]
    assert (
        judge_figure("gate", RATE, Sides(base, [*slower, missing, missing]), 0.1).verdict == "fail"
    )


def test_stored_runs_are_judged_unpaired_and_need_several() -> None:
    few = judge_figure("gate", P50, Sides([1.0, 1.0], [1.0], paired=False), 0.1)
    assert (few.verdict, few.reason) == (
        "inconclusive",
        "an interval with confidence 0.98 needs 5 runs of each side, but there are 1",
    )
    base = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    assert (
        judge_figure(
            "gate", P50, Sides(base, [1.3 * value for value in base], paired=False), 0.1
        ).verdict
        == "fail"
    )
    assert judge_figure("gate", P50, Sides(base, base[::-1], paired=False), 0.1).verdict == "pass"


def gate_pairs(metrics: int) -> int:
    return least_pairs(gate_confidence(metrics))


def test_more_metrics_ask_for_more_certainty_and_more_pairs() -> None:
    assert [round(gate_confidence(metrics), 4) for metrics in (1, 2, 4)] == [0.98, 0.99, 0.995]
    assert [gate_pairs(metrics) for metrics in (1, 2, 4)] == [7, 8, 9]


@pytest.mark.parametrize("metrics", [1, 2, 4])
def test_a_gate_looks_a_few_times_and_last_at_its_last_pair(metrics: int) -> None:
    for pairs in (gate_pairs(metrics), 10, 24, 60, 1000):
        looks = gate_looks(pairs, metrics)
        assert looks[-1] == pairs
        assert sorted(set(looks)) == list(looks)
        assert least_pairs(gate_confidence(metrics, len(looks))) <= looks[0], (
            "its first look can answer"
        )
    assert gate_looks(24, 4) == (11, 14, 19, 24)


def test_looks_and_metrics_share_one_false_alarm_in_a_hundred() -> None:
    assert gate_confidence(4, 4) == pytest.approx(1 - 2 * 0.01 / 16)


def test_what_is_worse_by_all_that_is_allowed_passes_once_in_twenty_gates_at_most() -> None:
    """Simulated: 24 pairs whose noise is that of a busy machine, looked at four times, one metric
    of four is worse."""
    rng = Random(3)
    looks = gate_looks(24, 4)
    passed = 0
    gates = 400
    for _ in range(gates):
        second = [1.1 * exp(rng.gauss(0, 0.08)) for _ in range(24)]
        passed += any(
            judge_figure(
                "gate", P50, Sides([1.0] * look, second[:look]), 0.1, metrics=4, looks=4
            ).verdict
            == "pass"
            for look in looks
        )
    assert 0 < passed <= (MISSED + 2.5 * (MISSED / gates) ** 0.5) * gates


def test_the_end_that_a_pass_rests_on_is_shared_by_looks_and_not_by_metrics() -> None:
    values = [0.01 * place for place in range(-12, 12)]

    def ends(metrics: int, looks: int) -> tuple[float, float]:
        found = gate_shift(partial(paired_shift, values), metrics, looks)
        return found.low, found.high

    assert ends(1, 4)[1] == ends(8, 4)[1]
    assert ends(8, 4)[0] < ends(1, 4)[0]
    assert ends(4, 8)[1] > ends(4, 1)[1]


def test_too_few_pairs_to_fail_are_too_few_to_pass() -> None:
    found = judge_figure("gate", RATE, Sides([1.0] * 7, [1.0] * 7), 0.1, metrics=2)
    assert (found.verdict, found.reason) == (
        "inconclusive",
        "an interval with confidence 0.99 needs 8 pairs, but there are 7",
    )


def test_cpu_is_judged_more_sharply_unless_it_was_named() -> None:
    cpu = find_metric("cost.client_cpu_us_per_cycle")
    sharp = tolerance_of(cpu, 0.1, CPU_SHARE)
    assert (tolerance_of(RATE, 0.1, CPU_SHARE), sharp) == (0.1, pytest.approx(0.05))
    assert tolerance_of(cpu, 0.1, 1.0) == 0.1
    base = [10.0 + place / 100 for place in range(24)]
    slower = [1.06 * value for value in base]
    judged_ = judge_figure("gate", cpu, Sides(base, slower), sharp)
    assert (judged_.verdict, judged_.tolerance_ratio) == ("fail", pytest.approx(0.05))
    assert judge_figure("gate", RATE, Sides(slower, base), 0.1).verdict == "pass", (
        "negative control"
    )


def test_noise_is_told_with_the_pairs_that_would_bear_it() -> None:
    base = [100.0] * 24
    noisy = [100.0 * exp(0.06 * (place * 7 % 24 - 11.5)) for place in range(24)]
    found = judge_figure("gate", P50, Sides(base, noisy), 0.1)
    assert found.verdict == "inconclusive"
    assert found.reason is not None
    assert found.reason.endswith("(+ is worse); 10.0% is allowed")
    assert found.noisy
    near = [109.9 + place % 3 / 10 for place in range(24)]
    found = judge_figure("gate", P50, Sides(base, near), 0.1)
    assert (found.verdict, found.reason) == (
        "inconclusive",
        "the change is +9.9% to +10.0% (+ is worse); 10.0% is allowed",
    )


def test_why_a_share_is_undecided_is_told_in_points_of_all_acquires() -> None:
    shares = [0.7 if place % 2 else 1.0 for place in range(24)]
    found = judge_figure("gate", find_metric("acquire.success"), Sides([1.0] * 24, shares), 0.1)
    assert (found.verdict, found.noisy) == ("inconclusive", True)
    assert found.reason == "the change is +0.0% to +15.0% (+ is worse); 1.0% is allowed"


def test_figures_that_are_undecided_for_one_reason_share_a_sentence() -> None:
    few = [
        replace(judge_figure("gate", one, Sides([1.0], [1.0]), 0.1), role="judged")
        for one in (RATE, P50)
    ]
    verdict = judge_comparison("gate", [run(0), run(1)], few, labels=["a", "b"])
    assert [reason.partition(":")[0] for reason in verdict.reasons] == ["rate, acquire.p50"]


def test_what_is_undecided_for_want_of_samples_is_not_put_down_to_noise() -> None:
    base = [100.0] * 24
    noisy = [100.0 * (1.3 if place % 2 else 1 / 1.3) for place in range(24)]
    for candidate in (
        [*noisy[:20], *[None] * 4],
        [None] * 24,
        [*base[:5], *[None] * 19],
        [*base[:22], None, None],
    ):
        found = judge_figure("gate", P50, Sides(base, candidate), 0.1)
        assert (found.verdict, found.noisy) == ("inconclusive", False), candidate


# -- the verdict as a whole ------------------------------------------------------------------------


TWO_RUNS = (run(), run(1))


def whole(kind: Any = "gate", runs: Any = TWO_RUNS, metrics: Any = (), **more: Any) -> str:
    found = judge_comparison(
        kind, runs, [judged(word) for word in metrics], labels=["old", "new"], **more
    )
    return found.status


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ({"metrics": ["pass", "pass"]}, "pass"),
        ({"metrics": ["pass", "inconclusive"]}, "inconclusive"),
        ({"metrics": ["fail", "inconclusive"]}, "fail"),
        (
            {"metrics": ["pass"], "exact": Exact(failures=("commands per acquire: 10 → 11",))},
            "fail",
        ),
        ({"metrics": ["pass"], "exact": Exact()}, "pass"),
        ({"metrics": ["pass"], "runs": ()}, "inconclusive"),
        ({"metrics": ["pass"], "runs": (run(), run(1, "invalid"))}, "invalid"),
        ({"metrics": ["fail"], "runs": (run(), run(1, "invalid"))}, "invalid"),
        ({"metrics": ["pass"], "runs": (run(0, "violated"), run(1, "invalid"))}, "violated"),
        ({"metrics": ["pass"], "thresholds": [limit("fail")]}, "fail"),
        (
            {"metrics": ["fail"], "thresholds": [limit("inconclusive")]},
            "fail",
        ),
        ({"metrics": ["pass"], "stopped": "no server"}, "inconclusive"),
        ({"metrics": ["pass"], "interrupted": True}, "inconclusive"),
        ({"metrics": []}, "inconclusive"),
        ({"kind": "compare", "metrics": ["different", "inconclusive"]}, "pass"),
        ({"kind": "compare", "metrics": ["inconclusive", "inconclusive"]}, "inconclusive"),
    ],
)
def test_the_worst_word_wins(case: dict[str, Any], status: str) -> None:
    assert whole(**case) == status


def test_as_many_leases_as_before_are_no_comparison() -> None:
    success = judged("same", metric="acquire.success", unit="ratio")
    few = judged("inconclusive")
    assert (
        judge_comparison("compare", TWO_RUNS, [success, few], labels=["old", "new"]).status
        == "inconclusive"
    )
    fewer = judged("different", metric="acquire.success", unit="ratio")
    assert (
        judge_comparison("compare", TWO_RUNS, [fewer, few], labels=["old", "new"]).status == "pass"
    )


@pytest.mark.parametrize(
    ("case", "noise"),
    [
        ({"metrics": ["pass", "inconclusive"]}, True),
        ({"metrics": ["pass"]}, False),
        ({"metrics": ["inconclusive"], "runs": ()}, False),
        ({"metrics": ["inconclusive", "fail"]}, False),
        ({"metrics": ["inconclusive"], "runs": (run(), run(1, "invalid"))}, False),
        ({"metrics": ["inconclusive"], "runs": (run(), run(1, "violated"))}, False),
        ({"metrics": ["inconclusive"], "stopped": "no server"}, False),
        (
            {
                "metrics": ["inconclusive"],
                "thresholds": [limit("inconclusive")],
            },
            False,
        ),
    ],
)
def test_only_a_verdict_that_nothing_but_noise_left_open_may_be_forgiven(
    case: dict[str, Any], noise: bool
) -> None:
    words = [judged(word) for word in case.pop("metrics")]
    runs = case.pop("runs", TWO_RUNS)
    assert judge_comparison("gate", runs, words, labels=["old", "new"], **case).only_noise is noise
    starved = [replace(word, noisy=False) for word in words]
    assert not judge_comparison("gate", runs, starved, labels=["old", "new"], **case).only_noise


@pytest.mark.parametrize(
    ("verdict", "status"),
    [("VALID", "pass"), ("LATE", "inconclusive"), ("UNKNOWN", "inconclusive")],
)
def test_late_open_loops_prove_no_likeness_but_may_prove_a_difference(
    verdict: str, status: str
) -> None:
    runs = (run(generator="VALID"), run(1, generator=verdict))
    for word, expected in (("pass", status), ("fail", "fail")):
        entries = [judged(word, unit="s")]
        assert judge_comparison("gate", runs, entries, labels=["old", "new"]).status == expected


def test_a_candidate_whose_acquires_fail_is_endlessly_slower() -> None:
    base = [0.004 + place / 10_000 for place in range(12)]
    found = judge_figure("gate", find_metric("acquire.p99"), Sides(base, [inf] * 12), 0.1)
    assert found.verdict == "fail"
    assert found.second == FOREVER_S
    assert (
        judge_figure("gate", find_metric("acquire.p99"), Sides([inf] * 12, [inf] * 12), 0.1).verdict
        == "pass"
    )


def test_of_a_threshold_over_many_runs_the_one_in_the_middle_speaks() -> None:
    first, broken, second, unclear = (
        run(thresholds=(one,))
        for one in (
            limit("pass", 1.0),
            limit("fail", 9.0),
            limit("pass", 2.0),
            limit("inconclusive"),
        )
    )
    assert combine_thresholds([first, broken, second]) == [limit("pass", 2.0)]
    assert combine_thresholds([unclear, first, second]) == [limit("pass", 1.0)]
    assert combine_thresholds([unclear, unclear, first]) == [limit("inconclusive")]
    assert combine_thresholds([unclear, unclear, broken]) == [limit("fail", 9.0)], (
        "it stays failed beside undecided ones"
    )
    assert combine_thresholds([unclear, unclear]) == [limit("inconclusive")]


def test_of_safety_the_worst_run_speaks() -> None:
    path = "safety.service_faults"
    runs = [run(thresholds=(limit("pass", 0.0, path),))] * 5 + [
        run(thresholds=(limit("fail", 3.0, path),))
    ]
    assert combine_thresholds(runs) == [limit("fail", 3.0, path)]
    unclear = [run(thresholds=(limit("inconclusive", path=path),))] * 11
    assert combine_thresholds([*unclear, runs[-1]]) == [limit("fail", 3.0, path)], (
        "a fault is certain"
    )


SUCCESS = find_metric("acquire.success")
FULL = [1.0] * 24


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (FULL, FULL, "pass"),
        (FULL, [0.995] * 24, "pass"),
        # half of the tolerance of other figures
        (FULL, [0.95] * 24, "fail"),
        # the other gets no lock at all
        (FULL, [0.0] * 24, "fail"),
        ([0.5] * 24, [0.47] * 24, "fail"),
        (
            [0.9 + 0.004 * (n % 24) for n in range(24)],
            [0.9 + 0.004 * (n * 7 % 24) for n in range(24)],
            "inconclusive",
        ),
        # neither got a lock: not worse (other figures say nothing then)
        ([0.0] * 24, [0.0] * 24, "pass"),
        ([0.95] * 24, FULL, "pass"),
        (FULL, [None] * 24, "inconclusive"),
    ],
)
def test_a_gate_forgives_one_point_of_failures_whatever_its_tolerance(
    first: list[float | None], second: list[float | None], verdict: str
) -> None:
    assert judge_figure("gate", SUCCESS, Sides(first, second), 0.5, metrics=4).verdict == verdict
