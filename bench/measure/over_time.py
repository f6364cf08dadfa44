"""A run as it went: *records → one row of figures per slice of time → the section `over_time`*.

- The measured window is cut into equal slices of 0.1 s or more, at most 60; slices of the same width reach back over
  the warm-up.
- An operation belongs to a slice by its intended start: the slices of the window add up to `outcomes`. `granted` counts
  leases by the moment of their grant: they add up to `rate.achieved_per_s`.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Self

import numpy as np

from bench.measure import outcomes
from bench.measure.facts import Window
from bench.measure.histogram import Sums
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

    def starts_s(self) -> list[float]:
        """Where each begins, in seconds from the start of the window."""
        first = range(-self.lead, self.count)
        return [round(number * self.duration_ns // self.count / 1e9, 6) for number in first]


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
    start_s: Annotated[tuple[float, ...], says("of each slice, from the window's start; below 0: warm-up")]
    granted: Annotated[tuple[Count, ...], says("leases granted in the slice, whenever their acquire began")]
    outcomes: Annotated[dict[str, tuple[Count, ...]], says("acquires by outcome")]
    split_votes: Annotated[tuple[Count, ...], says("rounds that were split votes")]
    margin: Annotated[dict[str, tuple[Count, ...]], says("leases whose round closed, by vote margin")]
    acquire: Annotated[AcquireOverTime, says("latency of acquired ones")]


def add_slices(sums: Sums, slices: Slices, quorum: int, records: Records) -> None:
    """Add a part of the history. Works on columns: a copy of whole records would cost more than all the rest."""
    granted = slices.indices(records["granted_ns"][records["granted_ns"] > 0])
    sums.add_row("granted", granted[(granted >= 0) & (granted < slices.total)])
    place = slices.indices(records["intended_ns"])
    known = np.flatnonzero((place >= 0) & (place < slices.total))
    place, codes = place[known], records["outcome"][known] & 0xFF
    for name in ACQUIRE_OUTCOMES:
        sums.add_row(name, place[codes == OUTCOME_CODES[name]])
    sums.add_row("split_votes", place, outcomes.split_votes_of(records)[known])
    won = codes == OUTCOME_CODES["acquired"]
    leases, place = known[won], place[won]
    votes, undecided = (outcomes.votes_of(records, kind)[leases] for kind in ("granted", "undecided"))
    for number in np.unique(votes[undecided == 0]).tolist():
        sums.add_row(f"margin {number - quorum}", place[(undecided == 0) & (votes == number)])
    took, order = records["ended_ns"][leases] - records["intended_ns"][leases], np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=slices.total))[:-1]
    for number, part in enumerate(np.split(took[order], ends)):
        sums.histograms[f"slice {number}"].add(part)


def over_time_of(sums: Sums, slices: Slices) -> OverTime:
    """The section `over_time` so far."""
    took = [Latency.of(sums.histograms[f"slice {number}"]) for number in range(slices.total)]
    return OverTime(
        origin_ns=slices.start_ns,
        slice_s=slices.duration_ns / slices.count / 1e9,
        start_s=tuple(slices.starts_s()),
        granted=sums.row("granted"),
        outcomes={name: sums.row(name) for name in ACQUIRE_OUTCOMES},
        split_votes=sums.row("split_votes"),
        margin=sums.keyed("margin"),
        acquire=AcquireOverTime(
            **{field: tuple(map(attrgetter(field[:-2]), took)) for field in AcquireOverTime.__struct_fields__}
        ),
    )
