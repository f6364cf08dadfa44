"""Locust with a plan, as `lockbench run` starts it: history, notes and table agree; it ends, by
itself or with us."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.measure.histogram import Histogram
from bench.measure.history import read_history
from bench.measure.record import CALLERS_PER_WORKER, OUTCOME_CODES, Records
from bench.scenario import load
from bench.topology.fleet import Fleet
from bench.workloads.demand import due_between
from bench.workloads.launch import LocustProcess, LocustSeries
from bench.workloads.plan import Plan, Ring
from tests.integration.locust_runs import counts, keys

pytestmark = pytest.mark.integration
CALM = {"instance_timeout": "2500ms"}
LAG_NS = 20_000_000
# the conductor's, which nobody can import without having this process patched by Locust
LEAD_NS = 50_000_000


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(fleet: Fleet) -> Iterator[None]:
    yield
    assert keys(fleet) == 0


@dataclass
class Planned:
    """A finished run with its folder."""

    plan: Plan
    records: Records
    notes: list[dict[str, Any]]
    table: dict[str, tuple[int, int]]
    took_s: float


def plan_for(fleet: Fleet, folder: Path, instances: int = 3, **options: str) -> Plan:
    targets = list(fleet.urls[:instances])
    scenario = load(
        options={
            "targets": targets,
            "users": "12",
            "duration": "1s",
            "warmup": "300ms",
            **CALM,
            **options,
        }
    )
    return Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario, folder, timed=True)


def run(plan: Plan) -> Planned:
    assert plan.workdir is not None
    began = time.monotonic()
    process = LocustProcess(plan)
    try:
        code = process.wait(40)
    finally:
        process.close()
    log = process.log_tail()
    assert code == 0, log
    assert process.failure() is None
    assert "Traceback" not in (plan.workdir / "locust.log").read_text()
    history = read_history(plan.workdir)
    assert not history.torn + history.missing_segments
    notes = [json.loads(path.read_text()) for path in sorted(plan.workdir.glob("worker-*.json"))]
    table = counts(json.loads((plan.workdir / "locust.json").read_text()))
    return Planned(plan, history.records, notes, table, time.monotonic() - began)


def keeping_up(done: Planned) -> Planned:
    """`done`, if this machine kept up: what a greenlet that only sleeps oversleeps is no fault of
    the load."""
    lag = Histogram.merged(Histogram.decode(note["lag_histogram"]) for note in done.notes)
    overslept_ns = lag.max_ns
    if overslept_ns > LAG_NS:
        pytest.skip(
            f"not known here: a sleeper woke {overslept_ns / 1e6:.1f} ms late, more than "
            f"{LAG_NS / 1e6:g} ms"
        )
    return done


def granted(records: Records) -> Any:
    return records["outcome"] & 0xFF == OUTCOME_CODES["acquired"]


@pytest.mark.parametrize("processes, events", [("1", "stock"), ("2", "fast")])
def test_the_history_the_notes_and_locusts_table_say_the_same_of_processes_that_contend(
    fleet: Fleet, tmp_path: Path, processes: str, events: str
) -> None:
    options = {"resources": "1", "hold": "fixed:2ms", "wait": "5ms", "think": "exp:10ms"}
    done = run(plan_for(fleet, tmp_path, processes=processes, events=events, **options))
    records = done.records
    won = granted(done.records)
    totals = {"acquire": (len(records), int((~won).sum())), "release": (int(won.sum()), 0)}
    assert done.table == totals
    assert {
        name: tuple(
            int(sum(column))
            for column in zip(*(note["locust"][name] for note in done.notes), strict=True)
        )
        for name in totals
    } == totals
    assert min(totals["acquire"][1], totals["release"][0]) > 0
    assert len(done.notes) == int(processes)
    assert (records["outcome"][won] >> 8 == OUTCOME_CODES["released"]).all()
    by_grant = np.sort(records[won], order="granted_ns")
    assert len(set(by_grant["caller"] // 100_000)) == int(processes), "they lock the same keys"
    assert (by_grant["release_sent_ns"][:-1] <= by_grant["granted_ns"][1:]).all(), (
        "nobody beside the holder"
    )


def test_callers_begin_together_when_the_last_of_them_is_there(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The first ones at work would keep Locust from starting the others, for seconds with some
    thousands."""
    done = keeping_up(run(plan_for(fleet, tmp_path, users="600", processes="2")))
    origin_ns = min(note["spawned_ns"] for note in done.notes)
    assert len(np.unique(done.records["caller"])) == 600
    assert done.records["start_ns"].min() > origin_ns - LEAD_NS - LAG_NS
    for worker in (0, 1):
        mine = np.sort(
            done.records[done.records["caller"] // CALLERS_PER_WORKER == worker], order="start_ns"
        )
        before_the_last = np.unique(mine["caller"], return_index=True)[1].max()
        assert before_the_last < 10 * 300, "somebody began when others had long been at work"


@pytest.fixture(scope="module")
def two_processes(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return run(
        plan_for(fleet, tmp_path_factory.mktemp("two"), processes="2", users="10", hold="fixed:1ms")
    )


@pytest.mark.alone
def test_a_planned_run_measures_the_window_it_was_told(two_processes: Planned) -> None:
    done = keeping_up(two_processes)
    spawned = {note["spawned_ns"] for note in done.notes}
    # one origin for all, within what two clock readings differ
    assert max(spawned) - min(spawned) < 5_000_000
    start_ns = max(spawned) + 300_000_000
    end_ns = start_ns + 1_000_000_000
    intended = done.records["intended_ns"]
    assert intended.min() < start_ns
    assert end_ns - 5_000_000 < intended.max() < end_ns + 2_000_000_000
    for note in done.notes:
        assert note["phase"] == "stopped"
        assert note["stopped_ns"] >= end_ns
        assert note["cpu_s"] > 0
        assert Histogram.decode(note["lag_histogram"]).count > 0
        assert [status["state"] for status in note["instances"]] == ["voting"] * 3
        assert len(note["reply_histograms"]) == 3
        assert (note["errors"], note["cut"]) == ({}, 0)


@pytest.mark.alone
def test_records_are_consistent_and_their_votes_settled(two_processes: Planned) -> None:
    done = two_processes
    records = done.records[granted(done.records)]
    order = (
        "intended_ns",
        "start_ns",
        "attempt_ns",
        "granted_ns",
        "ended_ns",
        "work_end_ns",
        "release_replied_ns",
    )
    for earlier, later in pairwise(order):
        assert (records[earlier] <= records[later]).all(), (earlier, later)
    assert (records["work_end_ns"] - records["ended_ns"] >= 1_000_000).all()
    assert (records["granted_ns"] < records["valid_until_ns"]).all()
    assert (done.records["votes"] >> 40 & 0xFF == 0).all()
    assert (records["votes"] & 0xFF >= 2).all()
    assert len(np.unique(records["owner"])) == len(records)
    assert set(np.unique(done.records["caller"] // 100_000)) == {0, 1}
    assert len(np.unique(done.records["caller"])) == 10


@pytest.mark.alone
@pytest.mark.parametrize(("processes", "arrivals"), [("1", "poisson"), ("2", "fixed")])
def test_an_open_loop_starts_its_whole_schedule_on_time(
    fleet: Fleet, tmp_path: Path, processes: str, arrivals: str
) -> None:
    options = {"rate": "400", "arrivals": arrivals, "users": "32", "processes": processes}
    done = keeping_up(run(plan_for(fleet, tmp_path, **options)))
    seed = done.plan.scenario.seed
    assert len(done.records) == due_between(400, arrivals, seed, 0, done.plan.window_ns[1] or 0)
    assert (done.records["start_ns"] >= done.records["intended_ns"]).all()
    intended = np.sort(done.records["intended_ns"])
    assert intended[0] >= min(note["spawned_ns"] for note in done.notes)
    if arrivals == "fixed":
        gaps = np.diff(intended)
        assert np.median(gaps) == pytest.approx(2_500_000, rel=0.4 if processes == "2" else 1e-6)
    lateness = Histogram.merged(Histogram.decode(note["lateness_histogram"]) for note in done.notes)
    assert lateness.count > 0
    # 0.1 ms on an idle machine
    assert (lateness.percentile(90) or 0) < 20_000_000


def test_an_open_loop_beyond_its_callers_queues_and_says_so(fleet: Fleet, tmp_path: Path) -> None:
    # 2 callers: 100/s at most
    done = run(plan_for(fleet, tmp_path, rate="300", users="2", hold="fixed:20ms"))
    (note,) = done.notes
    assert 300 > 2 * len(done.records) > 0
    assert note["queued_starts"] > 0.9 * len(done.records)
    waited_ns = done.records["start_ns"] - done.records["intended_ns"]
    # paid for from the intended start
    assert waited_ns.max() > 500_000_000


def test_callers_that_rest_or_wait_for_a_far_arrival_do_not_delay_the_end(
    fleet: Fleet, tmp_path: Path
) -> None:
    for number, options in enumerate(({"think": "fixed:1m"}, {"rate": "0.5", "arrivals": "fixed"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(plan_for(fleet, folder, users="4", **options))
        assert 1 <= len(done.records) <= 4
        assert done.took_s < 30


def test_runs_that_take_turns_may_follow_each_other_in_one_locust(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Their end comes by their own time; it ended Locust, and every pair of a gate began with a
    start of 2 to 6 s."""
    with closing(LocustSeries()) as series:
        pids = set()
        for number in range(2):
            folder = tmp_path / str(number)
            (folder / "ring").mkdir(parents=True)
            plan = plan_for(fleet, folder, duration="200ms", warmup="0s")
            with closing(series.begin(replace(plan, ring=Ring(folder / "ring", 0, 1)))) as run:
                assert run.wait(40) == 0, run.log_tail()
            (note,) = (json.loads(path.read_text()) for path in folder.glob("worker-*.json"))
            assert note["phase"] == "stopped"
            assert len(read_history(folder).records) > 0
            pids.add(note["pid"])
        assert len(pids) == 1
