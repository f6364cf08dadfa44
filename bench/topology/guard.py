"""The parent's end of the guard process: *start, signal, states, close → what the guard did*.

Rules: requests carry a number and an answer that belongs to an interrupted request is dropped, so Ctrl-C may come at
any point. Closing needs no answer: the end of file is the request, the guard's own end is the reply. Only the process
that made a Guard may close it; a forked child's copy does nothing.
Source: bench/topology/guard_process.py, which holds the protocol's other half.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.topology.guard_process import MESSAGE_BYTES

_SCRIPT = Path(__file__).with_name("guard_process.py")
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server as its guard sees it: `exit_code` is None while it lives and minus the signal that killed it."""

    pid: int
    exit_code: int | None
    stopped: bool


class Guard:
    """Owns a private folder and the servers started in it; both end with this object's process, however that ends."""

    def __init__(self, temp_root: Path, prefix: str = "lockbench-fleet-") -> None:
        """Start the guard with a fresh folder `prefix`… (0700) in `temp_root`. Raises EnvironmentNotReadyError."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._asked = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_ANSWER_S)
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SCRIPT), str(self._owner), str(temp_root), prefix],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            hello = self._receive(0)
            if "error" in hello:
                raise EnvironmentNotReadyError(
                    f"no private folder can be made in {temp_root}: {hello['error']}; set TMPDIR to another folder"
                )
            self.folder = Path(hello["folder"])
        except BaseException:
            self.close()
            raise

    def start(self, index: int, argv: Sequence[str], folder: Path, log: Path, env: Mapping[str, str]) -> int:
        """Start a server in `folder`, output appended to `log`, `env` on top of our environment; return its pid."""
        place = {"cwd": str(folder), "log": str(log), "env": dict(env)}
        pid: int = self._ask({"do": "start", "index": index, "argv": list(argv), **place})["pid"]
        return pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to server `index` and its children; none if it has ended. Does not wait for the effect."""
        self._ask({"do": "signal", "index": index, "signal": int(number)})

    def states(self) -> dict[int, ServerState]:
        """What every started server does now."""
        return {int(index): ServerState(**state) for index, state in self._ask({"do": "states"})["states"].items()}

    def close(self) -> None:
        """Kill all servers and remove the folder; returns when both are gone. More than once is fine."""
        if os.getpid() != self._owner:
            return
        process = self._process
        if process is not None and process.returncode is None:
            try:
                self._channel.shutdown(socket.SHUT_WR)
                while self._channel.recv(MESSAGE_BYTES):
                    pass  # answers nobody waits for any more; the guard's exit is the end of file
            except OSError:
                process.kill()  # it hangs: its servers die with it
            process.wait()
        self._channel.close()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)  # already gone, unless the guard was killed

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._asked += 1
            try:
                self._channel.send(json.dumps({"id": self._asked, **request}).encode())
                answer = self._receive(self._asked)
            except OSError as error:
                raise self._gone() from error
        if "error" in answer:
            raise EnvironmentNotReadyError(f"the fleet's guard could not {request['do']} a server: {answer['error']}")
        return answer

    def _receive(self, number: int) -> dict[str, Any]:
        while True:
            message = self._channel.recv(MESSAGE_BYTES)
            if not message:
                raise self._gone()
            answer: dict[str, Any] = json.loads(message)
            if answer["id"] == number:
                return answer

    @staticmethod
    def _gone() -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            "the fleet is closed, or its guard process was killed (its servers ended with it): start it again"
        )
