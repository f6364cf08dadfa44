"""Defines the result of `compare` and `gate`: *the runs of two or more sides → the differences
between the sides*.

The rules of `bench.measure.section` apply. A ratio is always the second side's value divided by the
first side's value.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from bench.measure.environment import Environment
from bench.measure.fleet_facts import FleetFacts
from bench.measure.result import Document
from bench.measure.run_result import GeneratorWord, JudgedThreshold, RunResult, SafetyWord
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.verdict import TESTED_LEAST, Status, Verdict
from bench.measure.words import Unit
from bench.scenario import Scenario

Kind = Literal["compare", "gate"]
# The verdict on one figure.
Word = Literal["pass", "fail", "inconclusive", "different", "same"]


class ComparedSide(Section, frozen=True, kw_only=True):
    """One side of the comparison."""

    label: Annotated[str, says("how it was named")]
    scenario: Annotated[
        Scenario | None, says("the settings of the side's runs; null if the side was never run")
    ]
    fleet: Annotated[FleetFacts | None, says("as in a run's result")]
    environment: Annotated[
        Environment | None,
        says(
            "machine of the side's runs, with the versions of lockcore and of other packages "
            "that the side used"
        ),
    ]

    @classmethod
    def of(cls, label: str, run: RunResult | None) -> Self:
        """Return a side with the name `label` and the settings of `run`. `run` is one of the side's
        runs. If `run` is None, the side has no settings."""
        return cls(
            label=label,
            **{name: getattr(run, name, None) for name in ("scenario", "fleet", "environment")},
        )


class TwoSides(Section, frozen=True, kw_only=True):
    """The values of one figure on two sides, without a verdict. The first of the two sides is
    always the comparison's first side."""

    metric: Annotated[str, says("name of the figure")]
    unit: Annotated[Unit, says("of first and second")]
    higher_is_better: Annotated[
        bool, says("true if a larger value is better, false if a smaller value is better")
    ]
    first: Annotated[Amount | None, says("median of the first side's values")]
    second: Annotated[Amount | None, says("median of this side's values")]
    pairs: Annotated[
        Count,
        says(
            "number of pairs in which both sides have a value; for stored results, the "
            "number of values of the side with fewer values"
        ),
    ]
    paired: Annotated[bool, says("true if the runs of the two sides form pairs")]


class Judged(TwoSides, frozen=True, kw_only=True):
    """One figure of a side, compared with the same figure of the first side. The object also has
    the verdict on the difference."""

    side: Annotated[Count, says("index into sides")] = 1
    label: Annotated[str, says("of the side")] = ""
    role: Annotated[
        Literal["judged", "shown", "noise"],
        says(
            "purpose of this comparison; noise means a comparison of the first side with "
            "itself (A/A)"
        ),
    ] = "judged"
    ratio: Annotated[
        Amount | None,
        says(
            "the ratio second ÷ first, as exp of the Hodges-Lehmann estimate of the log ratios",
        ),
    ] = None
    low: Annotated[
        Amount | None,
        says(
            "lower end of the ratio's exact interval; null if the interval has no lower end",
            unit="ratio",
        ),
    ] = None
    high: Annotated[
        Amount | None,
        says(
            "upper end of the ratio's exact interval; null if the interval has no upper end",
            unit="ratio",
        ),
    ] = None
    confidence: Annotated[Share | None, says("of the interval")] = None
    tolerance_ratio: Annotated[
        Share | None,
        says(
            "how much worse a figure may be and still count as equal; in percentage points if the "
            "figure is a share"
        ),
    ] = None
    pair_noise_ratio: Annotated[
        Amount | None,
        says("relative noise of one pair: exp(standard deviation of the pairs' log ratios) − 1"),
    ] = None
    verdict: Annotated[
        Word,
        says(
            "verdict on the figure; a gate says pass, fail or inconclusive, and "
            "compare says different, same or inconclusive"
        ),
    ]
    reason: Annotated[
        str | None, says("why the verdict is inconclusive; null for any other verdict")
    ] = None
    noisy: Annotated[
        bool, says("true if the verdict is inconclusive only because the figures vary too much")
    ] = False

    @property
    def limit(
        self,
    ) -> Annotated[
        Amount | None,
        says(
            "the ratio at which the second side is worse by exactly the tolerance",
            label="allowed",
            unit="ratio",
        ),
    ]:
        """The largest change that is within the tolerance, as the ratio second ÷ first. At this
        ratio the second side is worse by exactly the tolerance. The value is None if the figure is
        not judged, or if the ratio is not known."""
        if self.role != "judged" or self.tolerance_ratio is None:
            return None
        # The tolerance of this share is in percentage points of all acquires.
        if self.metric == "acquire.success":
            return 1 - self.tolerance_ratio / self.first if self.first else None
        return 1 / (1 + self.tolerance_ratio) if self.higher_is_better else 1 + self.tolerance_ratio


class ExactRow(Section, frozen=True, kw_only=True):
    """One counted cost of an acquire and its release. The section has the value of the first side
    and the value of the second side."""

    name: Annotated[str, says("what was counted")]
    first: Annotated[Amount, says("of the first side")]
    second: Annotated[Amount, says("of the second side")]


class Exact(Section, frozen=True, kw_only=True):
    """The counted costs of one acquire and its release. The section has the costs of both sides of
    a gate."""

    rows: Annotated[tuple[ExactRow, ...], says("every cost")] = ()
    failures: Annotated[tuple[str, ...], says("what grew, in words")] = ()
    skipped: Annotated[
        str | None, says("why no costs were counted; null if the costs were counted")
    ] = None


class RunSafety(Section, frozen=True, kw_only=True):
    """Some figures about the safety of one run. A comparison copies these figures from the section
    `safety` of the run's result."""

    verdict: Annotated[SafetyWord, says("of the run")]
    service_faults: Annotated[
        Count, says("number of broken safety rules, such as two overlapping leases on one resource")
    ]
    tested_leases: Annotated[
        Count, says("leases whose resource another client requested before the lease ended")
    ]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between the safety verdict and the counts."""
        if self.service_faults and self.verdict != "VIOLATED":
            yield f"the verdict is {self.verdict} with {self.service_faults} service faults"
        if self.verdict == "SAFE" and self.tested_leases < TESTED_LEAST:
            yield f"SAFE needs {TESTED_LEAST} tested leases, and there are {self.tested_leases}"
        if self.verdict == "NOT TESTED" and self.tested_leases >= TESTED_LEAST:
            yield f"the verdict is NOT TESTED with {self.tested_leases} tested leases"


class ComparedRun(Section, frozen=True, kw_only=True):
    """One run of a finished round. A round is finished when the runs of all sides have finished.
    The result contains no runs of unfinished rounds."""

    side: Annotated[Count, says("index into sides")]
    pair: Annotated[
        Count,
        says("number of the round; for stored results, the position of the run in its folder"),
    ]
    id: Annotated[str, says("of the run")]
    status: Annotated[Status, says("verdict of this run alone")]
    reasons: Annotated[tuple[str, ...], says("why")]
    generator_cpu_ratio: Annotated[
        Amount | None, says("CPU use of the busiest load process, as a share of one core")
    ]
    generator: Annotated[
        GeneratorWord | None, says("`generator.verdict` of the run; null in closed loop")
    ] = None
    safety: Annotated[RunSafety, says("whether the lock held")]
    figures: Annotated[
        dict[str, Amount | None],
        says("the value of each metric, by the metric's name, in the units of a run's result"),
    ]
    thresholds: Annotated[tuple[JudgedThreshold, ...], says("as in a run's result")]

    def contradictions(self) -> Iterator[str]:
        """Yield one sentence for each contradiction between two fields, such as the status and the
        safety verdict."""
        if (self.status == "violated") != (self.safety.verdict == "VIOLATED"):
            yield f"the status is {self.status}, but the safety verdict is {self.safety.verdict}"
        if self.generator == "INVALID" and self.status not in ("invalid", "violated"):
            yield f"the status is {self.status}, but the generator is INVALID"
        if self.status != "pass" and not self.reasons:
            yield f"the status is {self.status} without a reason"
        if (self.figures.get("acquire.success") or 0.0) > 1:
            yield "the share of acquired leases is above 1"


class SideThreshold(JudgedThreshold, frozen=True, kw_only=True):
    """A threshold that was judged over all runs of one side."""

    label: Annotated[str, says("of the side")]


class ComparedVerdict(Verdict, frozen=True, kw_only=True):
    """The verdict on the whole comparison, and the evidence for this verdict."""

    only_noise: Annotated[
        bool,
        says(
            "true if the verdict is inconclusive only because the figures vary; more "
            "pairs may then decide"
        ),
    ] = False


class ComparisonResult(Document, frozen=True, kw_only=True):
    """The result of a comparison of interleaved runs or of stored runs. Each side is compared with
    the first side."""

    kind: Annotated[Kind, says("the command")]
    verdict: Annotated[
        ComparedVerdict, says("the verdict in one word, with the reasons for the verdict")
    ]
    planned_pairs: Annotated[
        Count,
        says(
            "number of requested rounds; a gate may stop after fewer rounds, as soon as its "
            "answer is certain"
        ),
    ]
    sides: Annotated[
        tuple[ComparedSide, ...],
        says("the compared sides; every side is compared with the first side"),
    ]
    differs: Annotated[tuple[str, ...], says("the settings in which the sides differ")]
    tolerance_ratio: Annotated[
        Share, says("how much worse a figure may be and still count as equal")
    ]
    finished_pairs: Annotated[Count, says("rounds whose runs all finished")]
    paired: Annotated[
        bool, says("true if lockbench ran the sides in pairs; false if it compared stored results")
    ]
    in_turns: Annotated[
        bool, says("true if the sides ran alternately, in time slices of 0.1 s")
    ] = False
    looks: Annotated[
        tuple[Count, ...],
        says(
            "numbers of finished pairs; at each of these numbers, the gate judges all pairs so "
            "far and may stop"
        ),
    ] = ()
    repeated_pairs: Annotated[
        Count, says("number of rounds that were repeated because a run was INVALID")
    ]
    stopped: Annotated[
        str, says("why some rounds were not run; empty if nothing stopped the comparison")
    ] = ""
    sharp: Annotated[
        bool,
        says("true if the tolerance is smaller for the client's CPU than for the other figures"),
    ]
    missed_ratio: Annotated[
        Share,
        says(
            "probability that a gate passes although the candidate is worse by exactly the "
            "tolerance"
        ),
    ]
    metrics: Annotated[
        tuple[Judged, ...],
        says(
            "the figures of all sides; each figure is compared with the same "
            "figure of the first side"
        ),
    ]
    exact: Annotated[Exact | None, says("costs per acquire; null if the costs were not counted")]
    thresholds: Annotated[
        tuple[SideThreshold, ...],
        says(
            "thresholds over all runs of a side: each threshold judges the median run, "
            "and a safety threshold judges the worst run"
        ),
    ]
    runs: Annotated[tuple[ComparedRun, ...], says("every run that counts")]
