"""What every lock under test looks like to the load: *targets and settings → acquire, release,
figures*.

Rules
- `acquire` and `release` are attributes. A recipe may hand out its library's own bound methods, and
  the hot path pays for no wrapper.
- All recipes answer in lockcore's values (`Lease`, `Denied`, `Outcome`). Therefore the record, the
  oracle and the statistics never ask which lock answered.
- A recipe calls a function at each of its pause points, for example `pause("after-get")`. Without
  pauses and without a gate this function is empty.
- A pause of the scenario sleeps on a share of the calls. The seed and the process number decide
  which calls sleep, so a run can be repeated.
- A gate receives every call and returns when the caller may go on. A test or a schedule uses a gate
  to make a race certain.
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
    """The facts about a recipe.

    `how`: how the recipe locks. `flaw`: its one known fault, or "none" and the limits within which
    this holds. `safe`: two leases are never valid at once.

    `least` … `most`: the number of instances it can lock on (None: any number). `usual`: the
    number if the user gives none. `points`: its own pause points, in the order in which a caller
    passes them. `replicated`: the other instances must be replicas of the first. `channels`: it
    publishes on channels that have the names of its keys. `counts`: its settings decide how many
    callers may hold a resource at once. `shares`: it has two sides, readers and a writer
    (`SharedRecipe`). `beside`: suffixes of the keys that it has beside the key of a resource.
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
    shares: bool = False
    beside: tuple[str, ...] = ()

    def suffixes(self, capacity: int) -> tuple[str, ...]:
        """The suffixes of all keys of a resource. A recipe that counts its holders has a key for
        each further place. One place more is for `semaphore-off-by-one`."""
        places = range(1, capacity + 1) if self.counts else ()
        return ("", *self.beside, *(f":{place}" for place in places))

    @property
    def all_points(self) -> tuple[str, ...]:
        """The pause points of this recipe and the common pause points."""
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
    """Return the function that a recipe of process `process` calls at its pause points.

    This is `pass_by` itself if there is neither a pause nor a gate.
    """
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
    """Let the caller go on at once."""


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """The settings that a recipe receives when it connects.

    `max_ttl_ms` is at least every TTL. `instance_timeout_ms` None means min(50, TTL ÷ 4).

    `pause`: pauses at pause points. `seed` and `process` (the number of this worker) decide which
    calls sleep. `gate`: receives every call at a pause point and returns when the caller may go on.
    `skew_ms`: how far the wall clock of this client is ahead. `folder`: a folder that all processes
    of the run share. `fencing`: leases carry fencing tokens, if the recipe can issue them.
    `capacity`: how many callers may hold a resource at once. `attempts`: the folder for observed
    attempts, which telemetry reads.
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
        """Lock a resource for `ttl_ms`, trying for up to `wait_ms`.

        A cancelled call leaves no lock behind.
        """

    @property
    def release(self) -> Release:
        """Give a lease back: RELEASED, GONE or UNREACHABLE."""

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as this client sees it now."""

    @property
    def figures(self) -> Mapping[str, int]:
        """The counters of the recipe since `connect`, by name. Most recipes have none."""

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """For each instance, the reply times (ns) that were sampled since the last call."""

    def close(self) -> None:
        """Send what is queued and close the connections. Idempotent."""


class SharedRecipe(Recipe, Protocol):
    """A connected lock with two sides: `acquire` is a writer's, alone."""

    @property
    def acquire_shared(self) -> Acquire:
        """As `acquire`, for a reader, which may hold the resource together with other readers."""


class RecipeClass(Recipe, Protocol):
    """The members that the class of a recipe has in addition."""

    about: ClassVar[About]

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect to the instances of `targets` (URLs), in the process that uses them.

        Raises UsageError if the recipe cannot work with these targets or settings. Raises
        EnvironmentNotReadyError if too few instances can be used. Neither message shows a password.
        """
