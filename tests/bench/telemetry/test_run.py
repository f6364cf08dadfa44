"""What INFO adds up to: counters begin with the run and outlive restarts, and every restart is
seen."""

from typing import Any

from bench.measure.fleet_facts import InstanceReport
from bench.measure.workers import WorkerNote
from bench.scenario import load
from bench.telemetry.run import INFO_S, Info, InfoTotals, Run, current, run_points
from bench.topology.probe import EVERY_S
from lockcore.clock import NS_PER_S

ADDRESSES = [("10.0.0.1", 6379), ("10.0.0.2", 6379)]


def said(**fields: Any) -> Info:
    return {"run_id": "a", "expired_keys": 0, **fields}


def told(*answers: Info) -> dict[str, float]:
    """The points of the first instance after these answers."""
    servers = InfoTotals(ADDRESSES)
    for answer in answers:
        servers.note([answer, None], 0)
    return {
        one.instrument.name: one.value
        for one in servers.points_at(0)
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
    return {
        one.instrument.name: (one.value, dict(one.attributes))
        for one in run_points(run, (), (), ended=False)
    }


def test_the_shares_of_the_workers_of_a_plain_locust_add_up_to_the_schedules_rate() -> None:
    scenario = load(options={"rate": "200"})
    assert points_of(Run.of(scenario, "plain", 2))["redlock.load.offered"][0] == 200
    assert points_of(Run.of(scenario, "plain", 1, shares=2))["redlock.load.offered"][0] == 100
    assert "redlock.load.offered" not in points_of(Run.of(load(), "plain", 1, shares=2))


def test_a_run_says_when_it_began_and_what_it_is_called() -> None:
    said = points_of(Run("r", "redlock", name="before", started="2026-11-23T08:00:00Z"))[
        "redlock.run.info"
    ][1]
    assert (said["redlock.run.name"], said["redlock.run.started"]) == (
        "before",
        "2026-11-23T08:00:00Z",
    )


NOW_NS = 100 * NS_PER_S


def note(told_s: float, state: str = "voting", **facts: Any) -> WorkerNote:
    """A note that was written at `told_s` and knows one instance."""
    instance = InstanceReport(index=0, address="10.0.0.1:6379", state=state, commands=10)
    told_ns = int(told_s * NS_PER_S)
    return WorkerNote(
        worker=0, pid=1, spawned_ns=1, told_ns=told_ns, instances=(instance,), **facts
    )


def test_a_note_is_news_for_two_intervals_and_a_last_one_for_ever() -> None:
    young = note(98.1)
    old = note(97.9)
    last = note(5, phase="stopped")
    far = note(97.1, host="b")
    lost = note(5, phase="lost")
    assert current([young, old, last, far, lost], NOW_NS) == [young, last, far]


def test_a_process_that_has_stopped_to_speak_makes_no_gauge_and_keeps_its_counters() -> None:
    run = Run("r", "redlock", addresses=ADDRESSES[:1])
    notes = [note(90)]
    names = {
        one.instrument.name for one in run_points(run, notes, current(notes, NOW_NS), ended=False)
    }
    assert not names & {"redlock.instance.voting", "redlock.instance.abstaining"}
    assert {"redlock.instance.commands", "redlock.client.cpu", "redlock.load.time"} <= names


def test_an_old_note_does_not_outvote_a_new_one() -> None:
    run = Run("r", "redlock", addresses=ADDRESSES[:1], processes=2)
    notes = [note(90, "down"), note(99.5, "voting")]
    points = {
        one.instrument.name: one
        for one in run_points(run, notes, current(notes, NOW_NS), ended=False)
    }
    assert points["redlock.instance.voting"].value == 1
    assert points["redlock.instance.commands"].value == 20


def test_an_old_info_makes_no_gauge() -> None:
    servers = InfoTotals(ADDRESSES)
    infos = [said(aof_current_size=1), None]
    servers.note(infos, NOW_NS)
    servers.note(infos, NOW_NS + 3 * NS_PER_S)
    early, late = (
        {one.instrument.name for one in servers.points_at(NOW_NS + seconds * NS_PER_S)}
        for seconds in (4, 5)
    )
    assert early - late == {"redis.aof.size"}
    assert INFO_S == EVERY_S
