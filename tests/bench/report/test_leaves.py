"""Each number of a stored run is changed in turn: reading it refuses, or its word is no greener
than it was.

`BELIEVED` names every figure that nothing else in a result bounds, so that a change of it alone
cannot be noticed.
"""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UsageError
from bench.measure.gaps import MOST_GAPS
from bench.measure.verdict import Kind, word_of
from tests.doubles.answers import of_its_kind

GOOD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "histories" / "results" / "run-safe.json").read_text("utf-8")
)
# of the elements of a list: those in its middle, where a window and not its warm-up is
PER_PLACE = 2
BELIEVED = frozenset(
    (
        # what was ordered: no count follows from it
        "scenario.capacity",
        "scenario.duration_ms",
        "scenario.hold.ms",
        "scenario.hold.sigma",
        "scenario.instance_timeout_ms",
        "scenario.max_ttl_ms",
        "scenario.processes",
        "scenario.resources",
        "scenario.retry.window_ms",
        "scenario.skew.value",
        "scenario.think.ms",
        "scenario.think.sigma",
        "scenario.ttl_ms",
        "scenario.wait_ms",
        "scenario.warmup_ms",
        # facts of the machine and its disk
        "environment.cores",
        "environment.memory_bytes",
        "environment.usable_cores",
        "fleet.fdatasync_s.count",
        "fleet.fdatasync_s.max_s",
        "fleet.fdatasync_s.p50_s",
        "fleet.instances.*.maxmemory_bytes",
        "limits.periods",
        "limits.suspended_s",
        "limits.throttled_periods",
        "limits.throttled_s",
        # what a server or a client counts, and nobody else does
        "instances.*.bytes_received",
        "instances.*.bytes_sent",
        "instances.*.commands",
        "instances.*.cpu_us_per_command",
        "instances.*.info.aof.aof_base_size",
        "instances.*.info.aof.aof_current_size",
        "instances.*.info.aof.aof_delayed_fsync",
        "instances.*.info.aof.aof_enabled",
        "instances.*.info.aof.aof_pending_bio_fsync",
        "instances.*.info.aof.aof_rewrites",
        "instances.*.info.calls.client|id",
        "instances.*.info.calls.client|tracking",
        "instances.*.info.calls.del",
        "instances.*.info.calls.eval",
        "instances.*.info.calls.evalsha",
        "instances.*.info.calls.getrange",
        "instances.*.info.calls.hello",
        "instances.*.info.calls.info",
        "instances.*.info.calls.script|load",
        "instances.*.info.calls.set",
        "instances.*.info.commands_processed",
        "instances.*.info.cpu_s",
        "instances.*.info.elapsed_s",
        "instances.*.info.evicted_keys",
        "instances.*.info.expired_keys",
        "instances.*.other_keys",
        "instances.*.owed_releases",
        "instances.*.reads",
        "instances.*.reconnects",
        "instances.*.reply_s.count",
        "instances.*.reply_s.max",
        "instances.*.reply_s.mean",
        "instances.*.reply_s.p50",
        "instances.*.writes",
        # rates, costs and percentiles, with the count of samples of a distribution that has no
        # other
        "cost.beside_cpu_ratio",
        "cost.bytes_per_acquire",
        "cost.client_cpu_us_per_cycle",
        "cost.commands_per_acquire",
        "cost.round_trips_per_acquire",
        "cost.server_cpu_us_per_cycle",
        "generator.cpu_ratio",
        "latency_s.acquire.max",
        "latency_s.acquire.mean",
        "latency_s.acquire.p50",
        "latency_s.acquire.p90",
        "latency_s.acquire_all.max",
        "latency_s.acquire_all.p50",
        "latency_s.acquire_all.p90",
        "latency_s.acquire_service.max",
        "latency_s.acquire_service.mean",
        "latency_s.acquire_service.p50",
        "latency_s.acquire_service.p90",
        "latency_s.handoff.max",
        "latency_s.handoff.mean",
        "latency_s.handoff.p50",
        "latency_s.handoff.p90",
        "latency_s.hold.max",
        "latency_s.hold.mean",
        "latency_s.hold.p50",
        "latency_s.hold.p90",
        "latency_s.release.max",
        "latency_s.release.mean",
        "latency_s.release.p50",
        "latency_s.release.p90",
        "latency_s.wait.max",
        "latency_s.wait.mean",
        "latency_s.wait.p50",
        "latency_s.wait.p90",
        "rate.achieved_per_s",
        "rate.completed_per_s",
        # counts that have one bound only
        "attempts.max",
        "attempts.p50",
        "attempts.p90",
        "exceptions.operations",
        "votes.refused",
        "waiting.asked",
        "waiting.longest_s",
        "waiting.polls",
        "waiting.wakeups",
        # times of single slices and leases: of these only their order is known
        "over_time.acquire.max_s.*",
        "over_time.acquire.p50_s.*",
        "over_time.granted.*",
        "over_time.origin_ns",
        "safety.holders.*.rows.*.*",
        "safety.holders.*.spans_us.*.*",
    )
)


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Every number in a JSON value with its path, few of long lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        middle = max(len(value) // 2 - PER_PLACE // 2, 0)
        for number in range(middle, min(middle + PER_PLACE, len(value))):
            yield from numbers(value[number], (*path, number))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def with_other(made: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put another value there."""
    *place, last = path
    section: Any = made
    for key in place:
        section = section[key]
    section[last] = value


def name_of(path: tuple[Any, ...]) -> str:
    return ".".join("*" if isinstance(key, int) else key for key in path)


def others(value: float) -> Iterator[float]:
    """What a liar, a flipped bit or another version may have put there."""
    huge = 10**12 if isinstance(value, int) else 1e12
    yield from (one for one in (0, -1, 2 * value, huge, math.nan) if one != value)


def test_a_changed_number_is_refused_or_gives_no_greener_word() -> None:
    made = copy.deepcopy(GOOD)
    unnoticed = set[str]()
    for path, value in numbers(GOOD):
        for other in others(value):
            with_other(made, path, other)
            try:
                result = of_its_kind(made, "x/result.json")
            except UsageError:
                continue
            unnoticed.add(name_of(path))
            assert result.verdict.word == "SAFE", path
        with_other(made, path, value)
    assert unnoticed == BELIEVED


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("INVALID", {"generator.verdict": "INVALID", "generator.reason": "it was late"}),
        ("INTERRUPTED", {"interrupted": True}),
        (
            "INVALID",
            {
                "exceptions.raised": 10**4,
                "exceptions.operations": 10**5,
                "exceptions.first": "KeyError (a.py:3)",
            },
        ),
        (
            "VIOLATED",
            {
                "safety.verdict": "VIOLATED",
                "safety.reason": "1 × granted invalid",
                "safety.granted_invalid": 1,
                "safety.upper_bound_95": None,
            },
        ),
    ],
)
def test_no_number_turns_a_word_that_is_not_green_into_one_that_is(
    word: str, changes: dict[str, Any]
) -> None:
    made = copy.deepcopy(GOOD)
    for place, value in changes.items():
        with_other(made, tuple(place.split(".")), value)
    with pytest.raises(
        UsageError, match=f"the stored verdict is SAFE, but the sections give {word}"
    ):
        of_its_kind(made, "x/result.json")
    made["verdict"] |= {
        "word": word,
        "exit_code": {"VIOLATED": 5, "INTERRUPTED": 130}.get(word, 4),
        "status": {"INTERRUPTED": "inconclusive"}.get(word, word.lower()),
    }
    assert of_its_kind(made, "x/result.json").verdict.word == word
    for path, value in numbers(made["safety"] | {"holders": []}):
        for other in others(value):
            with_other(made, ("safety", *path), other)
            try:
                shown = of_its_kind(made, "x/result.json").verdict
            except UsageError:
                continue
            assert word_of("run", shown).kind is not Kind.GOOD, path
        with_other(made, ("safety", *path), value)


@pytest.mark.parametrize("clock_error_s", [None, 0.001])
def test_leases_of_several_clocks_may_be_drawn_over_each_other(clock_error_s: float | None) -> None:
    """They are drawn as their own clocks told them, so an overlap in the picture is none of the
    verdict."""
    made = copy.deepcopy(GOOD)
    facts = {
        "host": "a",
        "about": "",
        "phase": "stopped",
        "leases": 1,
        "round_trip_s": None,
        "round_trips": 0,
    }
    worker = {
        **facts,
        "worker": 0,
        "clock_error_max_s": None,
        "clock_steps": 0,
        "same_clock": clock_error_s is None,
    }
    made["workers"] = [
        {**worker, "clock_error_s": clock_error_s, "cpu_ratio": made["generator"]["cpu_ratio"]}
    ]
    assert of_its_kind(made, "x").verdict.word == "SAFE"
    made["safety"]["holders"][0]["rows"][0][5] = 1
    if clock_error_s is None:
        with pytest.raises(
            UsageError, match="1 leases are marked as overlapping, but service_faults is 0"
        ):
            of_its_kind(made, "x")
    else:
        assert of_its_kind(made, "x").verdict.word == "SAFE"


def test_more_unmarked_leases_at_once_than_may_hold_a_resource_are_refused() -> None:
    made = copy.deepcopy(GOOD)
    holder = made["safety"]["holders"][0]
    holder["rows"] = [
        [0, 100, 200, 100, 1, 0],
        [50, 150, 250, 150, 2, 0],
        [99, 160, 250, 160, 3, 0],
        [150, 170, 250, 170, 4, 0],
    ]
    holder["spans_us"] = [[0, 170]]
    holder["leases"] = 4
    made["scenario"]["capacity"] = 3
    assert of_its_kind(made, "x").verdict.word == "SAFE"
    made["scenario"]["capacity"] = 2
    with pytest.raises(UsageError, match="a lease overlaps 2 other leases, but has no mark"):
        of_its_kind(made, "x")


@pytest.mark.parametrize(("more", "keys"), [({}, 1), ({"capacity": 3}, 4), ({"shared": True}, 2)])
def test_a_resource_leaves_no_more_keys_behind_than_it_has(more: Any, keys: int) -> None:
    made = copy.deepcopy(GOOD)
    made["scenario"] |= more
    made["instances"][0]["leaked_keys"] = keys * made["scenario"]["resources"]
    assert of_its_kind(made, "x").verdict.word == "SAFE"
    made["instances"][0]["leaked_keys"] += 1
    with pytest.raises(UsageError, match="leaked_keys"):
        of_its_kind(made, "x")


@pytest.mark.parametrize("more", [{"capacity": 2}, {"shared": True}])
def test_leases_may_overlap_unmarked_where_several_may_hold_a_resource(more: Any) -> None:
    made = copy.deepcopy(GOOD)
    holder = made["safety"]["holders"][0]
    holder["rows"] = [[0, 100, 200, 100, 1, 0], [50, 150, 250, 150, 2, 0]]
    holder["spans_us"] = [[0, 150]]
    holder["leases"] = 2
    with pytest.raises(UsageError, match="a lease overlaps another lease, but has no mark"):
        of_its_kind(made, "x")
    made["scenario"] |= more
    assert of_its_kind(made, "x").verdict.word == "SAFE"


def test_a_run_with_more_gaps_than_a_result_shows_is_read() -> None:
    """The figure is of all gaps, so it may be above the sum of those that are shown."""
    made = copy.deepcopy(GOOD)
    gap = {"worker": 0, "pid": 1, "at_s": 0.0, "for_s": 0.002, "lost_s": 0.001}
    gaps = [gap | {"at_s": number / 100} for number in range(MOST_GAPS)]
    made["generator"] |= {"gap_s": 0.06, "gaps": gaps}
    assert of_its_kind(made, "x/result.json").verdict.word == "SAFE"
    made["generator"]["gaps"].pop()
    with pytest.raises(
        UsageError,
        match=r"generator.gap_s is 0.06, but a calculation from gaps gives 0.049 or less",
    ):
        of_its_kind(made, "x/result.json")
