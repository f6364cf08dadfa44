"""What INFO adds up to: counters begin with the run and outlive restarts, and every restart is seen."""

from typing import Any

from bench.scenario import load
from bench.telemetry.run import Info, InfoTotals, Run, run_points

ADDRESSES = [("10.0.0.1", 6379), ("10.0.0.2", 6379)]


def said(**fields: Any) -> Info:
    return {"run_id": "a", "expired_keys": 0, **fields}


def told(*answers: Info) -> dict[str, float]:
    """The points of the first instance after these answers."""
    servers = InfoTotals(ADDRESSES)
    for answer in answers:
        servers.note([answer, None])
    return {
        one.instrument.name: one.value
        for one in servers.points()
        if ("server.address", "10.0.0.1") in one.attributes and isinstance(one.value, int | float)
    }


def test_a_server_that_has_been_up_for_long_begins_at_zero_with_the_run() -> None:
    first = told(said(expired_keys=5_000_000, aof_delayed_fsync=12))
    assert first["redis.keys.expired"] == 0
    assert first["redis.aof.delayed_fsyncs"] == 0
    later = told(
        said(expired_keys=5_000_000, aof_delayed_fsync=12),
        said(expired_keys=5_000_300, aof_delayed_fsync=14),
    )
    assert later["redis.keys.expired"] == 300
    assert later["redis.aof.delayed_fsyncs"] == 2


def test_a_restart_is_another_run_id() -> None:
    points = told(
        said(expired_keys=100),
        said(expired_keys=400),
        said(run_id="b", expired_keys=1000),
    )
    assert points["redis.restarts"] == 1
    assert points["redis.keys.expired"] == 300 + 1000


def test_the_same_server_is_not_restarted_though_it_was_silent_for_a_while() -> None:
    points = told(said(expired_keys=7), None, said(expired_keys=9))
    assert points["redis.restarts"] == 0
    assert points["redis.keys.expired"] == 2


def test_while_it_is_silent_counters_stay_and_gauges_are_left_out() -> None:
    points = told(said(aof_current_size=1), said(aof_current_size=2, expired_keys=8), None)
    assert points["redis.keys.expired"] == 8
    assert "redis.aof.size" not in points


def test_counters_that_somebody_reset_are_no_restart_and_never_fall() -> None:
    points = told(*(said(expired_keys=number) for number in (50, 90, 4)))
    assert points["redis.restarts"] == 0
    assert points["redis.keys.expired"] == 40 + 4


def points_of(run: Run) -> dict[str, tuple[float, dict[str, str | int]]]:
    return {one.instrument.name: (one.value, dict(one.attributes)) for one in run_points(run, (), ended=False)}


def test_the_shares_of_the_workers_of_a_plain_locust_add_up_to_the_schedules_rate() -> None:
    scenario = load(options={"rate": "200"})
    assert points_of(Run.of(scenario, "plain", 2))["redlock.load.offered"][0] == 200
    assert points_of(Run.of(scenario, "plain", 1, shares=2))["redlock.load.offered"][0] == 100
    assert "redlock.load.offered" not in points_of(Run.of(load(), "plain", 1, shares=2))


def test_a_run_says_when_it_began_and_what_it_is_called() -> None:
    said = points_of(Run("r", "redlock", name="before", started="2026-11-23T08:00:00Z"))["redlock.run.info"][1]
    assert (said["redlock.run.name"], said["redlock.run.started"]) == ("before", "2026-11-23T08:00:00Z")
