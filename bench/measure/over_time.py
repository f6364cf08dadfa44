"""A run as it went: *records → one row of figures per slice of time → the section `over_time`*.

Rules
- The measured window is cut into equal slices of 0.1 s or more, at most 60; slices of the same width reach back over
  the warm-up. A slice is known by its start, in seconds from the start of the window.
- An operation belongs to a slice by its intended start: the slices of the window add up to `outcomes`. `granted` counts
  leases by the moment of their grant: they add up to `rate.achieved_per_s`.
"""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np

from bench.measure import outcomes
from bench.measure.facts import Facts, Window
from bench.measure.histogram import Histogram, Samples
from bench.measure.latency import Latency
from bench.measure.outcomes import ACQUIRE_OUTCOMES
from bench.measure.record import OUTCOME_CODES, Records
from bench.measure.section import Amount, Count, Section, says
from bench.measure.timeline import Integers

MOST_SLICES = 60
WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)


@dataclass(frozen=True, slots=True)
class Slices:
    """`count` equal slices of the window that starts at `start_ns`, and `lead` of the same width before it."""

    start_ns: int
    duration_ns: int
    count: int
    lead: int

    @classmethod
    def of(cls, window: Window, warmup_s: float = 0.0) -> Self:
        """The slices of `window`, and as many before it as cover `warmup_s`."""
        seconds = window.duration_s
        width_s = next((width for width in WIDTHS_S if seconds / width <= MOST_SLICES), seconds / MOST_SLICES)
        count = max(round(seconds / width_s), 1)
        lead = round(warmup_s * count / seconds) if seconds > 0 else 0
        return cls(window.start_ns, window.stop_ns - window.start_ns, count, min(lead, MOST_SLICES))

    @property
    def total(self) -> int:
        """How many there are in all."""
        return self.lead + self.count

    def indices(self, times_ns: Integers) -> Integers:
        """The slice of each time, from 0; below 0 or from `total` on: in none."""
        return (times_ns - self.start_ns) * self.count // max(self.duration_ns, 1) + self.lead

    def edges_ns(self) -> Integers:
        """Where each begins, and where the last ends: `total` + 1 times."""
        return self.start_ns + np.arange(-self.lead, self.count + 1, dtype=np.int64) * self.duration_ns // self.count

    def starts_s(self) -> list[float]:
        """Where each begins, in seconds from the start of the window."""
        return [float(edge) for edge in ((self.edges_ns()[:-1] - self.start_ns) / 1e9).round(6)]


class AcquireOverTime(Section, frozen=True, kw_only=True):
    """Latency of acquired ones from the intended start; null: fewer than ten samples beyond it."""

    p50_s: Annotated[tuple[float | None, ...], says("half took no longer")]
    p90_s: Annotated[tuple[float | None, ...], says("90 % took no longer")]
    p99_s: Annotated[tuple[float | None, ...], says("99 % took no longer")]
    max_s: Annotated[tuple[float | None, ...], says("the longest")]


class OverTime(Section, frozen=True, kw_only=True):
    """The run slice by slice, warm-up included; every array has one figure per slice.

    Counts and latencies by intended start: the slices from start_s 0 on add up to outcomes.
    """

    origin_ns: Annotated[int, says("start of the measured window, ns of CLOCK_MONOTONIC")]
    slice_s: Annotated[Amount, says("width of a slice")]
    start_s: Annotated[
        tuple[float, ...], says("of each slice, from the start of the measured window; below 0: warm-up")
    ]
    granted: Annotated[tuple[Count, ...], says("leases granted in the slice, whenever their acquire began")]
    outcomes: Annotated[dict[str, tuple[Count, ...]], says("acquires by outcome")]
    split_votes: Annotated[tuple[Count, ...], says("rounds that were split votes")]
    margin: Annotated[dict[str, tuple[Count, ...]], says("leases whose round closed, by vote margin")]
    acquire: Annotated[AcquireOverTime, says("latency of acquired ones")]


@dataclass(frozen=True, slots=True)
class SliceState:
    """What a `SliceFold` has added up, one figure per slice in every row."""

    granted: tuple[int, ...]
    split_votes: tuple[int, ...]
    outcomes: dict[str, tuple[int, ...]]
    margins: dict[int, tuple[int, ...]]
    took: tuple[Samples, ...]


class SliceFold:
    """Adds up a run slice by slice; parts of a history as `Fold` gets them."""

    def __init__(self, facts: Facts, window: Window) -> None:
        self.slices = Slices.of(window, facts.warmup_s)
        self._quorum = facts.quorum
        total = self.slices.total
        self._granted = np.zeros(total, np.int64)
        self._split_votes = np.zeros(total, np.int64)
        self._outcomes = {name: np.zeros(total, np.int64) for name in ACQUIRE_OUTCOMES}
        self._margins: dict[int, Integers] = {}
        self._took = [Histogram() for _ in range(total)]

    def add(self, records: Records) -> None:
        """Add a part of the history. Works on columns: a copy of whole records would cost more than all the rest."""
        self._granted += self._counted(records["granted_ns"])
        place = self.slices.indices(records["intended_ns"])
        known = np.flatnonzero((place >= 0) & (place < self.slices.total))
        place, codes = place[known], records["outcome"][known] & 0xFF
        for name in ACQUIRE_OUTCOMES:
            self._outcomes[name] += self._bins(place[codes == OUTCOME_CODES[name]])
        splits = np.bincount(place, outcomes.split_votes_of(records)[known], self.slices.total)
        self._split_votes += splits.astype(np.int64)
        won = codes == OUTCOME_CODES["acquired"]
        leases, place = known[won], place[won]
        self._add_margins(records, leases, place)
        took, order = records["ended_ns"][leases] - records["intended_ns"][leases], np.argsort(place, kind="stable")
        for part, histogram in zip(np.split(took[order], np.cumsum(self._bins(place))[:-1]), self._took, strict=True):
            histogram.add(part)

    def _counted(self, times_ns: Integers) -> Integers:
        place = self.slices.indices(times_ns[times_ns > 0])
        return self._bins(place[(place >= 0) & (place < self.slices.total)])

    def _bins(self, place: Integers) -> Integers:
        return np.bincount(place, minlength=self.slices.total)

    def _add_margins(self, records: Records, leases: Integers, place: Integers) -> None:
        granted, undecided = (outcomes.votes_of(records, kind)[leases] for kind in ("granted", "undecided"))
        closed = undecided == 0
        for number in np.flatnonzero(np.bincount(granted[closed])).tolist():
            counts = self._bins(place[closed & (granted == number)])
            margin = number - self._quorum
            self._margins[margin] = self._margins[margin] + counts if margin in self._margins else counts

    @property
    def state(self) -> SliceState:
        """What `merge` adds to another one of as many slices."""
        return SliceState(
            tuple(self._granted.tolist()),
            tuple(self._split_votes.tolist()),
            {name: tuple(counts.tolist()) for name, counts in self._outcomes.items()},
            {margin: tuple(counts.tolist()) for margin, counts in self._margins.items()},
            tuple(histogram.samples for histogram in self._took),
        )

    def merge(self, state: SliceState) -> None:
        """Add what another one has added up. Raises ValueError when its slices are not ours."""
        rows = (state.granted, state.split_votes, state.took, *state.outcomes.values(), *state.margins.values())
        if any(len(row) != self.slices.total for row in rows) or state.outcomes.keys() != self._outcomes.keys():
            raise ValueError("a fold of other slices")
        self._granted += np.array(state.granted, np.int64)
        self._split_votes += np.array(state.split_votes, np.int64)
        for name, counts in state.outcomes.items():
            self._outcomes[name] += np.array(counts, np.int64)
        for margin, counts in state.margins.items():
            self._margins[margin] = self._margins.get(margin, 0) + np.array(counts, np.int64)
        for histogram, samples in zip(self._took, state.took, strict=True):
            histogram.merge_samples(samples)

    def section(self) -> OverTime:
        """The section `over_time` so far."""
        slices, took = self.slices, [Latency.of(histogram) for histogram in self._took]
        return OverTime(
            origin_ns=slices.start_ns,
            slice_s=slices.duration_ns / slices.count / 1e9,
            start_s=tuple(slices.starts_s()),
            granted=tuple(self._granted.tolist()),
            outcomes={name: tuple(counts.tolist()) for name, counts in self._outcomes.items()},
            split_votes=tuple(self._split_votes.tolist()),
            margin={str(margin): tuple(counts.tolist()) for margin, counts in sorted(self._margins.items())},
            acquire=AcquireOverTime(
                p50_s=tuple(one.p50 for one in took),
                p90_s=tuple(one.p90 for one in took),
                p99_s=tuple(one.p99 for one in took),
                max_s=tuple(one.max for one in took),
            ),
        )
