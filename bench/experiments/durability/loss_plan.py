"""Plans the crashes of `lockbench crash`: *numbers of instances and a choice of quick or full →
groups of cuts and their durations*. The plan leaves out impossible crashes. A group has one cell
for each combination of a vote margin and a kind of second client. Groups with a delayed restart
have only one kind of second client."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from bench.experiments.durability.loss_result import AtLeastOne, Crash
from bench.experiments.durability.policies import (
    AOF_POLICIES,
    KINDS,
    RESTARTS,
    AofPolicy,
    CrashKind,
)
from bench.measure.section import Amount, Section, builtins_of
from lockcore.bench import quorum_of

TTL_MS = 2000
# How many cuts a group has. If no cut shows a fault, the fault happens in fewer than one of seven
# cuts, with 95 % certainty.
CUTS = 20
# `--quick` tests all policies and kinds at this N.
DEPTH = 3
# `everysec` syncs once in this time. A load lasts for `SETTLE_S` plus a random part of this time.
CYCLE_S = 1.0
SETTLE_S = 1.1
# The delay of a slow fsync. `always` gets a shorter delay, because every acquire waits for an
# fsync, and this wait may last at most a quarter of the TTL.
SLOW_SYNC_S = 1.5
SLOW_ALWAYS_S = 0.2
# The time between the end of the instances and the end of the last lease. It includes restarts and
# questions.
AFTER_S = 2.4
_MAIN = {
    ("none", "kill"),
    ("everysec", "kill"),
    *((policy, "power-cut") for policy in AOF_POLICIES[1:]),
}


class CrashPlan(Section, frozen=True):
    """The planned crashes. The experiment makes each crash `cuts` times.

    `locks_per_s` is the load on each fleet. `latency_ms` is the delay that the shim adds to each
    fsync. There is one exception. For crashes of the kind `kill-slow-fsync`, the shim adds a fixed
    delay instead of `latency_ms`.
    """

    crashes: Annotated[tuple[Crash, ...], Meta(min_length=1)]
    cuts: AtLeastOne
    locks_per_s: AtLeastOne
    seed: int
    quick: bool
    latency_ms: Amount = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the settings of the plan. A session can continue a journal only if these settings
        are equal to the settings in the journal."""
        return {"experiment": "crash", **builtins_of(self), "ttl_ms": TTL_MS}

    @property
    def orders(self) -> list[tuple[Crash, int]]:
        """All planned cuts, group after group. Each element of the list has two values: the kind of
        crash, and the number of the cut in its group."""
        return [(crash, number) for crash in self.crashes for number in range(self.cuts)]


def load_range_s(crash: Crash) -> tuple[float, float]:
    """Return the shortest and the longest duration (s) of the load before a cut. The real duration
    is a random value between these two. So a cut can happen at any time between two syncs."""
    return SETTLE_S, SETTLE_S + (SLOW_SYNC_S if crash.kind == "kill-slow-fsync" else CYCLE_S)


def sync_delay_s(crash: Crash, latency_ms: float) -> float:
    """Return the delay (s) of each sync before a crash. If the crash happens during a slow fsync,
    the delay depends only on the policy. For all other crashes, the delay is `latency_ms`."""
    slow_s = SLOW_ALWAYS_S if crash.policy == "always" else SLOW_SYNC_S
    return slow_s if crash.kind == "kill-slow-fsync" else latency_ms / 1000


def lanes_of(crash: Crash) -> float:
    """Return how much of the machine the fleet of this crash needs. A fleet of `DEPTH` instances
    needs 1. The result is never below 1."""
    return max(1.0, crash.instances / DEPTH)


def seconds_of(crash: Crash) -> float:
    """Return an estimate of how long (s) one cut keeps a lane busy."""
    return (sum(load_range_s(crash)) / 2 + AFTER_S) * lanes_of(crash)


def is_possible(policy: AofPolicy, kind: CrashKind) -> bool:
    """Return whether this kind of crash is possible under this policy. If there is no append-only
    file, only a shutdown and a kill are possible. Under the policy `no`, Redis never starts an
    fsync, so no crash can happen during a slow fsync."""
    if policy == "none":
        return kind in ("shutdown", "kill")
    return (policy, kind) != ("no", "kill-slow-fsync")


def full_crashes(instances: Sequence[int]) -> list[Crash]:
    """Return all possible crashes. A crash may hit one instance, a quorum of instances, or all
    instances. These instances crash at the same time. The list has each possible kind of crash with
    an immediate restart. The list also has the worst kind of crash with a delayed restart. The
    worst kind is a power cut if the policy has an append-only file. Otherwise the worst kind is
    `kill -9`."""
    return [
        Crash(count, policy, kind, crashed, restart)
        for count in instances
        for policy in AOF_POLICIES
        for kind in KINDS
        if is_possible(policy, kind)
        for crashed in sorted({1, quorum_of(count), count})
        for restart in RESTARTS
        if restart == "at-once" or kind == ("kill" if policy == "none" else "power-cut")
    ]


def quick_crashes(instances: Sequence[int]) -> list[Crash]:
    """Return the crashes of the short matrix, a selection of all possible crashes. Most of these
    crashes happen in fleets of one size, the main size. The main size is `DEPTH`, or the first
    number in `instances` if `instances` does not contain `DEPTH`. The selection has three parts. In
    fleets of the main size, one instance crashes in every possible way under every policy. In
    fleets of the main size, a quorum of instances crashes in the main ways (`_MAIN`). In fleets of
    other sizes, one instance crashes in the main ways. Under `none` and `everysec`, the selection
    also contains delayed restarts."""
    depth = DEPTH if DEPTH in instances else instances[0]
    crashes = []
    for crash in full_crashes(instances):
        in_depth = crash.instances == depth
        is_main = (crash.policy, crash.kind) in _MAIN
        of_a_quorum = in_depth and is_main and crash.crashed == quorum_of(crash.instances)
        if crash.restart == "at-once" or crash.policy in ("none", "everysec"):
            crashes += (
                [crash] if of_a_quorum or (crash.crashed == 1 and (in_depth or is_main)) else []
            )
    return crashes
