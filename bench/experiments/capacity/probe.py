"""Judges one probe of a capacity search: *a run's result and the SLO → the outcome and the use of
each resource*. The outcome is held, missed, saturated or paused.

A probe is HELD if every expression of the SLO is true and at least 0.99 of the offered operations
were completed in time. A probe stays HELD even if the load generator or the machine disturbed the
probe. A probe that is not HELD is usually MISSED, which means that the servers caused the miss.
There are two exceptions:
- SATURATED means that the load generator used 0.9 of a core, or that the load generator's timer
  caused the miss. If the timer is late, some operations begin late. An operation may begin so late
  that it misses the limit even with the median latency. If the probe keeps the SLO's limit without
  such operations, the timer caused the miss.
- PAUSED means that the machine paused the load process, and that the acquires outside the pauses do
  not show a miss. The judge ignores pauses that are shorter than a quarter of the SLO's limit. The
  judge leaves out each acquire that overlaps a longer pause, whether or not the acquire met the
  limit. If too few acquires remain after this, the probe is PAUSED. If the judge leaves out more
  than half of the acquires, the probe is MISSED only if most of the remaining acquires are late.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from msgspec import structs

from bench.errors import UsageError
from bench.experiments.capacity.result import (
    Attainment,
    Probe,
    ProbedInstance,
    ProbeGenerator,
    ResourceUse,
    Seen,
)
from bench.gates.threshold import Threshold, read_thresholds
from bench.measure.facts import mean_of
from bench.measure.fleet_facts import InstanceReport
from bench.measure.gaps import MOST_SHARE, PAUSES_MS
from bench.measure.histogram import HIGHEST_NS, SAMPLES_BEYOND, Histogram, bucket_indices
from bench.measure.latency import Latency
from bench.measure.run_result import RunResult
from bench.measure.statistics import wilson
from bench.measure.workers import BUSY_CORE
from bench.report.figures import percent
from bench.scenario import Scenario

LEAST_USERS = 64
MOST_USERS = 2048
# For each percentile: the share of acquires that may be later than the percentile's limit.
MISS_SHARES = {"p50": 0.5, "p90": 0.1, "p99": 0.01, "p999": 0.001, "p9999": 0.0001}
# More load makes these figures worse. Only figures of this kind can limit a rate.
BOUNDED = ("latency_s", "outcome_shares", "split_votes", "attempts", "cost")
SERVER = "server CPU of one instance"
GENERATOR = "the generator's CPU"
MACHINE = "this machine's cores"
HOT_KEY = "the hot key r0"
CALLERS = "callers"
FSYNC = "fsync"
NETWORK = "the network"
NEAR = 0.7
# If at least this share of a resource is used, the report extrapolates the rate at which the
# resource is full. The extrapolated rate is at most twice the rate of the probe.
NEARLY_FULL = 0.5
# If less than this share of the acquires is left, only a clear miss counts.
MOST_LEFT_OUT = 0.5
# Beyond its capacity a server has a growing queue, so most acquires are late. A few acquires are
# also late after a pause of the load process, or during an unnoticed pause of a server process. In
# a test with p99 at a load average of 30, six probes ran at 0.7 to 0.9 of a known capacity. 80 % of
# their acquires were left out. Without this rule three of the six probes would have been misses,
# with 7 to 12 % late acquires.
CLEARLY_LATE = 0.5
# A pause shorter than this share of the SLO's limit cannot turn a hit into a miss.
PAUSE_SHARE = 0.25
# The least number of acquires, multiplied by the share that may be late. A probe of this size
# without a late acquire keeps the share with 95 % certainty (rule of three).
LEAST_LEFT = 3.0
# The summary mentions other work if it uses at least this share of this machine's CPU time.
OTHERS = 0.25
GAVE_OUT = (
    "not reached, because the load generator reached its own limit first ({}); use "
    "--processes or more hosts"
)
# If at least this share of the machine's cores is used, the machine counts as full.
FULL = 0.9
ELSEWHERE = "for more load use other hosts (--expect-workers), or stop other work on these cores"
# An address that begins like this is on this machine. No network lies in between.
HERE = ("127.", "localhost", "[::1]", "/")
# On average a reply waits for half of a running fsync, and then for its own fsync.
FSYNC_REPLY = 1.5


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective (SLO). A load keeps the SLO if it keeps all of its thresholds."""

    thresholds: tuple[Threshold, ...]

    @property
    def acquire_limit(self) -> Threshold | None:
        """The SLO's first upper limit for a percentile of the acquire latency. The attainment of a
        probe is the share of its acquires that kept this limit. The property is None if the SLO
        limits no percentile of the acquire latency."""
        return next(
            (threshold for threshold in self.thresholds if _is_acquire_limit(threshold)), None
        )

    @property
    def figure(self) -> str:
        """The percentile of the acquire latency that the SLO limits. If the SLO limits no
        percentile, this property is p99."""
        return self.acquire_limit.metric.path[-1] if self.acquire_limit else "p99"

    @property
    def least_operations(self) -> int:
        """The least number of operations in a probe. With fewer operations, the highest percentile
        of the SLO would have no meaning."""
        shares = [MISS_SHARES.get(threshold.metric.path[-1], 1.0) for threshold in self.thresholds]
        return int(1.2 * SAMPLES_BEYOND / min(shares))


def read_slo(texts: Sequence[str]) -> Slo:
    """Parse the expressions of an SLO in `texts`.

    Raises UsageError for a wrong expression. Also raises UsageError for a figure that does not get
    worse under more load, because such a figure cannot limit a rate.
    """
    thresholds = read_thresholds(texts)
    for threshold in thresholds:
        metric = threshold.metric
        sign = ">" if threshold.metric.higher_is_better else "<"
        if metric.path[0] not in BOUNDED:
            raise UsageError(
                f"option --slo: {metric.name} does not get worse under more load; name a "
                "latency or a share, like 'acquire.p99 < 10ms' or 'acquire.success >= 99.9%'"
            )
        if threshold.operator not in (sign, f"{sign}="):
            raise UsageError(
                f"option --slo: more load cannot break {threshold.expression!r}; write an SLO on "
                f"{metric.name} with {sign}="
            )
    return Slo(thresholds)


def judge_probe(
    rate: float, step: str, result: RunResult, slo: Slo, busy: float | None = None
) -> Probe:
    """Judge the run of a probe. The probe offered `rate` operations per second.

    `busy` is the share of this machine's CPU time that all processes used. None means that the
    share is unknown.
    """
    return Probe(
        rate_per_s=rate,
        step=step,
        seen=_seen(result, slo),
        completed_per_s=result.rate.completed_per_s,
        users=result.scenario.users,
        acquire_s=result.latency_s.acquire,
        attainment=_attainment(slo, result),
        left_out=_paused(slo.acquire_limit, result).count,
        others_ratio=_others(result, busy),
        generator=ProbeGenerator(
            cpu_ratio=result.generator.cpu_ratio,
            late_s=getattr(Latency.of(_histogram("timer_lateness", result)), slo.figure),
            figure=slo.figure,
        ),
        uses=uses_of(result, slo, busy),
        instances=tuple(_instance(instance, result) for instance in result.instances),
    )


def _seen(result: RunResult, slo: Slo) -> Seen:
    limit = slo.acquire_limit
    is_sustained = result.rate.sustained is not False
    if is_sustained and all(
        _kept(threshold, result, left_out=False) for threshold in slo.thresholds
    ):
        return Seen.HELD
    if (
        result.generator.verdict == "INVALID"
        and result.generator.gap_s > MOST_SHARE * result.duration_s
    ):
        return Seen.PAUSED
    if limit is None or not _paused(limit, result).count:
        return Seen.SATURATED if _is_saturated(result, slo) else Seen.MISSED
    within, due = _within(limit, result)
    share = MISS_SHARES[slo.figure]
    is_enough = due * share >= LEAST_LEFT
    least_late = CLEARLY_LATE if due < MOST_LEFT_OUT * result.outcomes.total else share
    # The sustained rate does not count here, because a pause near the end delays some operations
    # until after the window.
    if all(_kept(threshold, result) for threshold in slo.thresholds):
        return Seen.HELD if is_enough else Seen.PAUSED
    if (least_late > share or not is_enough) and (
        wilson(due - within, due).low or 0.0
    ) <= least_late:
        return Seen.PAUSED
    return Seen.SATURATED if _is_saturated(result, slo) else Seen.MISSED


def _attainment(slo: Slo, result: RunResult) -> Attainment | None:
    if (threshold := slo.acquire_limit) is None:
        return None
    within, due = _within(threshold, result)
    return Attainment(
        within=within, operations=due, limit_s=threshold.limit, **asdict(wilson(within, due))
    )


def callers_for(rate: float, scenario: Scenario, slo: Slo) -> int:
    """Return the number of callers that a probe at `rate` needs. The function uses Little's law,
    and assumes that each acquire takes twice the SLO's limit. The number is a power of two, unless
    the scenario limits the number of callers."""
    limit = slo.acquire_limit
    busy_s = mean_of(scenario.hold) / 1000 + 2 * (limit.limit if limit else 0.01)
    users = LEAST_USERS
    while users < min(1.3 * rate * busy_s, MOST_USERS):
        users *= 2
    most = scenario.resources if scenario.skew.kind == "own" else users
    return max(min(users, most), scenario.processes)


def _is_saturated(result: RunResult, slo: Slo) -> bool:
    threshold = slo.acquire_limit
    usual = result.latency_s.acquire_service.p50
    if is_busy(result.generator.cpu_ratio):
        return True
    late = _histogram("timer_lateness", result)
    if result.generator.verdict == "VALID" or not late.count or threshold is None or usual is None:
        return False
    within, due = _within(threshold, result)
    paused = _paused(threshold, result)
    left_out = paused.count - _up_to(paused, threshold.limit)
    beyond = max(late.count - _up_to(late, threshold.limit - usual) - left_out, 0)
    return (
        due - within - beyond <= MISS_SHARES[slo.figure] * due
        and result.rate.sustained is not False
    )


def is_busy(cpu_ratio: float | None) -> bool:
    """Return whether a load process that uses this share of a core is at its limit."""
    return (cpu_ratio or 0.0) >= BUSY_CORE


def _kept(threshold: Threshold, result: RunResult, *, left_out: bool = True) -> bool:
    """Return whether the run keeps a threshold. If `left_out` is true, the function ignores each
    acquire that overlaps a pause of the machine."""
    if not _is_acquire_limit(threshold):
        return threshold.judge(result).status == "pass"
    within, due = _within(threshold, result) if left_out else _of_all(threshold, result)
    return due > 0 and due - within <= MISS_SHARES[threshold.metric.path[-1]] * due


def _is_acquire_limit(threshold: Threshold) -> bool:
    path = threshold.metric.path
    return (
        path[:2] == ("latency_s", "acquire_all")
        and path[-1] in MISS_SHARES
        and threshold.operator in ("<", "<=")
    )


def _within(threshold: Threshold, result: RunResult) -> tuple[int, int]:
    """Return two counts of the operations in the window. The first count includes only the
    operations that got their lease within the limit. The second count includes all operations. Both
    counts leave out the acquires that overlap a pause."""
    within, due = _of_all(threshold, result)
    paused = _paused(threshold, result)
    return max(within - _up_to(paused, threshold.limit), 0), max(due - paused.count, 0)


def _of_all(threshold: Threshold, result: RunResult) -> tuple[int, int]:
    return _up_to(_histogram("acquire", result), threshold.limit), result.outcomes.total


def _paused(threshold: Threshold | None, result: RunResult) -> Histogram:
    """Return the latencies of the acquires that overlap a pause. The function ignores pauses that
    are too short to turn a hit into a miss."""
    if threshold is None:
        return Histogram()
    least_ms = max(PAUSES_MS[0], PAUSE_SHARE * threshold.limit * 1000)
    shortest = max(one for one in PAUSES_MS if one <= least_ms)
    return Histogram.merged(
        _histogram(f"paused_{one}", result) for one in PAUSES_MS if one >= shortest
    )


def _histogram(name: str, result: RunResult) -> Histogram:
    text = result.histograms.get(name)
    return Histogram.decode(text) if text else Histogram()


def _up_to(histogram: Histogram, limit_s: float) -> int:
    """Return how many samples are below the limit. The comparison has a precision of three digits,
    because the histogram has this precision.
    """
    limit_ns = np.array([min(max(round(limit_s * 1e9), 0), HIGHEST_NS)], np.int64)
    return int(histogram.counts[: int(bucket_indices(limit_ns)[0])].sum())


def _instance(instance: InstanceReport, result: RunResult) -> ProbedInstance:
    reply = instance.reply_s
    info = instance.info
    p50_s = reply.p50 if reply else None
    p99_s = reply.p99 if reply else None
    return ProbedInstance(
        index=instance.index,
        address=instance.address,
        cpu_ratio=_server_use(instance, result),
        cpu_us_per_command=instance.cpu_us_per_command,
        reply_p50_s=p50_s,
        reply_p99_s=p99_s,
        delayed_fsyncs=info.delayed_fsyncs if info else None,
    )


def uses_of(result: RunResult, slo: Slo, busy: float | None = None) -> tuple[ResourceUse, ...]:
    """Return how much of each resource the run used. The function leaves out a resource if its use
    is unknown. `busy` has the same meaning as in `judge_probe`."""
    by_run = (use(result) for use in (_server, _generator, _hot_key, _callers, _fsync))
    return tuple(use for use in (*by_run, _machine(result, busy), _network(result, slo)) if use)


def next_limit(uses: Sequence[ResourceUse], gave_out: str = "") -> ResourceUse:
    """Return the resource that will limit the rate first.

    If the load generator reached its limit before any resource in `uses` was full, `gave_out`
    describes how this happened. Otherwise `gave_out` is "".
    """
    machine = next((use for use in uses if use.name == MACHINE), None)
    if gave_out and machine is not None and (machine.ratio or 0.0) >= FULL:
        return structs.replace(
            machine,
            text=f"{machine.text}; the load generator reached its limit first ({gave_out}): "
            f"{ELSEWHERE}",
        )
    if gave_out:
        return ResourceUse(GENERATOR, GAVE_OUT.format(gave_out))
    first = max(uses, key=lambda use: use.ratio or 0.0, default=None)
    if first is None:
        return ResourceUse(
            None,
            "not known, because no probe within a factor of two of the capacity measured the use "
            "of resources",
        )
    near = (
        "" if (first.ratio or 0.0) >= NEAR else "; every other resource was further from its limit"
    )
    return structs.replace(first, text=first.text + near)


def _server_use(instance: InstanceReport, result: RunResult) -> float | None:
    """Return the share of a core that one instance used under load. The function multiplies the CPU
    time per lease by the number of leases per second."""
    cpu_s = instance.info.cpu_s if instance.info else None
    leases = result.totals.acquired
    rate = result.rate.achieved_per_s
    return None if cpu_s is None or not leases or rate is None else cpu_s / leases * rate


def hot_share(scenario: Scenario) -> float:
    """Return the share (0…1) of operations that ask for the most popular resource."""
    resources = scenario.resources
    skew = scenario.skew
    if skew.kind == "hot":
        return skew.value if resources > 1 else 1.0
    if skew.kind == "zipf":
        return float(1.0 / np.sum(np.arange(1, resources + 1, dtype=float) ** -skew.value))
    return 1.0 / (min(resources, scenario.users) if skew.kind == "own" else resources)


def _grows(name: str, ratio: float, text: str, result: RunResult) -> ResourceUse:
    """Return the use of a resource. The function is right only for a resource whose use grows with
    the rate.

    If `ratio` is at least NEARLY_FULL, the function also computes the rate at which the resource
    would be full.
    """
    rate = result.rate.achieved_per_s
    return ResourceUse(name, text, ratio, rate / ratio if rate and ratio >= NEARLY_FULL else None)


def _server(result: RunResult) -> ResourceUse | None:
    uses = [(_server_use(instance, result), instance.index) for instance in result.instances]
    use, index = max(((use, index) for use, index in uses if use is not None), default=(None, 0))
    return (
        None
        if use is None
        else _grows(SERVER, use, f"#{index}: {percent(use, 0)} of a core", result)
    )


def _generator(result: RunResult) -> ResourceUse | None:
    use = result.generator.cpu_ratio
    return None if use is None else _grows(GENERATOR, use, f"{percent(use, 0)} of a core", result)


def _own(result: RunResult) -> tuple[float | None, str]:
    """Return the share of this machine's CPU time that the load generator and the servers used.
    Also return a name for these processes. The share does not include servers on other machines.
    Return None and "" if the share is unknown."""
    cores = result.environment.usable_cores
    cost = result.cost
    rate = result.rate.achieved_per_s
    are_here = result.fleet.started or all(one.address.startswith(HERE) for one in result.instances)
    client = cost.client_cpu_us_per_cycle
    servers = cost.server_cpu_us_per_cycle if are_here else None
    if not cores or client is None or rate is None or (result.fleet.started and servers is None):
        return None, ""
    who = "the generator" if servers is None else "generator and servers"
    return (client + (servers or 0.0)) * rate / 1e6 / cores, who


def _others(result: RunResult, busy: float | None) -> float | None:
    own, _ = _own(result)
    return None if busy is None or own is None else min(max(busy - own, 0.0), 1.0)


def _machine(result: RunResult, busy: float | None) -> ResourceUse | None:
    own, who = _own(result)
    if own is None:
        return None
    cores = f"{result.environment.usable_cores:g}"
    if busy is not None and busy - own > OTHERS:
        return ResourceUse(
            MACHINE,
            f"{percent(busy, 0)} of {cores} cores were busy; {who} used {percent(own, 0)} of all "
            "cores",
            busy,
        )
    return _grows(MACHINE, own, f"{percent(own, 0)} of {cores} cores were busy with {who}", result)


def _network(result: RunResult, slo: Slo) -> ResourceUse | None:
    far = [
        one.reply_s for one in result.instances if one.reply_s and not one.address.startswith(HERE)
    ]
    replies = [reply.p50 for reply in far if reply.p50]
    if not replies or slo.acquire_limit is None:
        return None
    reply_s = float(np.median(replies))
    limit_s = slo.acquire_limit.limit
    text = (
        f"the SLO allows {limit_s * 1e3:g} ms, and a reply alone takes {reply_s * 1e3:.2f} ms (p50)"
    )
    return ResourceUse(NETWORK, text, reply_s / limit_s)


def _hot_key(result: RunResult) -> ResourceUse | None:
    scenario = result.scenario
    rate = result.rate.achieved_per_s
    latency = result.latency_s
    hold_s = max(mean_of(scenario.hold) / 1000, latency.hold.mean or 0.0)
    turn_s = latency.handoff.p50 or latency.acquire_service.p50
    if turn_s is None or rate is None:
        return None
    share = hot_share(scenario)
    ceiling = 1 / (hold_s + turn_s)
    use = share * rate / ceiling
    times = f"hold {hold_s * 1e3:.2f} ms + hand-off {turn_s * 1e3:.2f} ms"
    text = (
        f"{share * 100:.3g} % of the acquires request this key, which is at {percent(use, 0)} "
        f"of its limit of {ceiling:,.0f}/s ({times})"
    )
    return _grows(HOT_KEY, use, text, result)


def _callers(result: RunResult) -> ResourceUse | None:
    latency = result.latency_s
    users = result.scenario.users
    rate = result.rate.achieved_per_s
    times = [latency.acquire_service.mean, latency.hold.mean, latency.release.mean]
    if rate is None or times[0] is None:
        return None
    use = rate * sum(time or 0.0 for time in times) / users
    return ResourceUse(
        CALLERS,
        f"{percent(use, 0)} of the {users:,} callers were busy; use --users to add callers",
        use,
    )


def _fsync(result: RunResult) -> ResourceUse | None:
    policy = result.fleet.policy
    disk = result.fleet.fdatasync_s
    delayed = sum(one.info.delayed_fsyncs or 0 for one in result.instances if one.info)
    replies = [instance.reply_s.p50 or 0.0 for instance in result.instances if instance.reply_s]
    slowest = max(replies, default=0.0)
    if policy == "always" and disk and slowest:
        use = min(1.0, FSYNC_REPLY * disk.p50_s / slowest)
        return ResourceUse(
            FSYNC,
            f"with appendfsync always, an fsync takes {disk.p50_s * 1e6:.0f} µs, which is "
            f"{percent(use, 0)} of the time of a reply",
            use,
        )
    if delayed:
        return ResourceUse(FSYNC, f"{delayed} AOF writes waited for a slow fsync", 1.0)
    # Redis counts delayed fsyncs only under everysec.
    if policy in (None, "always"):
        return None
    return ResourceUse(FSYNC, "no write waited for it", 0.0)
