"""The result of `compare` and `gate`: *runs of two or more sides → their differences*.

Rules: the rules of `bench.measure.section` apply. A ratio is the measured value of the second side
÷ the measured value of the first side.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from bench.measure.environment import Environment
from bench.measure.result import Document
from bench.measure.run_result import (
    FleetFacts,
    GeneratorWord,
    JudgedThreshold,
    RunResult,
    SafetyWord,
)
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
        Scenario | None, says("the settings of its runs; null: the side was never run")
    ]
    fleet: Annotated[FleetFacts | None, says("as in a run's result")]
    environment: Annotated[
        Environment | None, says("where the side ran; lockcore and packages are those of this side")
    ]

    @classmethod
    def of(cls, label: str, run: RunResult | None) -> Self:
        """Return a side described by one of its runs, or only its label if there was no run."""
        return cls(
            label=label,
            **{name: getattr(run, name, None) for name in ("scenario", "fleet", "environment")},
        )


class TwoSides(Section, frozen=True, kw_only=True):
    """One figure of the first side and of another side, before judgement."""

    metric: Annotated[str, says("name of the figure")]
    unit: Annotated[Unit, says("of first and second")]
    higher_is_better: Annotated[bool, says("true if more is better; false: less is better")]
    first: Annotated[Amount | None, says("median of the first side's values")]
    second: Annotated[Amount | None, says("median of this side's values")]
    pairs: Annotated[
        Count,
        says("pairs with both values; for stored results: number of values of the smaller side"),
    ]
    paired: Annotated[bool, says("true if first and second were run in pairs")]


class Judged(TwoSides, frozen=True, kw_only=True):
    """One figure of one side, compared with the first side, with its verdict."""

    side: Annotated[Count, says("index into sides")] = 1
    label: Annotated[str, says("of the side")] = ""
    role: Annotated[
        Literal["judged", "shown", "noise"], says("noise: the first side run once more (A/A)")
    ] = "judged"
    ratio: Annotated[
        Amount | None, says("second ÷ first: exp of the Hodges-Lehmann estimate of the log ratios")
    ] = None
    low: Annotated[
        Amount | None, says("lower end of the exact interval of the ratio; null: unbounded")
    ] = None
    high: Annotated[
        Amount | None, says("upper end of the exact interval of the ratio; null: unbounded")
    ] = None
    confidence: Annotated[Share | None, says("of the interval")] = None
    tolerance_ratio: Annotated[
        Share | None, says("how much worse still counts as the same; for shares, in points")
    ] = None
    pair_noise_ratio: Annotated[
        Amount | None, says("exp(standard deviation of one pair's log ratio) − 1")
    ] = None
    verdict: Annotated[
        Word, says("gate: pass, fail, inconclusive; compare: different, same, inconclusive")
    ]
    reason: Annotated[str | None, says("why the verdict is inconclusive; null: it is not")] = None
    noisy: Annotated[
        bool, says("true if the verdict is inconclusive only because the figures vary so much")
    ] = False


class ExactRow(Section, frozen=True, kw_only=True):
    """One counted cost of both sides."""

    name: Annotated[str, says("what was counted")]
    first: Annotated[Amount, says("of the first side")]
    second: Annotated[Amount, says("of the second side")]


class Exact(Section, frozen=True, kw_only=True):
    """The counted costs of one acquire and its release."""

    rows: Annotated[tuple[ExactRow, ...], says("every cost")] = ()
    failures: Annotated[tuple[str, ...], says("what grew, in words")] = ()
    skipped: Annotated[str | None, says("why nothing was counted; null: it was counted")] = None


class RunSafety(Section, frozen=True, kw_only=True):
    """Figures from the section `safety` of a run."""

    verdict: Annotated[SafetyWord, says("of the run")]
    service_faults: Annotated[
        Count, says("how often two leases of one resource overlapped, or another rule was broken")
    ]
    tested_leases: Annotated[
        Count, says("leases that another client requested while they were held")
    ]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the verdict word does not follow from the counts."""
        if self.service_faults and self.verdict != "VIOLATED":
            yield f"{self.verdict} beside {self.service_faults} service faults"
        if self.verdict == "SAFE" and self.tested_leases < TESTED_LEAST:
            yield f"SAFE over {self.tested_leases} tested leases: NOT TESTED below {TESTED_LEAST}"
        if self.verdict == "NOT TESTED" and self.tested_leases >= TESTED_LEAST:
            yield f"NOT TESTED over {self.tested_leases} tested leases"


class ComparedRun(Section, frozen=True, kw_only=True):
    """One finished run of a finished round."""

    side: Annotated[Count, says("index into sides")]
    pair: Annotated[
        Count, says("number of the round; for stored results: position of the run in its folder")
    ]
    id: Annotated[str, says("of the run")]
    status: Annotated[Status, says("verdict of the run by itself")]
    reasons: Annotated[tuple[str, ...], says("why")]
    generator_cpu_ratio: Annotated[
        Amount | None, says("CPU of the busiest load process ÷ one core")
    ]
    generator: Annotated[
        GeneratorWord | None, says("`generator.verdict` of the run; null in closed loop")
    ] = None
    safety: Annotated[RunSafety, says("whether the lock held")]
    figures: Annotated[
        dict[str, Amount | None], says("by name of the metric, in the units of a run's result")
    ]
    thresholds: Annotated[tuple[JudgedThreshold, ...], says("as in a run's result")]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the status does not follow from the other fields."""
        if (self.status == "violated") != (self.safety.verdict == "VIOLATED"):
            yield f"the status is {self.status}, but the safety verdict is {self.safety.verdict}"
        if self.generator == "INVALID" and self.status not in ("invalid", "violated"):
            yield f"the status is {self.status}, but the generator is INVALID"
        if self.status != "pass" and not self.reasons:
            yield f"the status is {self.status} without a reason"
        if (self.figures.get("acquire.success") or 0.0) > 1:
            yield "the share of acquired leases is above 1"


class SideThreshold(JudgedThreshold, frozen=True, kw_only=True):
    """One limit, applied to all runs of a side."""

    label: Annotated[str, says("of the side")]


class ComparedVerdict(Verdict, frozen=True, kw_only=True):
    """The verdict over all figures, and its evidence."""

    only_noise: Annotated[
        bool,
        says("true if the figures are inconclusive only because they vary: more pairs may decide"),
    ] = False


class ComparisonResult(Document, frozen=True, kw_only=True):
    """Interleaved runs, or stored runs. Each side is compared with the first side."""

    kind: Annotated[Kind, says("the command")]
    verdict: Annotated[ComparedVerdict, says("the answer in one word, and its reasons")]
    planned_pairs: Annotated[
        Count, says("requested rounds; a gate stops as soon as its answer is certain")
    ]
    sides: Annotated[
        tuple[ComparedSide, ...],
        says("the compared sides; the first is the one that the others are compared with"),
    ]
    differs: Annotated[tuple[str, ...], says("the settings in which the sides differ")]
    tolerance_ratio: Annotated[Share, says("how much worse still counts as the same")]
    finished_pairs: Annotated[Count, says("rounds whose runs all finished")]
    paired: Annotated[bool, says("true if the sides were run in pairs; false: stored results")]
    in_turns: Annotated[
        bool, says("true if the sides ran at the same time, in time slices of a tenth of a second")
    ] = False
    looks: Annotated[
        tuple[Count, ...],
        says("the numbers of pairs after which a gate checks whether it has an answer"),
    ] = ()
    repeated_pairs: Annotated[Count, says("rounds that were run again because a run was INVALID")]
    stopped: Annotated[str, says("why some rounds were not run; empty: nothing stopped them")] = ""
    sharp: Annotated[
        bool, says("true if the client's CPU has a smaller tolerance than the other figures")
    ]
    missed_ratio: Annotated[
        Share,
        says(
            "the accepted probability that a gate passes a candidate that is worse by the whole "
            "tolerance"
        ),
    ]
    metrics: Annotated[
        tuple[Judged, ...], says("each figure of each side, compared with the first side")
    ]
    exact: Annotated[Exact | None, says("costs per acquire; null: not counted")]
    thresholds: Annotated[
        tuple[SideThreshold, ...],
        says("the limits over all runs of a side: the middle value, or for safety the worst"),
    ]
    runs: Annotated[tuple[ComparedRun, ...], says("every run that counts")]
