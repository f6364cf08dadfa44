"""What crashes cost: *cuts of one kind → locks lost, double grants, what had to be and what must not*. Pure.

    Crash     what is done: N, AOF policy, kind, how many instances, restart          one group of cuts
    CutFacts  what one cut came to: who knew which lock before and after, who got it   one line of the journal
    loss_figures, double_grant_figures → figures with medians, maxima and the 3/n bound; judge_* → the verdict

Rules
- A lock is *lost* when an instance had acknowledged it and, back again, does not know it though its lease is valid.
- A lease granted to a second client while the first is valid is a *double grant*. Holding q + margin votes, the first
  is in danger only when at least 2q − N + margin of its voters have forgotten it: N − q − margin never knew it.
- everysec postpones writes while a sync runs, so `kill -9` may lose acknowledged locks then: such cuts stand apart, by
  the ledger alone. Any other loss there is a violation.

Source: Redis aof.c (flushAppendOnlyFile); the Redlock text, "Performance, crash recovery and fsync"; the rule of three.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from lockcore.quorum import quorum_of

POLICIES = ("none", "no", "everysec", "always")
KINDS = ("shutdown", "kill", "kill-slow-fsync", "power-cut", "power-cut-torn")
RESTARTS = ("at-once", "delayed")
NEARLY_ALL = 0.9  # of the locks at stake
ASKED_FOR_S = 0.1  # a sync may wait so long for its thread: asked for, and not yet in the ledger
RULE_OF_THREE = 3.0


class Expected(StrEnum):
    """What a loss, or double grants, must come to over a group of cuts."""

    NONE = "none"
    SOME = "some"
    NEARLY_ALL = "nearly-all"
    NONE_UNLESS_IN_FLIGHT = "none-unless-in-flight"


@dataclass(frozen=True, slots=True)
class Crash:
    """One group of cuts. `crashed` (1 … N): how many instances end at once and come back."""

    instances: int
    policy: str
    kind: str
    crashed: int
    restart: str

    @property
    def key(self) -> str:
        """Its name in journals and progress lines."""
        return f"N={self.instances} {self.policy} {self.kind} of {self.crashed}, {self.restart}"

    @property
    def margins(self) -> range:
        """Every vote margin a lease can have."""
        return range(self.instances - quorum_of(self.instances) + 1)

    @property
    def cuts_power(self) -> bool:
        """Whether what was not synced is gone."""
        return self.kind in ("power-cut", "power-cut-torn")

    @property
    def expected_loss(self) -> Expected:
        """What the policy promises under this kind of end."""
        if self.policy == "none":
            return Expected.NEARLY_ALL
        if self.kind == "shutdown" or self.policy == "always":
            return Expected.NONE
        if self.policy == "no":
            loses = {"power-cut": Expected.NEARLY_ALL, "power-cut-torn": Expected.SOME}
            return loses.get(self.kind, Expected.NONE)
        return Expected.NONE_UNLESS_IN_FLIGHT if self.kind == "kill" else Expected.SOME

    def expected_double_grants(self, margin: int, *, abstention: bool) -> Expected:
        """What a second client may get while a first lease of `margin` is valid."""
        quorum = quorum_of(self.instances)
        forgetting = min(self.crashed, quorum + margin)
        if abstention or self.restart == "delayed" or forgetting < 2 * quorum - self.instances + margin:
            return Expected.NONE
        loss = self.expected_loss
        return Expected.SOME if loss is Expected.NEARLY_ALL else loss


def impossible(policy: str, kind: str) -> str | None:
    """Why there is no such crash, or None."""
    if policy == "none" and kind not in ("shutdown", "kill"):
        return "without an append-only file nothing is kept: the same as kill"
    if policy == "no" and kind == "kill-slow-fsync":
        return "it leaves syncing to the kernel: there is no fsync to be slow"
    return None


# -- what one cut came to --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the shim's ledger said of one instance when it was dead.

    `in_flight`: syncs that ran; `synced_after_write`: one had ended and nothing been written since; `since_write_s`:
    from the last append to the end, None = not known; `cut_bytes`: taken from its files by the power cut.
    """

    instance: int
    in_flight: int
    synced_after_write: bool
    since_write_s: float | None
    cut_bytes: int

    def explains(self, window_s: float | None) -> bool:
        """Whether writes may have been postponed for a sync: one that ran, had just ended, or waited for its thread."""
        if self.in_flight or self.synced_after_write:
            return True
        asked_for = self.since_write_s is not None and self.since_write_s <= ASKED_FOR_S
        return asked_for and window_s is not None and window_s <= self.since_write_s  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of the locks of one margin: on one instance, or (`instance` None) each counted once for all."""

    margin: int
    instance: int | None
    acknowledged: int
    at_stake: int
    lost: int
    window_s: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a second client got of the locks of one margin, while they were valid."""

    margin: int
    abstention: bool
    asked: int
    double_grants: int


@dataclass(frozen=True, slots=True)
class CutFacts:
    """One cut. `load_s`: how long locks were taken before it, its random phase; `back_s`: from the end of the instances
    until all answered again; `unavailable_s`: to the first grant of a free resource, by abstention ("trusting",
    "abstaining")."""

    crash: Crash
    number: int
    load_s: float
    ledgers: tuple[Ledger, ...]
    losses: tuple[Loss, ...]
    asked: tuple[Asked, ...]
    back_s: float
    unavailable_s: Mapping[str, float]

    @property
    def is_in_flight(self) -> bool:
        """Whether a ledger showed a sync at the end of its instance; for everysec, one that explains a loss."""
        if self.crash.policy != "everysec":
            return any(ledger.in_flight > 0 for ledger in self.ledgers)
        return any(ledger.explains(self._window_of(ledger.instance)) for ledger in self.ledgers)

    @property
    def unexplained(self) -> int:
        """Locks lost by instances whose ledger shows nothing that could have postponed their writes."""
        calm = {one.instance for one in self.ledgers if not one.explains(self._window_of(one.instance))}
        return sum(loss.lost for loss in self.losses if loss.instance in calm)

    def of(self, margin: int | None = None) -> tuple[int, int, int, float | None]:
        """Acknowledged, at stake, lost, window (s) of one margin's locks, or of all."""
        found = [loss for loss in self.losses if loss.instance is None and margin in (None, loss.margin)]
        windows = [loss.window_s for loss in found if loss.window_s is not None]
        counts = (sum(getattr(loss, name) for loss in found) for name in ("acknowledged", "at_stake", "lost"))
        acknowledged, at_stake, lost = counts
        return acknowledged, at_stake, lost, max(windows, default=None)

    def _window_of(self, instance: int) -> float | None:
        windows = [loss.window_s for loss in self.losses if loss.instance == instance and loss.window_s is not None]
        return max(windows, default=None)


# -- figures ---------------------------------------------------------------------------------------------------------


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Median and maximum; both None of nothing."""
    found = list(values)
    return {"median": statistics.median(found) if found else None, "max": max(found, default=None)}


def upper_bound_95(events: int, trials: int) -> float | None:
    """The 95 % upper bound of a rate of which no event was seen in `trials` (3/n, at most 1); None if one was."""
    return min(1.0, RULE_OF_THREE / trials) if trials and not events else None


def loss_figures(cuts: Sequence[CutFacts], margin: int | None = None) -> dict[str, Any]:
    """What was lost over a group of cuts, by the locks of one margin or all; in-flight cuts apart where they excuse."""
    apart = cuts[0].crash.expected_loss is Expected.NONE_UNLESS_IN_FLIGHT
    in_flight = [cut.of(margin) for cut in cuts if cut.is_in_flight]
    counted = [cut.of(margin) for cut in cuts if not (apart and cut.is_in_flight)]
    lost = [cut[2] for cut in counted]
    at_stake = sum(cut[1] for cut in counted)
    losing = sum(count > 0 for count in lost)
    return {
        "acknowledged": sum(cut.of(margin)[0] for cut in cuts),
        "at_stake": at_stake,
        "lost_total": sum(lost),
        "lost_share": sum(lost) / at_stake if at_stake else None,
        "lost_per_cut": spread(lost),
        "cuts_with_loss": losing,
        "lost_upper_bound_95": upper_bound_95(losing, len(counted)),
        "lost_window_s": spread(cut[3] for cut in counted if cut[3] is not None),
        "fsync_in_flight": {
            "cuts": len(in_flight),
            "share": len(in_flight) / len(cuts),
            "apart": apart,
            "lost_total": sum(cut[2] for cut in in_flight),
            "lost_per_cut_max": max((cut[2] for cut in in_flight), default=0),
            "lost_window_max_s": max((cut[3] for cut in in_flight if cut[3] is not None), default=None),
        },
    }


def double_grant_figures(cuts: Sequence[CutFacts], margin: int, *, abstention: bool) -> dict[str, Any]:
    """What the second client got over a group of cuts, and how long it got nothing at all."""
    asked = [one for cut in cuts for one in cut.asked if (one.margin, one.abstention) == (margin, abstention)]
    doubled = sum(one.double_grants > 0 for one in asked)
    name = "abstaining" if abstention else "trusting"
    return {
        "asked": sum(one.asked for one in asked),
        "double_grants": sum(one.double_grants for one in asked),
        "cuts_with_double_grants": doubled,
        "double_grant_upper_bound_95": upper_bound_95(doubled, len(asked)),
        "back_s": spread(cut.back_s for cut in cuts),
        "unavailable_s": spread(cut.unavailable_s[name] for cut in cuts if name in cut.unavailable_s),
    }


# -- verdicts --------------------------------------------------------------------------------------------------------


def judge_loss(cuts: Sequence[CutFacts], margin: int | None = None) -> tuple[str, str | None]:
    """The verdict on what a group of cuts lost, and the reason unless it is as expected."""
    expected, figures = cuts[0].crash.expected_loss, loss_figures(cuts, margin)
    lost, losing = figures["lost_total"], figures["cuts_with_loss"]
    unexplained = sum(cut.unexplained for cut in cuts)
    everysec_killed = cuts[0].crash.policy == "everysec" and cuts[0].crash.kind in ("kill", "kill-slow-fsync")
    if everysec_killed and unexplained:
        return VIOLATED, f"{unexplained} acknowledged locks were lost without a sync in flight"
    if expected is Expected.NONE and lost:
        return VIOLATED, f"{lost} acknowledged locks were lost in {losing} cuts"
    if not figures["at_stake"]:
        kept_apart = figures["fsync_in_flight"]["cuts"] == len(cuts) and figures["fsync_in_flight"]["apart"]
        return NOT_KNOWN, "a sync was in flight in every cut" if kept_apart else "no acknowledged lock was at stake"
    if expected is Expected.SOME and not lost:
        return NOT_SHOWN, "nothing was lost"
    if expected is Expected.NEARLY_ALL and figures["lost_share"] < NEARLY_ALL:
        return NOT_SHOWN, f"only {figures['lost_share']:.0%} of the locks at stake were lost"
    return AS_EXPECTED, None


def judge_double_grants(cuts: Sequence[CutFacts], margin: int, *, abstention: bool) -> tuple[str, str | None]:
    """The verdict on what the second client got, and the reason unless it is as expected."""
    expected = cuts[0].crash.expected_double_grants(margin, abstention=abstention)
    figures = double_grant_figures(cuts, margin, abstention=abstention)
    if not figures["asked"]:
        return NOT_KNOWN, "no lock was asked for while it was valid"
    excused: Callable[[CutFacts], bool] = lambda cut: expected is Expected.NONE_UNLESS_IN_FLIGHT and cut.is_in_flight  # noqa: E731
    strict = [cut for cut in cuts if not excused(cut)]
    if not strict:
        return NOT_KNOWN, "a sync was in flight in every cut"
    doubled = double_grant_figures(strict, margin, abstention=abstention)["double_grants"]
    if expected in (Expected.NONE, Expected.NONE_UNLESS_IN_FLIGHT) and doubled:
        return VIOLATED, f"{doubled} locks were granted a second time while they were valid"
    if expected in (Expected.SOME, Expected.NEARLY_ALL) and not doubled:
        return NOT_SHOWN, "no lock was granted a second time"
    return AS_EXPECTED, None


def worse(*judged: tuple[str, str | None]) -> tuple[str, str | None]:
    """The worst verdict of several, with every reason."""
    order = (AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED)
    verdict = max((one for one, _ in judged), key=order.index)
    return verdict, "; ".join(reason for _, reason in judged if reason) or None


def cells(cuts: Sequence[CutFacts]) -> list[dict[str, Any]]:
    """One row per margin and abstention of one finished group of cuts (all of one `Crash`, at least one)."""
    crash = cuts[0].crash
    told = sorted({(asked.margin, asked.abstention) for cut in cuts for asked in cut.asked})
    rows = []
    for margin, abstention in told:
        verdict, reason = worse(judge_loss(cuts, margin), judge_double_grants(cuts, margin, abstention=abstention))
        rows.append(
            {
                **_named(crash),
                "margin": margin,
                "abstention": abstention,
                "cuts": len(cuts),
                **loss_figures(cuts, margin),
                **double_grant_figures(cuts, margin, abstention=abstention),
                "expected_loss": crash.expected_loss.value,
                "expected_double_grants": crash.expected_double_grants(margin, abstention=abstention).value,
                "verdict": verdict,
                "reason": reason,
            }
        )
    return rows


def group(cuts: Sequence[CutFacts]) -> dict[str, Any]:
    """The loss of one finished group of cuts, all margins together."""
    verdict, reason = judge_loss(cuts)
    figures = {**loss_figures(cuts), "expected_loss": cuts[0].crash.expected_loss.value}
    return {**_named(cuts[0].crash), "cuts": len(cuts), **figures, "verdict": verdict, "reason": reason}


def _named(crash: Crash) -> dict[str, Any]:
    return {
        "instances": crash.instances,
        "quorum": quorum_of(crash.instances),
        "policy": crash.policy,
        "kind": crash.kind,
        "crashed": crash.crashed,
        "restart": crash.restart,
    }
