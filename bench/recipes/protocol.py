"""The protocol between the load and every lock under test: *targets and settings → acquire,
release, figures*.

Rules
- `acquire` and `release` are attributes. So a recipe may return the bound methods of its library,
  and the hot path has no wrapper.
- All recipes answer with lockcore's types (`Lease`, `Denied`, `Outcome`). Therefore the record, the
  oracle and the statistics are the same for every lock.
- A recipe calls a function at each of its pause points, for example `pause("after-get")`. If there
  is neither a pause nor a gate, this function does nothing.
- A pause of the scenario sleeps on a share of the calls. The seed and the process number decide
  which calls sleep. So a run can be repeated.
- A gate is a function that receives every call and returns when the caller may continue. A test or
  a schedule uses a gate to make a race certain.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar, Protocol, Self

from bench.scenario import Pause
from lockcore import Denied, InstanceStatus, Lease, Outcome, RetryPolicy

# Every recipe has these pause points. A pause at the first point stalls the holder at work. A pause
# at the second point delays the holder's release.
COMMON_POINTS = ("after-grant", "before-release")


@dataclass(frozen=True, slots=True)
class About:
    """The facts about a recipe.

    `how`: how the recipe locks. `flaw`: the one known fault of the recipe, or "none" with its
    conditions. `safe`: two leases are never valid at once.

    `least`, `most`: how many instances the recipe may have. If `most` is None, there is no upper
    limit. `usual`: how many instances the recipe has if the user gives no number. `points`: the
    recipe's own pause points, in the order in which a caller passes them. `replicated`: the other
    instances must be replicas of the first. `channels`: the recipe publishes on channels that have
    the names of its keys. `counts`: the settings decide how many callers may hold a resource at
    once. `shares`: the recipe has readers and writers (`SharedRecipe`). `beside`: for each resource
    the recipe has further keys with these suffixes.
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
        """Return the suffixes of all keys of a resource. A recipe that counts its holders has a key
        for each further place. The last suffix belongs to the extra place of
        `semaphore-off-by-one`."""
        places = range(1, capacity + 1) if self.counts else ()
        return ("", *self.beside, *(f":{place}" for place in places))

    @property
    def all_points(self) -> tuple[str, ...]:
        """The pause points of this recipe and the common pause points."""
        return (*self.points, *COMMON_POINTS)

    @property
    def instances(self) -> str:
        """How many instances are possible, as text: `1`, `2 or more`, `any number`."""
        if self.most == self.least:
            return str(self.least)
        if self.most is None:
            return "any number" if self.least == 1 else f"{self.least} or more"
        return f"{self.least} to {self.most}"


Reach = Callable[[str], None]


def reach_of(pauses: Sequence[Pause], seed: int, process: int, gate: Reach | None = None) -> Reach:
    """Return the function that a recipe of process `process` calls at its pause points.

    If there is neither a pause nor a gate, the result is `pass_by` itself.
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
    """Let the caller continue at once."""


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """The settings that a recipe receives when it connects.

    `max_ttl_ms`: an upper bound of all TTLs. `instance_timeout_ms`: None means min(50, TTL ÷ 4).

    `pause`: pauses at pause points. `process` is the number of this worker. `seed` and `process`
    decide which calls sleep. `gate`: a function that receives every call at a pause point and
    returns when the caller may continue. `skew_ms`: how far the wall clock of this client is ahead
    of the real time. `folder`: a folder that all processes of the run share. `fencing`: leases
    carry fencing tokens, if the recipe can issue them. `capacity`: how many callers may hold a
    resource at once. `attempts`: a folder for observed attempts, which telemetry reads.
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
        """A function that locks a resource for `ttl_ms` and tries for up to `wait_ms`.

        A cancelled call must leave no lock behind.
        """

    @property
    def release(self) -> Release:
        """A function that gives a lease back. Its outcome is RELEASED, GONE or UNREACHABLE."""

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """The present state of every instance, as this client sees it."""

    @property
    def figures(self) -> Mapping[str, int]:
        """The counters of the recipe since `connect`, by name. Most recipes have none."""

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """Return, for each instance, the reply times (ns) that were sampled since the last call."""

    def close(self) -> None:
        """Send all queued commands and close the connections. Idempotent."""


class SharedRecipe(Recipe, Protocol):
    """A connected lock for readers and writers. `acquire` is for writers, and a writer holds the
    resource alone."""

    @property
    def acquire_shared(self) -> Acquire:
        """The acquire function for readers. A reader may hold the resource together with other
        readers."""


class RecipeClass(Recipe, Protocol):
    """A class of recipes. The class has these members in addition to the members of its objects."""

    about: ClassVar[About]

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect to the instances of `targets` (URLs). Call this in the process that uses the
        connections.

        Raises UsageError if the recipe cannot work with these targets or settings. Raises
        EnvironmentNotReadyError if too few instances can be used. The messages never show a
        password.
        """
