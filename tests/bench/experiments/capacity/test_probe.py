"""One probe of a capacity search: what holds, what misses, and whose fault that is."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from bench.errors import UsageError
from bench.experiments.capacity.judge import CapacityPlan, Findings, SweepPoint, point_of
from bench.experiments.capacity.probe import callers_for, judge_probe, read_slo
from bench.experiments.capacity.result import CapacityPoint, Probe, Seen, Step
from bench.measure.histogram import Histogram
from bench.scenario import Delay, Scenario, load
from tests.bench.whole_run import SAMPLE
from tests.bench.whole_run import run_of as whole

SLO = read_slo(["acquire.p99 < 10ms"])


def run_of(fast: int, slow: int = 0, failed: int = 0) -> dict[str, Any]:
    """A run with so many acquires of 1 ms, of 30 ms, and without a lease; nobody was overloaded."""
    result = copy.deepcopy(SAMPLE)
    values = np.repeat(np.array([1_000_000, 30_000_000], np.int64), [fast, slow])
    histogram = Histogram.of(values)
    p99 = histogram.percentile(99)
    result["histograms"]["acquire"] = histogram.encode()
    result["outcomes"] = {"acquired": fast + slow, "contended": failed, "split_vote": 0}
    result["latency_s"]["acquire"] |= {"count": fast + slow, "p99": None if p99 is None else p99 / 1e9}
    result["rate"] |= {"offered_per_s": 100.0, "completed_per_s": 100.0, "sustained": True}
    result["generator"] |= {"cpu_ratio": 0.5, "timer_lateness_p99_s": 0.0001, "verdict": "VALID", "reason": None}
    result["environment"]["usable_cores"] = 4
    result["fleet"] |= {"started": True, "fsync": "everysec", "fdatasync_s": None}
    for instance in result["instances"]:
        instance["info"] = {"cpu_s": 1.0, "aof": {}}
    return result


def seen(result: dict[str, Any], expression: str = "acquire.p99 < 10ms") -> Seen:
    return judge_probe(100.0, Step.DOUBLING, whole(result), read_slo([expression])).seen


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ({"slow": 100}, Seen.HELD),
        ({"slow": 120}, Seen.MISSED),
        ({"failed": 50}, Seen.HELD),
        ({"failed": 120}, Seen.MISSED),
    ],
)
def test_one_in_a_hundred_may_be_late_or_without_a_lease(missed: dict[str, int], expected: Seen) -> None:
    assert seen(run_of(fast=10_000 - sum(missed.values()), **missed)) is expected


def test_a_rate_that_was_not_sustained_is_missed_however_fast_it_was() -> None:
    result = run_of(fast=10_000)
    result["rate"] |= {"completed_per_s": 97.0, "sustained": False}
    assert seen(result) is Seen.MISSED
    result["rate"]["completed_per_s"] = 80.0
    assert seen(result) is Seen.CLEARLY_MISSED


def test_a_miss_of_a_busy_generator_says_nothing_of_the_servers() -> None:
    result = run_of(fast=9_000, slow=1_000)
    result["generator"]["cpu_ratio"] = 0.95
    assert seen(result) is Seen.SATURATED
    assert seen({**run_of(fast=10_000), "generator": result["generator"]}) is Seen.HELD


def test_a_miss_with_a_late_timer_is_the_generators() -> None:
    result = run_of(fast=9_000, slow=1_000)
    result["generator"] |= {"verdict": "INVALID", "timer_lateness_p99_s": 0.02}
    assert seen(result) is Seen.SATURATED
    result["generator"] |= {"scheduler_lag_p99_s": None, "timer_lateness_p99_s": 0.001}  # so it was another fault
    assert seen(result) is Seen.MISSED


def test_every_expression_must_hold() -> None:
    result = run_of(fast=9_990, failed=10)
    result["outcome_shares"]["acquired"] = 0.999
    both = read_slo(["acquire.p99 < 10ms", "acquire.success >= 99.95%"])
    assert judge_probe(100.0, Step.DOUBLING, whole(result), both).seen is Seen.MISSED


def test_attainment_has_its_interval() -> None:
    attained = judge_probe(100.0, Step.DOUBLING, whole(run_of(fast=9_900, slow=100)), SLO).attainment
    assert attained is not None
    assert attained.rate == pytest.approx(0.99)
    assert attained.low == pytest.approx(0.98786, abs=1e-5)  # Wilson, by hand
    assert attained.high == pytest.approx(0.99177, abs=1e-5)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("acquire.p99 > 10ms", "with <="),
        ("acquire.success <= 99%", "with >="),
        ("cost.bytes_per_acquire == 9", "with <="),
    ],
)
def test_an_slo_the_wrong_way_round_is_refused(expression: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        read_slo([expression])


@pytest.mark.parametrize("expression", ["rate >= 100/s", "safety.violations == 0"])
def test_an_slo_that_no_rate_breaks_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="nothing that more load makes worse"):
        read_slo([expression])


def scenario() -> Scenario:
    return load(None, {"rate": "1"})


def test_callers_are_as_many_as_the_rate_needs() -> None:
    held = replace(scenario(), hold=Delay("fixed", 5.0))
    assert callers_for(100, scenario(), SLO) == 64
    assert callers_for(10_000, held, SLO) == 512  # 1.3 · 10,000/s · (5 ms + 2 · 10 ms) = 325
    assert callers_for(1e6, held, SLO) == 2048


PROBE = judge_probe(100.0, Step.DOUBLING, whole(run_of(fast=10_000)), SLO)


def found(*looks: tuple[float, Seen], target: float | None = None) -> CapacityPoint:
    """What a point comes to whose probes showed this."""
    probes = [structs.replace(PROBE, rate_per_s=rate, seen=seen) for rate, seen in looks]
    point = SweepPoint(scenario(), {})
    plan = CapacityPlan((point,), SLO, target, fixed_users=False, callers=False, seed=1, budget_s=60)
    return point_of(point, Findings(probes), plan)


SURE = ((100.0, Seen.HELD),) * 4


@pytest.mark.parametrize(
    ("looks", "status", "said"),
    [
        ((*SURE, (105.0, Seen.MISSED)), "pass", ""),
        ((*SURE, (105.0, Seen.SATURATED)), "inconclusive", "the load generator was the limit"),
        ((*SURE[1:], (102.0, Seen.MISSED)), "inconclusive", "confirmed 2 times only"),
        (((0.7, Seen.CLEARLY_MISSED),), "fail", "0.70/s did not"),
        (((5_000.0, Seen.MISSED),), "inconclusive", "lower ones were not tried"),
        (SURE, "inconclusive", "nothing above 100/s was tried"),
    ],
)
def test_the_bracket_decides_and_says_what_was_not_tried(
    looks: tuple[tuple[float, Seen], ...], status: str, said: str
) -> None:
    point = found(*looks)
    assert point.status == status
    assert said in "".join(point.reasons)


def test_a_rate_that_took_all_of_the_generator_is_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "is_bound", True)
    point = found(*SURE, (105.0, Seen.MISSED))
    assert (point.status, point.capacity.at_least) == ("inconclusive", True)
    assert "give it --processes" in point.reasons[0]


def test_what_did_not_hold_again_is_no_knee() -> None:
    knee = found((100.0, Seen.HELD), (200.0, Seen.HELD), (200.0, Seen.MISSED)).knee
    assert knee is not None
    assert knee.rate_per_s == 100.0


def test_headroom_is_the_capacity_beyond_the_target() -> None:
    near, far = (found(*SURE, (102.0, Seen.MISSED), target=target).headroom for target in (80.0, 200.0))
    assert near is not None
    assert far is not None
    assert (near.ratio, near.kept, far.kept) == (pytest.approx(0.25), True, False)
