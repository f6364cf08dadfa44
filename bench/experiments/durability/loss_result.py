"""What `lockbench crash` stores: *groups of cuts, cells by margin and abstention*. A lock counts
once, whatever number of instances lost it."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from bench.measure.expectation import RowWord
from bench.measure.result import Document
from bench.measure.run_result import OwnFleet
from bench.measure.section import Amount, Count, Section, Share, says
from lockcore.facts.quorum import quorum_of

Policy = Literal["none", "no", "everysec", "always"]
CrashKind = Literal["shutdown", "kill", "kill-slow-fsync", "power-cut", "power-cut-torn"]
Restart = Literal["at-once", "delayed"]
Expected = Literal["none", "some", "nearly-all", "none-unless-in-flight"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
KINDS: tuple[CrashKind, ...] = get_args(CrashKind)
RESTARTS: tuple[Restart, ...] = get_args(Restart)
AtLeastOne = Annotated[int, Meta(ge=1)]


class MedianAndMax(Section, frozen=True, kw_only=True):
    """Over cuts; null without any."""

    median: Annotated[Amount | None, says("half of the cuts have no more")]
    max: Annotated[Amount | None, says("most seen")]


class SyncInFlight(Section, frozen=True, kw_only=True):
    """Cuts with a sync in flight."""

    cuts: Annotated[
        Count,
        says("whose ledger showed a sync at an instance's end: running, just over, or asked for"),
    ]
    apart: Annotated[
        bool,
        says("true: the figures beside leave these cuts out, as everysec may lose locks in them"),
    ]
    lost_per_cut_max: Annotated[Count, says("most locks lost in one of these cuts")]


class Crash(Section, frozen=True):
    """One group of cuts."""

    instances: Annotated[AtLeastOne, says("N")]
    policy: Annotated[Policy, says("appendfsync; none = no append-only file")]
    kind: Annotated[
        CrashKind,
        says("how they ended; slow: fsyncs take 1.5 s, always 0.2; torn: some of the tail kept"),
    ]
    crashed: Annotated[AtLeastOne, says("how many instances ended at once and came back")]
    restart: Annotated[
        Restart, says("delayed: started again when the longest TTL and drift have passed")
    ]

    @property
    def key(self) -> str:
        """Its name in journals, sentences and progress lines."""
        return f"N={self.instances} {self.policy} {self.kind} of {self.crashed}, {self.restart}"

    @property
    def margins(self) -> range:
        """Every vote margin a lease can have."""
        return range(self.instances - quorum_of(self.instances) + 1)

    @property
    def promised_loss(self) -> Expected:
        """What the policy promises under this kind of end."""
        if self.policy == "none":
            return "nearly-all"
        if self.kind == "shutdown" or self.policy == "always":
            return "none"
        if self.policy == "no":
            if self.kind == "power-cut":
                return "nearly-all"
            return "some" if self.kind == "power-cut-torn" else "none"
        return "none-unless-in-flight" if self.kind == "kill" else "some"

    def promised_double_grants(self, margin: int, *, abstention: bool) -> Expected:
        """What a second client may get while a first lease of `margin` is valid."""
        quorum = quorum_of(self.instances)
        forgetting = min(self.crashed, quorum + margin)
        if (
            abstention
            or self.restart == "delayed"
            or forgetting < 2 * quorum - self.instances + margin
        ):
            return "none"
        return "some" if self.promised_loss == "nearly-all" else self.promised_loss


class CrashGroup(Crash, frozen=True, kw_only=True):
    """One group of cuts, locks of all margins together."""

    cuts: Annotated[AtLeastOne, says("cuts at random phases")]
    at_stake: Annotated[
        Count, says("locks that it had acknowledged, valid when it was back (delayed: at the cut)")
    ]
    lost_total: Annotated[
        Count, says("of those at stake: not known to a crashed instance any more")
    ]
    lost_share: Annotated[
        Share | None, says("lost_total ÷ at_stake; null when nothing was at stake")
    ]
    lost_per_cut: Annotated[MedianAndMax, says("locks lost per cut, each counted once")]
    cuts_with_loss: Annotated[Count, says("cuts that lost anything")]
    lost_window_s: Annotated[
        MedianAndMax, says("acknowledgement of the oldest lost lock → its instance's end")
    ]
    fsync_in_flight: Annotated[SyncInFlight, says("cuts with a sync in flight")]
    unexplained: Annotated[
        Count | None, says("locks lost without a sync that explains it; null: older")
    ] = None
    expected_loss: Annotated[Expected, says("what the policy promises")]
    verdict: Annotated[RowWord, says("what it came to")]
    reason: Annotated[str | None, says("why, unless as expected")]


class CrashRow(CrashGroup, frozen=True, kw_only=True):
    """One group, its locks of one vote margin, and what one of the second clients got of them."""

    margin: Annotated[Count, says("vote margin of the first leases")]
    abstention: Annotated[
        bool, says("the second client lets a restarted instance abstain for the longest TTL")
    ]
    asked: Annotated[Count, says("locks the second client asked for while they were valid")]
    double_grants: Annotated[Count, says("of those: granted to it while the first lease was valid")]
    double_grants_apart: Annotated[
        Count | None, says("of those granted twice: in cuts with a sync in flight; null: older")
    ] = None
    cuts_with_double_grants: Annotated[Count, says("cuts with any")]
    unavailable_s: Annotated[
        MedianAndMax, says("end of the instances → the second client's next grant of a free lock")
    ]

    @property
    def name(self) -> str:
        """What sentences call it."""
        return f"{self.key}, margin {self.margin}{', abstaining' if self.abstention else ''}"


class CrashConditions(Section, frozen=True, kw_only=True):
    """What was asked for."""

    quick: Annotated[bool, says("a part of the matrix")]
    ttl_ms: Annotated[Count, says("of every lease")]
    cuts_per_cell: Annotated[AtLeastOne, says("planned")]
    locks_per_s: Annotated[Count, says("offered to each fleet, over all margins")]
    instances: Annotated[tuple[int, ...], says("every N")]
    finished_cuts: Annotated[Count, says("cuts made, earlier sittings included")]
    latency_ms: Annotated[
        Amount, says("added to every fsync while locks were taken; 0 = the disk as it is")
    ] = 0.0

    @property
    def disk(self) -> str:
        """As `lockbench fsync` says it."""
        return f"+{self.latency_ms:g} ms" if self.latency_ms else "raw disk"


class CrashResult(Document, frozen=True, kw_only=True):
    """What each AOF policy loses at a crash, and who then gets a lock twice. null: not known, or
    not applicable."""

    kind: Annotated[Literal["crash"], says("the command that made it")] = "crash"
    fleet: Annotated[OwnFleet, says("servers and disk")]
    conditions: Annotated[CrashConditions, says("what was asked for")]
    groups: Annotated[tuple[CrashGroup, ...], says("groups of cuts")] = ()
    rows: Annotated[tuple[CrashRow, ...], says("cells: group × vote margin × abstention")]
