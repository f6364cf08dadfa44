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
from typing import Any, Self

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
Workers = Callable[[], Mapping[int, int]]


class Need(StrEnum):
    """What must be prepared before the servers start."""

    SHIM = "shim"
    PROXY = "proxy"
    DEBUG = "debug"


class Site:
    """One fleet and everything around it, or no fleet of ours. A context manager."""

    def __init__(self, needs: frozenset[Need] = frozenset(), *, workers: Workers = dict, seed: int = 0) -> None:
        """Prepare for `needs`. `workers` tells each load worker's process id by its index; `seed` drives jitter."""
        self._needs, self._seed = needs, seed
        self.workers = workers
        self._fleet: Fleet | None = None
        self._locks: dict[int, threading.RLock] = {}
        self._missing: dict[Need, str] = {}
        self._preload: Preload | None = None
        self._proxies: Proxies | None = None

    def start(self, instances: int, fsync: str, server: ServerBinary | None = None) -> None:
        """Start the fleet: from now on faults may strike it, through proxies if they are needed. As `start_fleet`."""
        server, environment = server or find_server(), None
        config: Sequence[str] = ()
        if Need.SHIM in self._needs:
            try:
                self._preload = Preload()
                environment = self._preload.environment
            except BenchError as error:
                self._missing[Need.SHIM] = str(error)
        if Need.DEBUG in self._needs:
            if server.name == "redis" and int(server.version.partition(".")[0]) < 7:
                self._missing[Need.DEBUG] = f"it needs Redis 7.0 or Valkey, and this is {server}"
            else:
                config = ("--enable-debug-command", "local", "--loading-process-events-interval-bytes", "1024")
        self._fleet = start_fleet(instances, fsync, server=server, config=config, environment=environment)
        if Need.PROXY in self._needs:
            self._proxies = Proxies([instance.port for instance in self._fleet.instances], self._seed)

    def warnings(self) -> list[str]:
        """What qualifies every number measured here, because of what was prepared."""
        behind = "every instance stands behind a proxy: rates are lower and latencies higher than without"
        return [behind] if self._proxies is not None else []

    def close(self) -> None:
        """End the fleet, and let go of everything. More than once is fine."""
        for part in (self._proxies, self._fleet, self._preload):
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    # -- what faults act on -------------------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The started fleet. Raises UsageError when the servers are not ours."""
        if self._fleet is None:
            raise UsageError(NOT_OURS)
        return self._fleet

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the load connects: the proxies if there are any, else the instances."""
        if self._proxies is None:
            return self.fleet.urls
        return tuple(f"redis://{HOST}:{port}" for port in self._proxies.ports)

    @property
    def proxies(self) -> Proxies:
        """The proxies before all instances, if they were needed."""
        assert self._proxies is not None
        return self._proxies

    def control(self, index: int) -> Control:
        """Instance `index`'s shim. Raises EnvironmentNotReadyError when there is none."""
        if self._preload is None:
            raise EnvironmentNotReadyError(self._missing.get(Need.SHIM, "no shim was prepared for this fleet"))
        return self._preload.controls[index]

    def lock(self, index: int) -> threading.RLock:
        """Hold it while instance `index` is started or ended: faults run in threads of their own."""
        return self._locks.setdefault(index, threading.RLock())

    def restart(self, index: int) -> None:
        """Start instance `index` again, and return when it answers."""
        with self.lock(index):
            self.fleet.restart(index)

    def why_not(self, index: int, needs: frozenset[Need]) -> str | None:
        """Why faults with these needs cannot act on instance `index`, or None. Raises UsageError if it is not ours."""
        if missing := sorted(needs & self._missing.keys()):
            return self._missing[missing[0]]
        if Need.SHIM in needs and not self.control(index).loaded_in(self.info(index)["process_id"]):
            return IGNORED
        return None

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
    """A running fleet that faults with these needs may strike, as the site around it. Raises as `start_fleet`."""
    with Site(needs, seed=seed) as site:
        site.start(instances, fsync, server)
        yield site


# -- one fault ---------------------------------------------------------------------------------------------------------

Params = dict[str, Any]
"""The resolved params of a fault: numbers (times in ms), words and flags, as the kind's table says."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter: `default` as one would write it (None = must be given)."""

    name: str
    kind: KeyKind
    default: object
    help: str


def read_params(table: Sequence[Param], given: Mapping[str, object]) -> Params:
    """Return every param of the table with its value, the defaults filled in. Raises ValueError."""
    names = [param.name for param in table]
    for name in given:
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none"
            raise ValueError(f"there is no param {name!r} ({known}){nearest(name, names)}")
    values: Params = {}
    for param in table:
        raw = given.get(param.name, param.default)
        if raw is None:
            raise ValueError(f"it needs the param {param.name!r}: {param.help}")
        try:
            values[param.name] = param.kind.parse(raw)
        except ValueError as error:
            raise ValueError(f"param {param.name!r}: {error}") from None
    return values


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """One fault of a timeline on one target, resolved: `noun` "instance" or "worker", `index` from 0, times from the
    start of the measured window; `lasts_ms` None = to the window's end; `params` as the kind's table resolves them,
    `written` as they were given; `seed` drives what the fault itself draws."""

    kind: str
    noun: str
    index: int
    at_ms: float = 0.0
    lasts_ms: float | None = None
    params: Params = field(default_factory=dict)
    written: Mapping[str, object] = field(default_factory=dict)
    phase: str = "fixed"
    seed: str = "0"

    @property
    def target(self) -> str:
        """The target as scenarios name it."""
        return f"{self.noun}:{self.index}"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. `lasts_ms`: how long it lasts when a scenario says `for_ms`, a ValueError where that and the
    params do not go together; `hindrance`: why it cannot be here, besides its `needs`, or a UsageError."""

    begin: Callable[["Injection"], None]
    params: tuple[Param, ...] = ()
    needs: frozenset[Need] = frozenset()
    lasts_ms: Callable[[float | None, Params], float | None] = lambda for_ms, _params: for_ms
    hindrance: Callable[[Fleet], str | None] = lambda _fleet: None


class Injection:
    """A fault that was ordered. `undo`: what `end` does, the last first; `detail`: what the result says of it."""

    def __init__(self, site: Site, order: FaultOrder, kind: FaultKind) -> None:
        self.site, self.order, self.kind = site, order, kind
        self.index, self.params = order.index, order.params
        self.detail: dict[str, object] = {}
        self.undo = ExitStack()

    def why_not(self) -> str | None:
        """Why this machine cannot inject it here, or None. Asked before the load. Raises UsageError."""
        if self.order.noun == "worker":
            return None  # whether it runs is seen when the fault begins
        return self.kind.hindrance(self.site.fleet) or self.site.why_not(self.index, self.kind.needs)

    def refusal(self) -> BenchError | None:
        """What `why_not` says or raises: a UsageError where the order is at fault, else of the environment."""
        try:
            reason = self.why_not()
        except BenchError as error:  # it cannot even be asked
            return error
        return None if reason is None else EnvironmentNotReadyError(reason)

    def begin(self) -> None:
        """Break it. Raises BenchError or OSError."""
        self.kind.begin(self)

    def end(self) -> None:
        """Undo it. Raises BenchError or OSError."""
        self.undo.close()
