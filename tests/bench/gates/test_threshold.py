"""Thresholds: every figure of a result has a name, what is not known never passes, and the refusals
help."""

import copy
from typing import Any

import numpy as np
import pytest

from bench.errors import UsageError
from bench.gates.threshold import find_metric, metrics, read_threshold, read_thresholds, sentence
from bench.measure.histogram import Histogram
from bench.report.figures import threshold_text
from tests.bench.whole_run import SAMPLE, run_of

Result = dict[str, Any]


@pytest.fixture
def result() -> Result:
    sample: Result = copy.deepcopy(SAMPLE)
    figures = {"p50": 0.001, "p99": 0.004, "p999": 0.02, "count": 50_000}
    sample["latency_s"]["acquire"] |= figures
    sample["latency_s"]["acquire_all"] |= figures | {"failed": 0, "infinite": []}
    sample["rate"] |= {"achieved_per_s": 2500.0, "sustained": None}
    sample["outcome_shares"] = {"acquired": 0.999, "contended": 0.001}
    sample["outcomes"] = {"acquired": 49_950, "contended": 50}
    sample["cost"] |= {"client_cpu_us_per_cycle": 24.0, "commands_per_acquire": 10.0}
    sample["safety"] |= {
        "verdict": "SAFE",
        "service_faults": 0,
        "tested_leases": 500,
        "reason": None,
    }
    return sample


@pytest.mark.parametrize(
    ("text", "status", "margin"),
    [
        ("acquire.p99 < 5ms", "pass", 0.001),
        ("acquire.p99 < 4ms", "fail", 0.0),
        ("acquire.p99 <= 4ms", "pass", 0.0),
        ("acquire.p99 < 3999us", "fail", -1e-6),
        ("latency_s.acquire.p99<0.005s", "pass", 0.001),
        ("acquire.p99.9 < 10ms", "fail", -0.01),
        ("rate >= 2000/s", "pass", 500.0),
        ("rate >= 2000", "pass", 500.0),
        ("rate > 2500/s", "fail", 0.0),
        ("acquire.success >= 99.9%", "pass", 0.0),
        ("acquire.success >= 0.9991", "fail", -0.0001),
        ("safety.violations == 0", "pass", 0.0),
        ("safety.violations != 0", "fail", 0.0),
        ("cost.client_cpu_us_per_cycle < 30us", "pass", 6.0),
        ("cost.client_cpu_us_per_cycle < 0.02ms", "fail", -4.0),
        ("cost.commands_per_acquire == 10", "pass", 0.0),
        ("acquire.count >= 50000", "pass", 0.0),
    ],
)
def test_a_limit_is_kept_or_not_and_the_margin_says_by_how_much(
    result: Result, text: str, status: str, margin: float
) -> None:
    judged = read_threshold(text).judge(run_of(result))
    assert judged["status"] == status
    assert judged["margin"] == pytest.approx(margin, abs=1e-12)
    assert judged["expression"] == text


UNKNOWN_SAFETY = ("safety", {"verdict": "UNKNOWN", "reason": "a worker died"})
NOT_TESTED = (
    "safety",
    {"verdict": "NOT TESTED", "tested_leases": 99, "reason": "99 of 500 leases"},
)
NOT_SUSTAINED = ("rate", {"sustained": False})


def change(result: Result, section: str, figures: dict[str, Any]) -> None:
    (result["latency_s"][section] if section == "acquire_all" else result[section]).update(figures)


@pytest.mark.parametrize(
    ("changed", "text", "reason"),
    [
        (("acquire_all", {"count": 0, "p99": None}), "acquire.p99 < 5s", "there are no samples"),
        (
            ("acquire_all", {"count": 300, "p99": None}),
            "acquire.p99 < 5s",
            "300 samples are too few for this figure",
        ),
        (("outcome_shares", {"acquired": None}), "acquire.success >= 1%", "there are no samples"),
        (UNKNOWN_SAFETY, "safety.violations == 0", "safety is unknown: a worker died"),
        (UNKNOWN_SAFETY, "safety.client_overstays < 10", "safety is unknown: a worker died"),
        (NOT_TESTED, "safety.violations == 0", "safety was not tested: 99 of 500 leases"),
        (NOT_SUSTAINED, "acquire.p99 < 5s", "the offered rate was not sustained"),
    ],
)
def test_what_cannot_be_answered_is_inconclusive_and_says_why(
    result: Result, changed: Any, text: str, reason: str
) -> None:
    change(result, *changed)
    judged = read_threshold(text).judge(run_of(result))
    assert (judged["status"], judged["reason"]) == ("inconclusive", reason)


def test_doubt_never_hides_a_limit_that_was_broken(result: Result) -> None:
    change(result, *NOT_SUSTAINED)
    assert read_threshold("acquire.p99 < 1ms").judge(run_of(result))["status"] == "fail"
    change(result, *NOT_TESTED)
    result["safety"]["violations"] = 2
    assert read_threshold("safety.violations == 0").judge(run_of(result))["status"] == "fail"


def test_unknown_safety_leaves_other_thresholds_alone(result: Result) -> None:
    change(result, *UNKNOWN_SAFETY)
    assert read_threshold("acquire.p99 < 5ms").judge(run_of(result))["status"] == "pass"


# ---------------------------------------------------------------- failures, late generators,
# invalid runs


def outage(result: Result) -> None:
    """8.7 % of acquires failed, the others are as fast as ever."""
    result["outcome_shares"] = {"acquired": 0.913, "unreachable": 0.087}
    result["latency_s"]["acquire_all"] |= {
        "failed": 4_350,
        "infinite": ["p99", "p999", "p9999", "max"],
        "p99": None,
    }


def test_a_limit_on_a_percentile_fails_when_so_many_acquires_failed(result: Result) -> None:
    outage(result)
    judged = read_threshold("acquire.p99 < 50ms").judge(run_of(result))
    assert (judged["status"], judged["value"], judged["infinite"]) == ("fail", None, True)
    assert sentence(judged) == "acquire.p99 < 50ms does not hold (∞: 8.7 % of acquires failed)"
    assert threshold_text(judged) == "measured ∞: 8.7 % of acquires failed · limit 50.0 ms"
    assert read_threshold("acquire.p50 < 50ms").judge(run_of(result))["status"] == "pass"


def test_both_spellings_of_the_acquire_percentiles_are_over_all_acquires() -> None:
    for name in (
        "acquire.p99",
        "latency_s.acquire.p99",
        "acquire_all.p99",
        "latency_s.acquire_all.p99",
    ):
        assert find_metric(name).path == ("latency_s", "acquire_all", "p99")
    assert find_metric("acquire.mean").path == ("latency_s", "acquire", "mean")


def test_a_limit_on_the_service_time_of_successes_does_not_hide_an_outage(result: Result) -> None:
    assert read_threshold("acquire_service.p99 < 1s").judge(run_of(result))["status"] == "pass"
    outage(result)
    judged = read_threshold("acquire_service.p99 < 1s").judge(run_of(result))
    assert judged["status"] == "inconclusive"
    assert judged["reason"] == (
        "this figure covers only successful acquires, but 8.7 % of acquires failed; use acquire.p99"
    )


def late(result: Result, verdict: str = "LATE") -> None:
    result["generator"] |= {
        "verdict": verdict,
        "reason": "the load process's scheduler lagged by 3 ms",
    }


@pytest.mark.parametrize("verdict", ["LATE", "UNKNOWN"])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        # holds although the generator adds to it
        ("acquire.p99 < 5ms", "pass"),
        # 4 ms, of which up to 3 are the generator's
        ("acquire.p99 < 3ms", "inconclusive"),
        ("acquire.p99 > 3ms", "inconclusive"),
        ("acquire.p99 > 5ms", "fail"),
        ("acquire.p99 != 3ms", "inconclusive"),
        ("acquire.mean < 0.1ms", "inconclusive"),
        ("rate >= 2000/s", "pass"),
        ("rate > 2500/s", "fail"),
        ("acquire.count >= 60000", "fail"),
        ("safety.violations == 0", "pass"),
    ],
)
def test_a_late_generator_only_lengthens_so_the_other_side_is_judged(
    result: Result, verdict: str, text: str, status: str
) -> None:
    late(result, verdict=verdict)
    judged = read_threshold(text).judge(run_of(result))
    assert judged["status"] == status
    if status == "inconclusive":
        assert (
            judged["reason"]
            == "the latency is an upper bound: the load process's scheduler lagged by 3 ms"
        )


def test_a_valid_generator_that_was_late_at_the_limits_own_percentile_puts_that_one_in_doubt(
    result: Result,
) -> None:
    late(result, verdict="VALID")
    result["rate"]["offered_per_s"] = 300.0
    result["latency_s"]["acquire_all"] |= {"p90": 0.004, "p99": 0.165}
    lateness = np.concatenate([np.full(8_000, 1_000), np.full(2_000, 3_000_000)]).astype(np.int64)
    result["histograms"]["timer_lateness"] = Histogram.of(lateness).encode()
    judged = read_threshold("acquire.p90 < 3ms").judge(run_of(result))
    assert (judged["status"], judged["reason"]) == (
        "inconclusive",
        "the latency is an upper bound: the timer was 3 ms late (p90)",
    )
    assert read_threshold("acquire.p90 < 5ms").judge(run_of(result))["status"] == "pass"
    # 3 ms of 165 do not matter
    assert read_threshold("acquire.p99 < 50ms").judge(run_of(result))["status"] == "fail"
    # closed loop: the timer is in no latency
    result["rate"]["offered_per_s"] = None
    assert read_threshold("acquire.p90 < 3ms").judge(run_of(result))["status"] == "fail"


def test_failed_acquires_break_a_limit_however_late_the_generator(result: Result) -> None:
    late(result)
    outage(result)
    assert read_threshold("acquire.p99 < 50ms").judge(run_of(result))["status"] == "fail"


@pytest.mark.parametrize(
    "text", ["acquire.p99 < 5ms", "acquire.p99 < 1ms", "rate > 1/s", "safety.violations == 0"]
)
def test_of_an_invalid_run_no_limit_is_judged_broken_or_kept(result: Result, text: str) -> None:
    judged = read_threshold(text).judge(run_of(result), ["a worker died", "and more"])
    assert (judged["status"], judged["reason"]) == (
        "inconclusive",
        "the figures of this run are not valid: a worker died",
    )


def test_a_violation_is_certain_even_in_an_invalid_run(result: Result) -> None:
    result["safety"]["violations"] = 2
    assert (
        read_threshold("safety.violations == 0").judge(run_of(result), ["a worker died"])["status"]
        == "fail"
    )


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("acquire.success >= 99%", 0.99),
        ("acquire.success >= 0.99", 0.99),
        ("acquire.success == 1", 1.0),
        ("safety.violations == 0", 0.0),
        ("safety.violations < 0.5", 0.5),
        # of a core, and some have more
        ("generator.cpu_ratio < 2.5", 2.5),
        # an average
        ("cost.commands_per_acquire == 10.5", 10.5),
    ],
)
def test_a_limit_within_the_range_of_its_figure_is_taken(text: str, limit: float) -> None:
    assert read_threshold(text).limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aquire.p99 < 5ms", "there is no metric aquire.p99; did you mean acquire.p99?"),
        ("acquire.p98 < 5ms", "there is no metric acquire.p98; did you mean acquire.p9"),
        (
            "speed > 3",
            "there is no metric speed; every number in result.json is a metric, such as "
            "rate, acquire.success,",
        ),
        ("acquire.p99 < 5", "the limit needs a unit (write it like acquire.p99 < 5ms)"),
        ("acquire.p99 < 5%", "'%' is not a unit of acquire.p99"),
        ("rate > 5ms", "'ms' is not a unit of rate (write it like rate > 2000/s)"),
        ("safety.violations == 0%", "'%' is not a unit of safety.violations"),
        (
            "acquire.success >= 99",
            "is a share between 0 and 1, but the limit 99 is above 1; write acquire.success >= 99%",
        ),
        ("acquire.success >= 101%", "but the limit 101% is above 1; write acquire.success >= 100%"),
        ("outcome_shares.contended < 2", "outcome_shares.contended is a share between 0 and 1"),
        (
            "safety.violations == 0.5",
            "safety.violations is a whole number, but 0.5 is not; write safety.violations == 0",
        ),
        ("outcomes.contended != 1.5", "outcomes.contended is a whole number"),
        ("acquire.p99", "is not a threshold"),
        ("acquire.p99 =< 5ms", "is not a threshold"),
        ("", "is not a threshold"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_threshold(text)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_figure_of_a_real_result_is_a_metric_and_the_other_way_round() -> None:
    assert {
        "latency_s.wait.p999",
        "cost.bytes_per_acquire",
        "attempts.mean",
        "votes.silent",
    } <= set(metrics())
    assert not [
        path
        for path in metrics()
        if path.startswith(("environment", "histograms", "seed", "fleet"))
    ]
    for path, metric in metrics().items():
        assert find_metric(metric.name) == find_metric(path) == metric


def test_the_same_limit_twice_is_one() -> None:
    assert len(read_thresholds(["rate > 1", "rate > 1", "rate > 2"])) == 2
