"""What faults leave alone, and what is left of them when lockbench is killed: nothing."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.doctor import why_not_here
from bench.topology.faults.injection import Need, Site, prepared_fleet
from bench.topology.faults.kinds import KINDS
from bench.topology.server import ServerBinary
from tests.integration.locust_runs import until
from tests.integration.servers import SERVERS, every_server, fault

pytestmark = pytest.mark.integration
DEADLINE_S = 30.0
BUSY = "import time, sys; print('up', flush=True)\nwhile True: time.sleep(0.001)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def worker() -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_a_worker_stands_still_and_goes_on() -> None:
    with worker() as process, Site(workers=lambda: {1: process.pid}) as site:
        stop = fault(site, "stop", "worker:1")
        assert stop.why_not() is None
        stop.begin()
        assert state(process.pid) == "T"
        assert stop.detail == {"pid": process.pid}
        stop.end()
        until(lambda: state(process.pid) != "T", "a worker that goes on")
        process.kill()


def test_a_worker_is_killed_for_good() -> None:
    with worker() as process, Site(workers=lambda: {0: process.pid}) as site:
        kill = fault(site, "kill", "worker:0")
        kill.begin()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        kill.end()
        with pytest.raises(EnvironmentNotReadyError, match="worker 0 had ended before"):
            kill.begin()


@pytest.mark.parametrize("kind", ["stop", "kill"])
def test_a_worker_that_does_not_run_is_said(kind: str) -> None:
    with Site() as site, pytest.raises(EnvironmentNotReadyError, match="worker 3 does not run"):
        fault(site, kind, "worker:3").begin()


def test_dropping_packets_of_one_instance_leaves_the_others_and_no_rule_behind() -> None:
    with prepared_fleet(frozenset(), 2, "none") as site:
        port = f"{site.fleet.instances[0].port}"
        drop = fault(site, "drop", direction="to")
        if reason := drop.why_not():
            pytest.skip(reason)
        drop.begin()
        assert f"tcp dport {port} drop" in rules()
        assert site.command(1, "PING") is True
        with pytest.raises(EnvironmentNotReadyError):
            site.command(0, "PING", timeout_s=0.2)
        drop.end()
        assert port not in rules()
        assert site.command(0, "PING") is True


def test_without_root_or_nft_dropping_is_skipped_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with prepared_fleet(frozenset(), 1, "none") as site:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert fault(site, "drop").why_not() == "it needs root"
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "it needs root and nftables: nft cannot be started" in str(fault(site, "drop").why_not())


def test_without_root_a_full_disk_is_skipped_and_the_fleet_runs_on_the_real_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.topology.disk._FSOPEN", 100_000)
    with prepared_fleet(frozenset({Need.MEMORY_DISK})) as site:
        assert "it needs root and Linux 5.2" in str(fault(site, "disk-full").why_not())
        assert not site.fleet.instances[0].folder.is_symlink()


OWNER = """
import json, subprocess, sys
from bench.scenario import Fault
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.injection import Need, Site
from bench.topology.fleet import start_fleet
from bench.topology.server import ServerBinary, found_servers
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
kinds = json.loads(sys.argv[1])
orders = read_faults([Fault(kind, 0, None, (target,), "fixed", {}) for kind, target in kinds]
                     + [Fault("proxy", 0, None, ("instance:1",), "fixed", {"mode": "black-hole"})])
site = Site(needs_of(orders), workers=lambda: {0: worker.pid})
fleet = start_fleet(2, environment=site.environment)
site.attach(fleet)
faults = [injection(site, order) for order in orders]
for fault in faults:
    fault.begin()
pids = [instance.pid for instance in fleet.instances] + [site.proxies.process.pid]
print(json.dumps({"worker": worker.pid, "pids": pids, "port": fleet.instances[0].port, "folder": str(fleet.folder)}))
sys.stdout.flush()
sys.stdin.read()
"""


def test_nothing_is_left_when_lockbench_is_killed_in_the_middle_of_faults(tmp_path: Path) -> None:
    """A stopped worker goes on, a stopped server ends, proxies end, rules and disks are gone."""
    here = why_not_here(SERVERS[0])
    kinds = [("stop", "instance:0"), ("stop", "worker:0")]
    kinds += [] if here["drop"] else [("drop", "instance:0")]
    kinds += [] if here["disk-full"] else [("disk-full", "instance:1")]
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
    return subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=False).stdout


@every_server
def test_what_this_machine_can_do_is_tried(server: ServerBinary, monkeypatch: pytest.MonkeyPatch) -> None:
    here = why_not_here(server)
    assert set(here) == set(KINDS)
    assert {kind for kind, reason in here.items() if reason} <= {"drop", "disk-full"}
    monkeypatch.setattr("bench.topology.faults.injection.Preload", Absent)
    without = {kind for kind, reason in why_not_here(server).items() if reason and "no compiler" in reason}
    assert without == {"fsync-latency", "fsync-error", "clock-jump", "clock-rate", "power-cut"}


class Absent:
    """A shim that cannot be had."""

    def __init__(self) -> None:
        raise EnvironmentNotReadyError("there is no compiler")
