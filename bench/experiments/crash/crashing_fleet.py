"""Where crashes happen: *N, AOF policy → a fleet under the shim, ended and brought back by order*; the shim checked.

Rules
- Every server has the shim, which notes appends and syncs; a power cut keeps what the ledger calls durable, the worst
  case. What an instance still knows is asked of the server itself, or read from its append-only file as a server would:
  whole commands only. All of it blocks and is for one thread at a time.
- The check against a real file system: locks are taken one after the other until the server is frozen; then the file
  system is shut down hard, mounted again, and the append-only file read, beside what the ledger calls durable at that
  moment. They agree when the ledger never promises more than the disk kept, and both show the policy's pattern: `no`
  loses all, everysec some, always none. Where there is no root or no loop device it is skipped, with that reason.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

import hiredis
from redis import Redis, RedisError

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.crash.judge import Ledger
from bench.experiments.crash.plan import Crash
from bench.experiments.crash.result import Compared, CrossCheck, Policy
from bench.topology.disk import LoopDisk
from bench.topology.faults.machine import cut_power
from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet
from bench.topology.server import ServerBinary
from bench.topology.shim import IGNORED, LIBRARY_FILE, Control, Preload, shim_library
from lockcore.clock import NS_PER_S, monotonic_ns

NO_REWRITE = ("--auto-aof-rewrite-percentage", "0")
_ANSWER_S = 10.0
COMPARED: tuple[Policy, ...] = ("no", "everysec", "always")
_LOAD_S = (1.2, 2.1)
_KEY, _TTL_MS = "lockbench:check:", 60_000


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


# -- the shim against a real file system -------------------------------------------------------------------------------


def cross_check(server: ServerBinary, show: Callable[[str], None], seed: int = 1) -> CrossCheck:
    """Look whether they agree."""
    found: list[Compared] = []
    for policy in COMPARED:
        show(f"shim: checked against ext4 that is shut down, {policy}")
        try:
            found.append(compare(server, policy, Random(f"{seed} {policy}")))
        except (BenchError, OSError, RedisError) as error:
            return CrossCheck("skipped", str(error), tuple(found))
    return agreement(found)


def agreement(found: Sequence[Compared]) -> CrossCheck:
    """Whether shim and file system agree."""
    wrong = [f"{one.policy}: {reason}" for one in found for reason in _differences(one)]
    return CrossCheck("differs" if wrong else "agrees", "; ".join(wrong) or None, tuple(found))


def _differences(one: Compared) -> Iterator[str]:
    if one.durable_bytes > one.kept_bytes:
        yield f"the ledger promised {one.durable_bytes:,} bytes, the disk kept {one.kept_bytes:,}"
    patterns: Mapping[str, Callable[[int], bool]] = {
        "no": lambda lost: lost == one.acknowledged,
        "everysec": lambda lost: lost > 0,
        "always": lambda lost: lost == 0,
    }
    for name, lost in (("the disk", one.lost), ("the shim", one.lost_by_shim)):
        if not one.acknowledged or not patterns[one.policy](lost):
            yield f"{name} lost {lost:,} of {one.acknowledged:,} locks"


def compare(server: ServerBinary, policy: Policy, rng: Random) -> Compared:
    """Cut the power of one server on a disk of its own. Raises BenchError, OSError or RedisError."""
    with LoopDisk() as disk:
        with _server_on(disk, server, policy) as (fleet, control):
            acknowledged = _load(fleet, rng.uniform(*_LOAD_S))
            fleet.stop(0)
            files = append_only_files(disk.folder)
            written = b"".join(path.read_bytes() for path in files)
            durable = sum(control.synced(path).durable_bytes for path in files)
            disk.cut_power()
            fleet.kill(0)
        disk.mount_again()
        kept = append_only_files(disk.folder)
        on_disk, by_shim = keys_in(path.read_bytes() for path in kept), keys_in([written[:durable]])
        return Compared(
            policy,
            len(acknowledged),
            len(acknowledged - on_disk),
            len(acknowledged - by_shim),
            sum(path.stat().st_size for path in kept),
            durable,
        )


@contextmanager
def _server_on(disk: LoopDisk, server: ServerBinary, policy: str) -> Iterator[tuple[Fleet, Control]]:
    """One server whose files are on `disk`; the ledger is not, as it must outlive it."""
    controls: list[Control] = []

    def environment(_index: int, folder: Path) -> Mapping[str, str]:
        disk.take_the_place_of(folder)
        (folder / LIBRARY_FILE).write_bytes(shim_library())
        control = Control(folder.parent / "ledger.map")
        controls.append(control)
        return {"LD_PRELOAD": f"./{LIBRARY_FILE}", "LOCKBENCH_SHIM": str(control.path)}

    try:
        with start_fleet(1, policy, server=server, environment=environment, config=NO_REWRITE) as fleet:
            yield fleet, controls[0]
    finally:
        for control in controls:
            control.close()


def _load(fleet: Fleet, load_s: float) -> set[str]:
    """Take locks one after the other for so long; the keys that were acknowledged."""
    until_ns = monotonic_ns() + round(load_s * NS_PER_S)
    keys: set[str] = set()
    with Redis.from_url(fleet.urls[0]) as client:
        while monotonic_ns() < until_ns:
            key = f"{_KEY}{len(keys)}"
            if client.set(key, "owner", nx=True, px=_TTL_MS):
                keys.add(key)
    return keys
