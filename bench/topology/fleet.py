"""This module starts N throw-away servers on this machine: *number and fsync policy → running
instances and their URLs*.

Rules: each instance has its own folder inside one private temporary folder. Each instance listens
only on loopback, and it keeps its port until the fleet is closed. An instance is ready when it
answers PING. The error NOAUTH counts as an answer, and the error LOADING does not count. The guard
process owns the servers and the folder. So if this process ends for any reason, the guard ends the
servers and removes the folder. `close` kills the servers, because no data needs to be saved.

Source: redis.conf of Redis 7.0 and Valkey 9.1; Linux inet_csk_bind_conflict
(net/ipv4/inet_connection_sock.c).
"""

from __future__ import annotations

import errno
import resource
import shlex
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

from bench.errors import EnvironmentNotReadyError
from bench.measure.server_facts import ServerBinary
from bench.topology.probe import Info
from bench.topology.servants import Guard, Proxies, ServerState, Shape
from bench.topology.server import find_server
from bench.topology.shim import Control
from bench.topology.target import client_of, parse_targets

HOST = "127.0.0.1"
Environment = Callable[[int, Path], Mapping[str, str]]
"""What instance `i`, living in `folder`, gets on top of our environment variables (for example an
LD_PRELOAD shim)."""

LOG_FILE = "server.log"
_LOG_LINES = 8
# All servers must answer within this time (s). A later signal must take effect within the same
# time.
TIMEOUT_S = 10.0
_POLL_S = 0.002
_ASK_S = 2.0
SETTLE_S = 5.0
# A server keeps 32 descriptors for itself. With fewer than 160 descriptors, it could serve hardly
# any client.
_SERVER_DESCRIPTORS = 160


@dataclass(frozen=True, slots=True)
class Instance:
    """The present state of one server of the fleet.

    `pid`: the id of the server's process. If the server does not run, `pid` is the id of its last
    process.
    """

    index: int
    port: int
    pid: int
    folder: Path

    @property
    def url(self) -> str:
        """The URL to which clients connect."""
        return f"redis://{HOST}:{self.port}"


def start_fleet(
    instances: int = 5,
    fsync: str = "everysec",
    *,
    server: ServerBinary | None = None,
    base_folder: Path | None = None,
    config: Sequence[str] = (),
    environment: Environment | None = None,
) -> Fleet:
    """Start `instances` servers in parallel, and wait until all of them answer.

    `fsync`: the fsync policy of the servers, which is "no", "everysec" or "always". The value
    "none" means that the servers write no append-only file. `config`: further server arguments,
    such as `("--maxmemory", "10mb")`.

    Raises EnvironmentNotReadyError if a server does not start, or if this machine lacks a resource
    (for example ports, descriptors or disk space). If a server does not start, the error shows its
    last log lines.
    """
    require_descriptors(instances)
    server = server or find_server()
    try:
        ports = [KeptPort() for _ in range(instances)]
        guard = Guard(base_folder or Path(tempfile.gettempdir()))
        return Fleet(server, fsync, ports, guard, config=config, environment=environment)
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"a fleet of {instances} cannot be started: {error}"
        ) from error


class Fleet:
    """The running servers that `start_fleet` has started. The object is also a context manager,
    which closes the fleet at its end.

    `folder`: the folder with the files of all instances. `close` removes the folder. `controls`:
    the shim of each instance. `missing`: the fault preparations that this machine does not allow,
    each with the reason. `locks`: one thread lock for each instance. A thread holds this lock while
    it starts or ends the instance.
    """

    def __init__(
        self,
        server: ServerBinary,
        fsync: str,
        ports: Sequence[KeptPort],
        guard: Guard,
        *,
        config: Sequence[str],
        environment: Environment | None,
    ) -> None:
        self.server = server
        self.fsync = fsync
        self._config = config
        self._environment = environment
        self.missing = dict[str, str]()
        self.controls = dict[int, Control]()
        self.proxies: Proxies | None = None
        self.locks = [threading.RLock() for _ in ports]
        self._ports = ports
        self._guard = guard
        self.folder = guard.folder
        self._pids = [0] * len(ports)
        try:
            for index in range(len(ports)):
                self._start(index)
            self._wait_until_ready(range(len(ports)))
        except BaseException:
            self.close()
            raise

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The present state of all instances."""
        numbered = enumerate(zip(self._ports, self._pids, strict=True))
        return tuple(
            Instance(i, port.number, pid, self.folder / f"instance-{i}")
            for i, (port, pid) in numbered
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """One URL per instance, in order."""
        return tuple(instance.url for instance in self.instances)

    @property
    def load_urls(self) -> tuple[str, ...]:
        """The URLs to which a load connects.

        If there are proxies, the URLs lead to the proxies. Otherwise the URLs lead to the
        instances.
        """
        return (
            tuple(f"redis://{HOST}:{port}" for port in self.proxies.ports)
            if self.proxies
            else self.urls
        )

    def shape(self, index: int, shape: Shape) -> None:
        """Set the shape of the proxy's link to instance `index`."""
        assert self.proxies is not None
        self.proxies.shape(index, shape)

    def control(self, index: int) -> Control:
        """Return the shim of instance `index`. Raises EnvironmentNotReadyError if the servers have
        no shim."""
        if not self.controls:
            raise EnvironmentNotReadyError(
                self.missing.get("shim", "no fault shim was prepared for these servers")
            )
        return self.controls[index]

    def exit_codes(self) -> tuple[int | None, ...]:
        """Return the exit code of each instance. If a signal killed the instance, return minus the
        number of the signal.

        If the instance still runs, the value is None. A stopped instance counts as running.
        """
        return tuple(state.exit_code for _, state in sorted(self._guard.states().items()))

    def kill(self, index: int, number: signal.Signals = signal.SIGKILL) -> None:
        """End instance `index` with a signal, and wait until the instance is dead.

        SIGTERM is a clean shutdown. You may call this method more than once.
        """
        with self.locks[index]:
            self._guard.signal(index, number)
            self._until(
                index, lambda state: state.exit_code is not None, f"end after {number.name}"
            )

    def stop(self, index: int) -> None:
        """Freeze instance `index` (SIGSTOP), and wait until the instance has stopped.

        The connections of the instance stay open.
        """
        self._guard.signal(index, signal.SIGSTOP)
        self._until(
            index, lambda state: state.stopped or state.exit_code is not None, "stop after SIGSTOP"
        )

    def cont(self, index: int) -> None:
        """Let a frozen instance continue (SIGCONT). The instance then executes the commands that
        arrived during the stop."""
        self._guard.signal(index, signal.SIGCONT)

    def restart(self, *indices: int) -> None:
        """Start these instances again, and wait until all of them answer.

        Each instance keeps its port and its files. An instance that still runs is killed first.
        """
        with ExitStack() as held:
            for index in indices:
                held.enter_context(self.locks[index])
                self.kill(index)
                self._start(index)
            self._wait_until_ready(indices)

    def adopt(self, pid: int) -> None:
        """Let the guard end `pid`, a process of lockbench, when the servers end.

        The guard kills the process when the guard itself ends, even if nobody calls `close`.
        """
        self._guard.adopt(pid)

    def close(self) -> None:
        """Kill every server and remove the folder.

        You may call this method more than once, and you may call it after Ctrl-C.
        """
        if self.proxies:
            self.proxies.close()
        self._guard.close()
        for port in self._ports:
            port.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def command(self, index: int, *words: str | int, timeout_s: float = _ASK_S) -> Any:
        """Send one command directly to instance `index`, without a proxy.

        Raises EnvironmentNotReadyError.
        """
        return self.commands(index, [words], timeout_s=timeout_s)[0]

    def commands(
        self, index: int, batch: Sequence[Sequence[str | int]], *, timeout_s: float = _ASK_S
    ) -> list[Any]:
        """Send many commands in one batch, and return their replies in the same order.

        Raises EnvironmentNotReadyError if the instance does not answer or refuses a command.
        """
        with self._client(index, timeout_s) as client:
            pipeline = client.pipeline(transaction=False)
            for words in batch:
                pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
            return list(pipeline.execute())

    def info(self, index: int) -> Info:
        """Return the INFO of instance `index`. Raises EnvironmentNotReadyError."""
        with self._client(index) as client:
            return client.info("all")

    def configure(self, index: int, settings: Mapping[str, str]) -> dict[str, str]:
        """Set all `settings` with CONFIG SET, and return the earlier values.

        Raises EnvironmentNotReadyError.
        """
        with self._client(index) as client:
            before = {name: str(client.config_get(name).get(name, "")) for name in settings}
            for name, value in settings.items():
                client.config_set(name, value)
        return before

    def until(self, index: int, reached: Callable[[Info], bool], what: str) -> None:
        """Wait at most 5 s until `reached` returns true for the INFO of instance `index`.

        After 5 s, this method raises EnvironmentNotReadyError. `what`: the text that follows
        "instance N did not" in the error message.
        """
        wait_until(lambda: reached(self.info(index)), SETTLE_S, f"instance {index} did not {what}")

    @contextmanager
    def _client(self, index: int, timeout_s: float = _ASK_S) -> Iterator[redis.Redis]:
        try:
            with client_of(parse_targets([self.urls[index]])[0], timeout_s) as client:
                yield client
        except redis.RedisError as error:
            raise EnvironmentNotReadyError(
                f"instance {index} did not carry out the command: {error or type(error).__name__}"
            ) from error

    def _start(self, index: int) -> None:
        instance = self.instances[index]
        instance.folder.mkdir(exist_ok=True)
        environment = self._environment(index, instance.folder) if self._environment else {}
        appends = "no" if self.fsync == "none" else "yes"
        options = (
            f"--port {instance.port} --bind {HOST} --protected-mode yes --daemonize no --save '' "
            f"--appendonly {appends}"
        )
        argv = [self.server.path, *shlex.split(options)]
        argv += [] if self.fsync == "none" else ["--appendfsync", self.fsync]
        argv += self._config
        self._pids[index] = self._guard.start(
            index, argv, instance.folder, instance.folder / LOG_FILE, environment
        )

    def _wait_until_ready(self, indices: Sequence[int]) -> None:
        waiting = set(indices)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            waiting -= {index for index in waiting if _answers(self._ports[index].number)}
            # Another program on the port may have answered. So the exit codes are checked, too.
            for index, exit_code in enumerate(self.exit_codes()):
                if index in indices and exit_code is not None:
                    raise self._did_not_start(index, f"ended with exit code {exit_code}")
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise self._did_not_start(
                    min(waiting), f"did not answer a PING within {TIMEOUT_S:g} s"
                )
            # A server sends no signal when it begins to listen. So this code asks it again and
            # again.
            time.sleep(_POLL_S)

    def _until(self, index: int, reached: Callable[[ServerState], bool], what: str) -> None:
        complaint = f"instance {index} of the fleet did not {what}"
        wait_until(lambda: reached(self._guard.states()[index]), TIMEOUT_S, complaint)

    def _did_not_start(self, index: int, what: str) -> EnvironmentNotReadyError:
        where = (
            f"instance {index} of {len(self._ports)} ({self.server}, port "
            f"{self._ports[index].number})"
        )
        logged = (self.instances[index].folder / LOG_FILE).read_text(
            encoding="utf-8", errors="replace"
        )
        lines = [f"  {line}" for line in logged.splitlines() if line.strip()] or [
            "  (it logged nothing)"
        ]
        last = "\n".join(lines[-_LOG_LINES:])
        return EnvironmentNotReadyError(
            f"{where} did not start, because it {what}; its last log lines:\n{last}"
        )


def wait_until(reached: Callable[[], bool], timeout_s: float, complaint: str) -> None:
    """Call `reached` again and again until it returns true.

    If `reached` is still false after `timeout_s`, this function raises EnvironmentNotReadyError
    with the message `complaint`.
    """
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline_s:
            raise EnvironmentNotReadyError(f"{complaint} within {timeout_s:g} s")
        time.sleep(_POLL_S)


def require_descriptors(instances: int, clients: int = 0) -> None:
    """Raise this process's limit on descriptors so that the limit is enough for `instances`
    servers.

    Each server has `clients` connections.

    Raises EnvironmentNotReadyError if the hard limit is too low.
    """
    needed = max(_SERVER_DESCRIPTORS + clients, 64 + instances * (4 + clients))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise EnvironmentNotReadyError(
            f"too few file descriptors: {instances} instances with {clients} clients need "
            f"{needed}, but this shell allows {hard}; raise the limit (ulimit -Hn, or nofile in "
            "limits.conf)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 0.25) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(256)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        return False
    return reply.startswith((b"+", b"-")) and not reply.startswith(b"-LOADING")


class KeptPort:
    """One reserved loopback port. The object keeps a socket bound to the port until `release()` is
    called. The socket never listens.

    The socket of this object and the socket of the server both set SO_REUSEADDR. So a server can
    listen on the reserved port, and it can listen again after a restart. The kernel does not give
    the port to any other program.
    """

    def __init__(self) -> None:
        """Reserve a free port. Raises OSError if no port is free."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Free the port. You may call this method more than once."""
        self._socket.close()
