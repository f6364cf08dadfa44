"""One fault on one target: *begin → it is broken; end → it is whole; why_not → why this machine cannot*.

Rules: `begin` returns once the fault is in force, `end` once it is undone; both within seconds, both only touching what
lockbench started. `end` is called after every `begin`, also one that failed half-way, so it undoes whatever it finds.
`detail` holds what is worth recording besides the times. Source: issue "judge safety", README's list of kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bench.topology.faults.params import Param, Params
from bench.topology.faults.site import Need, Site


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
    params: Params = field(default_factory=Params)
    written: Mapping[str, object] = field(default_factory=dict)
    phase: str = "fixed"
    seed: str = "0"

    @property
    def target(self) -> str:
        """The target as scenarios name it."""
        return f"{self.noun}:{self.index}"


class Injection(ABC):
    """What every kind of fault is."""

    params: ClassVar[Sequence[Param]] = ()
    always_needs: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self, site: Site, order: FaultOrder) -> None:
        self.site = site
        self.order = order
        self.index = order.index
        self.detail: dict[str, object] = {}

    @classmethod
    def needs(cls, params: Params) -> frozenset[Need]:
        """What must be prepared for it, given its resolved params."""
        return cls.always_needs

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """How long it lasts when a scenario says `for_ms`. Raises ValueError when the two do not go together."""
        return for_ms

    def why_not(self) -> str | None:
        """Why this machine cannot inject it here, or None. Asked once everything runs, before the load.

        Raises UsageError when it does not go together with the servers that were ordered.
        """
        return self.site.why_not(self.index, self.needs(self.order.params))

    @abstractmethod
    def begin(self) -> None:
        """Break it. Raises BenchError or OSError."""

    @abstractmethod
    def end(self) -> None:
        """Undo it. Raises BenchError or OSError."""


class Moment(Injection):
    """A fault that happens at once and leaves nothing to undo."""

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """No time at all."""
        if for_ms is not None:
            raise ValueError("it happens at once; take `for` out")
        return 0.0

    def end(self) -> None:
        """Nothing to undo."""


class Delayed(Injection):
    """A fault whose own param `delay` says how long it lasts."""

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """As long as the delay."""
        if for_ms is not None:
            raise ValueError("it lasts as long as its param `delay` says; take `for` out")
        return params.number("delay")
