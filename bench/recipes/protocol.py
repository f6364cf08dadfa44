"""What every lock under test looks like to the load: *targets and settings → acquire, release,
figures*.

Rules
- `acquire` and `release` are attributes, so that a recipe may hand out its library's own bound
  methods and the hot path pays for no wrapper. All recipes answer in lockcore's values (`Lease`,
  `Denied`, `Outcome`), so that the record, the oracle and the statistics never ask which lock it
  was.
- A recipe calls `pause("after-get")` at each of its points. Unless somebody asked for one, that is
  a call of an empty function. A scenario's pause sleeps on its share of the passes, drawn from the
  seed and the process: a run repeats. A gate is told of every pass and returns when the caller may
  go on: how a test or a schedule makes a race certain.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar, Protocol, Self

from bench.scenario import Pause
from lockcore import Denied, InstanceStatus, Lease, Outcome, RetryPolicy

# Every recipe has these points: the holder stalls at work, or its release is held up.
COMMON_POINTS = ("after-grant", "before-release")


@dataclass(frozen=True, slots=True)
class About:
    """`how` it locks; `flaw`: the one fault it is known for, or "none" and within what; `safe`:
    never two valid leases.

    `least` … `most` instances (None: any number), `usual` when nothing is said. `points`: its own
    pause points, in the order they are passed. `replicated`: the instances after the first must be
    replicas of the first. `channels`: it publishes on channels that are named as its keys.
    `counts`: it lets as many hold a resource as it is told.
    """

    how: str
    flaw: str
    safe: bool
    least: int = 1
    most: int | None = 1
    usual: int = 1
    points: tuple[str, ...] = ()
    replicated: bool = False
    channels: bool = False
    counts: bool = False

    @property
    def all_points(self) -> tuple[str, ...]:
        """Its own pause points and those of every recipe."""
        return (*self.points, *COMMON_POINTS)

    @property
    def instances(self) -> str:
        """How many instances it locks on, in words: `1`, `2 or more`, `any number`."""
        if self.most == self.least:
            return str(self.least)
        if self.most is None:
            return "any number" if self.least == 1 else f"{self.least} or more"
        return f"{self.least} to {self.most}"


Reach = Callable[[str], None]


def reach_of(pauses: Sequence[Pause], seed: int, process: int, gate: Reach | None = None) -> Reach:
    """What a recipe of the given process calls at its points; `pass_by` itself when nothing can
    happen there."""
    if not pauses:
        return gate or pass_by
    stretches: dict[str, list[tuple[float, float, Random]]] = {}
    for number, pause in enumerate(pauses):
        rng = Random(f"{seed} {process} {number}")
        stretches.setdefault(pause.point, []).append((pause.share, pause.ms / 1000, rng))

    def reach(point: str) -> None:
        if gate is not None:
            gate(point)
        for share, seconds, rng in stretches.get(point, ()):
            if rng.random() < share:
                time.sleep(seconds)

    return reach


def pass_by(_point: str) -> None:
    """Nobody is held up anywhere."""


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """What a lock is told at connect. `max_ttl_ms` ≥ every TTL; `instance_timeout_ms` None =
    min(50, TTL ÷ 4).

    `pause` stretches pause points, drawn from `seed` and `process` (which worker this is); `gate`
    is told of every pass of a point and lets the caller go on. `skew_ms`: how far this client's
    wall clock is ahead. `folder`: one that all processes of the run share. `fencing`: leases carry
    fencing tokens, if the recipe can. `capacity`: how many may hold a resource. `attempts`: the
    folder that observed attempts go to, for telemetry.
    """

    key_prefix: str = ""
    max_ttl_ms: int = 10_000
    instance_timeout_ms: float | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    rejoin: str = "trust-first"
    connect_timeout_s: float = 1.0
    pause: tuple[Pause, ...] = ()
    seed: int = 1
    process: int = 0
    gate: Reach | None = None
    skew_ms: int = 0
    folder: Path | None = None
    fencing: bool = False
    capacity: int = 1
    attempts: Path | None = None


Acquire = Callable[[str, int, int], Lease | Denied]
Release = Callable[[Lease], Outcome]


class Recipe(Protocol):
    """A connected lock."""

    @property
    def acquire(self) -> Acquire:
        """Lock a resource for `ttl_ms`, trying for up to `wait_ms`; a cancelled call leaves nothing
        held."""

    @property
    def release(self) -> Release:
        """Give a lease back: RELEASED, GONE or UNREACHABLE."""

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as this client sees it now."""

    @property
    def figures(self) -> Mapping[str, int]:
        """What the recipe counted of itself since `connect`, by name; most count nothing."""

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """Per instance: how long (ns) its sampled replies took since the last call."""

    def close(self) -> None:
        """Send what is queued and close the connections. Idempotent."""


class RecipeClass(Recipe, Protocol):
    """What a recipe's own class has besides."""

    about: ClassVar[About]

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect to the instances of `targets` (URLs), in the process that uses them.

        Raises UsageError for what the recipe cannot do with these targets or settings,
        EnvironmentNotReadyError when too few instances can be used; neither names a password.
        """
