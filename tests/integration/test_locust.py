"""Locust itself with our locustfile, against real servers: rows, totals, ends good and bad, and no lock left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.measure.histogram import Histogram
from bench.measure.record import OUTCOME_CODES, Records, read_history
from bench.scenario import load
from bench.topology.fleet import Fleet, start_fleet
from bench.workloads.launch import LocustProcess
from bench.workloads.plan import Plan

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "bench" / "workloads" / "locustfile.py"
MEASURED = re.compile(r"(acquire|release) in ms: p50 (\S+).* of (\d+) by (\d+) worker")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(3, "none") as started:
        yield started


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(fleet: Fleet) -> Iterator[None]:
    yield
    assert keys(fleet) == 0


def keys(fleet: Fleet) -> int:
    total = 0
    for url in fleet.urls:
        with Redis.from_url(url) as client:
            total += client.dbsize()
    return total


def until(reached: Callable[[], bool], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- plain Locust -----------------------------------------------------------------------------------------------------


@dataclass
class Plain:
    """A plain `locust` of ours, in a process group and a folder of its own."""

    process: subprocess.Popen[str]
    folder: Path

    def end(self, timeout_s: float = 30.0) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, what --json printed, standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        assert "Traceback" not in err, err
        assert [path.name for path in (self.folder / "tmp").iterdir() if path.name.startswith("lockbench")] == []
        rows = json.loads(out[out.index("[") :]) if "[" in out else []
        return self.process.returncode, rows, err


def plain(folder: Path, *words: str, processes: int = 1, environ: dict[str, str] | None = None) -> Plain:
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--json", *words]
    if processes > 1:
        port = str(free_port())
        command += ["--processes", str(processes), "--master-port", port, "--master-bind-port", port]
        command += ["--master-bind-host", "127.0.0.1"]
    return Plain(
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **(environ or {})},
        ),
        folder,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def targets(fleet: Fleet) -> list[str]:
    return [word for url in fleet.urls for word in ("--target", url)]


def counts(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    return {row["name"]: (row["num_requests"], row["num_failures"]) for row in rows}


def measured(log: str) -> dict[str, tuple[int, int]]:
    """What our own lossless summary says: operations and workers by row."""
    return {name: (int(count), int(workers)) for name, _, count, workers in MEASURED.findall(log)}


@pytest.mark.parametrize("processes, events", [(1, "fast"), (2, "stock")])
def test_plain_locust_shows_our_rows_and_they_equal_our_counts(
    fleet: Fleet, tmp_path: Path, processes: int, events: str
) -> None:
    words = ["--headless", "-u", "20", "-r", "20", "-t", "2s", "--events", events, "--exit-code-on-error", "0"]
    run = plain(tmp_path, *words, *targets(fleet), processes=processes)
    code, rows, log = run.end()
    assert code == 0, log
    table = counts(rows)
    assert set(table) == {"acquire", "release"}
    acquires, failed = table["acquire"]
    assert acquires > 200
    assert table["release"] == (acquires - failed, 0)
    assert measured(log) == {
        "acquire": (acquires, processes),
        "release": (acquires - failed, processes),
    }
    for row in rows:
        assert row["method"] == "redlock"
        assert 0 < row["min_response_time"] < 50
        assert any(0 < float(key) < 1 for key in row["response_times"])  # fractions of a millisecond


def test_targets_may_come_from_the_environment(fleet: Fleet, tmp_path: Path) -> None:
    words = ["--headless", "-u", "2", "-r", "2", "-t", "1s"]
    run = plain(tmp_path, *words, environ={"LOCKBENCH_TARGETS": " ".join(fleet.urls)})
    code, rows, log = run.end()
    assert code == 0, log
    assert counts(rows)["acquire"][0] > 10


@pytest.mark.parametrize("processes", [1, 2])
def test_an_unreachable_target_is_one_sentence_and_exit_code_3(fleet: Fleet, tmp_path: Path, processes: int) -> None:
    dead = f"redis://:sesame@127.0.0.1:{free_port()}"
    words = ["--headless", "-u", "4", "-r", "4", "-t", "5s", *targets(fleet), "--target", dead]
    code, rows, log = plain(tmp_path, *words, processes=processes).end()
    assert code == 3, log
    assert rows == []
    assert log.count("cannot be used") == 1
    assert "start it, or name other instances with --target" in log
    assert "sesame" not in log


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--skew", "zip:1"], "argument --skew: 'zip:1' is not a skew"),
        (["--rate", "10", "--think", "5ms"], "lockbench: option --think: think time belongs to the closed loop"),
        (["--recipe", "redlok"], "lockbench: there is no recipe 'redlok'"),
        (["--targte", "x"], "unrecognized arguments: --targte"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    tmp_path: Path, fleet: Fleet, words: list[str], sentence: str
) -> None:
    code, rows, log = plain(tmp_path, "--headless", "-t", "5s", *targets(fleet), *words).end()
    assert (code, rows) == (2, [])
    assert sentence in log


def test_no_target_at_all_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    code, _, log = plain(tmp_path, "--headless", "-t", "5s").end()
    assert code == 2
    assert "lockbench: there is no instance to lock on; give --target" in log


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_give_every_lock_back_and_keep_the_totals(
    fleet: Fleet, tmp_path: Path, processes: int, number: signal.Signals
) -> None:
    words = ["--headless", "-u", "16", "-r", "16", "--hold", "fixed:50ms", "--exit-code-on-error", "0"]
    run = plain(tmp_path, *words, *targets(fleet), processes=processes)
    until(lambda: keys(fleet) > 3 * 8, "locks held by more users than one process has")
    until(lambda: keys(fleet) < 3 * 16, "a lock given back")
    if number is signal.SIGINT:
        os.killpg(run.process.pid, number)  # a terminal sends it to the whole group
    else:
        run.process.send_signal(number)
    code, rows, log = run.end()
    assert code == 0, log
    acquires, failed = counts(rows)["acquire"]
    assert acquires > 16
    assert measured(log)["acquire"] == (acquires, processes)
    assert counts(rows)["release"] == (acquires - failed, 0)


def test_users_that_locust_kills_under_a_lease_give_it_back(fleet: Fleet, tmp_path: Path) -> None:
    words = ["--headless", "-u", "8", "-r", "8", "-t", "1s", "--stop-timeout", "1", "--hold", "fixed:9s"]
    began = time.monotonic()
    code, rows, log = plain(tmp_path, *words, *targets(fleet)).end()
    assert code == 0, log
    assert time.monotonic() - began < 9  # nobody waited for a hold
    assert counts(rows) == {"acquire": (8, 0), "release": (8, 0)}


def test_users_that_locust_kills_while_they_wait_for_a_lock_leave_nothing(fleet: Fleet, tmp_path: Path) -> None:
    words = ["--headless", "-u", "6", "-r", "6", "-t", "1s", "--stop-timeout", "1", "--resources", "1"]
    words += ["--hold", "fixed:9s", "--wait", "30s"]
    code, rows, log = plain(tmp_path, *words, *targets(fleet)).end()
    assert code == 0, log
    assert counts(rows) == {"acquire": (1, 0), "release": (1, 0)}  # the others were cut in their acquire


def test_the_web_ui_has_our_options_and_our_rows_and_runs_twice(fleet: Fleet, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    run = plain(tmp_path, "--web-host", "127.0.0.1", "--web-port", str(port), *targets(fleet))
    try:
        until(lambda: answers(url), "the web UI")
        page = get(url)
        for option in ("retry_window", "instance_timeout", "skew", "hold", "targets"):
            assert f'"{option}"' in page, option
        for round_ in range(2):
            form = "user_count=4&spawn_rate=4&hold=fixed%3A1ms&resources=50"
            post(f"{url}/swarm", form)
            until(lambda: rows_of(url).get("release", {}).get("num_requests", 0) > 50, f"rows of run {round_}")
            assert 0 < rows_of(url)["acquire"]["median_response_time"] < 50
            post(f"{url}/stop")
            until(lambda: json.loads(get(f"{url}/stats/requests"))["state"] == "stopped", "the end of the run")
            assert keys(fleet) == 0
    finally:
        run.process.send_signal(signal.SIGINT)
    code, rows, log = run.end()
    assert code == 0, log
    assert len(re.findall(r"acquire in ms", log)) == 2


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(get(url))
    return False


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def post(url: str, form: str = "") -> None:
    urllib.request.urlopen(url, data=form.encode(), timeout=10).close()


def rows_of(url: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(get(f"{url}/stats/requests"))["stats"]}


# -- with a plan ------------------------------------------------------------------------------------------------------


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
    scenario = load(options={"targets": targets, "users": "12", "duration": "1s", "warmup": "300ms", **options})
    return Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario, folder, timed=True)


def run(plan: Plan) -> Planned:
    assert plan.workdir is not None
    began = time.monotonic()
    process = LocustProcess.start(plan)
    try:
        code = process.wait(40)
    finally:
        process.close()
    log = process.log_tail()
    assert code == 0, log
    assert process.failure() is None
    assert "Traceback" not in (plan.workdir / "locust.log").read_text()
    history = read_history(plan.workdir)
    assert history.complete
    notes = [json.loads(path.read_text()) for path in sorted(plan.workdir.glob("worker-*.json"))]
    table = counts(json.loads((plan.workdir / "locust.json").read_text()))
    return Planned(plan, history.records, notes, table, time.monotonic() - began)


def granted(records: Records) -> Any:
    return records["outcome"] & 0xFF == OUTCOME_CODES["acquired"]


@pytest.mark.parametrize("processes, events", [("1", "stock"), ("2", "fast")])
def test_the_history_the_notes_and_locusts_table_say_the_same(
    fleet: Fleet, tmp_path: Path, processes: str, events: str
) -> None:
    options = {"resources": "4", "hold": "exp:1ms", "wait": "3ms"}  # enough contention to be denied sometimes
    done = run(plan_for(fleet, tmp_path, processes=processes, events=events, **options))
    records, won = done.records, granted(done.records)
    totals = {"acquire": (len(records), int((~won).sum())), "release": (int(won.sum()), 0)}
    assert done.table == totals
    assert {
        name: tuple(int(sum(column)) for column in zip(*(note["locust"][name] for note in done.notes), strict=True))
        for name in totals
    } == totals
    assert min(totals["acquire"][1], totals["release"][0]) > 5
    assert len(done.notes) == int(processes)
    assert (records["outcome"][won] >> 8 == OUTCOME_CODES["released"]).all()


@pytest.fixture(scope="module")
def two_processes(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return run(plan_for(fleet, tmp_path_factory.mktemp("two"), processes="2", users="10", hold="fixed:1ms"))


def test_a_planned_run_measures_the_window_it_was_told(two_processes: Planned) -> None:
    done = two_processes
    spawned = {note["spawned_ns"] for note in done.notes}
    assert max(spawned) - min(spawned) < 5_000_000  # one origin for all, within what two clock readings differ
    start_ns = max(spawned) + 300_000_000
    end_ns = start_ns + 1_000_000_000
    intended = done.records["intended_ns"]
    assert intended.min() < start_ns
    assert end_ns - 5_000_000 < intended.max() < end_ns + 2_000_000_000
    for note in done.notes:
        assert note["phase"] == "stopped"
        assert note["stopped_ns"] >= end_ns
        assert note["cpu_s"] > 0
        assert Histogram.decode(note["lag_histogram"]).count > 50
        assert [status["state"] for status in note["instances"]] == ["voting"] * 3
        assert len(note["reply_histograms"]) == 3
        assert (note["errors"], note["cut"]) == ({}, 0)


def test_records_are_consistent_and_their_votes_settled(two_processes: Planned) -> None:
    done = two_processes
    records = done.records[granted(done.records)]
    order = ("intended_ns", "start_ns", "attempt_ns", "granted_ns", "ended_ns", "work_end_ns", "release_replied_ns")
    for earlier, later in zip(order, order[1:], strict=False):
        assert (records[earlier] <= records[later]).all(), (earlier, later)
    assert (records["work_end_ns"] - records["ended_ns"] >= 1_000_000).all()
    assert (records["granted_ns"] < records["valid_until_ns"]).all()
    assert (done.records["votes"] >> 40 == 0).all()
    assert (records["votes"] & 0xFF >= 2).all()
    assert len(np.unique(records["owner"])) == len(records)
    assert set(np.unique(done.records["caller"] // 100_000)) == {0, 1}
    assert len(np.unique(done.records["caller"])) == 10


def test_the_processes_of_a_run_contend_for_the_same_keys(fleet: Fleet, tmp_path: Path) -> None:
    done = run(plan_for(fleet, tmp_path, processes="2", users="2", resources="1", hold="fixed:2ms", wait="2s"))
    records = done.records[granted(done.records)]
    by_grant = np.sort(records, order="granted_ns")
    assert set(by_grant["caller"] // 100_000) == {0, 1}
    assert (by_grant["release_sent_ns"][:-1] <= by_grant["granted_ns"][1:]).all()  # nobody beside the holder


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
def test_an_open_loop_starts_its_whole_schedule_on_time(
    fleet: Fleet, tmp_path: Path, processes: str, arrivals: str
) -> None:
    options = {"rate": "400", "arrivals": arrivals, "users": "32", "processes": processes}
    done = run(plan_for(fleet, tmp_path, **options))
    scheduled = sum(note["scheduled_starts"] for note in done.notes)
    assert len(done.records) == scheduled == sum(note["started_starts"] for note in done.notes)
    assert scheduled == pytest.approx(520, abs=1 if arrivals == "fixed" else 120)
    assert (done.records["start_ns"] >= done.records["intended_ns"]).all()
    intended = np.sort(done.records["intended_ns"])
    assert intended[0] >= min(note["spawned_ns"] for note in done.notes)
    if arrivals == "fixed":
        gaps = np.diff(intended)
        assert np.median(gaps) == pytest.approx(2_500_000, rel=0.4 if processes == "2" else 1e-6)
    lateness = Histogram.merged(Histogram.decode(note["lateness_histogram"]) for note in done.notes)
    assert lateness.count > 300
    assert (lateness.percentile(90) or 0) < 2_000_000


def test_an_open_loop_beyond_its_callers_queues_and_says_so(fleet: Fleet, tmp_path: Path) -> None:
    done = run(plan_for(fleet, tmp_path, rate="300", users="2", hold="fixed:20ms"))  # 2 callers: 100/s at most
    (note,) = done.notes
    assert note["scheduled_starts"] > 300 > 2 * len(done.records) > 100
    assert note["queued_starts"] > 0.9 * note["started_starts"]
    waited_ns = done.records["start_ns"] - done.records["intended_ns"]
    assert waited_ns.max() > 500_000_000  # paid for from the intended start


def test_callers_that_rest_or_wait_for_a_far_arrival_do_not_delay_the_end(fleet: Fleet, tmp_path: Path) -> None:
    for number, options in enumerate(({"think": "fixed:1m"}, {"rate": "0.5", "arrivals": "fixed"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(plan_for(fleet, folder, users="4", **options))
        assert 1 <= len(done.records) <= 4
        assert done.took_s < 10


def test_the_plain_lock_runs_through_the_same_load(fleet: Fleet, tmp_path: Path) -> None:
    done = run(plan_for(fleet, tmp_path, instances=1, recipe="set-nx-lua", resources="2"))
    assert done.table["acquire"][0] == len(done.records) > 50
    assert done.table["release"][0] == int(granted(done.records).sum())


def test_ctrl_c_ends_a_planned_run_in_order(fleet: Fleet, tmp_path: Path) -> None:
    plan = plan_for(fleet, tmp_path, duration="1m", processes="2", hold="fixed:20ms")
    process = LocustProcess.start(plan)
    try:
        until(lambda: len(list(tmp_path.glob("worker-*.json"))) == 2, "both workers")
        process.stop(20)
    finally:
        process.close()
    assert process.poll() == 0, process.log_tail()
    notes = [json.loads(path.read_text()) for path in tmp_path.glob("worker-*.json")]
    assert [note["phase"] for note in notes] == ["stopped"] * 2
    records = read_history(tmp_path).records
    assert counts(json.loads((tmp_path / "locust.json").read_text()))["acquire"][0] == len(records)


def test_a_fleet_that_cannot_be_used_ends_a_planned_run_with_its_sentence(tmp_path: Path, fleet: Fleet) -> None:
    scenario = load(options={"targets": [f"redis://127.0.0.1:{free_port()}"], "users": "2", "processes": "2"})
    process = LocustProcess.start(Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario, tmp_path, timed=True))
    try:
        assert process.wait(30) == 3, process.log_tail()
    finally:
        process.close()
    failure = process.failure()
    assert isinstance(failure, EnvironmentNotReadyError)
    assert "\n" not in str(failure)
    assert "start it, or name other instances" in str(failure)


def test_locust_and_its_workers_die_with_whoever_started_them(fleet: Fleet, tmp_path: Path) -> None:
    plan = plan_for(fleet, tmp_path, duration="1m", processes="2", hold="fixed:20ms")
    plan.write()
    script = (
        "import sys, time\nfrom argparse import Namespace\nfrom bench.workloads.launch import LocustProcess\n"
        "from bench.workloads.plan import plan_of\n"
        f"process = LocustProcess.start(plan_of(Namespace(), {{'LOCKBENCH_PLAN': {str(tmp_path / 'plan.json')!r}}}))\n"
        "print(process.pid, flush=True)\ntime.sleep(60)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ)
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline())]
    try:
        until(lambda: len(list(tmp_path.glob("worker-*.json"))) == 2, "both workers")
        pids += [int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("worker-*.json")]
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not any(is_alive(pid) for pid in pids), "the end of Locust and its workers")
