"""The scenario as values: *resolved keys ↔ plain JSON*.

Rules: every default is already filled in and every unit stands in the name; frozen, so that the plan a Locust worker
reads is the scenario that the result prints. Source: the keys and defaults of `bench.scenario.keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from lockcore.mask import shown


def says(sentence: str) -> Meta:
    """Return what a field means, for the schema of results."""
    return Meta(description=sentence)


@dataclass(frozen=True, slots=True)
class Delay:
    """A hold or think time: `kind` fixed | exp | lognormal; `ms` constant, mean or median; `sigma` of lognormal."""

    kind: Annotated[str, says("fixed, exp or lognormal")] = "fixed"
    ms: Annotated[float, says("constant, mean or median")] = 0.0
    sigma: Annotated[float, says("of lognormal")] = 0.0


@dataclass(frozen=True, slots=True)
class Skew:
    """How resources are chosen: uniform | zipf (`value` = exponent) | hot (`value` = the share of resource 0)."""

    kind: Annotated[str, says("uniform, own, zipf or hot")] = "uniform"
    value: Annotated[float, says("exponent of zipf; the share of resource 0 of hot")] = 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again: full-jitter waits U(0, `window_ms`), fixed `window_ms`, none never; at most `attempts`.

    `unreachable`: also when a quorum was impossible.
    """

    policy: Annotated[str, says("full-jitter waits U(0, window), fixed the window, none never tries again")] = (
        "full-jitter"
    )
    window_ms: Annotated[float, says("the longest or the fixed wait")] = 5.0
    attempts: Annotated[int, says("of one acquire at most")] = 1000
    unreachable: Annotated[bool, says("whether to try again when a quorum was impossible")] = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A recipe's pause point stretched by `ms` on `share` (0…1) of the passes."""

    point: Annotated[str, says("of the recipe")]
    ms: Annotated[float, says("how long")]
    share: Annotated[float, says("of the passes, 0…1")]


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault: `kind` on `target` from `at_ms` after the measured start for `for_ms` (None = to the end)."""

    kind: Annotated[str, says("what is done")]
    at_ms: Annotated[float, says("from the start of the measured window")]
    for_ms: Annotated[float | None, says("how long; null: to the end of the window")]
    target: Annotated[tuple[str, ...], says("instances or workers")]
    phase: Annotated[str, says("fixed, or random: up to 1 s later, by the seed")]
    params: Annotated[Mapping[str, Any], says("of the kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What one run does. Field names carry their units; `rate_per_s` None means closed loop."""

    recipe: Annotated[str, says("which lock was loaded")]
    instances: Annotated[int, says("how many servers were started")]
    targets: Annotated[tuple[str, ...], says("running instances instead of started ones, without secrets")]
    fsync: Annotated[str, says("AOF policy of started servers; none: no AOF")]
    users: Annotated[int, says("concurrent callers over all processes")]
    processes: Annotated[int, says("Locust worker processes")]
    rate_per_s: Annotated[float | None, says("operations in all: open loop; null: closed loop")]
    arrivals: Annotated[str, says("how open-loop operations are spaced")]
    duration_ms: Annotated[float, says("measured time")]
    warmup_ms: Annotated[float, says("time left out before measuring")]
    resources: Annotated[int, says("how many different things are locked")]
    skew: Annotated[Skew, says("how callers choose among them")]
    hold: Annotated[Delay, says("work under the lock")]
    think: Annotated[Delay, says("a caller's rest between two operations, closed loop only")]
    ttl_ms: Annotated[int, says("time to live of a lock, the PX argument")]
    wait_ms: Annotated[int, says("how long one acquire may wait")]
    instance_timeout_ms: Annotated[float, says("how long one instance may take to answer")]
    retry: Annotated[Retry, says("how a refused acquire waits")]
    max_ttl_ms: Annotated[int, says("largest TTL of the whole fleet")]
    rejoin: Annotated[str, says("who votes at once")]
    merge_releases: Annotated[bool, says("whether the script releases of one turn are merged into one call")] = (
        False  # younger than the first stored results
    )
    events: Annotated[str, says("stock: one Locust event per operation")]
    seed: Annotated[int, says("drives every random choice of the load")]
    fencing: Annotated[bool, says("whether every holder writes to a register that rejects stale writes")]
    thresholds: Annotated[tuple[str, ...], says("limits that the result must keep")]
    pause: Annotated[tuple[Pause, ...], says("pause points of the recipe that are stretched")]
    faults: Annotated[tuple[Fault, ...], says("injected faults")]

    def shown(self) -> Scenario:
        """Return it with targets that hold no secrets."""
        return replace(self, targets=tuple(shown(url) for url in self.targets))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; targets come without their secrets (a plan carries the true URLs beside this)."""
        return asdict(self.shown())

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
