"""The steps of an injected fault: *a planned fault → a prepared fleet → an active fault → an undone
fault*.

Rules: `prepared_fleet` prepares for faults before the servers start. The function prepares either
all instances or no instance, so that the instances stay comparable. If the shim or the DEBUG
command is not available, `prepared_fleet` raises no error. `refusal` then returns the reason for
each fault that needs the missing preparation.

`begin` returns when the fault is in force. `end` returns when the fault is undone. `end` is called
after every `begin`, even after a `begin` that failed half-way. So before each step, the code adds a
function to `undo`. This function undoes the step.

The table of a kind lists all params of this kind. A wrong param causes a ValueError. The function
that reads the faults of a scenario adds the position of the fault to the error's text.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.measure.server_facts import ServerBinary
from bench.scenario.keys import KeyKind
from bench.scenario.quantity import nearest
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.servants import Proxies
from bench.topology.server import find_server
from bench.topology.shim import IGNORED, Preload

NOT_OURS = "faults are possible only on servers that lockbench started"
# A function that returns the process id of each load worker, by the worker's index.
Workers = Callable[[], Mapping[int, int]]


class Need(StrEnum):
    """A preparation that a fault needs before the servers start."""

    SHIM = "shim"
    PROXY = "proxy"
    DEBUG = "debug"


def prepared_fleet(
    needs: frozenset[Need],
    instances: int = 1,
    fsync: str = "everysec",
    server: ServerBinary | None = None,
    *,
    seed: int = 0,
) -> Fleet:
    """Return a running fleet on which faults with these needs are possible.

    If the needs include proxies, each instance is behind a proxy. `seed` decides the jitter of the
    proxies. Raises the same errors as `start_fleet`.
    """
    server = server or find_server()
    missing = dict[str, str]()
    preload = None
    config = list[str]()
    if Need.SHIM in needs:
        try:
            preload = Preload()
        except BenchError as error:
            missing[Need.SHIM] = str(error)
    if Need.DEBUG in needs:
        if server.name == "redis" and int(server.version.partition(".")[0]) < 7:
            missing[Need.DEBUG] = f"the fault needs Redis 7.0 or Valkey, but the server is {server}"
        else:
            debug = "--enable-debug-command local --loading-process-events-interval-bytes 1024"
            config = debug.split()
    environment = preload.environment if preload else None
    fleet = start_fleet(instances, fsync, server=server, config=config, environment=environment)
    fleet.missing = missing
    fleet.controls = preload.controls if preload else {}
    if Need.PROXY in needs:
        try:
            fleet.proxies = Proxies([instance.port for instance in fleet.instances], seed)
        except BaseException:
            fleet.close()
            raise
    return fleet


# The final params of a fault, after the kind's table was applied: numbers (times in ms) and words.
Params = dict[str, Any]
# For each param: the kind that reads it, and its default in the form of a scenario (None: no
# default).
Table = Mapping[str, tuple[KeyKind, object]]


def read_params(table: Table, written: Mapping[str, object]) -> Params:
    """Return a value for every param of the table. A param that is not in `written` has its
    default. Raises ValueError."""
    for name in written:
        if name not in table:
            choices = f"it has {', '.join(table)}" if table else "it has none"
            raise ValueError(f"there is no param {name!r} ({choices}){nearest(name, table)}")
    values: Params = {}
    for name, (kind, default) in table.items():
        raw = written.get(name, default)
        if raw is None:
            raise ValueError(
                f"it needs a value for {name}, for example params = {{{name} = {kind.metavar}}}"
            )
        try:
            values[name] = kind.parse(raw)
        except ValueError as error:
            raise ValueError(f"param {name!r}: {error}") from None
    return values


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """One planned fault on one target. All random values and all defaults are already decided.

    `noun`: "instance" or "worker". `index`: the number of the target, from 0. All times begin at
    the start of the measured window. `lasts_ms`: the duration of the fault. If `lasts_ms` is None,
    the fault lasts to the end of the window. `params`: all params of the fault, including the
    defaults. `written`: the params that the scenario contains, without defaults.
    """

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
        """The name of the target in scenarios, such as "instance:0"."""
        return f"{self.noun}:{self.index}"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    `lasts` decides whether a scenario may, must or cannot set the duration `for` of the fault. If a
    scenario cannot set `for`, the fault lasts as long as its param `delay`. Without the param
    `delay`, the fault has no duration. `check`: a function that raises ValueError if params
    contradict each other. `require`: a function that raises BenchError if the fault is impossible
    on this fleet. `needs`: the preparations that the fault needs. `refusal` also checks these
    preparations.
    """

    begin: Callable[["Injection"], None]
    params: Table = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()
    lasts: Literal["may", "must", "cannot"] = "may"
    check: Callable[[Params], None] = lambda _params: None
    require: Callable[[Fleet], None] = lambda _fleet: None


class Injection:
    """An ordered fault, with the times and the errors of its injection. All times are monotonic, in
    ns.

    The fault took effect at a time between `begun_ns` and `in_force_ns`. `skipped`: the reason why
    the fault never began. `failed`: an error of `begin` or `end`. `undo`: the functions that `end`
    calls, in reverse order. `detail`: further facts for the result.
    """

    skipped: str | None = None
    failed: str | None = None
    begun_ns: int | None = None
    in_force_ns: int | None = None
    ended_ns: int | None = None

    def __init__(
        self, fleet: Fleet | None, order: FaultOrder, kind: FaultKind, workers: Workers = dict
    ) -> None:
        """Create the fault that `order` describes. `fleet` is None if lockbench did not start the
        servers."""
        self._fleet = fleet
        self.order = order
        self.kind = kind
        self.workers = workers
        self.index = order.index
        self.params = order.params
        self.detail: Params = {}
        self.undo = ExitStack()

    @property
    def fleet(self) -> Fleet:
        """The servers of the run. Raises UsageError if lockbench did not start the servers."""
        if self._fleet is None:
            raise UsageError(NOT_OURS)
        return self._fleet

    def refusal(self) -> BenchError | None:
        """Return an error if the fault cannot be injected in this run. Return None if the fault can
        be injected. Call this before the load starts.

        The error is a UsageError if the fault does not fit the servers of the run.
        """
        if self.order.noun == "worker":
            # `begin` checks that the worker runs.
            return None
        try:
            self.kind.require(self.fleet)
            for need in sorted(self.kind.needs & self.fleet.missing.keys()):
                raise EnvironmentNotReadyError(self.fleet.missing[need])
            if Need.SHIM in self.kind.needs:
                # A wrapper may have started the server, so the server reports its own pid.
                pid = self.fleet.info(self.index)["process_id"]
                if not self.fleet.control(self.index).loaded_in(pid):
                    raise EnvironmentNotReadyError(IGNORED)
        except BenchError as error:
            return error
        return None

    def begin(self) -> None:
        """Begin the fault. Raises BenchError or OSError."""
        self.kind.begin(self)

    def end(self) -> None:
        """Undo the fault. Raises BenchError or OSError."""
        self.undo.close()
