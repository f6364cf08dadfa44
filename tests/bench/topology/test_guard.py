"""The guard: servers and folder end with their parent however it ends.

Here the servers are `sleep`.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child, is_alive
from bench.topology.fleet import wait_until
from bench.topology.guard_process import _end_groups, _state
from bench.topology.servants import Guard

SLEEP = ["sleep", "600"]
DEADLINE_S = 30.0

# how the parent ends by itself: it may be over before anybody watches
ENDING = (("exit",), ("raise",))

PARENT = """
import json, os, sys, threading
from pathlib import Path
from bench.topology.servants import Guard

guards, servers = [], []
def start():
    guards.append(Guard(Path(sys.argv[1])))
    server = guards[0].start(0, ["sleep", "600"], guards[0].folder, guards[0].folder / "log", {})
    servers.append(server)
if "thread" in sys.argv:
    # a death signal tied to this thread would kill the server when it ends
    thread = threading.Thread(target=start); thread.start(); thread.join()
else:
    start()
child = 0
if "fork" in sys.argv:        # a child that keeps the socket open
    child = os.fork()
    if not child:
        os.close(1)
        guards[0].close()     # not its own: must do nothing
        sys.stdin.read()
        os._exit(0)
pids = {"server": servers[0], "guard": guards[0].process.pid, "child": child}
print(json.dumps({"folder": str(guards[0].folder), **pids}), flush=True)
if "exit" in sys.argv:
    os._exit(0)
if "raise" in sys.argv:
    raise KeyboardInterrupt
sys.stdin.read()
"""


@contextmanager
def parent(
    tmp_path: Path, *how: str
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any], list[int]]]:
    """A process that owns a guard with one server; yields it, what it said and pidfds of server and
    guard."""
    command = [sys.executable, "-c", PARENT, str(tmp_path), *how]
    with subprocess.Popen(
        command,
        text=True,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        said = json.loads(process.stdout.readline())
        watched = (
            [os.pidfd_open(said[name]) for name in ("server", "guard")] if how not in ENDING else []
        )
        try:
            yield process, said, watched
        finally:
            process.kill()
            for descriptor in watched:
                os.close(descriptor)


def ended(pidfd: int) -> bool:
    """Whether the process ends within the deadline."""
    return bool(select.select([pidfd], [], [], DEADLINE_S)[0])


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    guard = Guard(tmp_path)
    yield guard
    guard.close()


def start(guard: Guard, argv: list[str], index: int = 0) -> int:
    """Start a stand-in for a server and return a pidfd of it."""
    return os.pidfd_open(guard.start(index, argv, guard.folder, guard.folder / "log", {}))


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ((), signal.SIGKILL),
        (("thread",), signal.SIGKILL),
        (("fork",), signal.SIGKILL),
        ((), signal.SIGHUP),
    ],
)
def test_nothing_is_left_when_the_parent_is_killed(
    tmp_path: Path, how: tuple[str, ...], number: signal.Signals
) -> None:
    with parent(tmp_path, *how) as (process, _said, (server, guard)):
        process.send_signal(number)
        assert ended(server)
        assert ended(guard)
        assert list(tmp_path.iterdir()) == []


def test_an_adopted_process_ends_with_the_servers_even_if_it_stands_still(guard: Guard) -> None:
    with subprocess.Popen(SLEEP) as over, subprocess.Popen(SLEEP) as frozen:
        guard.adopt(over.pid)
        over.kill()
        over.wait()
        guard.adopt(frozen.pid)
        frozen.send_signal(signal.SIGSTOP)
        guard.close()
        assert frozen.wait(DEADLINE_S) == -signal.SIGKILL


def test_what_an_adopted_command_has_started_ends_even_if_the_command_has_ended(
    guard: Guard,
) -> None:
    with Child("a command", ["sh", "-c", "sleep 60 & echo $!; read line"]) as command:
        pid = int(command.read_line(DEADLINE_S))
        guard.adopt(command.process.pid)
        command.leave()
        command.process.wait(DEADLINE_S)
        assert is_alive(pid)
        guard.close()
        wait_until(lambda: not is_alive(pid), DEADLINE_S, "it outlived the guard")


def test_a_group_that_is_not_ours_is_left_alone(guard: Guard) -> None:
    """Its number was given to somebody else's process, which does not name our parent."""
    with subprocess.Popen(SLEEP, start_new_session=True, env={}) as stranger:
        _end_groups(frozenset({stranger.pid}), os.getpid())
        assert stranger.poll() is None
        stranger.kill()


def test_a_server_started_by_a_thread_outlives_that_thread(tmp_path: Path) -> None:
    with parent(tmp_path, "thread") as (_process, said, (server, _guard)):
        assert not select.select([server], [], [], 0.1)[0]
        assert Path(said["folder"]).is_dir()


@pytest.mark.parametrize("how", ENDING)
def test_nothing_is_left_when_the_parent_ends_without_closing(
    tmp_path: Path, how: tuple[str]
) -> None:
    with parent(tmp_path, *how) as (process, said, _watched):
        process.wait(30)
        # already over, and reaped
        with contextlib.suppress(ProcessLookupError):
            assert ended(os.pidfd_open(said["guard"]))
        assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_the_terminal_reaches_neither_guard_nor_server(tmp_path: Path) -> None:
    """The terminal signals the whole foreground group; only the parent may decide what it means."""
    with parent(tmp_path, "fork") as (process, said, (server, guard)):
        assert os.getsid(said["guard"]) != os.getsid(process.pid)
        assert os.getpgid(said["server"]) == said["server"]
        os.killpg(process.pid, signal.SIGINT)
        # because the parent ended of it
        assert ended(server)
        assert ended(guard)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_guard_takes_its_servers_along_and_closing_removes_the_folder(
    guard: Guard, tmp_path: Path, number: signal.Signals
) -> None:
    server = start(guard, SLEEP)
    guard.process.send_signal(number)
    assert ended(server)
    with pytest.raises(EnvironmentNotReadyError, match="guard process was killed"):
        guard.states()
    guard.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_copy_closes_nothing(guard: Guard) -> None:
    start(guard, SLEEP)
    child = os.fork()
    if not child:
        guard.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert guard.states()[0].exit_code is None


def test_an_interrupted_question_does_not_spoil_the_next(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between question and answer leaves an answer behind: it must not be taken for the next
    one's."""
    start(guard, SLEEP)

    def interrupted(*_kind_and_patience: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(guard, "hear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.signal(0, signal.SIGKILL)
    second = guard.start(1, SLEEP, guard.folder, guard.folder / "log", {})
    assert (second > 0, guard.states()[1].exit_code) == (True, None)


def test_a_server_that_ends_while_it_is_asked_is_dead_and_no_error() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    class EndsNow:
        """Alive at the first look, dead when it is asked whether it stands still."""

        pid = ended.pid
        looks = 0

        def poll(self) -> int | None:
            self.looks += 1
            return None if self.looks == 1 else ended.poll()

    assert _state(EndsNow()) == {"exit_code": 0, "stopped": False}


def test_a_program_that_cannot_start_is_said(guard: Guard) -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match="could not start a server: .*No such file.*'/no/server'"
    ):
        start(guard, ["/no/server"])
    with pytest.raises(EnvironmentNotReadyError, match="could not signal a server: 5"):
        guard.signal(5, signal.SIGTERM)
    assert guard.states() == {}


def test_a_server_gets_the_extra_environment_and_default_signals(guard: Guard) -> None:
    show = ["sh", "-c", "echo $LOCKBENCH_TEST; grep -E 'Sig(Ign|Blk)' /proc/self/status"]
    log = guard.folder / "log"
    server = os.pidfd_open(guard.start(0, show, guard.folder, log, {"LOCKBENCH_TEST": "a b"}))
    assert ended(server)
    assert log.read_text().split("\n")[0] == "a b"
    masks = [int(line.split()[1], 16) for line in log.read_text().splitlines()[1:]]
    # real-time signals are whoever's who started the tests
    ours = sum(1 << number - 1 for number in range(1, 32))
    assert [mask & ours for mask in masks] == [0, 0]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"no private folder can be made in .*/absent \(No such file",
    ):
        Guard(tmp_path / "absent")
