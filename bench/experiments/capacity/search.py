"""Where the next probe of a search goes: *what is known of one fleet → an interval, a rate*. Pure.

- The model (model.py) weighs all probes together and names the rate whose probe tells most.
- A probe that the generator spoilt bounds the search, as a miss does. It says nothing of the
  servers, so the capacity leaves it out.
- An end of the interval is known only if two probes near it bear it out.
- No end lies beyond all probes.
"""

from dataclasses import dataclass, field

from bench.experiments.capacity.model import (
    ENOUGH,
    LEAST_RATE,
    SURE,
    USABLE,
    Look,
    Model,
    RateInterval,
    Reached,
    interval_of,
)
from bench.experiments.capacity.probe import Slo
from bench.experiments.capacity.result import Capacity, ClosedLoop, Probe, Seen
from bench.measure.run_result import FleetFacts

LEAST_PROBES = 8
MOST_PROBES = 40
# shares of the rate that the fastest closed loop made
MIDDLE = (0.4, 0.6, 0.8)
# For each probe in a row that told nothing, the proposed rate grows by this factor.
HIGHER = 1.1
# LEAST_NEAR probes bear an end out. They lie no further than the factor NEAR beyond it.
NEAR = 1.25
LEAST_NEAR = 2
# the rate (operations/s) of the probes that show that no rate holds
LOWEST = 2 * LEAST_RATE
# Two probes at one rate differ by rounding alone.
SAME = 0.01
# the leases/s of a closed loop, and its callers
Loop = tuple[float, int]


@dataclass(slots=True)
class Findings:
    """What is known of one point so far. `violated`: how, in words; `unmeasured`: sentences about
    what was not measured for want of time."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    fleet: FleetFacts | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)

    @property
    def counted(self) -> tuple[Seen, ...]:
        """The outcomes that tell of the servers.

        If the servers run on this machine and most probes met a pause of it, a pause is a miss. The
        capacity is then that of the machine as it is now. Servers elsewhere have no part in such a
        miss.
        """
        is_here = self.fleet is not None and self.fleet.started
        paused = len(self.rates(Seen.PAUSED))
        if is_here and 2 * paused > len(self.probes):
            return (Seen.HELD, Seen.MISSED, Seen.PAUSED)
        return (Seen.HELD, Seen.MISSED)

    def rates(self, seen: Seen) -> list[float]:
        """The rates of the probes with this outcome."""
        return [probe.rate_per_s for probe in self.probes if probe.seen is seen]

    def outcomes(self, least: float, most: float) -> list[Seen]:
        """The outcomes of the probes between two rates, in order."""
        return [probe.seen for probe in self.probes if least <= probe.rate_per_s <= most]

    def looks(self, *also: Seen) -> list[Look]:
        """The probes that count, and those with the outcomes `also`, as the model takes them."""
        kinds = (*self.counted, *also)
        return [
            (probe.rate_per_s, probe.seen is Seen.HELD)
            for probe in self.probes
            if probe.seen in kinds
        ]


def loops_within(findings: Findings, slo: Slo) -> list[Loop]:
    """The closed loops that kept the SLO's limits on acquires, as far as they have them."""
    limits = [
        (one.metric.path[-1], one.limit)
        for one in slo.thresholds
        if one.metric.path[0] == "latency_s"
    ]
    loops = []
    for loop in findings.callers:
        values = [(getattr(loop.acquire_s, figure, None), limit) for figure, limit in limits]
        if limits and all(value is not None and value <= limit for value, limit in values):
            loops.append((loop.achieved_per_s or 0.0, loop.users))
    return loops


def reached_by(findings: Findings, slo: Slo) -> Reached:
    """Return the rate that closed loops made within the SLO, and their highest rate. If none kept
    the SLO, the first is that of the slowest."""
    rates = [max(loop.achieved_per_s or 0.0, LEAST_RATE) for loop in findings.callers]
    rates_within = [max(rate, LEAST_RATE) for rate, _ in loops_within(findings, slo)]
    return max(rates_within, default=min(rates, default=1.0)), max(rates, default=1.0)


def next_probe(findings: Findings, slo: Slo) -> tuple[RateInterval, float | None]:
    """Return the interval so far, whoever is to blame for a miss, and the rate to probe. None: the
    search is over."""
    reached = reached_by(findings, slo)
    looks = findings.looks(Seen.SATURATED)
    interval = interval_of(reached, looks)
    if (rate := _rate_against_hope(findings, slo)) is not None:
        return interval, rate
    is_enough = len(looks) >= LEAST_PROBES and interval.width <= ENOUGH
    if is_enough or len(looks) >= MOST_PROBES or holds_nowhere(findings):
        return interval, None
    rate = Model(reached, looks).next_rate() * HIGHER ** _paused_last(findings)
    return interval, float(f"{rate:.3g}")


def _rate_against_hope(findings: Findings, slo: Slo) -> float | None:
    """The rate of the next probe if no closed loop kept the SLO, and nothing has held yet. None:
    the model names the rate.

    A server that never answers in time misses at every rate. Two probes at the lowest rate and one
    at each of `MIDDLE` show that in seconds. The model alone would go down step by step, and a
    short budget would end first. The lowest rate alone shows nothing: a server that is slow after
    each rest may keep every higher one.
    """
    if loops_within(findings, slo) or findings.rates(Seen.HELD):
        return None
    for rate, least in _against_hope(findings):
        outcomes = _around(findings, rate)
        telling = [outcome for outcome in outcomes if outcome in findings.counted]
        if len(telling) < least and len(outcomes) < 2 * least:
            return rate
    return None


def _against_hope(findings: Findings) -> list[tuple[float, int]]:
    """The rates (operations/s) whose misses show that no rate holds, and how many misses each
    takes."""
    fastest = max((loop.achieved_per_s or 0.0 for loop in findings.callers), default=0.0)
    middle = [(float(f"{share * fastest:.3g}"), 1) for share in MIDDLE if share * fastest > LOWEST]
    return [(LOWEST, LEAST_NEAR), *middle]


def holds_nowhere(findings: Findings) -> bool:
    """Whether rates next to none missed, and rates in the middle, and no probe held. Without a
    closed loop the middle is not known."""
    return (
        bool(findings.callers)
        and not findings.rates(Seen.HELD)
        and all(
            _around(findings, rate).count(Seen.MISSED) >= least
            for rate, least in _against_hope(findings)
        )
    )


def _around(findings: Findings, rate: float) -> list[Seen]:
    """The outcomes of the probes at a rate. Those below the lowest rate count as that one."""
    least = 0.0 if rate <= LOWEST else rate * (1 - SAME)
    return findings.outcomes(least, rate * (1 + SAME))


def _paused_last(findings: Findings) -> int:
    """How many probes in a row told nothing just now. The next one is made at a higher rate: what
    holds there holds, and only a clear miss shows through the pauses of a busy machine."""
    number = 0
    for probe in reversed(findings.probes):
        if probe.seen is not Seen.PAUSED or probe.seen in findings.counted:
            break
        number += probe.step != "target"
    return number


def capacity_of(findings: Findings, slo: Slo) -> Capacity:
    """Return between which rates the capacity of the servers lies."""
    looks = findings.looks()
    interval = interval_of(reached_by(findings, slo), looks)
    held = [rate for rate, is_held in looks if is_held]
    missed = [rate for rate, is_held in looks if not is_held]
    has_low = sum(rate * NEAR >= interval.low for rate in held) >= LEAST_NEAR
    has_high = sum(rate <= interval.high * NEAR for rate in missed) >= LEAST_NEAR
    # Probes that the generator spoilt bound the search, not the answer. Where only they make the
    # interval narrow enough for an answer, the answer has no upper end.
    has_high = has_high and not interval.width > USABLE >= next_probe(findings, slo)[0].width
    low = min(interval.low, max(held)) if has_low else None
    high = max(interval.high, min(missed)) if has_high else None
    likely = interval.likely if has_low and has_high else None
    return Capacity(
        low=low,
        high=high,
        at_least=has_low and not has_high,
        likely=likely,
        sure=SURE,
        as_it_is=Seen.PAUSED in findings.counted,
    )
