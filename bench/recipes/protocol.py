"""What every lock under test looks like to the load: *targets and settings → acquire, release, figures*.

Rules: `acquire` and `release` are attributes, so that a recipe may hand out its library's own bound methods and the
hot path pays for no wrapper. All recipes answer in lockcore's values (`Lease`, `Denied`, `Outcome`), so that the
record, the oracle and the statistics never ask which lock it was. Source: the table of recipes in the README of this
folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, Self

from bench.recipes.about import About
from bench.recipes.pause import Reach
from bench.scenario.model import Pause
from lockcore import Denied, InstanceStatus, Lease, Outcome, RetryPolicy


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """What a lock is told at connect. `max_ttl_ms` ≥ every TTL; `instance_timeout_ms` None = min(50, TTL ÷ 4).

    `pause` stretches pause points, drawn from `seed` and `process` (which worker this is); `gate` is told of every pass
    of a point and lets the caller go on. `skew_ms`: how far this client's wall clock is ahead. `folder`: one that all
    processes of the run share. `fencing`: leases carry fencing tokens, if the recipe can. `attempts`: the folder that
    observed attempts go to, for telemetry.
    """

    key_prefix: str = ""
    max_ttl_ms: int = 10_000
    instance_timeout_ms: float | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    rejoin: str = "trust-first"
    merge_releases: bool = False
    connect_timeout_s: float = 1.0
    pause: tuple[Pause, ...] = ()
    seed: int = 1
    process: int = 0
    gate: Reach | None = None
    skew_ms: int = 0
    folder: Path | None = None
    fencing: bool = False
    attempts: Path | None = None


class Acquire(Protocol):
    """The type of `Recipe.acquire`."""

    def __call__(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Lock `resource` for `ttl_ms`, trying for up to `wait_ms`; a cancelled call leaves nothing held."""


class Release(Protocol):
    """The type of `Recipe.release`."""

    def __call__(self, lease: Lease, /) -> Outcome:
        """Give the lease back: RELEASED, GONE or UNREACHABLE."""


class Recipe(Protocol):
    """A connected lock."""

    @property
    def acquire(self) -> Acquire:
        """The hot path's acquire."""

    @property
    def release(self) -> Release:
        """The hot path's release."""

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

        Raises UsageError for what the recipe cannot do with these targets or settings, EnvironmentNotReadyError when
        too few instances can be used; neither names a password.
        """
