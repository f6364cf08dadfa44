"""This process owns the servers and the folder of a run: *requests on stdin → running servers; the
end of the parent → all servers ended and the folder removed*.

Run as `python -I -S guard_process.py PARENT_PID TEMP_ROOT PREFIX`. Requests and answers are lines
of JSON.

Rules: the guard ends all servers and removes the folder if its stdin ends, if its parent is dead,
or if it receives SIGTERM. A pidfd reports the death of the parent, even while a forked child of the
parent still holds the pipe. The guard has only one thread, because the servers get their death
signal when the thread that started them ends. The guard answers each request at once and does not
wait for a server. If necessary, the parent sends the request again. The file docs/topology/guard.md
gives the reasons. Source: prctl(2), pidfd_open(2), pipe(7).
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_REMOVE_S = 5.0
# child.py has the same name, but this script cannot import child.py.
_PARENT_VARIABLE = "LOCKBENCH_PARENT"
_LOOKS = 20

Message = dict[str, Any]
Servers = dict[int, "subprocess.Popen[bytes]"]
# The pid of each adopted process, by its pidfd.
Adopted = dict[int, int]


def main(parent_pid: int, temp_root: str, prefix: str) -> None:
    """Serve the parent until the parent closes its end of the pipe or dies.

    After that, kill every server and remove the folder, whose name begins with `prefix`.
    """
    _take_no_part_in_the_terminal()
    servers: Servers = {}
    adopted: Adopted = {}
    folder = ""
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            folder = tempfile.mkdtemp(prefix=prefix, dir=temp_root)
        except OSError as error:
            _say({"id": 0, "error": error.strerror})
            return
        _say({"id": 0, "folder": folder})
        for request in _requests(parent_pid):
            try:
                answer = _answer(request, servers, adopted)
            except (OSError, subprocess.SubprocessError, KeyError) as error:
                answer = {"error": str(error)}
            _say({"id": request["id"], **answer})
    finally:
        signal.signal(signal.SIGTERM, _stay)
        _end(servers, adopted, folder, parent_pid)


# The end of stdin is not enough, because a forked child of the parent may hold the pipe open for
# ever. So a pidfd reports the parent's death, too. The pidfd is opened first, and `getppid` is
# compared afterwards. If the parent had died before, another process might have got its number, and
# the guard would watch the wrong process. Before each read, the guard checks whether the parent is
# dead. So the guard carries out no orders that a dead parent left in the pipe.
def _requests(parent_pid: int) -> Iterator[Message]:
    poller = select.poll()
    poller.register(0, select.POLLIN)
    parent = _watch(parent_pid)
    if parent is not None:
        poller.register(parent, select.POLLIN)
    if os.getppid() != parent_pid:
        return
    heard = b""
    while not any(ready == parent for ready, _ in poller.poll()):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        *lines, heard = (heard + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _answer(request: Message, servers: Servers, adopted: Adopted) -> Message:
    if request["do"] == "start":
        process = servers[request["index"]] = _start(request)
        return {"pid": process.pid}
    if request["do"] == "signal":
        process = servers[request["index"]]
        if process.poll() is None:
            os.killpg(process.pid, request["signal"])
        return {}
    if request["do"] == "adopt":
        for ended in select.select(list(adopted), [], [], 0)[0]:
            del adopted[ended]
            os.close(ended)
        pidfd = _watch(request["pid"])
        if pidfd is not None:
            adopted[pidfd] = request["pid"]
        return {}
    return {"states": {index: _state(process) for index, process in servers.items()}}


# The kernel kills a server when the thread that forked the server ends. So the guard has only one
# thread. The child requests this signal between fork and exec. The kernel does not report a guard
# that died before the request, so the child also compares the pids. Python code between fork and
# exec is safe here only because no other thread can hold a lock.
def _start(request: Message) -> "subprocess.Popen[bytes]":
    guard_pid = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_the_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard_pid:
            os._exit(1)

    with Path(request["log"]).open("ab") as log:
        return subprocess.Popen(
            request["argv"],
            cwd=request["cwd"],
            env={**os.environ, **request["env"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_the_guard,  # noqa: PLW1509  (safe: this process has one thread)
        )


# With the flag `WNOWAIT`, every call of `waitid` reports a stopped server. Without the flag, only
# the first call would report the stop, and the next call would say that the server runs.
def _state(process: "subprocess.Popen[bytes]") -> Message:
    exit_code = process.poll()
    stopped = False
    if exit_code is None:
        try:
            stopped = (
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
            )
        except ChildProcessError:
            # The process ended after `poll`. A dead process cannot be stopped.
            exit_code = process.poll()
    return {"exit_code": exit_code, "stopped": stopped}


# An adopted process may be a user's command that has started other processes. These processes are
# in the command's process group. The command may have ended already, because its stdin has ended.
# In this case, its number may belong to an unrelated process. So the guard kills only the processes
# of the group that have our parent's pid in their environment. A process may fork between the
# search and the kill. So the guard repeats the search until no process is left, at most _LOOKS
# times.
def _end_groups(groups: frozenset[int], parent_pid: int) -> None:
    mark = f"{_PARENT_VARIABLE}={parent_pid}".encode()
    for _ in range(_LOOKS):
        members = [process for process in Path("/proc").glob("[0-9]*") if _group(process) in groups]
        alive = False
        for process in members:
            # The process has ended, or we may not read its environment.
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    alive = True
        if not alive:
            return


def _group(process: Path) -> int:
    """Return the process group of a process in /proc, or 0 if the process has ended."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0


def _end(servers: Servers, adopted: Adopted, folder: str, parent_pid: int) -> None:
    for one in adopted:
        # The process may have ended.
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(one, signal.SIGKILL)
    _end_groups(frozenset(adopted.values()), parent_pid)
    alive = [process for process in servers.values() if process.poll() is None]
    for process in alive:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except PermissionError:
            # The server changed its user, so this process may not kill it.
            pass
        else:
            process.wait()
    deadline = time.monotonic() + _REMOVE_S
    while folder and Path(folder).exists() and time.monotonic() < deadline:
        # A dying child of a server may still write into the folder, so the removal is repeated.
        shutil.rmtree(folder, ignore_errors=True)


def _watch(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # This kernel forbids pidfd_open or does not have it. In this case, the guard notices only
        # the end of stdin.
        return None


def _say(message: Message) -> None:
    # If the parent is gone, the next poll reports that.
    with contextlib.suppress(OSError):
        print(json.dumps(message), flush=True)  # noqa: T201 - the parent reads it


def _take_no_part_in_the_terminal() -> None:
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ignored = {
        number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
    }
    for number in ignored | {signal.SIGINT, signal.SIGHUP, signal.SIGPIPE}:
        # The guard sets a handler and not SIG_IGN, because exec resets a handler but keeps SIG_IGN.
        # So the servers react to the signal as usual.
        signal.signal(number, _stay)


def _stay(*_: object) -> None:
    """Ignore the signal, because the parent decides when this process ends."""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
