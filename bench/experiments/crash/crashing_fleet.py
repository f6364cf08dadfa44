"""Where crashes happen: *N, AOF policy → a fleet under the shim, ended and brought back by order*.

Rules
- Every server has the shim, which notes appends and syncs; a power cut keeps what the ledger calls durable, the worst
  case. What an instance still knows is asked of the server itself, or read from its append-only file as a server would:
  whole commands only. All of it blocks and is for one thread at a time.
- That a power cut of the shim is one of a real file system is shown by tests/integration/test_shim_on_ext4.py.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import hiredis
from redis import Redis, RedisError

from bench.errors import EnvironmentNotReadyError
from bench.experiments.crash.judge import Ledger
from bench.experiments.crash.plan import Crash
from bench.measure.run_result import ServerBinary
from bench.topology.faults.machine import cut_power
from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet
from bench.topology.shim import IGNORED, Control, Preload
from lockcore.clock import NS_PER_S, monotonic_ns

NO_REWRITE = ("--auto-aof-rewrite-percentage", "0")
_ANSWER_S = 10.0


class CrashPlace:
    """Where one fleet at a time stands, for whoever holds it alone."""

    def __init__(self, server: ServerBinary) -> None:
        self._server, self._started = server, ExitStack()
        self._fleet: Fleet | None = None
        self._controls: Mapping[int, Control] = {}
        self._dead: list[KeptPort] = []

    def open(self, instances: int, policy: str) -> None:
        """Start `instances` servers with this AOF policy, unless those are what stands here.

        Raises BenchError when they do not start, and when they do not take the shim.
        """
        if self._fleet is not None and (len(self._fleet.instances), self._fleet.fsync) == (instances, policy):
            return
        self.close()
        shim = self._started.enter_context(closing(Preload()))
        self._fleet = self._started.enter_context(
            start_fleet(instances, policy, server=self._server, environment=shim.environment, config=NO_REWRITE)
        )
        self._dead = [KeptPort() for _ in range(instances)]
        for port in self._dead:
            self._started.callback(port.release)
        self._controls = shim.controls
        for instance in self._fleet.instances:
            control = shim.controls[instance.index]
            if not control.loaded_in(instance.pid):
                self.close()
                raise EnvironmentNotReadyError(f"crashes need the fault shim in their servers: {IGNORED}")
            control.note_writes()

    def close(self) -> None:
        """End it; more than once is fine."""
        self._fleet = None
        self._started.close()

    @property
    def fleet(self) -> Fleet:
        """The servers."""
        assert self._fleet is not None
        return self._fleet

    def urls(self, voters: Iterable[int]) -> list[str]:
        """One URL per instance; where one is no voter, of a port on which nobody listens."""
        wanted, urls = set(voters), self.fleet.urls
        return [
            urls[index] if index in wanted else f"redis://{HOST}:{self._dead[index].number}"
            for index in range(len(urls))
        ]

    def slow_syncs(self, delay_s: float) -> None:
        """Let every sync of every instance take so much longer from now on."""
        for control in self._controls.values():
            control.set_sync_delay(round(delay_s * NS_PER_S))

    def end(self, victims: Sequence[int], kind: str) -> dict[int, int]:
        """End the victims, one right after the other; when (ns) each was told to."""
        told_ns = {}
        for index in victims:
            told_ns[index] = monotonic_ns()
            self.fleet.kill(index, signal.SIGTERM if kind == "shutdown" else signal.SIGKILL)
        return told_ns

    def examine(self, crash: Crash, ended_ns: Mapping[int, int], torn: Random) -> list[Ledger]:
        """Read the ledgers of the dead, cutting their files if the power went."""
        return [self._examine(index, ended_ns[index], crash, torn) for index in ended_ns]

    def _examine(self, index: int, ended_ns: int, crash: Crash, torn: Random) -> Ledger:
        control, instance = self._controls[index], self.fleet.instances[index]
        known = [control.synced(path) for path in append_only_files(instance.folder)]
        if crash.cuts_power:
            cut_power(instance, control, torn if crash.kind == "power-cut-torn" else None)
        written_ns = max((file.written_ns for file in known), default=0)
        return Ledger(
            index,
            in_flight=sum(file.in_flight for file in known),
            synced_after_write=any(file.synced_ns > file.written_ns > 0 for file in known),
            since_write_s=max(0, ended_ns - written_ns) / NS_PER_S if written_ns else None,
        )

    def known_to(self, index: int, keys: Sequence[str]) -> set[str]:
        """Which of `keys` this living instance knows. Raises EnvironmentNotReadyError."""
        if not keys:
            return set()
        try:
            with closing(Redis.from_url(self.fleet.urls[index], socket_timeout=_ANSWER_S)) as server:
                values = server.mget(keys)
        except RedisError as error:
            raise EnvironmentNotReadyError(f"instance {index} did not answer after its restart: {error}") from error
        return {key for key, value in zip(keys, values, strict=True) if value is not None}

    def kept_by(self, index: int, keys: Iterable[str]) -> set[str]:
        """Which of `keys` stand in the append-only file of this dead instance."""
        files = append_only_files(self.fleet.instances[index].folder)
        kept = keys_in(path.read_bytes() for path in files)
        return {key for key in keys if key in kept}


def append_only_files(folder: Path) -> list[Path]:
    """The increments of an instance's append-only file, in order of name."""
    return sorted(path for path in folder.rglob("*.aof") if ".base." not in path.name)


def keys_in(contents: Iterable[bytes]) -> set[str]:
    """The keys that are set when these append-only files are read like a server does: a command cut short is none."""
    keys: set[str] = set()
    for content in contents:
        reader = hiredis.Reader()
        reader.feed(content)
        while isinstance(command := _next(reader), list):
            name = command[0].upper()
            if name == b"SET":
                keys.add(command[1].decode())
            elif name in (b"DEL", b"UNLINK"):
                keys.difference_update(key.decode() for key in command[1:])
    return keys


def _next(reader: hiredis.Reader) -> object:
    try:
        return reader.gets()
    except hiredis.ProtocolError:
        return False
