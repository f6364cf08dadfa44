"""Thresholds: every figure of a result has a name, what is not known never passes, and the refusals help."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.errors import UsageError
from bench.gates.metric import find_metric, metrics
from bench.gates.threshold import read_threshold, read_thresholds
from bench.measure.result import schema

SAMPLE = json.loads((Path(__file__).parents[1] / "report" / "sample.json").read_text(encoding="utf-8"))
Result = dict[str, Any]


@pytest.fixture
def result() -> Result:
    sample: Result = copy.deepcopy(SAMPLE)
    sample["latency_s"]["acquire"] |= {"p50": 0.001, "p99": 0.004, "p999": 0.02, "count": 50_000}
    sample["rate"] |= {"achieved_per_s": 2500.0, "sustained": None}
    sample["outcome_shares"] = {"acquired": 0.999, "contended": 0.001}
    sample["cost"] |= {"client_cpu_us_per_cycle": 24.0, "commands_per_acquire": 10.0}
    sample["safety"] |= {"verdict": "SAFE", "service_faults": 0, "contested_leases": 500, "reason": None}
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
    judged = read_threshold(text).judge(result)
    assert judged["status"] == status
    assert judged["margin"] == pytest.approx(margin, abs=1e-12)
    assert judged["expression"] == text
    jsonschema.validate(judged, schema()["properties"]["thresholds"]["items"])


def test_the_margin_is_also_a_share_of_the_limit_where_there_is_one(result: Result) -> None:
    assert read_threshold("acquire.p99 < 5ms").judge(result)["margin_ratio"] == pytest.approx(0.2)
    assert read_threshold("safety.violations == 0").judge(result)["margin_ratio"] is None


def no_samples(result: Result) -> None:
    result["latency_s"]["acquire"] |= {"count": 0, "p99": None}


def too_few(result: Result) -> None:
    result["latency_s"]["acquire"] |= {"count": 300, "p99": None}


def unknown_safety(result: Result) -> None:
    result["safety"] |= {"verdict": "UNKNOWN", "reason": "a worker died"}


def uncontested(result: Result) -> None:
    result["safety"]["contested_leases"] = 0


def not_sustained(result: Result) -> None:
    result["rate"]["sustained"] = False


def nothing_done(result: Result) -> None:
    result["outcome_shares"]["acquired"] = None


@pytest.mark.parametrize(
    ("change", "text", "reason"),
    [
        (no_samples, "acquire.p99 < 5s", "there are no samples"),
        (too_few, "acquire.p99 < 5s", "300 samples are too few for it"),
        (nothing_done, "acquire.success >= 1%", "there are no samples"),
        (unknown_safety, "safety.violations == 0", "safety is unknown: a worker died"),
        (unknown_safety, "safety.client_overstays < 10", "safety is unknown: a worker died"),
        (uncontested, "safety.violations == 0", "no lease was contested, so nothing was tested"),
        (not_sustained, "acquire.p99 < 5s", "the offered rate was not sustained"),
    ],
)
def test_what_cannot_be_answered_is_inconclusive_and_says_why(
    result: Result, change: Any, text: str, reason: str
) -> None:
    change(result)
    judged = read_threshold(text).judge(result)
    assert (judged["status"], judged["reason"]) == ("inconclusive", reason)


def test_doubt_never_hides_a_limit_that_was_broken(result: Result) -> None:
    not_sustained(result)
    assert read_threshold("acquire.p99 < 1ms").judge(result)["status"] == "fail"
    uncontested(result)
    result["safety"]["service_faults"] = 2
    assert read_threshold("safety.violations == 0").judge(result)["status"] == "fail"


def test_unknown_safety_leaves_other_thresholds_alone(result: Result) -> None:
    unknown_safety(result)
    assert read_threshold("acquire.p99 < 5ms").judge(result)["status"] == "pass"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aquire.p99 < 5ms", "there is no metric aquire.p99; did you mean acquire.p99?"),
        ("acquire.p98 < 5ms", "there is no metric acquire.p98; did you mean acquire.p9"),
        ("speed > 3", "there is no metric speed. The metrics are duration, rate, acquire.success,"),
        ("acquire.p99 < 5", "the limit needs a unit (write it like acquire.p99 < 5ms)"),
        ("acquire.p99 < 5%", "'%' is not a unit of acquire.p99"),
        ("rate > 5ms", "'ms' is not a unit of rate (write it like rate > 2000/s)"),
        ("safety.violations == 0%", "'%' is not a unit of safety.violations"),
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


def test_a_refusal_lists_every_metric() -> None:
    with pytest.raises(UsageError) as refusal:
        find_metric("nothing")
    for name in ("rate", "safety.violations", "acquire", "handoff", "p9999", "commands_per_acquire", "cpu_ratio"):
        assert name in str(refusal.value)


def test_every_figure_of_a_real_result_is_a_metric_and_the_other_way_round() -> None:
    assert {"latency_s.wait.p999", "cost.bytes_per_acquire", "attempts.mean", "votes.silent"} <= set(metrics())
    assert not [path for path in metrics() if path.startswith(("environment", "histograms", "seed", "fleet"))]
    for path, metric in metrics().items():
        assert find_metric(metric.name) == find_metric(path) == metric


def test_the_same_limit_twice_is_one() -> None:
    assert len(read_thresholds(["rate > 1", "rate > 1", "rate > 2"])) == 2
