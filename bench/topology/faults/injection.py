"""One fault on one target: *begin → it is broken; end → it is whole; why_not → why this machine cannot*.

Rules: `begin` returns once the fault is in force, `end` once it is undone. `end` is called after every `begin`, also
one that failed half-way: what undoes a step is put on `undo` before the step is taken. Every kind lists its params
once; every refusal is a ValueError, to which the reader of faults adds the place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.scenario.keys import KeyKind
from bench.scenario.quantity import nearest
from bench.topology.faults.site import Need, Site

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


class Injection(ABC):
    """What every kind of fault is. `undo`: what `end` does, the last first."""

    params: ClassVar[Sequence[Param]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self, site: Site, order: FaultOrder) -> None:
        self.site = site
        self.order = order
        self.index = order.index
        self.detail: dict[str, object] = {}
        self.undo = ExitStack()

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """How long it lasts when a scenario says `for_ms`. Raises ValueError when the two do not go together."""
        return for_ms

    def why_not(self) -> str | None:
        """Why this machine cannot inject it here, or None. Asked before the load. Raises UsageError."""
        return self.site.why_not(self.index, self.needs)

    def refusal(self) -> BenchError | None:
        """What `why_not` says or raises: a UsageError where the order is at fault, else of the environment."""
        try:
            reason = self.why_not()
        except BenchError as error:  # it cannot even be asked
            return error
        return None if reason is None else EnvironmentNotReadyError(reason)

    @abstractmethod
    def begin(self) -> None:
        """Break it. Raises BenchError or OSError."""

    def end(self) -> None:
        """Undo it. Raises BenchError or OSError."""
        self.undo.close()


class Moment(Injection):
    """A fault that happens at once and leaves nothing to undo."""

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """No time at all."""
        if for_ms is not None:
            raise ValueError("it happens at once; take `for` out")
        return 0.0


class Delayed(Injection):
    """A fault whose own param `delay` says how long it lasts."""

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """As long as the delay."""
        if for_ms is not None:
            raise ValueError("it lasts as long as its param `delay` says; take `for` out")
        return float(params["delay"])
