"""What a load will run out of first: *one run's result → how far each resource was used, and the next limit*.

    server CPU      the busiest instance: CPU per lease × leases/s, of one core (a Redis server executes on one thread)
    generator       the busiest load process, of one core
    machine         all of them together, of the cores they share (only when the servers run here)
    one hot key     leases/s on the most wanted resource × (hold + hand-off): its ceiling is 1 ÷ (hold + hand-off)
    callers         operations under way (Little: leases/s × time in one) ÷ callers
    fsync           with `always` the share of a reply's time that one fdatasync is; else AOF writes that had to wait

Rules: a use is a share of what there is (1 = all); None where it is not known. The next limit is the largest use, from
0.7 on (the generator's from 0.9 on: it batches, so that it seems busy long before it is); below that nothing was near
its limit, and that is said. Source: Little's law; the utilisation law U = X · S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.measure.facts import mean_of
from bench.measure.generator import BUSY_CORE
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


def uses_of(result: Mapping[str, Any]) -> tuple[Use, ...]:
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


def server_use(instance: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
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
