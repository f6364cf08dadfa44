"""The figures of a result by name: *a name as people write it → where it stands, its unit, which way is better*.

Rules: the names are the paths of the numbers in `Measured`, so that none is forgotten or invented; `latency_s.`
may be left out, p99.9 stands for p999, and four figures stand first. The percentiles of `acquire` are those over all
acquires, where one that failed took for ever: a lock is not fast because it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from operator import attrgetter
from typing import cast

import msgspec

from bench.errors import UsageError
from bench.measure.latency import AllAcquires, Latency
from bench.measure.run_result import Figures, Measured, Unit
from bench.scenario.quantity import nearest

SECTIONS = (
    *("rate", "outcomes", "outcome_shares", "totals", "releases", "latency_s", "attempts", "votes", "split_votes"),
    *("cost", "generator", "safety"),
)
SHORT = {
    "rate": "rate.achieved_per_s",
    "acquire.success": "outcome_shares.acquired",
    "safety.violations": "safety.violations",
    "duration": "duration_s",
}
OVER_ALL = ("p50", "p90", "p99", "p999", "p9999", "max")  # of `acquire`: read from `acquire_all`
FOREVER_S = 3600.0  # what infinity is in a ratio: the longest time that a histogram can tell
_MORE_IS_BETTER = ("rate.achieved_per_s", "rate.completed_per_s", "outcome_shares.acquired", "outcomes.acquired")


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a result. `unit`: s, us, per_s, ratio or count, that of the figure as it is stored."""

    name: str
    path: tuple[str, ...]
    unit: Unit

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is good; of everything else less is."""
        return ".".join(self.path) in _MORE_IS_BETTER

    def value(self, result: Figures) -> float | None:
        """What `result` has of it, inf included; None when that is unknown."""
        section = self._section(result)
        if isinstance(section, AllAcquires) and self.path[-1] in section.infinite:
            return inf
        found = getattr(section, self.path[-1])
        return None if found is None else float(found)

    def samples(self, result: Figures) -> int | None:
        """How many samples a figure of a distribution rests on; None for other figures."""
        section = self._section(result) if self.path[0] == "latency_s" else None
        return section.count if isinstance(section, Latency | AllAcquires) else None

    def _section(self, result: Figures) -> object:
        """What the figure stands in."""
        return attrgetter(".".join(self.path[:-1]))(result) if len(self.path) > 1 else result


def find_metric(name: str) -> Metric:
    """Return the metric called `name`. Raises UsageError with the nearest name, or where the names are from."""
    known = metrics()
    written = SHORT.get(name, name).replace("p99.99", "p9999").replace("p99.9", "p999")
    head, _, figure = written.removeprefix("latency_s.").partition(".")
    if head == "acquire" and figure in OVER_ALL:
        written = f"acquire_all.{figure}"
    for path in (written, f"latency_s.{written}"):
        if path in known:
            return known[path]
    hint = nearest(name, [metric.name for metric in known.values()])
    some = ", ".join((*SHORT, "acquire.p99", "release.p99"))
    raise UsageError(f"there is no metric {name}{hint or f'; metrics are the numbers of result.json, such as {some}'}")


@cache
def metrics() -> Mapping[str, Metric]:
    """Every metric by its full path."""
    names = {path: short for short, path in SHORT.items()}
    names |= {f"latency_s.acquire_all.{figure}": f"acquire.{figure}" for figure in OVER_ALL}
    replaced = {("latency_s", "acquire", figure) for figure in OVER_ALL}
    numbers = (path for path in _numbers(Measured, ()) if path[0] in SECTIONS or ".".join(path) in names)
    paths = [path for path in numbers if path not in replaced]
    return {
        ".".join(path): Metric(names.get(".".join(path), ".".join(path).removeprefix("latency_s.")), path, _unit(path))
        for path in paths
    }


def finite(value: float | None) -> float | None:
    """The value as ratios take it: infinity is `FOREVER_S`."""
    return FOREVER_S if value == inf else value


def _numbers(kind: type, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all numbers in a section, lists left out."""
    for field in cast("msgspec.inspect.StructType", msgspec.inspect.type_info(kind)).fields:
        yield from _numbers_of(field.type, (*path, field.encode_name))


def _numbers_of(kind: msgspec.inspect.Type, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _numbers_of(kind.type, path)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _numbers_of(one, path)
    elif isinstance(kind, msgspec.inspect.StructType):
        yield from _numbers(kind.cls, path)
    elif isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        yield path


def _unit(path: Sequence[str]) -> Unit:
    section, last = path[0], path[-1]
    if last.endswith("_per_s"):
        return "per_s"
    if "_us_" in last:
        return "us"
    if last.endswith("_s") or (section == "latency_s" and last != "count"):
        return "s"
    if section == "outcome_shares" or last.endswith("ratio") or last == "upper_bound_95":
        return "ratio"
    return "count"
