"""The result of `compare` and `gate`: *runs of two or more sides → their differences*.

Rules: the rules of `bench.measure.section` apply. A ratio is the second side ÷ the first, as
measured.
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
    scenario: Annotated[Scenario | None, says("as in a run's result; null: never run")]
    fleet: Annotated[FleetFacts | None, says("as in a run's result")]
    environment: Annotated[
        Environment | None, says("where it ran: lockcore and packages are those of this side")
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
    higher_is_better: Annotated[bool, says("of everything else less is better")]
    first: Annotated[Amount | None, says("median of the first side's values")]
    second: Annotated[Amount | None, says("median of this side's values")]
    pairs: Annotated[
        Count, says("pairs with both values; of stored results: values of the smaller side")
    ]
    paired: Annotated[bool, says("whether first and second were run in turn")]


class Judged(TwoSides, frozen=True, kw_only=True):
    """One figure of one side against the first side, with its verdict."""

    side: Annotated[Count, says("index into sides")] = 1
    label: Annotated[str, says("of the side")] = ""
    role: Annotated[
        Literal["judged", "shown", "noise"], says("noise: the first side run once more (A/A)")
    ] = "judged"
    ratio: Annotated[
        Amount | None, says("second ÷ first: exp of the Hodges-Lehmann estimate of the log ratios")
    ] = None
    low: Annotated[Amount | None, says("lower end of its exact interval; null: unbounded")] = None
    high: Annotated[Amount | None, says("upper end of its exact interval; null: unbounded")] = None
    confidence: Annotated[Share | None, says("of the interval")] = None
    tolerance_ratio: Annotated[
        Share | None, says("how much worse is still the same; of shares, in points")
    ] = None
    pair_noise_ratio: Annotated[
        Amount | None, says("exp(standard deviation of one pair's log ratio) − 1")
    ] = None
    verdict: Annotated[
        Word, says("gate: pass, fail, inconclusive; compare: different, same, inconclusive")
    ]
    reason: Annotated[str | None, says("why it is inconclusive, else null")] = None
    noisy: Annotated[
        bool, says("whether it is inconclusive only because the figures vary so much")
    ] = False


class ExactRow(Section, frozen=True, kw_only=True):
    """One counted cost of both sides."""

    name: Annotated[str, says("what was counted")]
    first: Annotated[Amount, says("of the first side")]
    second: Annotated[Amount, says("of the second side")]


class Exact(Section, frozen=True, kw_only=True):
    """Costs per acquire with its release, counted one by one."""

    rows: Annotated[tuple[ExactRow, ...], says("every cost")] = ()
    failures: Annotated[tuple[str, ...], says("what grew, in words")] = ()
    skipped: Annotated[str | None, says("why nothing was counted, else null")] = None


class RunSafety(Section, frozen=True, kw_only=True):
    """Figures from the section `safety` of a run."""

    verdict: Annotated[SafetyWord, says("of the run")]
    service_faults: Annotated[
        Count, says("two leases of one resource at once, or another rule broken")
    ]
    tested_leases: Annotated[Count, says("leases held and asked for meanwhile")]

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
    pair: Annotated[Count, says("which round; of stored results: which of the place's runs")]
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
        dict[str, Amount | None], says("by the metric's name, in the units of a run's result")
    ]
    thresholds: Annotated[tuple[JudgedThreshold, ...], says("as in a run's result")]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the status does not follow from the other fields."""
        if (self.status == "violated") != (self.safety.verdict == "VIOLATED"):
            yield f"it is {self.status}, and its safety is {self.safety.verdict}"
        if self.generator == "INVALID" and self.status not in ("invalid", "violated"):
            yield f"it is {self.status}, and its generator is INVALID"
        if self.status != "pass" and not self.reasons:
            yield f"it is {self.status} without a reason"
        if (self.figures.get("acquire.success") or 0.0) > 1:
            yield "its share of acquired leases is above 1"


class SideThreshold(JudgedThreshold, frozen=True, kw_only=True):
    """One limit over all runs of a side."""

    label: Annotated[str, says("of the side")]


class ComparedVerdict(Verdict, frozen=True, kw_only=True):
    """The verdict over all figures, and its evidence."""

    only_noise: Annotated[
        bool, says("inconclusive, and only because figures vary: more pairs may decide it")
    ] = False


class ComparisonResult(Document, frozen=True, kw_only=True):
    """Interleaved runs, or stored runs. Each side is compared with the first side."""

    kind: Annotated[Kind, says("the command")]
    verdict: Annotated[ComparedVerdict, says("what came out of it, in one word")]
    planned_pairs: Annotated[
        Count, says("rounds that were asked for; a gate stops as soon as it is certain")
    ]
    sides: Annotated[
        tuple[ComparedSide, ...], says("what was compared, the one compared with first")
    ]
    differs: Annotated[tuple[str, ...], says("in what settings the sides differ")]
    tolerance_ratio: Annotated[Share, says("how much worse is still the same")]
    finished_pairs: Annotated[Count, says("rounds whose runs all finished")]
    paired: Annotated[bool, says("whether the sides were run in turn; false: stored results")]
    in_turns: Annotated[
        bool, says("whether they were at it at the same time, a tenth of a second each")
    ] = False
    looks: Annotated[
        tuple[Count, ...], says("after how many pairs a gate asked whether it can answer")
    ] = ()
    repeated_pairs: Annotated[Count, says("rounds run again because a run was INVALID")]
    stopped: Annotated[str, says("why not all rounds were run; empty: nothing stopped them")] = ""
    sharp: Annotated[bool, says("whether the client's CPU is allowed less than the rest")]
    missed_ratio: Annotated[
        Share, says("how often a gate may PASS what is worse by all that is allowed")
    ]
    metrics: Annotated[tuple[Judged, ...], says("every figure of every side against the first")]
    exact: Annotated[Exact | None, says("costs per acquire; null: not asked for")]
    thresholds: Annotated[
        tuple[SideThreshold, ...], says("of all runs of a side the middle one, of safety the worst")
    ]
    runs: Annotated[tuple[ComparedRun, ...], says("every run that counts")]
