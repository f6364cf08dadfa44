"""The protocol between the load and every lock under test. A recipe connects to targets, acquires
and releases locks, and reports figures.

Rules
- `acquire` and `release` are attributes, and each of them contains a function. Therefore a recipe
  may return the bound methods of a library, without a wrapper around each call.
- All recipes return lockcore's types (`Lease`, `Denied`, `Outcome`). Therefore every lock has the
  same records, the same oracle and the same statistics.
- At each of its pause points, a recipe calls a function, for example `pause("after-get")`. If the
  run has no pauses and no gate, this function does nothing.
- If the scenario has a pause at this point, some of the calls sleep. The scenario sets the share of
  these calls. The seed and the number of the process determine which calls sleep, so a run can be
  repeated.
- A gate is a function that the recipe calls at every pause point. It returns when the caller may
  continue. Tests and schedules use a gate to force a race.
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
    """A description of a recipe.

    `how` describes how the recipe acquires and releases a lock. `flaw` describes the only known
    flaw of the recipe. If there is no flaw, `flaw` begins with "none" and lists the conditions.
    `safe` is true if two leases are never valid at once.

    `least` and `most` are the limits on the number of instances. If `most` is None, there is no
    upper limit. `usual` is the number of instances that lockbench starts by default. `points` lists
    the recipe's own pause points, in the order in which a caller reaches them. `replicated` is true
    if the other instances must be replicas of the first. `channels` is true if the recipe publishes
    on channels that have the names of its keys. `counts` is true if several callers may hold a
    resource at once. In this case, the setting `capacity` is the largest number of holders.
    `shares` is true if the recipe has readers and writers (`SharedRecipe`). `beside` lists the
    suffixes of further keys that the recipe uses for each resource.
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
        """Return the suffixes of all keys of a resource. If the recipe allows several holders, each
        possible holder has a separate key. The last suffix belongs to the extra holder that
        `semaphore-off-by-one` admits."""
        places = range(1, capacity + 1) if self.counts else ()
        return ("", *self.beside, *(f":{place}" for place in places))

    @property
    def all_points(self) -> tuple[str, ...]:
        """The recipe's own pause points, followed by the common pause points."""
        return (*self.points, *COMMON_POINTS)

    @property
    def instances(self) -> str:
        """The possible numbers of instances as text, such as `1`, `2 or more` or `any number`."""
        if self.most == self.least:
            return str(self.least)
        if self.most is None:
            return "any number" if self.least == 1 else f"{self.least} or more"
        return f"{self.least} to {self.most}"


Reach = Callable[[str], None]


def reach_of(pauses: Sequence[Pause], seed: int, process: int, gate: Reach | None = None) -> Reach:
    """Return the function that a recipe calls at its pause points. `process` is the number of the
    load process.

    If there are no pauses and no gate, the result is the function `pass_by`.
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
    """Do nothing, so that the caller continues at once."""


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """The settings that a recipe receives when it connects.

    `max_ttl_ms` is the longest TTL that a caller may request. `instance_timeout_ms` is how long a
    command waits for a reply. The default, None, means min(50, `max_ttl_ms` ÷ 4) ms.

    `pause` lists the pauses of the scenario. `process` is the number of this worker. The recipe
    calls a function at each pause point, and some of these calls sleep. `seed` and `process`
    determine which calls sleep. `gate` is a function that is called at every pause point and
    returns when the caller may continue. `skew_ms` is how far the wall clock of this client is
    ahead of the real time. `folder` is a folder that all processes of the run share. `fencing` is
    true if leases must have fencing tokens. Only some recipes can issue fencing tokens. `capacity`
    is how many callers may hold a resource at once. `attempts` is the folder in which the recipe
    logs the attempts that it observes. Telemetry reads this log.
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
        """A function that locks a resource for `ttl_ms`. The function makes attempts for up to
        `wait_ms`.

        If a call is cancelled, it must leave no lock behind.
        """

    @property
    def release(self) -> Release:
        """A function that releases a lease. It returns the outcome, which is RELEASED, GONE or
        UNREACHABLE."""

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """The present state of every instance, as this client sees it."""

    @property
    def figures(self) -> Mapping[str, int]:
        """The counters of the recipe since `connect`, by name. Most recipes have no counters."""

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """Return, for each instance, the reply times (ns) that were sampled since the last call."""

    def close(self) -> None:
        """Send all queued commands and close the connections. Idempotent."""


class SharedRecipe(Recipe, Protocol):
    """A connected lock for readers and writers. `acquire` is for writers, and a writer holds the
    resource alone."""

    @property
    def acquire_shared(self) -> Acquire:
        """The function that acquires the lock for a reader. Several readers may hold the resource
        together."""


class RecipeClass(Recipe, Protocol):
    """The class of a recipe. The class has the attribute `about` and the method `connect`."""

    about: ClassVar[About]

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect to the instances of `targets` (URLs). Call this method in the process that will
        use the connections.

        Raises UsageError if the recipe cannot work with these targets or settings. Raises
        EnvironmentNotReadyError if too few instances can be used. The messages never show a
        password.
        """
