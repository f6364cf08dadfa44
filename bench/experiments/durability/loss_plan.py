"""Which crashes are tried: *instances, quick or full → groups of cuts, what each takes, what cannot
be*. A group serves every vote margin and both kinds of second client: a cell is a group × margin ×
abstention."""

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
# So many cuts per group. What none of them shows happens in fewer than one of seven (95 % sure).
CUTS = 20
# `--quick` looks at this N in depth.
DEPTH = 3
# `everysec` syncs once in this time. A load lasts `SETTLE_S` and a random share of this time.
CYCLE_S = 1.0
SETTLE_S = 1.1
# `always` waits for it in every acquire, which may take a quarter of the TTL
SLOW_SYNC_S = 1.5
SLOW_ALWAYS_S = 0.2
# The time from the end of the instances to the end of the last lease, with restarts and questions.
AFTER_S = 2.4
_MAIN = {
    ("none", "kill"),
    ("everysec", "kill"),
    *((policy, "power-cut") for policy in AOF_POLICIES[1:]),
}


class CrashPlan(Section, frozen=True):
    """What is done: every crash `cuts` times.

    `locks_per_s`: offered to each fleet; `latency_ms`: added to fsyncs.
    """

    crashes: Annotated[tuple[Crash, ...], Meta(min_length=1)]
    cuts: AtLeastOne
    locks_per_s: AtLeastOne
    seed: int
    quick: bool
    latency_ms: Amount = 0.0

    def to_json(self) -> dict[str, object]:
        """What a journal must agree in to be gone on from."""
        return {"experiment": "crash", **builtins_of(self), "ttl_ms": TTL_MS}

    @property
    def orders(self) -> list[tuple[Crash, int]]:
        """Every cut: the crash, its own number; group after group."""
        return [(crash, number) for crash in self.crashes for number in range(self.cuts)]


def load_range_s(crash: Crash) -> tuple[float, float]:
    """Between which times (s) the load before a cut lasts, so that the cut falls anywhere between
    two syncs."""
    return SETTLE_S, SETTLE_S + (SLOW_SYNC_S if crash.kind == "kill-slow-fsync" else CYCLE_S)


def sync_delay_s(crash: Crash, latency_ms: float) -> float:
    """How much longer every sync takes before this kind of crash: `latency_ms`, unless it has a
    delay of its own."""
    slow_s = SLOW_ALWAYS_S if crash.policy == "always" else SLOW_SYNC_S
    return slow_s if crash.kind == "kill-slow-fsync" else latency_ms / 1000


def lanes_of(crash: Crash) -> float:
    """How many fleets of `DEPTH` instances it is worth: a large one takes the place of several."""
    return max(1.0, crash.instances / DEPTH)


def seconds_of(crash: Crash) -> float:
    """About how long one cut takes one lane."""
    return (sum(load_range_s(crash)) / 2 + AFTER_S) * lanes_of(crash)


def is_possible(policy: AofPolicy, kind: CrashKind) -> bool:
    """Whether there is such a crash: without a file every end is a kill; where the kernel syncs no
    fsync is slow."""
    if policy == "none":
        return kind in ("shutdown", "kill")
    return (policy, kind) != ("no", "kill-slow-fsync")


def full_crashes(instances: Sequence[int]) -> list[Crash]:
    """Every possible crash: one, a quorum, or all instances at once, back at once, or delayed after
    what loses most: without a file `kill -9`, with one a power cut."""
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
    """Every policy and kind once at the N in depth, there also a quorum, and everywhere the main
    ones."""
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
