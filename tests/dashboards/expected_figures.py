"""What each panel of a run's boards must show: *the result of a run without warm-up → expected, by
board and query*.

Panels of the moment are looked at over the whole run, at its end: a rate is then all of it over the
time looked at, and what stands for nobody any more is 0. Percentiles may be off by a bucket of the
page, counts in rates by what came before the first scrape, times by what an end takes.
"""

from collections.abc import Mapping

import numpy as np

from bench.measure.histogram import Histogram, bucket_indices
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of
from bench.telemetry.table import ACQUIRE_OUTCOMES, BOUNDS, VOTES
from tests.dashboards.prometheus_answers import ExpectedFigure, near

BUCKET = 1.6
# of an instance
TIMEOUT_S = 0.05
ExpectedFigures = Mapping[str, list[ExpectedFigure]]


def wholes(ran: RunResult) -> dict[tuple[str, str], tuple[float, float]]:
    """What each panel that shows one figure of a whole run must say of one without warm-up: the
    figure, and by what factor it may be off; percentiles (a failure takes for ever) by a bucket of
    the page, times by what an end takes."""
    result = builtins_of(ran)
    acquire = Histogram.decode(result["histograms"]["acquire"])
    every = result["instances"]
    replies = Histogram.merged(
        Histogram.decode(result["histograms"][f"reply_{one['index']}"]) for one in every
    )
    acquired = result["totals"]["acquired"]
    generator = result["generator"]
    bucket = 1.6
    within = int(acquire.counts[: bucket_indices(np.array([10_000_000]))[0] + 1].sum())
    failed = sum(result["totals"].values()) - acquired
    p50, p99 = (
        min((acquire.percentile(percent, failed) or 0) / 1e9, BOUNDS[-1]) for percent in (50, 99)
    )
    # the time-out
    reply = min((replies.percentile(99, result["votes"]["silent"]) or 0) / 1e9, 0.05)
    common = {
        "Acquire p99": (p99, bucket),
        "Rate of the whole run": (result["rate"]["achieved_per_s"], 1.05),
    }
    info = [one["info"] for one in every]
    return {
        **{("run-overview", title): right for title, right in common.items()},
        **{("fsync", title): right for title, right in common.items()},
        **{
            ("generator", title): (1.0, 1)
            for title in (
                "Rate",
                "Acquire p50",
                "Acquire p99",
                "Client CPU per lease",
                "Server CPU per lease",
            )
        },
        ("run-overview", "Leases"): (acquired, 1),
        ("run-overview", "Leases judged"): (acquired, 1),
        ("run-overview", "Safety violations"): (result["safety"]["service_faults"], 1),
        ("run-overview", "Within the SLO"): (within / sum(result["totals"].values()), 1.02),
        ("fsync", "Acquire p50"): (p50, bucket),
        ("fsync", "Reply to a SET, p99"): (reply, bucket),
        ("fsync", "Safety violations"): (result["safety"]["service_faults"], 1),
        ("fsync", "Stalls per lease"): (
            sum(one["aof"]["aof_delayed_fsync"] for one in info) / acquired,
            1.0001,
        ),
        ("generator", "Late starts"): (generator["late_starts"], 1),
        ("generator", "Queued starts"): (generator["queued_starts"], 1),
        ("generator", "Telemetry dropped"): (0, 1),
        ("quorum", "Split-brain retries per acquire"): (
            result["split_votes"]["count"] / acquired,
            1,
        ),
        ("quorum", "Leases without reserve"): (result["votes"]["margin"]["0"] / acquired, 1.0001),
        ("quorum", "Instances beyond the quorum"): (1, 1),
        ("quorum", "Restarts"): (0, 1),
    }


class FiguresOfRun:
    """Of a run whose instances' addresses have one host, looked at over `over_s`."""

    def __init__(self, result: RunResult, over_s: float) -> None:
        self.result = builtins_of(result)
        self.over_s = over_s
        self.ports = [one["address"].rpartition(":")[2] for one in self.result["instances"]]
        self.acquired = self.result["totals"]["acquired"]
        self.failed = sum(self.result["totals"].values()) - self.acquired

    def all(self) -> dict[str, ExpectedFigures]:
        """By board."""
        return {
            "lockbench-run-overview": self.overview(),
            "lockbench-generator": self.generator(),
            "lockbench-quorum": self.quorum() | self.places(),
            "lockbench-fsync": self.fsync(),
        }

    def rate(self, number: float, **labels: str) -> ExpectedFigure:
        return near(number / self.over_s, 1.35, 3 / self.over_s, **labels)

    def acquire_s(self, percent: float) -> float:
        acquire = Histogram.decode(self.result["histograms"]["acquire"])
        return min((acquire.percentile(percent, self.failed) or 0) / 1e9, BOUNDS[-1])

    def lasted(self, what: str, percent: str = "p99") -> list[ExpectedFigure]:
        """Of few there is only the most."""
        row = self.result["latency_s"][what]
        if not row["count"]:
            return []
        return (
            [near(row[percent], BUCKET)]
            if row[percent]
            else [ExpectedFigure(0, row["max"] * BUCKET)]
        )

    def overview(self) -> ExpectedFigures:
        usable_s = self.result["scenario"]["ttl_ms"] / 1000 * 0.99 - 0.002
        expired = sum(one["info"]["expired_keys"] for one in self.result["instances"])
        ways = self.result["totals"]
        return {
            "Rate offered and achieved A": [near(0)],
            "Rate offered and achieved B": [near(self.result["rate"]["offered_per_s"])],
            "Acquire latency, percentiles A": [near(self.acquire_s(50), BUCKET)],
            "Acquire latency, percentiles B": [near(self.acquire_s(90), BUCKET)],
            "Acquire latency, percentiles C": [near(self.acquire_s(99), BUCKET)],
            "Acquire latency, percentiles D": [
                ExpectedFigure(self.acquire_s(99) / BUCKET, BOUNDS[-1])
            ],
            "Release, hold and hand-off, p99 A": self.lasted("release"),
            "Release, hold and hand-off, p99 B": self.lasted("hold"),
            "Release, hold and hand-off, p99 C": self.lasted("handoff"),
            "Outcomes A": [self.rate(ways[way], redlock_outcome=way) for way in ACQUIRE_OUTCOMES],
            "Callers A": [near(0)],
            "Callers B": [near(0)],
            "Validity left at the grant A": [ExpectedFigure(usable_s - 2 * TIMEOUT_S, usable_s)],
            "Leases gone and keys expired A": [self.rate(self.result["releases"]["gone"])],
            "Leases gone and keys expired B": [self.rate(expired)],
            "Faults A": [near(0, redlock_fault_kind=one["kind"]) for one in self.result["faults"]],
        }

    def generator(self) -> ExpectedFigures:
        load = self.result["generator"]
        return {
            "CPU of the load A": [
                near(load["cpu_ratio"] * self.result["duration_s"] / self.over_s, 1.5)
            ],
            "Scheduler lag A": [ExpectedFigure(0, 0.1)],
            # of some hundred, so its p99 is null
            "Scheduler lag B": [ExpectedFigure(0, 1)],
        }

    def quorum(self) -> ExpectedFigures:
        votes = self.result["votes"]
        split = self.result["split_votes"]["count"]
        margins = {int(margin): number for margin, number in votes["margin"].items()}
        attempts = self.result["attempts"]
        waiting = self.result["waiting"]
        dead = [ExpectedFigure(0, self.result["scenario"]["wait_ms"] / 1000)] if split else []
        return {
            "Votes A": [self.rate(votes[vote], redlock_vote=vote) for vote in VOTES],
            "Vote margin A": [
                near(sum(k * n for k, n in margins.items()) / sum(margins.values()), 1.15)
            ],
            "Split-brain retries (split votes) A": [self.rate(split)],
            "Dead time of split votes A": dead,
            "Dead time of split votes B": dead,
            "Rounds per acquire A": [near(attempts["mean"], 1.1)],
            # of many 1s, within their bucket
            "Rounds per acquire B": [ExpectedFigure(0.68, attempts["max"] * BUCKET)],
            "Polls A": [self.rate(waiting["polls"])],
            "Wakeups A": [self.rate(waiting["wakeups"])],
            "Longest acquire A": [near(waiting["longest_s"])],
            "Fairness among callers A": [near(waiting["jain"], 1.001)],
        }

    def places(self) -> ExpectedFigures:
        """Of each instance; of one that is silent for a while the time-outs are among the
        replies."""
        instances = list(zip(self.ports, self.result["instances"], strict=True))
        replies = [
            Histogram.decode(self.result["histograms"][f"reply_{one['index']}"])
            for _, one in instances
        ]
        p50 = [(one.percentile(50) or 0) / 1e9 for one in replies]
        errors = [
            (port, kind, number)
            for port, one in instances
            for kind, number in one["errors"].items()
        ]
        quorum = len(instances) // 2 + 1
        return {
            "Reply to a SET, p50 A": [
                near(s, BUCKET, server_port=port) for port, s in zip(self.ports, p50, strict=True)
            ],
            "Reply to a SET, p99 A": [
                ExpectedFigure(s / BUCKET, TIMEOUT_S * BUCKET, {"server_port": port})
                for port, s in zip(self.ports, p50, strict=True)
            ],
            "Latency skew A": [near(max(p50) / min(p50), BUCKET**2)],
            "Voting instances A": [near(len(instances))],
            "Voting instances B": [near(quorum)],
            "Abstaining A": [near(0, server_port=port) for port in self.ports],
            "Commands A": [self.rate(one["commands"], server_port=port) for port, one in instances],
            "Errors A": [
                near(number, server_port=port, error_type=kind) for port, kind, number in errors
            ],
            "Reconnects A": [
                self.rate(one["reconnects"], server_port=port) for port, one in instances
            ],
        }

    def fsync(self) -> ExpectedFigures:
        bytes_ = [one["info"]["aof"]["aof_current_size"] for one in self.result["instances"]]
        sizes = [
            near(size, 1.3, server_port=port) for port, size in zip(self.ports, bytes_, strict=True)
        ]
        return {
            "AOF size A": sizes,
            "AOF rewrites A": [near(0, server_port=port) for port in self.ports],
        }
