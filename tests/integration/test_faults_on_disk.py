"""What survives: kill, power cut and slow syncs under each fsync policy, told by the shim's ledger;
what faults leave alone, and what is left of them when lockbench is killed: nothing."""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.server_facts import ServerBinary
from bench.topology.doctor import why_not_here
from bench.topology.faults.injection import FaultOrder, Injection, Need, prepared_fleet
from bench.topology.faults.kinds import KINDS, injection
from bench.topology.faults.machine import cut_power
from bench.topology.fleet import Fleet, wait_until
from bench.topology.shim import IGNORED, shim_library
from tests.integration.locust_runs import until
from tests.integration.servers import SERVERS, every_server, fault

pytestmark = pytest.mark.integration
SHIM = frozenset({Need.SHIM})
FOREVER_NS = 3_600_000_000_000


class Rig:
    """A fleet of one under the shim."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.control = fleet.control(0)

    def fault(self, kind: str, **params: object) -> Injection:
        return fault(self.fleet, kind, **params)

    def strike(self, kind: str, **params: object) -> Injection:
        """A fault from its begin to its end."""
        struck = self.fault(kind, **params)
        struck.begin()
        struck.end()
        return struck

    def set(self, *names: str) -> None:
        assert set(self.fleet.commands(0, [("SET", name, "x" * 100) for name in names])) == {True}

    def has(self, *names: str) -> int:
        return int(self.fleet.command(0, "EXISTS", *names))

    @property
    def aof(self) -> Path:
        (path,) = self.fleet.instances[0].folder.glob("appendonlydir/*.incr.aof")
        return path

    def until_synced(self) -> None:
        wait_until(
            lambda: self.control.synced(self.aof).durable_bytes >= self.aof.stat().st_size,
            30,
            "not synced",
        )


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    fsync, server = request.param
    with prepared_fleet(SHIM, 1, fsync, server) as fleet:
        yield Rig(fleet)


def under(*policies: str) -> pytest.MarkDecorator:
    cases = [
        pytest.param((fsync, server), id=f"{fsync}-{server.name}")
        for fsync in policies
        for server in SERVERS
    ]
    return pytest.mark.parametrize("rig", cases, indirect=True)


@under("everysec", "no")
def test_a_kill_keeps_what_a_power_cut_loses(rig: Rig) -> None:
    """Both are acknowledged, and no sync comes to their help: the disk never answers."""
    rig.control.words.sync_delay_ns = FOREVER_NS
    rig.set("first")
    rig.strike("kill")
    assert rig.has("first") == 1
    cut = rig.strike("power-cut")
    assert rig.has("first") == 0
    assert cut.detail["lost_bytes"] >= 100


@under("everysec")
def test_a_power_cut_keeps_exactly_what_was_synced(rig: Rig) -> None:
    rig.set("synced")
    rig.until_synced()
    rig.control.words.sync_delay_ns = FOREVER_NS
    kept = rig.aof.stat().st_size
    rig.set("lost")
    cut = rig.fault("power-cut")
    cut.begin()
    assert rig.aof.stat().st_size == kept
    cut.end()
    assert (rig.has("synced"), rig.has("lost")) == (1, 0)
    (entry,) = [file for file in cut.detail["files"] if file["name"].endswith("incr.aof")]
    assert (entry["durable_bytes"], entry["kept_bytes"]) == (kept, kept)
    assert entry["size_bytes"] == kept + cut.detail["lost_bytes"]


@under("everysec")
def test_a_torn_tail_ends_anywhere_by_the_seed_and_is_survived(rig: Rig) -> None:
    rig.set("synced")
    rig.until_synced()
    rig.control.words.sync_delay_ns = FOREVER_NS
    durable = rig.aof.stat().st_size
    rig.set(*(f"lost:{number}" for number in range(100)))
    size = rig.aof.stat().st_size
    rig.fleet.kill(0)
    kept = {
        cut.name: cut.kept_bytes
        for cut in cut_power(rig.fleet.instances[0], rig.control, random.Random(7))
    }
    assert kept[f"appendonlydir/{rig.aof.name}"] == rig.aof.stat().st_size
    assert durable < rig.aof.stat().st_size < size
    rig.fleet.restart(0)
    assert rig.has("synced") == 1
    assert 0 < rig.has(*(f"lost:{number}" for number in range(100))) < 100


@under("always")
def test_the_ledger_follows_a_rewrite_of_the_file(rig: Rig) -> None:
    """A new base by a child, a new increment, a new manifest; then the power goes."""
    rig.set("before")
    first = rig.aof.name
    rig.fleet.command(0, "BGREWRITEAOF")
    rig.fleet.until(
        0,
        lambda info: info["aof_rewrite_in_progress"] == 0 and not info["aof_rewrite_scheduled"],
        "rewrite",
    )
    rig.set("after")
    assert rig.aof.name != first
    cut = rig.strike("power-cut")
    assert rig.has("before", "after") == 2
    assert cut.detail["lost_bytes"] == 0


@under("everysec")
def test_failing_syncs_make_everysec_refuse_writes_and_are_got_over(rig: Rig) -> None:
    broken = rig.fault("fsync-error")
    broken.begin()
    rig.set("lost")
    rig.fleet.until(0, lambda info: info["aof_last_write_status"] != "ok", "notice")
    with pytest.raises(EnvironmentNotReadyError, match="MISCONF"):
        rig.set("refused")
    broken.end()
    rig.set("again")
    rig.until_synced()


@under("everysec")
def test_the_clock_stays_wrong_over_a_restart(rig: Rig) -> None:
    rig.fault("clock-jump", by="1h").begin()
    rig.fleet.restart(0)
    assert rig.fleet.command(0, "TIME")[0] - time.time() > 3000


@pytest.mark.parametrize(
    "fsync, reason",
    [("none", "fsync = none"), ("no", "with fsync = no, the kernel decides when to sync")],
)
def test_slow_syncs_where_nothing_is_synced_are_skipped_with_that_reason(
    fsync: str, reason: str
) -> None:
    with prepared_fleet(SHIM, 1, fsync) as fleet:
        for kind in ("fsync-latency", "fsync-error"):
            refusal = fault(fleet, kind).refusal()
            assert isinstance(refusal, UsageError)
            assert reason in str(refusal)
        assert fault(fleet, "power-cut").refusal() is None


def test_a_server_that_ignores_the_shim_is_noticed(tmp_path: Path) -> None:
    """As a statically linked or setuid one would: the wrapper takes the shim, the server behind it
    does not."""
    path = tmp_path / "ignoring-server"
    path.write_text(f"#!/bin/sh\nexec env -u LD_PRELOAD '{SERVERS[0].path}' \"$@\"\n")
    path.chmod(0o755)
    ignoring = ServerBinary(str(path), "redis", SERVERS[0].version, "", False, "test")
    with prepared_fleet(SHIM, server=ignoring) as fleet:
        assert str(fault(fleet, "power-cut").refusal()) == IGNORED
        assert fault(fleet, "kill").refusal() is None


def test_without_a_compiler_the_fleet_starts_and_the_faults_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # forgets what it compiled
    monkeypatch.setattr("bench.topology.shim.shim_library", shim_library.__wrapped__)
    monkeypatch.setattr("bench.topology.shim.find_compiler", lambda: None)
    with prepared_fleet(SHIM) as fleet:
        assert "needs a C compiler" in str(fault(fleet, "power-cut").refusal())
        assert fleet.command(0, "PING") is True


def test_the_shim_works_from_a_folder_with_a_space_beside_another_preload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with prepared_fleet(SHIM) as fleet:
        assert fault(fleet, "power-cut").refusal() is None
    assert list(folder.iterdir()) == []


# -- what faults leave alone, and what is left of them: nothing ------------------------------------


DEADLINE_S = 30.0
BUSY = "import time, sys; print('up', flush=True)\nwhile True: time.sleep(0.001)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def worker() -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def on_worker(index: int, kind: str, pid: int | None) -> Injection:
    """A fault of a load worker; no servers are ours."""
    return injection(
        None, FaultOrder(kind, "worker", index), lambda: {} if pid is None else {index: pid}
    )


def test_a_worker_stands_still_and_goes_on() -> None:
    with worker() as process:
        stop = on_worker(1, "stop", process.pid)
        assert stop.refusal() is None
        stop.begin()
        assert state(process.pid) == "T"
        assert stop.detail == {"pid": process.pid}
        stop.end()
        until(lambda: state(process.pid) != "T", "a worker that goes on")
        process.kill()


def test_a_worker_is_killed_for_good() -> None:
    with worker() as process:
        kill = on_worker(0, "kill", process.pid)
        kill.begin()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        kill.end()
        with pytest.raises(EnvironmentNotReadyError, match="worker 0 had ended before"):
            kill.begin()


@pytest.mark.parametrize("kind", ["stop", "kill"])
def test_a_worker_that_does_not_run_is_said(kind: str) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="worker 3 does not run"):
        on_worker(3, kind, None).begin()


def test_dropping_packets_of_one_instance_leaves_the_others_and_no_rule_behind() -> None:
    with prepared_fleet(frozenset(), 2, "none") as fleet:
        port = f"{fleet.instances[0].port}"
        drop = fault(fleet, "drop", direction="to")
        if reason := drop.refusal():
            pytest.skip(str(reason))
        drop.begin()
        assert f"tcp dport {port} drop" in rules()
        assert fleet.command(1, "PING") is True
        with pytest.raises(EnvironmentNotReadyError):
            fleet.command(0, "PING", timeout_s=0.2)
        drop.end()
        assert port not in rules()
        assert fleet.command(0, "PING") is True


def test_without_root_or_nft_dropping_is_skipped_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with prepared_fleet(frozenset(), 1, "none") as fleet:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert str(fault(fleet, "drop").refusal()) == "it needs root"
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "the fault needs root and nftables: nft cannot be started" in str(
            fault(fleet, "drop").refusal()
        )


OWNER = """
import json, subprocess, sys
from bench.scenario import Fault
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.injection import prepared_fleet
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
kinds = json.loads(sys.argv[1])
orders = read_faults([Fault(kind, 0, None, (target,), "fixed", {}) for kind, target in kinds]
                     + [Fault("proxy", 0, None, ("instance:1",), "fixed", {"mode": "black-hole"})])
fleet = prepared_fleet(needs_of(orders), 2, "everysec")
faults = [injection(fleet, order, lambda: {0: worker.pid}) for order in orders]
for fault in faults:
    fault.begin()
pids = [instance.pid for instance in fleet.instances] + [fleet.proxies.process.pid]
port = fleet.instances[0].port
folder = str(fleet.folder)
print(json.dumps({"worker": worker.pid, "pids": pids, "port": port, "folder": folder}))
sys.stdout.flush()
sys.stdin.read()
"""


def test_nothing_is_left_when_lockbench_is_killed_in_the_middle_of_faults(tmp_path: Path) -> None:
    """A stopped worker goes on, a stopped server ends, proxies end, rules and disks are gone."""
    here = why_not_here(SERVERS[0])
    kinds = [("stop", "instance:0"), ("stop", "worker:0"), ("disk-full", "instance:1")]
    kinds += [] if here["drop"] else [("drop", "instance:0")]
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, json.dumps(kinds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        left = json.loads(owner.stdout.readline())
        assert state(left["worker"]) == "T"
        watched = [os.pidfd_open(pid) for pid in left["pids"]]
        owner.kill()
        owner.wait()
    try:
        assert all(select.select([pidfd], [], [], DEADLINE_S)[0] for pidfd in watched)
        until(lambda: state(left["worker"]) != "T", "the worker that goes on")
        until(lambda: not Path(left["folder"]).exists(), "the end of the folder")
        until(lambda: str(left["port"]) not in rules(), "the end of the rules")
    finally:
        os.kill(left["worker"], signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def rules() -> str:
    """The packet filter's rules; none where nobody may or can ask."""
    if shutil.which("nft") is None:
        return ""
    return subprocess.run(
        ["nft", "list", "ruleset"], capture_output=True, text=True, check=False
    ).stdout


@every_server
def test_what_this_machine_can_do_is_tried(
    server: ServerBinary, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = why_not_here(server)
    assert set(here) == set(KINDS)
    assert {kind for kind, reason in here.items() if reason} <= {"drop"}
    monkeypatch.setattr("bench.topology.faults.injection.Preload", Absent)
    without = {
        kind
        for kind, reason in why_not_here(server).items()
        if reason and "no compiler" in str(reason)
    }
    assert without == {
        "fsync-latency",
        "fsync-error",
        "disk-full",
        "clock-jump",
        "clock-rate",
        "power-cut",
    }


class Absent:
    """A shim that cannot be had."""

    def __init__(self) -> None:
        raise EnvironmentNotReadyError("there is no compiler")
