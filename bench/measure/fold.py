"""Computes the measured sections of result.json from the records of a run and the reports of its
workers.

- The outcomes, latencies, votes and attempts include only operations whose intended start lies in
  the window. `totals` and `releases` are counts of the whole run. The rates count every grant and
  every return that happened in the window, even if the operation began before the window.
- A hand-off needs two operations. All other figures are sums over single operations. Therefore a
  worker on another host can `count` its own operations, but it cannot count hand-offs. The leader
  adds up the counts of all workers, and this sum is exact. In addition, the leader computes the
  hand-offs from the records that it has received.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.measure import latency, outcomes, workers
from bench.measure.facts import NO_DUE, Due, Window
from bench.measure.histogram import Histogram, Sums
from bench.measure.latency import LATENCIES, WAITS, Latency, Slices
from bench.measure.outcomes import (
    ACQUIRE_OUTCOMES,
    RELEASE_OUTCOMES,
    Counts,
    Outcomes,
    Releases,
    SplitVotes,
    Votes,
)
from bench.measure.record import Records, ends_ns
from bench.measure.run_result import (
    Attempts,
    Cost,
    Exceptions,
    Measured,
    Rate,
    SafetyReport,
    fields_of,
)
from bench.measure.statistics import TENTHS, trend_warning
from bench.measure.workers import WorkerNote
from bench.scenario import Scenario

SUSTAINED_SHARE = 0.99
# If a larger share of the acquires fails, the p99 over all acquires is infinite.
FAILED_SHARE = 0.01
SECTIONS: Mapping[str, Iterable[object]] = {
    "totals": ACQUIRE_OUTCOMES,
    "releases": RELEASE_OUTCOMES,
    "votes": outcomes.KINDS,
    "tenths": range(TENTHS),
    **WAITS,
    # How many records from other hosts lie in each bucket (bench/hosts/share.py).
    "buckets": (),
    "counts": (
        "records",
        "returned",
        "finished",
        "busy_ns",
        "attempts",
        "releases",
        "window_attempts",
    ),
}
NOT_JUDGED = SafetyReport(verdict="UNKNOWN", reason="nobody judged this history")


@dataclass(frozen=True, slots=True)
class Sections:
    """The measured sections of a result, and the sentences for its `warnings`."""

    values: Measured
    warnings: tuple[str, ...]


class Fold:
    """The sums over one run.

    `window` is the measured time. `due` is how many operations the schedule of an open loop starts.
    `cut` is true if the run ended early. The `sums` of two folds can be merged if no operation is
    in both folds and both windows have the same length.
    """

    def __init__(
        self, scenario: Scenario, window: Window, due: Due = NO_DUE, *, cut: bool = False
    ) -> None:
        self._scenario = scenario
        self._window = window
        self._due = due
        self._cut = cut
        self._instances = len(scenario.targets) or scenario.instances
        self._slices = Slices.of(window, scenario.warmup_ms / 1000)
        by_slice = latency.sliced_sections(self._slices, self._instances)
        latencies = (
            *LATENCIES,
            "attempts",
            *(f"slice {number}" for number in range(self._slices.total)),
        )
        self.sums = Sums({**SECTIONS, **by_slice}, latencies)
        self._counts, self._totals = (self.sums.numbers[name] for name in ("counts", "totals"))

    def add(self, records: Records) -> None:
        """Add some records of the history. If `records` contains one operation of a resource, it
        must contain all operations of this resource. The order of the records does not matter."""
        self.count(records)
        self.add_handoffs(records)

    def add_handoffs(self, records: Records) -> None:
        """Add only the hand-offs. If a resource occurs in `records`, all its operations must be in
        `records`."""
        self.sums.histograms["handoff"].add(latency.handoffs(records, self._window))

    # Workers of other hosts call this on their own records, and the leader adds up their counts. So
    # no code in this method may compare two records. A hand-off needs two leases, and each lease
    # may belong to a different host. Therefore the leader adds the hand-offs separately, from the
    # records that it received. The leader must not call `add` for received records, because their
    # hosts have already counted them.
    def count(self, records: Records) -> None:
        """Add these records to all figures except the hand-offs. The records may be any selection
        of the history."""
        window = self._window
        sums = self.sums
        inside = records[self._window.holds(records.intended_ns)]
        sums.add("totals", outcomes.count_acquires(records))
        sums.add("releases", outcomes.count_releases(records))
        sums.add("votes", outcomes.count_votes(inside))
        for name, values in latency.durations(inside).items():
            sums.histograms[name].add(values)
        rounds = outcomes.attempts_of(inside)
        # This histogram counts rounds, not ns.
        sums.histograms["attempts"].add(rounds[outcomes.acquired(inside)])
        leases_ns = records.ended_ns[outcomes.acquired(records)]
        inside_ns = leases_ns[window.holds(leases_ns)] - window.start_ns
        tenths = np.bincount(inside_ns * TENTHS // (window.span_ns or 1), minlength=TENTHS)
        sums.add("tenths", dict(enumerate(tenths.tolist())))
        latency.add_slices(sums, self._slices, self._instances, records)
        latency.add_waits(sums, records, inside)
        busy_ns = np.minimum(ends_ns(records), window.stop_ns) - np.maximum(
            records.intended_ns, window.start_ns
        )
        more = {
            "records": len(records),
            "returned": int(window.holds(records.ended_ns).sum()),
            "finished": int(window.holds(ends_ns(records)).sum()),
            "busy_ns": int(np.maximum(busy_ns, 0).sum()),
            "attempts": int(outcomes.attempts_of(records).sum()),
            "releases": int((records.release_sent_ns > 0).sum()),
            "window_attempts": int(rounds.sum()),
        }
        sums.add("counts", more)

    def sections(
        self,
        reports: Sequence[WorkerNote] = (),
        server_cpu_s: float | None = None,
        safety: SafetyReport = NOT_JUDGED,
    ) -> Sections:
        """Return the sections of all operations that were added so far.

        `reports` has the reports of the workers. `server_cpu_s` is the CPU time that all servers
        used during the run.
        """
        sums = self.sums.numbers
        counts = self._counts
        acquires = self._inside(*ACQUIRE_OUTCOMES)
        margins = self._inside(*latency.margin_names(self._instances)).items()
        due = sum(acquires.values())
        shares = {name: number / due if due else None for name, number in acquires.items()}
        split_votes = self._inside("split_votes")["split_votes"]
        rounds = counts["window_attempts"]
        histograms = self.sums.histograms | {
            "scheduler_lag": workers.merged(report.lag_histogram for report in reports),
            "timer_lateness": workers.merged(report.lateness_histogram for report in reports),
        }
        values = Measured(
            duration_s=self._window.duration_s,
            rate=self._rate(),
            outcomes=Outcomes(**acquires),
            outcome_shares=outcomes.OutcomeShares(**shares),
            totals=Outcomes(**self._totals),
            releases=Releases(**sums["releases"]),
            latency_s=latency.blocks(histograms),
            over_time=latency.over_time_of(self.sums, self._slices),
            attempts=_attempts(histograms["attempts"], rounds),
            votes=Votes(
                margin={name.split()[1]: number for name, number in margins if number},
                **sums["votes"],
            ),
            split_votes=SplitVotes(
                count=split_votes, ratio=split_votes / rounds if rounds else None
            ),
            waiting=latency.waiting_of(
                self.sums,
                self._scenario.users,
                [report.figures for report in reports],
                closed=self._scenario.rate_per_s is None,
            ),
            cost=self._cost(reports, server_cpu_s),
            generator=workers.judge_generator(
                reports,
                histograms,
                counts,
                self._scenario,
                span_ns=self._window.span_ns,
                due=self._due.run,
            ),
            safety=safety,
            exceptions=self._exceptions(reports),
            histograms=_encoded(histograms, reports),
        )
        return Sections(values, tuple(self._warnings(values, reports)))

    def _inside(self, *names: str) -> Counts:
        """For each name, return the sum of the counts in all time slices of the window."""
        rows = {name: tuple(self.sums.numbers[f"slices {name}"].values()) for name in names}
        return {name: sum(row[self._slices.lead :]) for name, row in rows.items()}

    def _rate(self) -> Rate:
        seconds = self._window.duration_s
        offered = self._scenario.rate_per_s
        begun = sum(self._inside(*ACQUIRE_OUTCOMES).values())
        granted = self._inside("granted")["granted"]
        # The schedule tells how many starts are due. So the starts of a lost worker are still due.
        due = max(begun, self._due.window)
        sustained = None
        if offered is not None and not self._cut:
            sustained = self._counts["returned"] >= SUSTAINED_SHARE * due - 1 and due > 0
        achieved = granted / seconds if seconds > 0 else None
        completed = self._counts["returned"] / seconds if seconds > 0 else None
        return Rate(
            offered_per_s=offered,
            achieved_per_s=achieved,
            completed_per_s=completed,
            sustained=sustained,
        )

    def _exceptions(self, reports: Sequence[WorkerNote]) -> Exceptions:
        raised = workers.added(report.errors for report in reports)
        return Exceptions(
            raised=sum(raised.values()),
            operations=sum(self._totals.values()) + sum(report.cut for report in reports),
            first=next(iter(raised), ""),
        )

    def _cost(self, reports: Sequence[WorkerNote], server_cpu_s: float | None) -> Cost:
        leases = self._totals["acquired"]
        statuses = [status for report in reports for status in report.instances]
        traffic = sum(status.bytes_sent + status.bytes_received for status in statuses)

        def per_lease(amount: float | None) -> float | None:
            return amount / leases if leases and amount is not None else None

        client_cpu_us = sum(report.cpu_s for report in reports) * 1e6 if reports else None
        server_cpu_us = None if server_cpu_s is None else server_cpu_s * 1e6
        return Cost(
            commands_per_acquire=per_lease(sum(status.commands for status in statuses) or None),
            round_trips_per_acquire=per_lease(self._counts["attempts"] + self._counts["releases"]),
            bytes_per_acquire=per_lease(traffic or None),
            client_cpu_us_per_cycle=per_lease(client_cpu_us),
            server_cpu_us_per_cycle=per_lease(server_cpu_us),
        )

    def _warnings(self, values: Measured, reports: Sequence[WorkerNote]) -> list[str]:
        warnings = [
            f"{note.name} did not report its end, so its CPU, its lag and its counts, also in "
            "Locust's table, come from its last report"
            for note in reports
            if note.phase != "stopped"
        ]
        # If a worker was killed, it does not report. So its operations are also missing in Locust's
        # table.
        whole = reports and not warnings
        if (values.generator.cpu_ratio or 0) >= workers.BUSY_CORE:
            warnings.append(workers.GENERATOR_BOUND)
        if values.generator.verdict in workers.IN_DOUBT:
            warnings.append(
                "latencies are upper bounds, because the load generator adds time: "
                f"{values.generator.reason}"
            )
        warnings += _failures(fields_of(values.outcomes))
        if values.rate.sustained is False:
            warnings.append(
                f"not sustained: only {values.rate.completed_per_s:.1f} of "
                f"{self._scenario.rate_per_s:.1f} operations/s were completed, so the latencies "
                "include a growing queue"
            )
        if (gone := values.releases.gone) and not values.releases.released:
            warnings.append(
                f"all {gone} releases returned GONE, so nothing shows that a lock was ever held"
            )
        acquires = sum(self._totals.values())
        released = sum(self.sums.numbers["releases"].values())
        for row, recorded in (("acquire", acquires), ("release", released)):
            counted = sum(report.locust.get(row, (0, 0))[0] for report in reports)
            if whole and counted != recorded:
                warnings.append(
                    f"Locust's table has {counted} {row}s, but the history has {recorded}"
                )
        return [*warnings, *trend_warning(tuple(self.sums.numbers["tenths"].values()))]


def _failures(outcomes: Counts) -> list[str]:
    """Return a warning if more than `FAILED_SHARE` of the acquires failed. In this case, the p99
    and all higher percentiles over all acquires are infinite."""
    acquires = sum(outcomes.values())
    lost = {name: number for name, number in outcomes.items() if name != "acquired"}
    if sum(lost.values()) <= FAILED_SHARE * acquires:
        return []
    kinds = ", ".join(
        f"{name.replace('_', ' ')} {number / acquires:.1%}"
        for name, number in lost.items()
        if number
    )
    return [
        f"{sum(lost.values()) / acquires:.1%} of acquires failed ({kinds}); thresholds count "
        "failed acquires as infinitely long, and the table lists failed acquires separately"
    ]


def fold(
    records: Records,
    window: Window,
    scenario: Scenario,
    reports: Sequence[WorkerNote] = (),
    due: Due = NO_DUE,
) -> Sections:
    """Compute the sections of a whole history with one `Fold`. The computation takes much less than
    a second for a million operations.
    """
    total = Fold(scenario, window, due)
    total.add(records)
    return total.sections(reports)


def _encoded(histograms: Mapping[str, Histogram], reports: Sequence[WorkerNote]) -> dict[str, str]:
    """Return the encoded histograms of a result. They are the histograms of latencies, lags and
    reply times."""
    names = (*LATENCIES, "scheduler_lag", "timer_lateness")
    encoded = {name: histograms[name].encode() for name in names}
    for index, one in enumerate(workers.replies(reports)):
        encoded[f"reply_{index}"] = one.encode()
    return encoded


def _attempts(histogram: Histogram, rounds: int) -> Attempts:
    """Return the section about attempts. The section has the distribution of attempts per acquire,
    and the total number of attempts."""
    return Attempts(**fields_of(Latency.of(histogram, unit_ns=1)), total=rounds)
