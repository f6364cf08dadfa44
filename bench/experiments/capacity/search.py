"""Chooses the next probe of a capacity search: *findings about one fleet → an interval and the rate
of the next probe*. All functions are pure.

- The model (model.py) uses the outcomes of all probes. It proposes the rate at which the next probe
  will be most informative.
- If the load generator spoilt a probe, the next probe has the same rate as after a miss. A spoilt
  probe shows nothing about the servers, so the computation of the capacity ignores the spoilt
  probe.
- An end of the interval is known only if at least two probes near this end confirm it.
- The lower end of the interval is never above the highest rate that held. The upper end is never
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
    """The results of the search for one point, up to now. `violated` describes a safety violation.
    If there was no violation, `violated` is "". `unmeasured` holds sentences about measurements for
    which there was not enough time."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    fleet: FleetFacts | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)

    @property
    def counted(self) -> tuple[Seen, ...]:
        """The outcomes that count for the servers' capacity.

        A paused probe counts as a miss if lockbench started the servers on this machine and more
        than half of all probes were paused. In this case, the result describes this machine only in
        its present state. If the servers run on other machines, paused probes never count, because
        the pauses of this machine say nothing about other machines.
        """
        is_here = self.fleet is not None and self.fleet.started
        paused = len(self.rates(Seen.PAUSED))
        if is_here and 2 * paused > len(self.probes):
            return (Seen.HELD, Seen.MISSED, Seen.PAUSED)
        return (Seen.HELD, Seen.MISSED)

    def rates(self, outcome: Seen) -> list[float]:
        """Return the rates of all probes that had this outcome."""
        return [probe.rate_per_s for probe in self.probes if probe.seen is outcome]

    def outcomes(self, least: float, most: float) -> list[Seen]:
        """Return the outcomes of all probes with a rate from `least` to `most`, in the order of the
        search."""
        return [probe.seen for probe in self.probes if least <= probe.rate_per_s <= most]

    def looks(self, *also: Seen) -> list[Look]:
        """Return a list with one pair of values per probe. The first value of a pair is the probe's
        rate. The second value is True if the probe held. The list contains the probes that count
        for the capacity, and the probes with one of the outcomes in `also`."""
        kinds = (*self.counted, *also)
        return [
            (probe.rate_per_s, probe.seen is Seen.HELD)
            for probe in self.probes
            if probe.seen in kinds
        ]


def loops_within(findings: Findings, slo: Slo) -> list[Loop]:
    """Return the closed loops whose acquire latencies were within the limits of the SLO. The list
    is empty if the SLO limits no latency."""
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
    """Return two rates. The first rate is the highest rate of a closed loop that kept the SLO. If
    no closed loop kept the SLO, the first rate is the lowest rate of all closed loops. The second
    rate is the highest rate of all closed loops."""
    rates = [max(loop.achieved_per_s or 0.0, LEAST_RATE) for loop in findings.callers]
    rates_within = [max(rate, LEAST_RATE) for rate, _ in loops_within(findings, slo)]
    return max(rates_within, default=min(rates, default=1.0)), max(rates, default=1.0)


def next_probe(findings: Findings, slo: Slo) -> tuple[RateInterval, float | None]:
    """Return the interval so far and the rate of the next probe. If the search is over, the rate is
    None. In this function, SATURATED probes count as misses, too."""
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
    If the result is None, the model chooses the rate.

    A server that never answers in time misses its limit at every rate. The search finds this out in
    a few seconds with two probes at the lowest rate and one probe at each rate of `MIDDLE`. If the
    model chose these rates, it would lower the rate step by step, and a short budget would end
    before the search has an answer. The search does not rely on the lowest rate alone. Some servers
    are slow only after an idle time, so they miss the limit at the lowest rate but keep the limit
    at higher rates.
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
    """Return a list of pairs. The first value of a pair is a rate (operations/s), and the second
    value is a number of probes. If at least this number of probes missed at each rate of the list,
    the search concludes that the fleet keeps no rate."""
    fastest = max((loop.achieved_per_s or 0.0 for loop in findings.callers), default=0.0)
    middle = [(float(f"{share * fastest:.3g}"), 1) for share in MIDDLE if share * fastest > LOWEST]
    return [(LOWEST, LEAST_NEAR), *middle]


def holds_nowhere(findings: Findings) -> bool:
    """Return whether the search can conclude that the fleet keeps no rate. The result is True if no
    probe held, and if enough probes missed both at rates near zero and at rates in the middle.
    Return False if there was no closed loop, because the search derives the rates in the middle
    from the rate of a closed loop."""
    return (
        bool(findings.callers)
        and not findings.rates(Seen.HELD)
        and all(
            _around(findings, rate).count(Seen.MISSED) >= least
            for rate, least in _against_hope(findings)
        )
    )


def _around(findings: Findings, rate: float) -> list[Seen]:
    """Return the outcomes of the probes at a rate. If `rate` is LOWEST or lower, the list also
    contains the outcomes of all probes at lower rates than `rate`."""
    least = 0.0 if rate <= LOWEST else rate * (1 - SAME)
    return findings.outcomes(least, rate * (1 + SAME))


def _paused_last(findings: Findings) -> int:
    """Return the number of paused probes since the last probe that gave a result. The count leaves
    out probes at the target rate. After paused probes, the search tries a higher rate. If a probe
    holds at the higher rate, its outcome is certain. If the higher rate is far above the capacity,
    the probe clearly misses, and this miss is visible even on a busy machine."""
    number = 0
    for probe in reversed(findings.probes):
        if probe.seen is not Seen.PAUSED or probe.seen in findings.counted:
            break
        number += probe.step != "target"
    return number


def capacity_of(findings: Findings, slo: Slo) -> Capacity:
    """Return the capacity of the servers as a range of rates."""
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
