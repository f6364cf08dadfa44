"""What a capacity rests on: *bracket, every probe at every rate, closed loops → the bracket they leave, why not sure*.

Rules
- Every probe counts, not only those that were to confirm: "3 of 3" after a miss is 3 of 4.
- A rate that both held and missed is neither end of a bracket: the ends move out to where probes agree. A miss below a
  rate that held, or a hold above one that missed, is such a contradiction too; the generator's misses say nothing.
- A closed loop that kept the SLO at twice the rate that is said not to hold contradicts it. Arrivals at random queue
  where callers who wait for each other do not; but with a limit of ten service times or more an M/M/1 server keeps half
  of its rate.

Source: p99 of M/M/1 is ln 100 ÷ (μ − λ). Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.experiments.capacity.search import CONFIRMATIONS, Bracket, Seen
from bench.measure.facts import mean_of
from bench.measure.generator import BUSY_CORE
from bench.measure.verdict import CONFIRMED, INCONCLUSIVE, INTERRUPTED, NOT_KEPT, VIOLATED, Evidence, Word, conclude
from bench.scenario.model import Delay

SERVER, GENERATOR, MACHINE = "server CPU of one instance", "the generator's CPU", "this machine's cores"
HOT_KEY, CALLERS, FSYNC = "one hot key", "callers", "fsync"
NEAR = 0.7
FSYNC_REPLY = 1.5  # a reply waits half an fsync that is under way, on average, and one of its own


@dataclass(frozen=True, slots=True)
class Use:
    """How far a resource was used (`ratio`, None = not known) and in words what that means."""

    name: str
    ratio: float | None
    text: str


@dataclass(frozen=True, slots=True)
class NextLimit:
    """The resource that is used up first; `name` None: none was near its limit."""

    name: str | None
    text: str


def uses_of(result: Any) -> tuple[Use, ...]:
    """The uses in one run's result (result.json), in the order of this module's table."""
    return (_server(result), _generator(result), _machine(result), _hot_key(result), _callers(result), _fsync(result))


def next_limit(uses: Sequence[Use]) -> NextLimit:
    """The next limit among them."""
    known = sorted((use for use in uses if use.ratio is not None), key=lambda use: -(use.ratio or 0))
    near = [use for use in known if (use.ratio or 0) >= (BUSY_CORE if use.name == GENERATOR else NEAR)]
    if near:
        return NextLimit(near[0].name, near[0].text)
    if not known:
        return NextLimit(None, "not known: neither servers nor generator told what they used")
    return NextLimit(None, f"none found: nothing was near its limit, nearest {known[0].name} ({known[0].text})")


def server_use(instance: Any, result: Any) -> float | None:
    """The share of a core that one instance used while the load ran: CPU per lease × leases/s."""
    cpu_s, leases, rate = instance["info"]["cpu_s"], result["totals"]["acquired"], result["rate"]["achieved_per_s"]
    return None if cpu_s is None or not leases or rate is None else float(cpu_s / leases * rate)


def hot_share(scenario: Mapping[str, Any]) -> float:
    """The share of all operations that want the most wanted resource (0…1)."""
    resources, skew = int(scenario["resources"]), scenario["skew"]
    if skew["kind"] == "hot":
        return float(skew["value"]) if resources > 1 else 1.0
    if skew["kind"] == "zipf":
        return float(1.0 / np.sum(np.arange(1, resources + 1, dtype=float) ** -float(skew["value"])))
    return 1.0 / (min(resources, int(scenario["users"])) if skew["kind"] == "own" else resources)


def _server(result: Mapping[str, Any]) -> Use:
    seen = [(server_use(instance, result), instance["index"]) for instance in result["instances"]]
    known = [(use, index) for use, index in seen if use is not None]
    if not known:
        return Use(SERVER, None, "not known: INFO was not answered")
    use, index = max(known)
    return Use(SERVER, use, f"#{index}: {_percent(use)} of a core")


def _generator(result: Mapping[str, Any]) -> Use:
    use = result["generator"]["cpu_ratio"]
    return Use(GENERATOR, use, "not known" if use is None else f"{_percent(use)} of a core")


def _machine(result: Mapping[str, Any]) -> Use:
    cores, cost, rate = result["environment"]["usable_cores"], result["cost"], result["rate"]["achieved_per_s"]
    client, servers = cost["client_cpu_us_per_cycle"], cost["server_cpu_us_per_cycle"]
    if not result["fleet"]["started"] or not cores or client is None or servers is None or rate is None:
        return Use(MACHINE, None, "not known: the servers run elsewhere, or did not tell")
    use = (client + servers) * rate / 1e6 / cores
    return Use(MACHINE, use, f"{_percent(use)} of the {cores} that generator and servers share")


def _hot_key(result: Mapping[str, Any]) -> Use:
    scenario, latency, rate = result["scenario"], result["latency_s"], result["rate"]["achieved_per_s"]
    hold_s = max(mean_of(Delay(**scenario["hold"])) / 1000, latency["hold"]["mean"] or 0.0)
    turn_s = latency["handoff"]["p50"] or latency["acquire_service"]["p50"]
    if turn_s is None or rate is None:
        return Use(HOT_KEY, None, "not known: no lease was granted")
    share, ceiling = hot_share(scenario), 1 / (hold_s + turn_s)
    use = share * rate / ceiling
    times = f"hold {hold_s * 1e3:.2f} ms + hand-off {turn_s * 1e3:.2f} ms"
    return Use(
        HOT_KEY, use, f"{_percent(use)} of its ceiling {ceiling:,.0f}/s = 1 ÷ ({times}), {share * 100:.3g} % want it"
    )


def _callers(result: Mapping[str, Any]) -> Use:
    latency, users, rate = result["latency_s"], result["scenario"]["users"], result["rate"]["achieved_per_s"]
    times = [latency[name]["mean"] for name in ("acquire_service", "hold", "release")]
    if rate is None or times[0] is None:
        return Use(CALLERS, None, "not known: no lease was granted")
    use = rate * sum(time or 0.0 for time in times) / users
    return Use(CALLERS, use, f"{_percent(use)} of {users:,} were at work; --users gives more")


def _fsync(result: Mapping[str, Any]) -> Use:
    policy, disk = result["fleet"]["fsync"], result["fleet"]["fdatasync_s"]
    delayed = sum(instance["info"]["aof"].get("aof_delayed_fsync") or 0 for instance in result["instances"])
    replies = [(instance.get("reply_s") or {}).get("p50") or 0.0 for instance in result["instances"]]
    slowest = max(replies, default=0.0)
    if policy == "always" and disk and slowest:
        use = min(1.0, FSYNC_REPLY * disk["p50_s"] / slowest)
        return Use(FSYNC, use, f"always: {_percent(use)} of a reply's time at {disk['p50_s'] * 1e6:.0f} µs each")
    if delayed:
        return Use(FSYNC, 1.0, f"{delayed} AOF writes waited for a slow one")
    return Use(FSYNC, 0.0 if policy else None, "no write waited for it" if policy else "not known")


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


LEAST_HELD = CONFIRMATIONS + 1  # the first one found it
MORE_BY = 2.0  # a closed loop may be so many times faster than what random arrivals leave room for

Look = tuple[float, Seen]  # the rate of a probe, and what it showed


@dataclass(frozen=True, slots=True)
class Tally:
    """Of all probes at one rate: those that held, those that missed, and those the generator spoilt."""

    held: int = 0
    missed: int = 0
    spoilt: int = 0

    @property
    def probes(self) -> int:
        """All of them."""
        return self.held + self.missed + self.spoilt


def tallies(looks: Iterable[Look]) -> dict[float, Tally]:
    """Return what all probes showed, by rate, ascending."""
    counts: dict[float, Tally] = defaultdict(Tally)
    for rate, seen in looks:
        tally = counts[rate]
        if seen is Seen.HELD:
            counts[rate] = replace(tally, held=tally.held + 1)
        elif seen is Seen.SATURATED:
            counts[rate] = replace(tally, spoilt=tally.spoilt + 1)
        else:
            counts[rate] = replace(tally, missed=tally.missed + 1)
    return dict(sorted(counts.items()))


def agreed(bracket: Bracket, looks: Sequence[Look]) -> tuple[Bracket, list[str]]:
    """Return the bracket that no probe contradicts, and what contradicted the one that was found, in sentences."""
    counts, low, high = tallies(looks), bracket.low, bracket.high
    if low is None:
        return bracket, []
    torn = [rate for rate, tally in counts.items() if rate <= low and tally.missed]
    above = [rate for rate, tally in counts.items() if tally.held and high is not None and rate >= high]
    reasons = [
        _sentence(rate, counts[rate], "" if rate == low else f", below {low:,.0f}/s which held") for rate in torn
    ]
    reasons += [
        _sentence(rate, counts[rate], "" if rate == high else f", above {high:,.0f}/s which did not") for rate in above
    ]
    if torn:
        sure = [rate for rate, tally in counts.items() if tally.held and rate < min(torn)]
        low = max(sure, default=min(low, *torn))
    if above:
        high = min((rate for rate, tally in counts.items() if tally.missed and rate > max(above)), default=None)
    return replace(bracket, low=low, high=high, at_least=bracket.at_least or high is None), reasons


def outrun(bracket: Bracket, closed: Iterable[tuple[int, float, bool]]) -> list[str]:
    """Return which closed loops contradict `bracket`: each its callers, leases/s, and whether it kept the SLO."""
    limit = bracket.high or bracket.low
    if limit is None:
        fast = [(users, rate) for users, rate, kept in closed if kept]
        return [f"no rate held, yet {users} callers made {rate:,.0f}/s within the SLO" for users, rate in fast[:1]]
    found = [(rate, users) for users, rate, kept in closed if kept and rate > MORE_BY * limit]
    if not found:
        return []
    rate, users = max(found)
    return [f"{users} callers in closed loop made {rate:,.0f}/s within the SLO: far more than {limit:,.0f}/s"]


def judge_capacity(
    points: Sequence[Mapping[str, Any]], *, stopped: str = "", interrupted: bool = False
) -> dict[str, Any]:
    """The section `verdict` over all points: each with its `word`, `reasons` and `capacity`."""
    found: dict[Word, list[str]] = {word: [] for word in (VIOLATED, NOT_KEPT, INCONCLUSIVE)}
    for point in points:
        for word in found:
            found[word] += point["reasons"] if point["status"] == word.status else []
    found[INCONCLUSIVE] += [stopped] if stopped else []
    cut = {INTERRUPTED: ["interrupted: what was not probed is missing"]} if interrupted else {}
    evidence = [
        Evidence(f"probes at {point['capacity']['low'] or 0:,.0f}/s that held", point["capacity"]["held"], LEAST_HELD)
        for point in points
    ]
    return conclude(CONFIRMED, evidence, {**found, **cut}, thin=INCONCLUSIVE).to_json()


def _sentence(rate: float, tally: Tally, where: str) -> str:
    return f"{rate:,.0f}/s held in {tally.held} of {tally.probes} probes{where}"
