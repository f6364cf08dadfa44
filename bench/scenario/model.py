"""The scenario as values: *resolved keys ↔ plain JSON*.

Rules: every default is already filled in and every unit stands in the name; frozen, so that the plan a Locust worker
reads is the scenario that the result prints. Source: the keys and defaults of `bench.scenario.keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lockcore.mask import shown


@dataclass(frozen=True, slots=True)
class Delay:
    """A hold or think time: `kind` fixed | exp | lognormal; `ms` constant, mean or median; `sigma` of lognormal."""

    kind: str = "fixed"
    ms: float = 0.0
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Skew:
    """How resources are chosen: uniform | zipf (`value` = exponent) | hot (`value` = the share of resource 0)."""

    kind: str = "uniform"
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again: full-jitter waits U(0, `window_ms`), fixed `window_ms`, none never; at most `attempts`.

    `unreachable`: also when a quorum was impossible.
    """

    policy: str = "full-jitter"
    window_ms: float = 5.0
    attempts: int = 1000
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A recipe's pause point stretched by `ms` on `share` (0…1) of the passes."""

    point: str
    ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: `kind` on `target` from `at_ms` after the measured start for `for_ms` (None = to the end)."""

    kind: str
    at_ms: float
    for_ms: float | None
    target: tuple[str, ...]
    phase: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one run does. Field names carry their units; `rate_per_s` None means closed loop."""

    recipe: str
    instances: int
    targets: tuple[str, ...]
    fsync: str
    users: int
    processes: int
    rate_per_s: float | None
    arrivals: str
    duration_ms: float
    warmup_ms: float
    resources: int
    skew: Skew
    hold: Delay
    think: Delay
    ttl_ms: int
    wait_ms: int
    instance_timeout_ms: float
    retry: Retry
    max_ttl_ms: int
    rejoin: str
    merge_releases: bool
    events: str
    seed: int
    fencing: bool
    thresholds: tuple[str, ...]
    pause: tuple[Pause, ...]
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; targets come without their secrets (a plan carries the true URLs beside this)."""
        return asdict(replace(self, targets=tuple(shown(url) for url in self.targets)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Scenario:
        """Rebuild what `to_json` wrote, `targets` still without secrets. Raises TypeError for a foreign document."""
        values = dict(document)
        values["targets"] = tuple(values["targets"])
        values["thresholds"] = tuple(values["thresholds"])
        values["skew"] = Skew(**values["skew"])
        values["hold"] = Delay(**values["hold"])
        values["think"] = Delay(**values["think"])
        values["retry"] = Retry(**values["retry"])
        values["pause"] = tuple(Pause(**pause) for pause in values["pause"])
        values["faults"] = tuple(Fault(**{**fault, "target": tuple(fault["target"])}) for fault in values["faults"])
        return cls(**values)
