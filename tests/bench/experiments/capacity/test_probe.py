"""One probe of a capacity search: what holds, what misses, and whose fault that is."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.errors import UsageError
from bench.experiments.capacity.probe import callers_for, judge_probe, read_slo
from bench.experiments.capacity.result import Seen
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
    result["latency_s"]["acquire"] |= {
        "count": fast + slow,
        "p99": None if p99 is None else p99 / 1e9,
    }
    result["rate"] |= {"offered_per_s": 100.0, "completed_per_s": 100.0, "sustained": True}
    result["generator"] |= {
        "cpu_ratio": 0.5,
        "timer_lateness_p99_s": 0.0001,
        "verdict": "VALID",
        "reason": None,
    }
    result["environment"]["usable_cores"] = 4
    result["fleet"] |= {"started": True, "fsync": "everysec", "fdatasync_s": None}
    for instance in result["instances"]:
        instance["info"] = {"cpu_s": 1.0, "aof": {}}
    return result


def seen(result: dict[str, Any], expression: str = "acquire.p99 < 10ms") -> Seen:
    return judge_probe(100.0, "search", whole(result), read_slo([expression])).seen


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ({"slow": 100}, Seen.HELD),
        ({"slow": 120}, Seen.MISSED),
        ({"failed": 50}, Seen.HELD),
        ({"failed": 120}, Seen.MISSED),
    ],
)
def test_one_in_a_hundred_may_be_late_or_without_a_lease(
    missed: dict[str, int], expected: Seen
) -> None:
    assert seen(run_of(fast=10_000 - sum(missed.values()), **missed)) is expected


def test_a_rate_that_was_not_sustained_is_missed_however_fast_it_was() -> None:
    result = run_of(fast=10_000)
    result["rate"] |= {"completed_per_s": 97.0, "sustained": False}
    assert seen(result) is Seen.MISSED


def test_a_miss_of_a_busy_generator_says_nothing_of_the_servers() -> None:
    result = run_of(fast=9_000, slow=1_000)
    result["generator"]["cpu_ratio"] = 0.95
    assert seen(result) is Seen.SATURATED
    assert seen({**run_of(fast=10_000), "generator": result["generator"]}) is Seen.HELD


def late(result: dict[str, Any], number: int, late_ns: int) -> dict[str, Any]:
    """`result`, whose timer woke so late for so many of its starts."""
    times = Histogram.of(
        np.repeat(np.array([late_ns, 10_000], np.int64), [number, 10_000 - number])
    )
    result["histograms"]["timer_lateness"] = times.encode()
    result["latency_s"]["acquire_service"] |= {"p50": 0.001}
    result["generator"] |= {"verdict": "LATE", "timer_lateness_p99_s": late_ns / 1e9}
    return result


@pytest.mark.parametrize(
    ("number", "late_ms", "expected"),
    [
        # without them none was late
        (1_000, 20, Seen.SATURATED),
        # without them 50 of 10,000 were, and 100 may
        (950, 20, Seen.SATURATED),
        # so 500 others were the servers'
        (500, 20, Seen.MISSED),
        # there was time for an acquire left
        (1_000, 8, Seen.MISSED),
    ],
)
def test_a_miss_is_the_generators_where_its_late_starts_make_it_one(
    number: int, late_ms: int, expected: Seen
) -> None:
    assert seen(late(run_of(fast=9_000, slow=1_000), number, late_ms * 1_000_000)) is expected


def test_what_was_late_stands_beside_the_figure_of_the_slo() -> None:
    result = whole(late(run_of(fast=10_000), 200, 6_100_000))
    assert judge_probe(100.0, "search", result, SLO).generator.late_s == pytest.approx(
        0.0061, rel=1e-2
    )
    assert judge_probe(
        100.0, "search", result, read_slo(["acquire.p90 < 1s"])
    ).generator.late_s == pytest.approx(1e-5, rel=1e-2)


def paused(result: dict[str, Any], fast: int, slow: int = 0, least_ms: int = 8) -> dict[str, Any]:
    """`result`, of whose acquires so many of 1 ms and of 30 ms touched a pause of `least_ms` or
    more."""
    values = np.repeat(np.array([1_000_000, 30_000_000], np.int64), [fast, slow])
    result["histograms"][f"paused_{least_ms}"] = Histogram.of(values).encode()
    return result


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        # what is left has 50 misses in 9,750
        ({"fast": 0, "slow": 250}, Seen.HELD),
        # hits are left out, too
        ({"fast": 250, "slow": 0}, Seen.MISSED),
        # too short to make a miss of 10 ms
        ({"fast": 0, "slow": 250, "least_ms": 1}, Seen.MISSED),
        # 2 misses of 202: too few to tell
        ({"fast": 9_500, "slow": 298}, Seen.PAUSED),
        # 100 of 300: late after a pause, perhaps
        ({"fast": 9_500, "slow": 200}, Seen.PAUSED),
        # 100 of 150: a queue that grows
        ({"fast": 9_650, "slow": 200}, Seen.MISSED),
        # 10 of 4,710
        ({"fast": 5_000, "slow": 290}, Seen.HELD),
    ],
)
def test_acquires_in_a_pause_of_the_machine_are_neither_hits_nor_misses(
    touched: dict[str, int], expected: Seen
) -> None:
    assert seen(paused(run_of(fast=9_700, slow=300), **touched)) is expected


def test_what_held_within_long_pauses_held() -> None:
    result = whole(paused(run_of(fast=9_950, slow=50), fast=9_000))
    probe = judge_probe(100.0, "search", result, SLO)
    assert (probe.seen, probe.left_out) == (Seen.HELD, 9_000)


def test_a_load_process_that_was_stopped_says_nothing_of_the_servers() -> None:
    result = run_of(fast=9_000, slow=1_000)
    result["generator"] |= {
        "verdict": "INVALID",
        "reason": "away",
        "gap_s": 0.06 * result["duration_s"],
    }
    assert seen(result) is Seen.PAUSED


def test_late_starts_within_a_pause_are_not_left_out_twice() -> None:
    """110 misses are left out with their pause.

    The timer's lateness of the same 110 excuses no other miss.
    """
    result = paused(run_of(fast=9_700, slow=300), fast=0, slow=110)
    assert seen(late(result, 110, 15_000_000)) is Seen.MISSED


def test_every_expression_must_hold() -> None:
    result = run_of(fast=9_990, failed=10)
    result["outcome_shares"]["acquired"] = 0.999
    both = read_slo(["acquire.p99 < 10ms", "acquire.success >= 99.95%"])
    assert judge_probe(100.0, "search", whole(result), both).seen is Seen.MISSED


def test_attainment_has_its_interval() -> None:
    attained = judge_probe(100.0, "search", whole(run_of(fast=9_900, slow=100)), SLO).attainment
    assert attained is not None
    assert attained.rate == pytest.approx(0.99)
    # Wilson, by hand
    assert attained.low == pytest.approx(0.98786, abs=1e-5)
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
    with pytest.raises(UsageError, match="does not get worse under more load"):
        read_slo([expression])


def scenario() -> Scenario:
    return load(None, {"rate": "1"})


def test_callers_are_as_many_as_the_rate_needs() -> None:
    held = replace(scenario(), hold=Delay("fixed", 5.0))
    assert callers_for(100, scenario(), SLO) == 64
    # 1.3 · 10,000/s · (5 ms + 2 · 10 ms) = 325
    assert callers_for(10_000, held, SLO) == 512
    assert callers_for(1e6, held, SLO) == 2048
