"""What a fault is, and where it happens: *an order → a fleet prepared for it, its handles → broken, and whole again*.

Rules: what faults need is prepared before the servers start, for all instances or none, so that they stay comparable:
`prepared_fleet`. What cannot be prepared is not an error: the faults that need it say why they are skipped. `begin`
returns once the fault is in force, `end` once it is undone; `end` is called after every `begin`, also one that failed
half-way: what undoes a step is put on `undo` before the step is taken. Every kind lists its params once; every refusal
is a ValueError, to which the reader of faults adds the place.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import redis

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.measure.run_result import ServerBinary
from bench.scenario.quantity import KeyKind, nearest
from bench.topology.child import Proxies
from bench.topology.fleet import HOST, Fleet, start_fleet, wait_until
from bench.topology.probe import Info
from bench.topology.server import find_server
from bench.topology.shim import IGNORED, Control, Preload
from bench.topology.target import client_of, parse_targets

NOT_OURS = "it is not ours: faults are injected only into servers that lockbench started"
_ANSWER_S = 2.0
_SETTLE_S = 5.0


class Need(StrEnum):
    """What must be prepared before the servers start."""

    SHIM = "shim"
    PROXY = "proxy"
    DEBUG = "debug"


@dataclass(slots=True)
class Site:
    """One fleet and everything around it, or no fleet of ours. `missing`: why a need could not be prepared;
    `workers`: each load worker's process id by its index."""

    started: Fleet | None = None
    preload: Preload | None = None
    before: Proxies | None = None
    missing: Mapping[Need, str] = field(default_factory=dict)
    workers: Callable[[], Mapping[int, int]] = dict
    locks: dict[int, threading.RLock] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """What qualifies every number measured here, because of what was prepared."""
        behind = "every instance stands behind a proxy: rates are lower and latencies higher than without"
        return [behind] if self.before is not None else []

    @property
    def fleet(self) -> Fleet:
        """The started fleet. Raises UsageError when the servers are not ours."""
        if self.started is None:
            raise UsageError(NOT_OURS)
        return self.started

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the load connects: the proxies if there are any, else the instances."""
        if self.before is None:
            return self.fleet.urls
        return tuple(f"redis://{HOST}:{port}" for port in self.before.ports)

    @property
    def proxies(self) -> Proxies:
        """The proxies before all instances, if they were needed."""
        assert self.before is not None
        return self.before

    def control(self, index: int) -> Control:
        """Instance `index`'s shim. Raises EnvironmentNotReadyError when there is none."""
        if self.preload is None:
            raise EnvironmentNotReadyError(self.missing.get(Need.SHIM, "no shim was prepared for this fleet"))
        return self.preload.controls[index]

    def lock(self, index: int) -> threading.RLock:
        """Hold it while instance `index` is started or ended: faults run in threads of their own."""
        return self.locks.setdefault(index, threading.RLock())

    def restart(self, index: int) -> None:
        """Start instance `index` again, and return when it answers."""
        with self.lock(index):
            self.fleet.restart(index)

    # -- talking to an instance ---------------------------------------------------------------------------------------

    def command(self, index: int, *words: str | int, timeout_s: float = _ANSWER_S) -> Any:
        """One command to instance `index` itself, never through a proxy. Raises EnvironmentNotReadyError."""
        return self.commands(index, [words], timeout_s=timeout_s)[0]

    def commands(self, index: int, batch: Sequence[Sequence[str | int]], *, timeout_s: float = _ANSWER_S) -> list[Any]:
        """Many commands at once, in order; their replies. Raises EnvironmentNotReadyError at the first refusal."""
        with self._client(index, timeout_s) as client:
            pipeline = client.pipeline(transaction=False)
            for words in batch:
                pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
            return list(pipeline.execute())

    def info(self, index: int) -> Info:
        """Instance `index`'s INFO. Raises EnvironmentNotReadyError."""
        with self._client(index) as client:
            return client.info("all")

    def database_file(self, index: int) -> Path:
        """Where instance `index` puts its snapshots. Raises EnvironmentNotReadyError."""
        with self._client(index) as client:
            return self.fleet.instances[index].folder / str(client.config_get("dbfilename")["dbfilename"])

    def configure(self, index: int, settings: Mapping[str, str]) -> dict[str, str]:
        """CONFIG SET all of `settings`; return what they were. Raises EnvironmentNotReadyError."""
        with self._client(index) as client:
            before = {name: str(client.config_get(name).get(name, "")) for name in settings}
            for name, value in settings.items():
                client.config_set(name, value)
        return before

    def until(self, index: int, reached: Callable[[Info], bool], what: str) -> None:
        """Wait until instance `index`'s INFO says so, 5 s at most. Raises EnvironmentNotReadyError with `what`."""
        wait_until(lambda: reached(self.info(index)), _SETTLE_S, f"instance {index} did not {what}")

    @contextlib.contextmanager
    def _client(self, index: int, timeout_s: float = _ANSWER_S) -> Iterator[redis.Redis]:
        try:
            with client_of(parse_targets([self.fleet.urls[index]])[0], timeout_s) as client:
                yield client
        except redis.RedisError as error:
            raise EnvironmentNotReadyError(
                f"instance {index} did not do it: {error or type(error).__name__}"
            ) from error


@contextlib.contextmanager
def prepared_fleet(
    needs: frozenset[Need], instances: int = 1, fsync: str = "everysec", server: ServerBinary | None = None,
    *, seed: int = 0,
) -> Iterator[Site]:  # fmt: skip
    """A running fleet that faults with these needs may strike, through proxies if they are needed, as the site around
    it. `seed` drives their jitter. Raises as `start_fleet`."""
    server, missing = server or find_server(), dict[Need, str]()
    preload, before, config = None, None, list[str]()
    with ExitStack() as stack:
        if Need.SHIM in needs:
            try:
                preload = Preload()
            except BenchError as error:
                missing[Need.SHIM] = str(error)
        if Need.DEBUG in needs:
            if server.name == "redis" and int(server.version.partition(".")[0]) < 7:
                missing[Need.DEBUG] = f"it needs Redis 7.0 or Valkey, and this is {server}"
            else:
                config = ["--enable-debug-command", "local", "--loading-process-events-interval-bytes", "1024"]
        environment = preload.environment if preload else None
        fleet = stack.enter_context(
            start_fleet(instances, fsync, server=server, config=config, environment=environment)
        )
        if Need.PROXY in needs:
            before = stack.enter_context(Proxies([instance.port for instance in fleet.instances], seed))
        yield Site(fleet, preload, before, missing)


# -- one fault ---------------------------------------------------------------------------------------------------------

Params = dict[str, Any]
"""The resolved params of a fault: numbers (times in ms), words and flags, as the kind's table says."""


Table = Mapping[str, tuple[KeyKind, object]]
"""The params of a kind: how each is read, and its default as one would write it (None = must be given)."""


def read_params(table: Table, given: Mapping[str, object]) -> Params:
    """Return every param of the table with its value, the defaults filled in. Raises ValueError."""
    for name in given:
        if name not in table:
            known = f"it has {', '.join(table)}" if table else "it has none"
            raise ValueError(f"there is no param {name!r} ({known}){nearest(name, table)}")
    values: Params = {}
    for name, (kind, default) in table.items():
        raw = given.get(name, default)
        if raw is None:
            raise ValueError(f"it needs the param {name!r}")
        try:
            values[name] = kind.parse(raw)
        except ValueError as error:
            raise ValueError(f"param {name!r}: {error}") from None
    return values


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """One fault of a timeline on one target, resolved: `noun` "instance" or "worker", `index` from 0, times from the
    start of the measured window; `lasts_ms` None = to the window's end; `params` as the kind's table resolves them,
    `written` as they were given."""

    kind: str
    noun: str
    index: int
    at_ms: float = 0.0
    lasts_ms: float | None = None
    params: Params = field(default_factory=dict)
    written: Mapping[str, object] = field(default_factory=dict)
    phase: str = "fixed"

    @property
    def target(self) -> str:
        """The target as scenarios name it."""
        return f"{self.noun}:{self.index}"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. `lasts`: whether a scenario may, must or cannot say `for` how long (then it lasts as long as
    its param `delay`, if it has one); `check` raises ValueError where params do not go together, `require` BenchError
    where it cannot be, besides its `needs`."""

    begin: Callable[["Injection"], None]
    params: Table = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()
    lasts: Literal["may", "must", "cannot"] = "may"
    check: Callable[[Params], None] = lambda _params: None
    require: Callable[[Fleet], None] = lambda _fleet: None


class Injection:
    """A fault that was ordered, and what became of it (monotonic ns): it began between `begun_ns` and `in_force_ns`.
    `skipped`: why it never began; `failed`: what went wrong while it began or was undone; `undo`: what `end` does, the
    last first; `detail`: what else the result says of it."""

    skipped: str | None = None
    failed: str | None = None
    begun_ns: int | None = None
    in_force_ns: int | None = None
    ended_ns: int | None = None

    def __init__(self, site: Site, order: FaultOrder, kind: FaultKind) -> None:
        self.site, self.order, self.kind = site, order, kind
        self.index, self.params = order.index, order.params
        self.detail: Params = {}
        self.undo = ExitStack()

    def refusal(self) -> BenchError | None:
        """Why it cannot be injected here, or None; asked before the load. A UsageError where the order is at fault."""
        if self.order.noun == "worker":
            return None  # whether it runs is seen when the fault begins
        try:
            self.kind.require(self.site.fleet)
            for need in sorted(self.kind.needs & self.site.missing.keys()):
                raise EnvironmentNotReadyError(self.site.missing[need])
            if Need.SHIM in self.kind.needs:
                pid = self.site.info(self.index)["process_id"]  # a wrapper may have started it
                if not self.site.control(self.index).loaded_in(pid):
                    raise EnvironmentNotReadyError(IGNORED)
        except BenchError as error:
            return error
        return None

    def begin(self) -> None:
        """Break it. Raises BenchError or OSError."""
        self.kind.begin(self)

    def end(self) -> None:
        """Undo it. Raises BenchError or OSError."""
        self.undo.close()
