"""The next limit: the resource that is used up first, by the figures of one run."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from bench.experiments.capacity import probe as bottleneck
from bench.experiments.capacity.probe import hot_share, next_limit, read_slo, uses_of
from bench.scenario import load
from bench.scenario.quantity import parse_skew
from tests.bench.whole_run import SAMPLE, run_of

SLO = read_slo(["acquire.p99 < 10ms"])


@pytest.fixture
def result() -> dict[str, Any]:
    """A run in which nothing is near its limit."""
    calm = copy.deepcopy(SAMPLE)
    calm["environment"]["usable_cores"] = 4
    calm["generator"]["cpu_ratio"] = 0.5
    calm["scenario"] |= {
        "users": 10_000,
        "resources": 1_000,
        "skew": {"kind": "uniform", "value": 0.0},
    }
    calm["rate"]["achieved_per_s"] = 1_000.0
    calm["totals"]["acquired"] = 10_000
    calm["fleet"] |= {
        "started": True,
        "fsync": "everysec",
        "fdatasync_s": {"p50_s": 0.001, "p99_s": 0.002},
    }
    calm["cost"] |= {"client_cpu_us_per_cycle": 100.0, "server_cpu_us_per_cycle": 200.0}
    for instance in calm["instances"]:
        instance["info"] = {"cpu_s": 1.0, "aof": {"aof_delayed_fsync": 0}}
        instance["reply_s"] = {"p50": 0.002}
    return calm


def limit_of(result: dict[str, Any]) -> str | None:
    return next_limit(uses_of(run_of(result), SLO)).name


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        (("generator", "cpu_ratio"), 0.95, bottleneck.GENERATOR),
        # 950 µs per lease at 1,000/s, of the busiest
        (("instances", 1, "info", "cpu_s"), 9.5, bottleneck.SERVER),
        (("cost", "server_cpu_us_per_cycle"), 3_500.0, bottleneck.MACHINE),
        (("instances", 0, "info", "aof", "aof_delayed_fsync"), 3, bottleneck.FSYNC),
    ],
)
def test_what_is_used_up_first_is_the_limit(
    result: dict[str, Any], path: tuple[Any, ...], value: float, name: str | None
) -> None:
    place: Any = result
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert limit_of(result) == name


def test_where_nothing_is_near_its_limit_the_nearest_is_named_with_its_figure(
    result: dict[str, Any],
) -> None:
    limit = next_limit(uses_of(run_of(result), SLO))
    assert (limit.name, limit.text) == (
        bottleneck.GENERATOR,
        "50 % of a core; every other resource was further from its limit",
    )
    assert limit.full_per_s == 2_000.0


def test_a_generator_that_gave_out_first_is_not_the_servers_limit() -> None:
    assert next_limit((), "92 % of a core").text == bottleneck.GAVE_OUT.format("92 % of a core")


def test_far_servers_may_be_limited_by_the_way_there(result: dict[str, Any]) -> None:
    for instance in result["instances"]:
        instance |= {"address": "10.0.0.7:6379", "reply_s": {"p50": 0.009}}
    result["fleet"]["started"] = False
    limit = next_limit(uses_of(run_of(result), SLO))
    assert (limit.name, limit.text) == (
        bottleneck.NETWORK,
        "the SLO allows 10 ms, and a reply alone takes 9.00 ms (p50)",
    )


def test_what_others_take_of_the_cores_is_said(result: dict[str, Any]) -> None:
    limit = next_limit(uses_of(run_of(result), SLO, busy=0.98))
    assert (limit.name, limit.text) == (
        bottleneck.MACHINE,
        "98 % of 4 cores were busy; generator and servers used 8 % of all cores",
    )


def test_the_cores_of_this_machine_count_beside_servers_of_somebody_else(
    result: dict[str, Any],
) -> None:
    result["fleet"]["started"] = False
    for instance in result["instances"]:
        instance |= {"address": "10.0.0.7:6379", "reply_s": {"p50": 0.001}}
    limit = next_limit(uses_of(run_of(result), SLO, busy=0.98))
    assert (limit.name, limit.text) == (
        bottleneck.MACHINE,
        "98 % of 4 cores were busy; the generator used 2 % of all cores",
    )


@pytest.mark.parametrize(
    ("busy", "named"), [(0.95, bottleneck.MACHINE), (0.5, bottleneck.GENERATOR)]
)
def test_more_processes_are_proposed_only_where_the_cores_have_room(
    result: dict[str, Any], busy: float, named: str
) -> None:
    limit = next_limit(uses_of(run_of(result), SLO, busy=busy), "92 % of a core")
    assert limit.name == named
    assert ("--processes" in limit.text) == (named == bottleneck.GENERATOR)


def test_a_use_far_from_full_is_not_extrapolated(result: dict[str, Any]) -> None:
    """3 % of a core at 10/s was once said to be full at 273/s."""
    result["generator"]["cpu_ratio"] = 0.03
    uses = {use.name: use for use in uses_of(run_of(result), SLO)}
    assert uses[bottleneck.GENERATOR].full_per_s is None


def test_one_hot_key_has_a_ceiling(result: dict[str, Any]) -> None:
    result["scenario"] |= {"resources": 1, "skew": {"kind": "uniform", "value": 0.0}}
    result["scenario"]["hold"] = {"kind": "fixed", "ms": 5.0, "sigma": 0.0}
    result["latency_s"]["hold"]["mean"] = 0.005
    result["latency_s"]["handoff"]["p50"] = 0.001
    result["rate"]["achieved_per_s"] = 160.0
    limit = next_limit(uses_of(run_of(result), SLO))
    assert limit.name == bottleneck.HOT_KEY
    assert "limit of 167/s (hold 5.00 ms + hand-off 1.00 ms)" in limit.text


def test_fsync_always_takes_its_share_of_a_reply(result: dict[str, Any]) -> None:
    result["fleet"]["fsync"] = "always"
    result["fleet"]["fdatasync_s"]["p50_s"] = 0.0012
    assert limit_of(result) == bottleneck.FSYNC


def test_what_nobody_told_is_not_known(result: dict[str, Any]) -> None:
    for instance in result["instances"]:
        instance["info"]["cpu_s"] = None
    assert bottleneck.SERVER not in {use.name for use in uses_of(run_of(result), SLO)}


@pytest.mark.parametrize(
    ("resources", "users", "skew", "share"),
    [(4, 9, "uniform", 0.25), (4, 2, "own", 0.5), (4, 9, "hot:0.9", 0.9), (2, 9, "zipf:1", 2 / 3)],
)
def test_the_share_of_the_hottest_key(resources: int, users: int, skew: str, share: float) -> None:
    wanted = load(None, {"resources": str(resources), "users": str(users), "skew": "uniform"})
    assert hot_share(replace(wanted, skew=parse_skew(skew))) == pytest.approx(share)
