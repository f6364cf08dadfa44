"""How long operations take. This module computes the sections `latency_s`, `waiting` and
`over_time` from the records.

The fields of `Latencies` explain each duration. `over_time` divides the measured window into equal
time slices. There are at most 60 slices, and each slice lasts about 0.1 s or longer. `over_time`
also divides the warm-up into slices, which are as long as the slices of the window. An operation
belongs to the slice that contains its intended start. Therefore the counts of the window's slices
add up to `outcomes`. The field `granted` is an exception. It counts a lease in the slice that
contains the return of the acquire.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from operator import attrgetter
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np

from bench.measure import outcomes
from bench.measure.clocks import Integers, timelines
from bench.measure.facts import Window
from bench.measure.histogram import Histogram, Sums
from bench.measure.outcomes import ACQUIRE_OUTCOMES, acquired, attempts_of
from bench.measure.record import ACQUIRED, OUTCOME_CODES, Records, extent_ns
from bench.measure.section import Amount, Count, Section, Share, says

LATENCIES = ("acquire", "acquire_service", "acquire_failed", "release", "handoff", "hold", "wait")
# A recipe counts these events itself.
COUNTED = ("wakeups", "polls")
# The sections of `Sums` about waiting. The section "leases" counts the leases of each caller.
WAITS: Mapping[str, tuple[str, ...]] = {"leases": (), "waits": ("retries",)}
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}

Figure = Literal["p50", "p90", "p99", "p999", "p9999", "max"]


class Percentiles(Section, frozen=True, kw_only=True):
    """Percentiles in seconds. A percentile is null if fewer than ten samples lie beyond it."""

    p50: Annotated[Amount | None, says("50 % of the samples are at most this value")]
    p90: Annotated[Amount | None, says("90 % of the samples are at most this value")] = None
    p99: Annotated[Amount | None, says("99 % of the samples are at most this value")]
    p999: Annotated[
        Amount | None, says("99.9 % of the samples are at most this value", label="p99.9")
    ] = None
    p9999: Annotated[
        Amount | None, says("99.99 % of the samples are at most this value", label="p99.99")
    ] = None
    max: Annotated[Amount | None, says("the largest sample; null if there are no samples")] = None

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between two percentiles. For example, the p50
        must not be larger than the p90."""
        percentiles = [
            (name, value) for name in get_args(Figure) if (value := getattr(self, name)) is not None
        ]
        for (lower, less), (higher, more) in pairwise(percentiles):
            if less > more:
                yield f"the {lower} ({less:.6g}) is above the {higher} ({more:.6g})"


class Latency(Percentiles, frozen=True, kw_only=True):
    """The percentiles, count, mean and maximum of some samples.

    The percentiles come from HDR histograms of three significant digits. Count, mean and maximum
    are exact.
    """

    count: Annotated[Count, says("number of samples")]
    mean: Annotated[Amount | None, says("the mean of the samples; null if there are no samples")]

    @classmethod
    def of(cls, histogram: Histogram, unit_ns: float = 1e9) -> Self:
        """Return the figures of a histogram, in units of `unit_ns` (default: seconds)."""
        mean = histogram.sum_ns / histogram.count / unit_ns if histogram.count else None
        longest = histogram.max_ns / unit_ns if histogram.count else None
        return cls(
            count=histogram.count,
            mean=mean,
            max=longest,
            **{
                name: _scaled(histogram.percentile(percent), unit_ns)
                for name, percent in PERCENTILES.items()
            },
        )

    def contradictions(self) -> Iterator[str]:
        """Yield the sentences that `Percentiles` yields. Also yield a sentence if there is a figure
        although there are no samples, or if the mean is above the maximum."""
        yield from super().contradictions()
        if not self.count and any(value is not None for value in (self.mean, self.p50, self.max)):
            yield "there are figures, although there are no samples"
        if self.mean is not None and self.max is not None and self.mean > self.max * (1 + 1e-9):
            yield f"the mean ({self.mean:.6g}) is above the largest sample ({self.max:.6g})"


class AllAcquires(Percentiles, frozen=True, kw_only=True):
    """Percentiles over all acquires. The duration of a failed acquire counts as infinite.

    An infinite percentile is null, because JSON has no infinity.
    """

    count: Annotated[Count, says("number of acquires, failed acquires included")]
    failed: Annotated[Count, says("number of acquires that did not get the lock")]
    infinite: Annotated[
        tuple[Figure, ...],
        says("names of the figures that are infinite because acquires failed, such as p99 or max"),
    ]

    def value_of(self, name: str) -> object:
        """Return the value of a field for a table. The value is inf if the percentile is infinite
        because acquires failed."""
        return inf if name in self.infinite else getattr(self, name)

    def contradictions(self) -> Iterator[str]:
        """Yield the sentences that `Percentiles` yields. Also yield a sentence if `failed` exceeds
        `count`, or if an infinite figure has a value."""
        yield from super().contradictions()
        if self.failed > self.count:
            yield f"{self.failed} of {self.count} acquires failed"
        if both := [name for name in self.infinite if getattr(self, name) is not None]:
            yield f"{', '.join(both)} cannot be infinite and have a value"


class Latencies(Section, frozen=True, kw_only=True):
    """The durations of the operations in the window."""

    acquire: Annotated[
        Latency,
        says(
            "duration of successful acquires, from the intended start until acquire returned",
            shown="table curve several:count,mean",
            note="from the intended start",
        ),
    ]
    acquire_all: Annotated[
        AllAcquires,
        says(
            "duration of all acquires; in limits, compare and gate, its p99 has the name "
            "acquire.p99",
            label="all",
            shown="table several:p50,p90,p99,p999,max compare:p50,p99",
            note="failed ones as ∞",
        ),
    ]
    acquire_service: Annotated[
        Latency,
        says(
            "duration of successful acquires from the actual start, without delays of the "
            "generator",
            label="service",
            shown="table",
            note="from the actual start",
        ),
    ]
    acquire_failed: Annotated[
        Latency,
        says(
            "duration of failed acquires, from the intended start; an SLO counts each failed "
            "acquire as a miss",
            label="failed",
            shown="table curve",
            note="gave up",
        ),
    ]
    release: Annotated[
        Latency,
        says(
            "duration of a release: time from sending its command until the call returned",
            shown="table curve several:p50,p99 compare:p50",
        ),
    ]
    handoff: Annotated[
        Latency,
        says(
            "the time from a release to the next grant, if another caller was waiting",
            label="hand-off",
            shown="table curve several:p50,p99 compare:p50",
            note="release sent → next grant",
        ),
    ]
    hold: Annotated[
        Latency,
        says("the time from the return of acquire until the release was sent", shown="table curve"),
    ]
    wait: Annotated[
        Latency,
        says("the time from the start of an acquire to its successful attempt"),
    ]


class Waiting(Section, frozen=True, kw_only=True):
    """Figures about callers that wait for a lease. The figures show how long callers waited,
    whether all callers got a similar number of leases, and how much work the waiting caused."""

    jain: Annotated[
        Share | None,
        says(
            "Jain's fairness index of the leases per caller; 1 means equal shares; null if there "
            "were no leases",
            label="Jain",
            unit="factor",
            shown="line",
        ),
    ] = None
    longest_s: Annotated[
        Amount | None,
        says("duration of the longest acquire in the window, from its actual start", shown="line"),
    ] = None
    asked: Annotated[
        Count | None, says("callers that wanted a lease in the window; null in an older result")
    ] = None
    unserved: Annotated[
        Count | None, says("callers that wanted a lease but got none; null in an older result")
    ] = None
    wakeups: Annotated[
        Count,
        says(
            "how often a process passed the turn for a resource to another process, in the "
            "whole run",
            label="turns passed between processes",
            shown="line",
        ),
    ] = 0
    polls: Annotated[
        Count,
        says(
            "number of repeated attempts plus number of queries about a lock's holder",
            shown="line",
        ),
    ] = 0


def durations(records: Records) -> dict[str, Integers]:
    """Return the durations (ns) of operations, by the name of the duration. The result does not
    have the duration `handoff`, because a hand-off needs two operations."""
    won = acquired(records)
    intended, start, ended = (
        np.ascontiguousarray(records[name]) for name in ("intended_ns", "start_ns", "ended_ns")
    )
    sent = records.release_sent_ns[won]
    replied = records.release_replied_ns[won]
    return {
        "acquire": ended[won] - intended[won],
        "acquire_service": ended[won] - start[won],
        "acquire_failed": ended[~won] - intended[~won],
        "release": (replied - sent)[(sent > 0) & (replied > 0)],
        "hold": (sent - ended[won])[sent > 0],
        "wait": records.attempt_ns[won] - start[won],
    }


def handoffs(records: Records, window: Window) -> Integers:
    """Return the durations (ns) of all hand-offs whose release was sent in the window. If `records`
    contains one operation of a resource, it must contain all operations of this resource.

    Two successive grants of a resource are a hand-off if they meet two conditions. The first
    condition is that the earlier holder sent its release before the later grant. The second
    condition is that another caller already waited when the earlier holder sent its release. To
    check the second condition, the function counts the acquires of the resource up to the time of
    the release. A caller waited if the number of begun acquires was larger than the number of
    returned acquires.
    """
    times_ns = [np.empty(0, np.int64)]
    for timeline, rows in timelines(records.resource, extent_ns(records)):
        part = records[rows]
        leases = np.flatnonzero(acquired(part))
        ordered = leases[np.argsort(timeline.keys(part.resource[leases], part.ended_ns[leases]))]
        resource, granted, sent = (
            part[name][ordered] for name in ("resource", "ended_ns", "release_sent_ns")
        )
        pairs = (
            (resource[:-1] == resource[1:]) & (sent[:-1] <= granted[1:]) & window.holds(sent[:-1])
        )
        at_release = timeline.keys(resource[:-1][pairs], sent[:-1][pairs])
        begun = np.sort(timeline.keys(part.resource, part.start_ns))
        returned = np.sort(timeline.keys(part.resource, part.ended_ns))
        waiting = np.searchsorted(begun, at_release, "right") - np.searchsorted(
            returned, at_release, "right"
        )
        times_ns.append((granted[1:] - sent[:-1])[pairs][waiting > 0])
    return np.concatenate(times_ns)


def blocks(histograms: Mapping[str, Histogram]) -> Latencies:
    """Return the section `latency_s`."""
    acquired = histograms["acquire"]
    failed = histograms["acquire_failed"].count
    waits_ns = {name: acquired.percentile(percent, failed) for name, percent in PERCENTILES.items()}
    if failed:
        waits_ns["max"] = inf
    else:
        waits_ns["max"] = float(acquired.max_ns) if acquired.count else None
    infinite = tuple(name for name in get_args(Figure) if waits_ns[name] == inf)
    figures: Any = {
        name: None if name in infinite else _scaled(wait_ns, 1e9)
        for name, wait_ns in waits_ns.items()
    }
    of_all = AllAcquires(count=acquired.count + failed, failed=failed, infinite=infinite, **figures)
    return Latencies(
        acquire_all=of_all, **{name: Latency.of(histograms[name]) for name in LATENCIES}
    )


def add_waits(sums: Sums, records: Records, inside: Records) -> None:
    """Add the waits in `records` to `sums`. The sections of `sums` must include the sections of
    `WAITS`.

    `inside` has the records of operations that belong to the window.
    """
    # If a caller got no lease, it counts with 0 leases.
    callers, which = np.unique(inside.caller, return_inverse=True)
    leases = np.bincount(which, acquired(inside), len(callers)).astype(int)
    sums.add("leases", dict(zip(callers.tolist(), leases.tolist(), strict=True)))
    if len(inside):
        sums.longest_ns = max(sums.longest_ns, int((inside.ended_ns - inside.start_ns).max()))
    sums.add("waits", {"retries": int(np.maximum(attempts_of(records) - 1, 0).sum())})


def waiting_of(
    sums: Sums, users: int, recipe_figures: Sequence[Mapping[str, int]], *, closed: bool = False
) -> Waiting:
    """Return the section `waiting`.

    `users` is the smallest possible number of callers. For each process, `recipe_figures` has the
    counts that the recipe keeps itself. `closed` is true if the load is a closed loop. In a closed
    loop, every user counts as a caller, even if the user's first acquire never ended.
    """
    leases = sums.numbers["leases"].values()
    callers = max(users, len(leases)) if closed else len(leases)
    squares = sum(number**2 for number in leases)
    jain = sum(leases) ** 2 / (max(users, len(leases)) * squares) if squares else None
    longest_s = sums.longest_ns / 1e9 if sums.longest_ns else None
    return Waiting(
        jain=jain,
        longest_s=longest_s,
        asked=callers,
        unserved=callers - sum(number > 0 for number in leases),
        wakeups=sum(figures.get("wakeups", 0) for figures in recipe_figures),
        polls=sums.numbers["waits"]["retries"]
        + sum(figures.get("polls", 0) for figures in recipe_figures),
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


MOST_SLICES = 60
WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)


@dataclass(frozen=True, slots=True)
class Slices:
    """The time slices of a run. The window starts at `start_ns` and has `count` slices. Before the
    window, there are `lead` further slices. All slices have the same length."""

    start_ns: int
    duration_ns: int
    count: int
    lead: int

    @classmethod
    def of(cls, window: Window, warmup_s: float = 0.0) -> Self:
        """Return the slices of `window` and of the warm-up before it, which lasts `warmup_s`. The
        warm-up gets at most `MOST_SLICES` slices."""
        seconds = window.duration_s
        width_s = next(
            (width for width in WIDTHS_S if seconds / width <= MOST_SLICES), seconds / MOST_SLICES
        )
        count = max(round(seconds / width_s), 1)
        lead = round(warmup_s * count / seconds) if seconds > 0 else 0
        return cls(window.start_ns, window.stop_ns - window.start_ns, count, min(lead, MOST_SLICES))

    @property
    def total(self) -> int:
        """The number of all slices."""
        return self.lead + self.count

    def indices(self, times_ns: Integers) -> Integers:
        """For each time in `times_ns`, return the index of the slice that contains this time. The
        first slice has the index 0. The index of a time before the first slice is negative. The
        index of a time after the last slice is `total` or more."""
        return (times_ns - self.start_ns) * self.count // max(self.duration_ns, 1) + self.lead

    def starts_s(self) -> list[float]:
        """Return the start of each slice, in seconds from the start of the window."""
        first = range(-self.lead, self.count)
        return [round(number * self.duration_ns // self.count / 1e9, 6) for number in first]


class AcquireOverTime(Section, frozen=True, kw_only=True):
    """The latency of successful acquires in each time slice. A latency is measured from the
    intended start of the acquire. A percentile is null if fewer than ten samples lie beyond it."""

    p50_s: Annotated[
        tuple[Amount | None, ...], says("50 % of the acquires in the slice took at most this long")
    ]
    p90_s: Annotated[
        tuple[Amount | None, ...], says("90 % of the acquires in the slice took at most this long")
    ]
    p99_s: Annotated[
        tuple[Amount | None, ...], says("99 % of the acquires in the slice took at most this long")
    ]
    max_s: Annotated[
        tuple[Amount | None, ...],
        says("duration of the longest acquire in the slice", label="slowest"),
    ]


class OverTime(Section, frozen=True, kw_only=True):
    """The figures of each time slice of the run, including the warm-up. An operation belongs to the
    slice that contains its intended start. The counts of all slices that start at 0 s or later add
    up to `outcomes`."""

    origin_ns: Annotated[
        int, says("start of the measured window, in nanoseconds of CLOCK_MONOTONIC")
    ]
    slice_s: Annotated[Amount, says("length of each time slice")]
    start_s: Annotated[
        tuple[float, ...],
        says(
            "start of each time slice, counted from the start of the window; slices of the "
            "warm-up have negative times"
        ),
    ]
    granted: Annotated[
        tuple[Count, ...],
        says(
            "number of leases granted in each time slice; an acquire may have begun in an "
            "earlier slice"
        ),
    ]
    outcomes: Annotated[
        dict[str, tuple[Count, ...]], says("number of acquires by outcome, for each time slice")
    ]
    split_votes: Annotated[tuple[Count, ...], says("number of split votes, for each time slice")]
    margin: Annotated[
        dict[str, tuple[Count, ...]],
        says("leases by vote margin for each time slice; votes are counted when the round ends"),
    ]
    acquire: Annotated[
        AcquireOverTime, says("durations of the successful acquires, for each time slice")
    ]


def margin_names(instances: int) -> list[str]:
    """Return the names of the sums that count leases by vote margin. The sum with the name at index
    k counts the leases that k instances granted."""
    return [f"margin {granted - instances // 2 - 1}" for granted in range(instances + 1)]


def sliced_sections(slices: Slices, instances: int) -> dict[str, Iterable[object]]:
    """Return the sections of `Sums` that `add_slices` needs. In each section, there is one sum for
    each slice."""
    names = (*ACQUIRE_OUTCOMES, "granted", "split_votes", *margin_names(instances))
    return {f"slices {name}": range(slices.total) for name in names}


def add_slices(sums: Sums, slices: Slices, instances: int, records: Records) -> None:
    """Add these records to the sums of their slices.

    The function reads only the columns that it needs. The function does not copy whole records,
    because a copy would take longer than the rest of the function.
    """

    def add(name: str, places: Integers, weights: Integers | None = None) -> None:
        sums.add(
            f"slices {name}",
            dict(enumerate(np.bincount(places, weights, slices.total).astype(int).tolist())),
        )

    granted = slices.indices(records.ended_ns[acquired(records)])
    add("granted", granted[(granted >= 0) & (granted < slices.total)])
    place = slices.indices(records.intended_ns)
    in_window = np.flatnonzero((place >= 0) & (place < slices.total))
    place = place[in_window]
    codes = records.outcome[in_window] & 0xFF
    for name in ACQUIRE_OUTCOMES:
        add(name, place[codes == OUTCOME_CODES[name]])
    add("split_votes", place, outcomes.split_votes_of(records)[in_window])
    won = codes == ACQUIRED
    leases = in_window[won]
    place = place[won]
    votes, undecided = (
        outcomes.votes_of(records, kind)[leases] for kind in ("granted", "undecided")
    )
    for number, name in enumerate(margin_names(instances)):
        add(name, place[(undecided == 0) & (votes == number)])
    took = records.ended_ns[leases] - records.intended_ns[leases]
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=slices.total))[:-1]
    for number, part in enumerate(np.split(took[order], ends)):
        sums.histograms[f"slice {number}"].add(part)


def over_time_of(sums: Sums, slices: Slices) -> OverTime:
    """Return the section `over_time` of all records that were added so far."""
    took = [Latency.of(sums.histograms[f"slice {number}"]) for number in range(slices.total)]
    rows = {
        name.removeprefix("slices "): tuple(numbers.values())
        for name, numbers in sums.numbers.items()
    }
    margins = {
        name.removeprefix("margin "): row
        for name, row in rows.items()
        if name.startswith("margin ")
    }
    return OverTime(
        origin_ns=slices.start_ns,
        slice_s=slices.duration_ns / slices.count / 1e9,
        start_s=tuple(slices.starts_s()),
        granted=rows["granted"],
        outcomes={name: rows[name] for name in ACQUIRE_OUTCOMES},
        split_votes=rows["split_votes"],
        margin={margin: row for margin, row in margins.items() if any(row)},
        acquire=AcquireOverTime(
            **{
                field: tuple(map(attrgetter(field[:-2]), took))
                for field in AcquireOverTime.__struct_fields__
            }
        ),
    )
