"""The next probe of a search: *findings about one fleet → an interval, a rate*. Pure.

- The model (model.py) weighs all probes together and proposes the most informative rate.
- A probe that the generator spoilt bounds the search like a miss. It says nothing about the
  servers, so the capacity ignores it.
- An end of the interval is known only if two probes near it confirm it.
- The capacity's interval never begins above the highest rate that held. The interval never ends
  below the lowest rate that missed.
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
from bench.measure.fleet_facts import FleetFacts

LEAST_PROBES = 8
MOST_PROBES = 40
# Shares of the fastest closed loop's rate.
MIDDLE = (0.4, 0.6, 0.8)
# The proposed rate grows by this factor for each consecutive probe that showed nothing.
HIGHER = 1.1
# At least LEAST_NEAR probes confirm an end of the interval. Probes that held confirm the lower end,
# if they are at most the factor NEAR below this end. Probes that missed confirm the upper end, if
# they are at most the factor NEAR above this end.
NEAR = 1.25
LEAST_NEAR = 2
# The rate (operations/s) of the lowest probes. The lowest probes show whether any rate holds.
LOWEST = 2 * LEAST_RATE
# Because of rounding, rates that differ by at most this share count as the same rate.
SAME = 0.01
# The leases/s of a closed loop, and how many callers the loop has.
Loop = tuple[float, int]


@dataclass(slots=True)
class Findings:
    """All results for one point so far. `violated` describes a safety violation in words.
    `unmeasured` are sentences that say which measurements are missing for lack of time."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    fleet: FleetFacts | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)

    @property
    def counted(self) -> tuple[Seen, ...]:
        """The outcomes that say something about the servers.

        If the servers run on this machine and most probes met a pause, a pause counts as a miss.
        The capacity then describes the machine in its present state. Servers on other machines are
        not responsible for such a miss.
        """
        is_here = self.fleet is not None and self.fleet.started
        paused = len(self.rates(Seen.PAUSED))
        if is_here and 2 * paused > len(self.probes):
            return (Seen.HELD, Seen.MISSED, Seen.PAUSED)
        return (Seen.HELD, Seen.MISSED)

    def rates(self, outcome: Seen) -> list[float]:
        """Return the rates of the probes with this outcome."""
        return [probe.rate_per_s for probe in self.probes if probe.seen is outcome]

    def outcomes(self, least: float, most: float) -> list[Seen]:
        """Return the outcomes of the probes between two rates, in order."""
        return [probe.seen for probe in self.probes if least <= probe.rate_per_s <= most]

    def looks(self, *also: Seen) -> list[Look]:
        """Return the probes in the form that the model needs. The result has the probes that count,
        and the probes with the outcomes `also`."""
        kinds = (*self.counted, *also)
        return [
            (probe.rate_per_s, probe.seen is Seen.HELD)
            for probe in self.probes
            if probe.seen in kinds
        ]


def loops_within(findings: Findings, slo: Slo) -> list[Loop]:
    """Return the closed loops that kept the SLO's limits on acquire latency."""
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
    """Return the highest rate of closed loops within the SLO, and the highest rate of all closed
    loops. If no loop kept the SLO, the first value is the rate of the slowest loop."""
    rates = [max(loop.achieved_per_s or 0.0, LEAST_RATE) for loop in findings.callers]
    rates_within = [max(rate, LEAST_RATE) for rate, _ in loops_within(findings, slo)]
    return max(rates_within, default=min(rates, default=1.0)), max(rates, default=1.0)


def next_probe(findings: Findings, slo: Slo) -> tuple[RateInterval, float | None]:
    """Return the interval so far and the rate of the next probe. Misses that the generator caused
    count here, too. The rate is None if the search is over."""
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
    """Return the rate of the next probe if no closed loop kept the SLO and no probe has held yet.
    None means that the model chooses the rate.

    A server that never answers in time misses at every rate. Two probes at the lowest rate and one
    at each of `MIDDLE` show this in seconds. The model alone would lower the rate step by step, and
    a short budget would end first. The lowest rate alone shows nothing, because a server that is
    slow after each rest may keep every higher rate.
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
    """Return the rates (operations/s) that must miss before no rate counts as holding. Also return
    how many misses each rate needs."""
    fastest = max((loop.achieved_per_s or 0.0 for loop in findings.callers), default=0.0)
    middle = [(float(f"{share * fastest:.3g}"), 1) for share in MIDDLE if share * fastest > LOWEST]
    return [(LOWEST, LEAST_NEAR), *middle]


def holds_nowhere(findings: Findings) -> bool:
    """Return whether rates near zero and rates in the middle missed, and no probe held. Return
    False if there is no closed loop, because then the middle is not known."""
    return (
        bool(findings.callers)
        and not findings.rates(Seen.HELD)
        and all(
            _around(findings, rate).count(Seen.MISSED) >= least
            for rate, least in _against_hope(findings)
        )
    )


def _around(findings: Findings, rate: float) -> list[Seen]:
    """Return the outcomes of the probes at a rate. Probes below the lowest rate count as probes at
    the lowest rate."""
    least = 0.0 if rate <= LOWEST else rate * (1 - SAME)
    return findings.outcomes(least, rate * (1 + SAME))


def _paused_last(findings: Findings) -> int:
    """Return how many of the latest consecutive probes showed nothing because of pauses. The next
    probe then uses a higher rate. If the higher rate holds, the answer is certain, and a clear miss
    is visible even on a busy machine."""
    number = 0
    for probe in reversed(findings.probes):
        if probe.seen is not Seen.PAUSED or probe.seen in findings.counted:
            break
        number += probe.step != "target"
    return number


def capacity_of(findings: Findings, slo: Slo) -> Capacity:
    """Return the range in which the servers' capacity lies."""
    looks = findings.looks()
    interval = interval_of(reached_by(findings, slo), looks)
    held = [rate for rate, is_held in looks if is_held]
    missed = [rate for rate, is_held in looks if not is_held]
    has_low = sum(rate * NEAR >= interval.low for rate in held) >= LEAST_NEAR
    has_high = sum(rate <= interval.high * NEAR for rate in missed) >= LEAST_NEAR
    # Probes that the generator spoilt limit the search, but not the answer. If the interval is
    # narrow enough only with these probes, the answer has no upper end.
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
