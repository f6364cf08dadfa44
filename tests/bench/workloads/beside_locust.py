"""Tests that need Locust's classes, run by test_beside_locust.py in a child: `import locust`
patches its process."""

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from gevent.pool import Group
from locust import argument_parser
from locust.dispatch import UsersDispatcher
from locust.env import Environment
from locust.event import EventHook, Events
from locust.runners import (
    STATE_INIT,
    STATE_MISSING,
    STATE_RUNNING,
    MasterRunner,
    WorkerNode,
    WorkerNodes,
)
from locust.stats import RequestStats, StatsEntry
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from bench.measure.environment import versions
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, Records, records_of
from bench.measure.section import builtins_of
from bench.scenario import load
from bench.workloads import ends, locustfile, series
from bench.workloads.conductor import Conductor, in_order_of_users
from bench.workloads.history import WorkerHistory
from bench.workloads.launch import FAILURE_FILE
from bench.workloads.member import LockUser
from bench.workloads.plan import PLAN_VARIABLE, Plan
from bench.workloads.probe import GeneratorProbe
from bench.workloads.table import FOLD, Row, acquires_of, bucket_ms, keep_fractions, releases_of
from bench.workloads.worker import instance_report
from lockcore import InstanceStatus
from lockcore.clock import NS_PER_S

keep_fractions()


def acquires(
    values_ns: list[int], failures: tuple[str, ...] = (), failed_ns: int = 1_000_000
) -> Records:
    """So many acquires that took so long, then those that failed."""
    records = records_of(np.zeros(len(values_ns) + len(failures), RECORD_DTYPE))
    records["intended_ns"] = 5
    records["ended_ns"] = [5 + took_ns for took_ns in (*values_ns, *(failed_ns for _ in failures))]
    released = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    records["outcome"] = [released] * len(values_ns) + [OUTCOME_CODES[name] for name in failures]
    return records


def filled(values_ns: list[int], failures: tuple[str, ...] = ()) -> Row:
    row = Row("redlock", "acquire", acquires_of)
    row.fold(acquires(values_ns, failures))
    return row


def test_entry_and_total_equal_what_was_counted() -> None:
    stats = RequestStats()
    values = [100_000 + 977 * index for index in range(5000)]
    row = filled(values, ("contended", "contended", "split_vote"))
    row.report(stats)
    for entry in (stats.get("acquire", "redlock"), stats.total):
        assert (entry.num_requests, entry.num_failures) == (5003, 3)
        assert abs(entry.total_response_time - (sum(values) + 3_000_000) / 1e6) < 1e-6
        assert 0.0999 < entry.min_response_time <= 0.1, "to three digits"
        assert entry.max_response_time == max(values) / 1e6
        assert sum(entry.response_times.values()) == 5003
        assert sum(entry.num_reqs_per_sec.values()) == 5003
        assert sum(entry.num_fail_per_sec.values()) == 3
    assert row.counts == (5003, 3)


def test_reports_add_up_and_an_empty_one_changes_nothing() -> None:
    stats = RequestStats()
    row = Row("redlock", "acquire", acquires_of)
    for batch in range(4):
        row.fold(acquires([1000 * (batch + 1) + value for value in range(10)], ("contended",), 7))
        row.report(stats)
        row.report(stats)
    row.fold(acquires([]))
    row.report(stats)
    entry = stats.get("acquire", "redlock")
    assert (entry.num_requests, entry.num_failures, stats.total.num_requests) == (44, 4, 44)
    assert [(error.error, error.occurrences) for error in stats.errors.values()] == [
        ("contended", 4)
    ]
    assert row.counts == (44, 4)


def test_a_release_counts_once_it_was_answered_and_fails_when_the_lock_was_not_ours() -> None:
    records = acquires([1, 1, 1], ("contended",))
    records["release_sent_ns"] = 100
    records["release_replied_ns"] = [150, 0, 900, 0]
    gone = OUTCOME_CODES["acquired"] | OUTCOME_CODES["gone"] << 8
    records["outcome"][1:3] = OUTCOME_CODES["acquired"], gone
    stats = RequestStats()
    row = Row("redlock", "release", releases_of)
    row.fold(records)
    row.report(stats)
    assert (row.counts, [error.error for error in stats.errors.values()]) == ((2, 1), ["gone"])
    assert (stats.total.total_response_time, stats.total.num_failures) == (850 / 1e6, 1)


def test_the_table_is_the_one_that_stock_events_make() -> None:
    values = [int(50_000 * 1.003**index) for index in range(3000)]
    fast = RequestStats()
    stock = RequestStats()
    filled(values).report(fast)
    for value in values:
        stock.log_request("redlock", "acquire", value / 1e6, 0)
    for entry, other in (
        (fast.total, stock.total),
        (fast.get("acquire", "redlock"), stock.get("acquire", "redlock")),
    ):
        assert (entry.num_requests, entry.max_response_time) == (
            other.num_requests,
            other.max_response_time,
        )
        for share in (0.1, 0.5, 0.9, 0.99):
            one = entry.get_response_time_percentile(share)
            two = other.get_response_time_percentile(share)
            # neighbouring keys at most
            assert abs(one - two) <= 0.1 * two, (share, one, two)


def test_two_significant_digits_are_kept_below_a_millisecond_too() -> None:
    assert [bucket_ms(value) for value in (0, 0.1472, 3.44, 9.96, 12.3, 147, 3432, 58760)] == [
        0,
        0.15,
        3.4,
        10.0,
        12,
        150,
        3400,
        59000,
    ]


def test_keys_of_the_table_survive_the_way_to_the_master() -> None:
    import msgpack

    stats = RequestStats(use_response_times_cache=False)
    filled([123_456, 150_000_000]).report(stats)
    sent = msgpack.loads(msgpack.dumps(stats.total.get_stripped_report()), strict_map_key=False)
    assert sent["response_times"] == {0.12: 1, 150: 1}
    other = RequestStats()
    other.total.extend(StatsEntry.unserialize(sent, other))
    assert other.total.num_requests == 2


def test_stock_rows_fire_one_event_per_operation_and_leave_the_table_alone() -> None:
    hook = EventHook()
    seen = []
    hook.add_listener(lambda **facts: seen.append(facts))
    row = Row("redlock", "acquire", acquires_of, hook.fire)
    row.tell(250_000, None)
    row.tell(1_500_000, "contended")
    assert [(facts["response_time"], facts["exception"]) for facts in seen] == [
        (0.25, None),
        (1.5, "contended"),
    ]
    assert {(facts["request_type"], facts["name"]) for facts in seen} == {("redlock", "acquire")}
    row.fold(acquires([250_000], ("contended",)))
    stats = RequestStats()
    row.report(stats)
    assert (stats.total.num_requests, row.counts) == (0, (2, 1))


def unbound_master() -> MasterRunner:
    """One without its socket."""
    master = MasterRunner.__new__(MasterRunner)
    master.custom_messages = {}
    master.clients = WorkerNodes()
    master.greenlet = Group()
    master.worker_indexes = {}
    master.worker_index_max = 0
    return master


def test_workers_that_have_not_come_are_counted_and_those_that_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLAN_VARIABLE, "led by lockbench run")
    monkeypatch.chdir(tmp_path)
    master = unbound_master()
    master.state = STATE_INIT
    master.quit = lambda: None  # type: ignore[method-assign]
    master.clients["atlas_0f"] = WorkerNode("atlas_0f")
    master.clients["lost_1e"] = WorkerNode("lost_1e", STATE_MISSING)
    dismissed: list[str] = []
    conductor = SimpleNamespace(
        _hosts=SimpleNamespace(dismiss=lambda _nodes, why: dismissed.append(why))
    )
    Conductor._give_up(conductor, master, 1)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="3"):
        Conductor._give_up(conductor, master, 2)  # type: ignore[arg-type]
    sentence = "1 of 2 workers came within 300 s (atlas); start"
    assert sentence in (tmp_path / FAILURE_FILE).read_text("utf-8")
    assert [sentence in why for why in dismissed] == [True], "those that came learn why they end"


def test_a_series_ends_when_a_load_process_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLAN_VARIABLE, "led by lockbench run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(series, "READY_S", 0.05)
    master = unbound_master()
    master.environment = SimpleNamespace(process_exit_code=None)
    calls: list[str] = []
    master.stop = lambda: calls.append("stop")  # type: ignore[method-assign]
    master.quit = lambda: calls.append("quit")  # type: ignore[method-assign]
    master.clients["atlas_0f"] = WorkerNode("atlas_0f")
    scenario = load(options={"processes": "2", "targets": ["redis://127.0.0.1:1"]})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario).text + b"\n")
        series.Series(theirs, master).go_on()
    assert calls == ["stop", "quit"]
    assert master.environment.process_exit_code == 3
    assert "only 1 of 2 load processes were ready" in (tmp_path / FAILURE_FILE).read_text("utf-8")


def test_a_worker_whose_process_is_gone_is_not_waited_for() -> None:
    master = unbound_master()
    environment = SimpleNamespace(events=Events(), stop_timeout=60.0, parsed_options=None)
    conductor = Conductor(environment, master)  # type: ignore[arg-type]
    plan = SimpleNamespace(workdir=Path(), grace_s=60.0, bind=None, timed=False)
    conductor._run.plan = plan  # type: ignore[assignment]
    conductor._is_running = True
    hosts = conductor._hosts
    assert hosts is not None
    pids = {"killed": ended_process(), "well": os.getpid()}
    for name, pid in pids.items():
        master.clients[name] = WorkerNode(name, STATE_RUNNING)
        conductor._note_here(
            SimpleNamespace(
                node_id=name, data={"pid": pid, "host": "", "clock": "", "about": versions()}
            )
        )
    assert [conductor._is_gone(hosts, name) for name in pids] == [True, False]
    # by itself, workers may be on other hosts, where pids mean nothing
    plan.workdir = None
    assert not any(conductor._is_gone(hosts, name) for name in pids)
    assert conductor._is_gone(hosts, "one that has left")


def test_every_field_of_a_status_is_told() -> None:
    status = InstanceStatus(1, "127.0.0.1:7001", "down", "no answer", errors={"TIMEOUT": 3})
    told = builtins_of(instance_report(status))
    assert told.items() >= {**asdict(replace(status, errors={})), "errors": {"TIMEOUT": 3}}.items()


def test_a_stall_counts_as_all_the_ticks_that_nobody_looked_at() -> None:
    ms = 1_000_000
    stalls = iter([0, 33 * ms, 0, 0])
    due_ns = []

    def nap_until(at_ns: int) -> int:
        due_ns.append(at_ns)
        if (late_ns := next(stalls, None)) is None:
            raise StopIteration
        return late_ns

    naps = SimpleNamespace(wait_until=nap_until)
    prober = SimpleNamespace(_waits=SimpleNamespace(naps=naps), _lags_ns=[], _look_for_gap=id)
    with contextlib.suppress(StopIteration):
        GeneratorProbe._run(prober)  # type: ignore[arg-type]
    assert sorted(prober._lags_ns) == [0, 0, 0, 3 * ms, 13 * ms, 23 * ms, 33 * ms]
    # every tick is counted once
    assert [at - due_ns[0] for at in due_ns] == [0, 10 * ms, 50 * ms, 60 * ms, 70 * ms]


def test_what_comes_while_records_are_counted_is_for_the_next_second() -> None:
    """Else an overload has no end, and what is done once a second is not done at all."""
    recorder = SimpleNamespace(written=5 * FOLD)

    def read(slot: int, limit: int) -> range:
        return range(slot, min(slot + limit, recorder.written))

    recorder.read = read
    row = SimpleNamespace(fold=id)
    history = SimpleNamespace(recorder=recorder, acquires=row, releases=row, _folded=0)
    for _ in islice(WorkerHistory.fold(history), 50):  # type: ignore[arg-type]
        recorder.written += FOLD
    assert history._folded == 5 * FOLD
    assert recorder.written == 10 * FOLD


def test_workers_take_their_places_in_the_order_in_which_locust_deals_out_users() -> None:
    """Else the extra users of the first would have resources beyond those of a full row."""
    ids = ["beta_2_x", "alpha_9", "beta_1", "alpha_3", "gamma_1", "beta_0"]
    for users in range(1, 14):
        dealt = UsersDispatcher([WorkerNode(worker) for worker in ids], [LockUser])
        dealt.new_dispatch(users, users)
        counts = {worker: sum(classes.values()) for worker, classes in list(dealt)[-1].items()}
        row = [counts[worker] for worker in in_order_of_users(ids)]
        assert sum(row) == users
        assert row == sorted(row, reverse=True), row
        assert max(row) - min(row) <= 1, row


def test_a_user_may_be_told_to_stop_twice() -> None:
    """Ctrl-C reaches a worker by itself and through its master: Locust takes the second for a
    fault."""
    user = LockUser(Environment(user_classes=[LockUser]))
    user._state = LOCUST_STATE_RUNNING
    assert (user.stop(), user.stop(), user._state) == (False, False, LOCUST_STATE_STOPPING)


def test_only_a_process_in_which_nobody_runs_ends() -> None:
    """(what the probe last saw, seconds since the last look, of which it waited for a core,
    sentences so far)."""
    for looks in (
        [(5, 1, 0, 0), (5, 1, 0, 0), (6, 1, 0, 0), (6, 1, 0, 0), (6, 1, 0, 1)],
        # stopped for a minute
        [(5, 1, 0, 0), (5, 60, 0, 0), (6, 1, 0, 0)],
        [(5, 1, 0, 0), *[(5, 1, 0.95, 0)] * 8, (6, 1, 0, 0)],
        # beside others, and stuck
        [(5, 1, 0, 0), *[(5, 1, 0.8, 0)] * 2, (5, 1, 0.8, 1)],
    ):
        ended: list[object] = []
        worker = SimpleNamespace(
            is_ending=False,
            probe=SimpleNamespace(looked_ns=0),
            plan=SimpleNamespace(scenario=SimpleNamespace(recipe="x")),
        )
        clock = [0]
        waited = [0]
        with (
            mock.patch.object(ends, "_end_stuck", lambda *told, ended=ended: ended.append(told)),
            mock.patch.object(ends, "monotonic_ns", lambda clock=clock: clock[0]),
            mock.patch.object(ends, "scheduled_ns", lambda waited=waited: (0, waited[0])),
        ):
            ends.end_when_stuck(worker, None)  # type: ignore[arg-type]
            look = signal.getsignal(signal.SIGALRM)
            for probed_ns, passed_s, waited_s, sentences in looks:
                worker.probe.looked_ns = probed_ns
                clock[0] += int(passed_s * NS_PER_S)
                waited[0] += int(waited_s * NS_PER_S)
                look(signal.SIGALRM, None)  # type: ignore[operator,misc]
                assert len(ended) == sentences, (looks, probed_ns)
    signal.alarm(0)


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_a_worker_that_is_told_of_users_does_not_make_locusts_options_anew_for_each_of_them() -> (
    None
):
    assert locustfile.LockUser is LockUser, "it is loaded"
    assert argument_parser.default_args_dict() is argument_parser.default_args_dict()
