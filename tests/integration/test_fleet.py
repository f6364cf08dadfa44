"""Fleets of real servers: started, frozen, killed, restarted, and gone without a trace."""

import errno
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from bench.errors import EnvironmentNotReadyError
from bench.measure.server_facts import ServerBinary
from bench.topology import fleet as fleet_module
from bench.topology.fleet import HOST, Fleet, Instance, start_fleet
from bench.topology.probe import inspect
from tests.integration.servers import SERVERS, every_server

pytestmark = pytest.mark.integration
DEADLINE_S = 30.0


def client(instance: Instance, timeout_s: float = 5.0) -> redis.Redis:
    return redis.Redis(
        host=HOST, port=instance.port, socket_timeout=timeout_s, retry=None, protocol=2
    )


def process_id(instance: Instance) -> int:
    return int(client(instance).info("server")["process_id"])


def refused(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(DEADLINE_S)
        return connection.connect_ex((HOST, port)) == errno.ECONNREFUSED


@every_server
@pytest.mark.parametrize("fsync", ["none", "no", "everysec", "always"])
def test_every_instance_runs_as_asked(server: ServerBinary, fsync: str) -> None:
    with start_fleet(3, fsync, server=server) as fleet:
        facts = inspect(fleet.urls)
        assert [fact.fsync for fact in facts] == [fsync] * 3
        assert len({fact.run_id for fact in facts}) == 3
        assert [process_id(instance) for instance in fleet.instances] == [
            instance.pid for instance in fleet.instances
        ]
        assert {(fact.server, fact.version) for fact in facts} == {(server.name, server.version)}
        settings = client(fleet.instances[0]).config_get()
        assert (settings["save"], settings["protected-mode"], settings["bind"]) == ("", "yes", HOST)
        assert fleet.folder.stat().st_mode & 0o077 == 0


@every_server
def test_closing_leaves_no_process_no_folder_no_listener(
    server: ServerBinary, tmp_path: Path
) -> None:
    fleet = start_fleet(3, "everysec", server=server, base_folder=tmp_path)
    fleet.stop(1)
    pidfds = [os.pidfd_open(instance.pid) for instance in fleet.instances]
    ports = [instance.port for instance in fleet.instances]
    fleet.close()
    fleet.close()
    assert all(select.select([pidfd], [], [], 0)[0] for pidfd in pidfds)
    assert list(tmp_path.iterdir()) == []
    assert all(refused(port) for port in ports)


@every_server
def test_a_restart_is_a_new_run_on_the_same_port_and_files(
    server: ServerBinary, tmp_path: Path
) -> None:
    """With an append-only file the keys survive a kill, without one they do not; also from a path
    with a space."""
    folder = tmp_path / "a b"
    folder.mkdir()
    for fsync, survivors in (("always", 1), ("none", 0)):
        with start_fleet(2, fsync, server=server, base_folder=folder) as fleet:
            before = inspect(fleet.urls)
            client(fleet.instances[0]).set("lock", "mine")
            fleet.kill(0)
            assert fleet.exit_codes() == (-signal.SIGKILL, None)
            assert refused(fleet.instances[0].port)
            fleet.restart(0)
            after = inspect(fleet.urls)
            assert after[0].run_id != before[0].run_id
            assert (after[0].address, after[1].run_id) == (before[0].address, before[1].run_id)
            assert client(fleet.instances[0]).exists("lock") == survivors
            assert fleet.exit_codes() == (None, None)


def test_a_living_instance_can_be_restarted_and_shut_down_cleanly() -> None:
    with start_fleet(1) as fleet:
        first = fleet.instances[0].pid
        fleet.restart(0)
        assert fleet.instances[0].pid != first
        fleet.kill(0, signal.SIGTERM)
        assert fleet.exit_codes() == (0,)
        # again is fine
        fleet.kill(0)
        assert fleet.exit_codes() == (0,)


@every_server
def test_a_stopped_instance_accepts_connections_and_answers_later(server: ServerBinary) -> None:
    with start_fleet(2, "none", server=server) as fleet:
        fleet.stop(0)
        fleet.stop(0)
        with socket.create_connection((HOST, fleet.instances[0].port), DEADLINE_S) as connection:
            connection.sendall(b"PING\r\n")
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(64)
            assert client(fleet.instances[1]).ping()
            fleet.cont(0)
            connection.settimeout(DEADLINE_S)
            assert connection.recv(64) == b"+PONG\r\n"


def test_a_failing_start_shows_the_servers_own_last_words_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(EnvironmentNotReadyError) as failed:
        start_fleet(2, base_folder=tmp_path, config=["--no-such-directive", "1"])
    first, *log = str(failed.value).splitlines()
    assert re.fullmatch(
        r"instance [01] of 2 \(.*, port \d+\) did not start, because it ended with .* 1; its "
        r"last log lines:",
        first,
    )
    assert any("no-such-directive" in line for line in log)
    assert list(tmp_path.iterdir()) == []


def fake(tmp_path: Path, script: str) -> ServerBinary:
    """A server program of our own that runs `script` with $REAL as a real server."""
    path = tmp_path / "fake-server"
    path.write_text(f"#!/bin/sh\nREAL='{SERVERS[0].path}'\n{script}\n")
    path.chmod(0o755)
    return replace(SERVERS[0], path=str(path))


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "TIMEOUT_S", 0.3)
    server = fake(tmp_path, "echo thinking; exec sleep 600")
    with pytest.raises(
        EnvironmentNotReadyError, match="did not answer a PING within 0.3 s(.|\n)*  thinking"
    ):
        start_fleet(1, server=server)


def test_a_server_behind_a_wrapper_script_is_killed_with_it(tmp_path: Path) -> None:
    with start_fleet(1, "none", server=fake(tmp_path, '"$REAL" "$@" & wait')) as fleet:
        inner = process_id(fleet.instances[0])
        assert inner != fleet.instances[0].pid
        pidfd = os.pidfd_open(inner)
        fleet.kill(0)
        assert select.select([pidfd], [], [], DEADLINE_S)[0]


def test_too_few_file_descriptors_is_said() -> None:
    code = """
import resource
from bench.topology.fleet import start_fleet
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
start_fleet(5)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "this shell allows 100; raise the limit" in run.stderr


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        fleet_module.require_descriptors(2, clients=150)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 + 2 * (4 + 150)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OWNER = """
import json, sys
from pathlib import Path
from bench.topology.fleet import start_fleet
with start_fleet(3, "everysec", base_folder=Path(sys.argv[1])) as fleet:
    fleet.stop(2)
    print(json.dumps([instance.pid for instance in fleet.instances]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_and_no_folder_two_seconds_after_the_owner_is_killed(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        watched = [os.pidfd_open(pid) for pid in pids]
        guard = os.pidfd_open(
            int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")")[1].split()[1])
        )
        os.killpg(owner.pid, number)
        for pidfd in (*watched, guard):
            assert select.select([pidfd], [], [], DEADLINE_S)[0]
        assert list(tmp_path.iterdir()) == []


def test_a_fleet_that_is_interrupted_while_starting_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_fleet: Fleet, *_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "_wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_fleet(2, base_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
