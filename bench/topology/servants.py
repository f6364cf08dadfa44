"""Servants are scripts that keep running if this process is killed, so that they can clean up:
*numbered requests → answers; the end of a script → no process and no folder*.

There are two servants. Both scripts use only the standard library. The guard owns the servers and
their folder. The proxy process runs the proxies in front of the instances.

Rules: if Ctrl-C interrupts a request, the answer to this request may still arrive, and lockbench
then ignores the answer. Only the process that started a servant can close it. If a forked child
closes its copy of the object, nothing happens.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of one server, as its guard sees it.

    While the server runs, `exit_code` is None. If a signal killed the server, `exit_code` is minus
    the number of the signal.
    """

    exit_code: int | None
    stopped: bool


class ServantReply(msgspec.Struct):
    """A servant's reply. `id`: the id of the request, or 0 in the servant's first message."""

    id: int
    folder: str = ""
    pid: int = 0
    states: dict[int, ServerState] = msgspec.field(default_factory=dict)
    ports: tuple[int, ...] = ()
    error: str = ""


class Servant(Child):
    """A script that runs as a separate process and answers numbered requests. `hello`: the first
    message of the script.

    Several threads may use one object.
    """

    def __init__(self, script: str, *words: str) -> None:
        """Start `script`. Raises EnvironmentNotReadyError."""
        path = Path(__file__).with_name(f"{script.replace(' ', '_')}.py")
        super().__init__(script, [sys.executable, "-I", "-S", str(path), *words])
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._asked = 0
        try:
            self.hello = self.hear(ServantReply, _ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self, **request: object) -> ServantReply:
        """Return the answer to a request.

        Raises EnvironmentNotReadyError if the servant has ended or could not carry out the request.
        """
        with self._lock:
            self._asked += 1
            try:
                self.tell({"id": self._asked, **request})
                while (answer := self.hear(ServantReply, _ANSWER_S)).id != self._asked:
                    pass
            except (EnvironmentNotReadyError, ValueError) as error:
                # ValueError: the pipe was closed.
                what = (
                    f"the servers are stopped, or the {self.name} was killed; start the "
                    "servers again"
                )
                raise EnvironmentNotReadyError(what) from error
        if answer.error:
            raise EnvironmentNotReadyError(
                f"the guard of the fleet could not {request['do']} a server: {answer.error}"
            )
        return answer

    def close(self) -> None:
        """End the servant, and wait until its process has ended.

        You may call this method more than once.
        """
        if os.getpid() == self._owner:
            self.finish(_ANSWER_S)
            super().close()


class Guard(Servant):
    """The owner of a private folder and of the servers that run in the folder.

    If the process that created this object ends for any reason, the guard ends the servers and
    removes the folder.
    """

    def __init__(self, temp_root: Path, prefix: str = "lockbench-fleet-") -> None:
        """Start the guard. It creates a folder with the mode 0700 in `temp_root`, and the name of
        the folder begins with `prefix`.

        Raises EnvironmentNotReadyError.
        """
        self.folder = Path(os.devnull)
        super().__init__("guard process", str(os.getpid()), str(temp_root), prefix)
        if wrong := self.hello.error:
            self.close()
            raise EnvironmentNotReadyError(
                f"no private folder can be made in {temp_root} ({wrong}); name another folder "
                "(TMPDIR, --disk)"
            )
        self.folder = Path(self.hello.folder)

    def start(
        self, index: int, argv: Sequence[str], folder: Path, log: Path, env: Mapping[str, str]
    ) -> int:
        """Start a server in `folder` and return its pid.

        The output of the server is appended to `log`. The environment of the server is the
        environment of this process together with the variables in `env`.
        """
        return self.ask(do="start", index=index, argv=argv, cwd=folder, log=log, env=env).pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to server `index` and its children, unless the server has ended.

        This method does not wait until the signal takes effect.
        """
        self.ask(do="signal", index=index, signal=int(number))

    def adopt(self, pid: int) -> None:
        """Let the guard also kill process `pid` when the guard ends.

        A stopped process does not notice by itself that its parent is gone.
        """
        self.ask(do="adopt", pid=pid)

    def states(self) -> dict[int, ServerState]:
        """Return the present state of every started server."""
        return self.ask(do="states").states

    def leave_folder(self) -> None:
        """End only the guard. Its folder stays."""
        self.process.kill()
        super().close()

    def close(self) -> None:
        """Kill all servers, remove the folder, and wait until this is done.

        You may call this method more than once.
        """
        super().close()
        if os.getpid() == self._owner:
            # Usually the folder is already gone. It still exists if the guard was killed.
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """The requested behaviour of a link.

    A direction is "to" or "from" the instance. `slow`: in these directions, the proxy delays bytes
    by `delay_s` plus a random time between 0 and `jitter_s`. `held`: in these directions, the proxy
    delivers nothing until the link is healed. `reset`: if true, the proxy ends every connection
    with RST. If `port` is a number, the proxy connects new clients to this port and so imitates a
    fail-over. If `port` is None, the proxy connects new clients to the instance.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    slow: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    reset: bool = False
    port: int | None = None


class Proxies(Servant):
    """Proxies in front of loopback ports, one for each port. All proxies run in one process.

    `ports`: the ports on which the proxies listen.
    """

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        """Start a proxy for each of these ports. `seed` decides the jitter.

        Raises EnvironmentNotReadyError.
        """
        super().__init__("proxy process", str(seed), *map(str, ports))
        self.ports = self.hello.ports

    def shape(self, index: int, shape: Shape) -> None:
        """Apply `shape` to the link of instance `index`, and wait until the proxy has confirmed the
        change."""
        self.ask(index=index, **asdict(shape))
