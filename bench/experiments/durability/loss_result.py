"""Defines the data that `lockbench crash` stores. The result has groups of cuts. For each group, it
has one row for each combination of a margin and a kind of second client. If several instances lose
the same lock, the lock counts once."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from msgspec import Meta

from bench.experiments.durability.policies import KINDS, AofPolicy, CrashKind, Restart, disk_name
from bench.measure.expectation import AS_EXPECTED, RowWord
from bench.measure.fleet_facts import OwnFleet
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, Share, says
from lockcore.bench import quorum_of

Expected = Literal["none", "some", "nearly-all", "none-unless-in-flight"]
# With fewer crashes, the bound is too weak to be worth a sentence.
LEAST_CUTS = 6
AtLeastOne = Annotated[int, Meta(ge=1)]


class MedianAndMax(Section, frozen=True, kw_only=True):
    """The median and the maximum of a figure over several cuts. If there are no cuts, both figures
    are null."""

    median: Annotated[Amount | None, says("median over the cuts")]
    max: Annotated[Amount | None, says("most seen", label="most")]


class SyncInFlight(Section, frozen=True, kw_only=True):
    """The figures of the cuts during which a sync was in flight."""

    cuts: Annotated[
        Count,
        says(
            "number of cuts during a sync: when an instance ended, a sync was running, "
            "requested or just finished"
        ),
    ]
    apart: Annotated[
        bool,
        says(
            "true if the other figures do not include these cuts; under the policy everysec, a "
            "cut during a sync may lose locks"
        ),
    ]
    lost_per_cut_max: Annotated[Count, says("largest number of locks that one of these cuts lost")]


class Crash(Section, frozen=True):
    """One kind of planned crash. All cuts of this kind form a group."""

    instances: Annotated[AtLeastOne, says("N", label="N")]
    policy: Annotated[
        AofPolicy, says("appendfsync policy of the servers; none means no append-only file")
    ]
    kind: Annotated[
        CrashKind,
        says(
            "how the instances ended. A name with `slow` means fsyncs of 1.5 s, or 0.2 s under "
            "`always`. A name with `torn` means that the server keeps a part of the unsynced "
            "data"
        ),
    ]
    crashed: Annotated[
        AtLeastOne,
        says(
            "number of instances that crashed at the same time and started again",
            label="servers down",
        ),
    ]
    restart: Annotated[
        Restart,
        says(
            "time of the restart; a delayed restart comes after the longest TTL plus the clock "
            "drift"
        ),
    ]

    @property
    def key(self) -> str:
        """The name of the group in journals, sentences and progress lines."""
        return f"N={self.instances} {self.policy} {self.kind} of {self.crashed}, {self.restart}"

    @property
    def crash(self) -> Annotated[str, says("its kind, in words")]:
        """The name of this kind of crash in tables and pictures."""
        return KINDS[self.kind]

    @property
    def margins(self) -> range:
        """All vote margins that a lease can have in a fleet of `instances` instances."""
        return range(self.instances - quorum_of(self.instances) + 1)

    @property
    def promised_loss(self) -> Expected:
        """A word for the number of locks that the policy may lose after this kind of crash."""
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
        """Return a word for the expected number of double grants. `margin` is the vote margin of
        the first client's lease."""
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
    """The results of one group of cuts. The results include the locks of all margins."""

    cuts: Annotated[AtLeastOne, says("cuts at random phases", label="crashes")]
    at_stake: Annotated[
        Count,
        says(
            "number of acknowledged locks that were still valid when the server was back; if the "
            "restart was delayed, number of locks that were valid at the cut"
        ),
    ]
    lost_total: Annotated[
        Count, says("number of still valid locks that a crashed instance had forgotten")
    ]
    lost_share: Annotated[
        Share | None,
        says("share of the locks at stake that were lost; null if no lock was at stake"),
    ]
    lost_per_cut: Annotated[
        MedianAndMax, says("locks that a cut lost; each lock counts once", label="lost")
    ]
    cuts_with_loss: Annotated[Count, says("cuts that lost anything")]
    lost_window_s: Annotated[
        MedianAndMax,
        says(
            "time from the oldest lost lock's acknowledgement to the crash of the instance",
            label="back",
            unit="seconds",
        ),
    ]
    fsync_in_flight: Annotated[SyncInFlight, says("the cuts with a sync in flight")]
    unexplained: Annotated[Count, says("locks that were lost although no sync was in flight")]
    expected_loss: Annotated[Expected, says("what the policy promises")]
    verdict: Annotated[RowWord, says("what it came to")]
    reason: Annotated[str | None, says("why, unless as expected")]

    @property
    def mark(self) -> str:
        """A mark that tables add to figures that are not as expected. If the figures are as
        expected, the mark is ""."""
        return "" if self.verdict == AS_EXPECTED else " !"


class CrashRow(CrashGroup, frozen=True, kw_only=True):
    """The results of one group of cuts. The results include only the locks with one margin and only
    one kind of second client."""

    margin: Annotated[Count, says("vote margin of the first client's leases")]
    abstention: Annotated[
        bool,
        says("true if the second client ignores a restarted instance's votes for the longest TTL"),
    ]
    asked: Annotated[
        Count,
        says(
            "number of locks that a second client requested while the lease of the first "
            "client was still valid"
        ),
    ]
    double_grants: Annotated[
        Count,
        says(
            "number of locks that a second client got while the lease of the first client was "
            "still valid"
        ),
    ]
    double_grants_apart: Annotated[
        Count, says("number of double grants in cuts that happened during a sync")
    ]
    cuts_with_double_grants: Annotated[Count, says("number of cuts with at least one double grant")]
    unavailable_s: Annotated[
        MedianAndMax,
        says("time from the crash until the second client got a free lock"),
    ]

    @property
    def name(self) -> str:
        """The name of the row in sentences."""
        return f"{self.key}, margin {self.margin}{', abstaining' if self.abstention else ''}"


class Most(Section, frozen=True, kw_only=True):
    """The largest value of a figure over several crashes."""

    max: Annotated[Amount, says("the most", label="")]


class Losses(Section, frozen=True, kw_only=True):
    """The sums and the worst values of several groups of cuts. If some of the crashes are power
    cuts, the planner uses only the power cuts."""

    cuts: Annotated[Count, says("crashes made")]
    lost_per_cut: Annotated[Most, says("acknowledged locks lost per crash", label="locks lost")]
    double_grants: Annotated[
        Count,
        says(
            "number of locks that a second client got while the lease of the first client was "
            "still valid"
        ),
    ]
    asked: Annotated[Count, says("held locks that a second client requested")] = 0
    unavailable_s: Annotated[Most, says("without new locks", label="no new locks", unit="seconds")]

    @classmethod
    def of(cls, rows: Sequence[CrashRow], groups: Sequence[CrashGroup] = ()) -> Self:
        """Return the sums and the worst values of these rows. Several rows may come from the same
        group. Then the function counts the cuts of this group once. If `groups` contains the groups
        of the rows, the function takes the number of lost locks from these groups, because a group
        includes the locks of all margins."""
        cuts = {row.key: row.cuts for row in rows}
        whole = [group for group in groups if group.key in cuts] or rows
        return cls(
            cuts=sum(cuts.values()),
            lost_per_cut=Most(max=max(group.lost_per_cut.max or 0 for group in whole)),
            double_grants=sum(row.double_grants for row in rows),
            asked=sum(row.asked for row in rows),
            unavailable_s=Most(max=max(row.unavailable_s.max or 0.0 for row in rows)),
        )

    @classmethod
    def of_all(cls, parts: Sequence["Losses"]) -> Self:
        """Combine several Losses into one. Some fields are sums, and the other fields are
        maxima."""
        return cls(
            cuts=sum(one.cuts for one in parts),
            lost_per_cut=Most(max=max(one.lost_per_cut.max for one in parts)),
            double_grants=sum(one.double_grants for one in parts),
            asked=sum(one.asked for one in parts),
            unavailable_s=Most(max=max(one.unavailable_s.max for one in parts)),
        )

    @property
    def is_safe(self) -> bool:
        """True if there was at least one cut and no cut led to a double grant."""
        return self.cuts > 0 and not self.double_grants

    @property
    def granted_twice(self) -> Annotated[str, says("of those asked for", unit="count")]:
        """A text such as `2 of 100`. The first number counts the locks that were granted twice. The
        second number counts the locks that the second clients asked for."""
        return f"{self.double_grants:,} of {self.asked:,}"

    @property
    def twice(self) -> str:
        """A phrase that says how many locks were granted twice."""
        return f"{self.granted_twice} locks granted twice"

    @property
    def bound(self) -> str:
        """A text with the 95 % bound on the share of crashes that lead to a double grant (rule of
        three). If a lock was granted twice, or if there were too few crashes, the text is ""."""
        if self.double_grants or self.cuts < LEAST_CUTS:
            return ""
        return f"95 % sure: fewer than 1 crash in {self.cuts // 3:,}"

    @property
    def evidence(self) -> str:
        """A phrase with the number of locks that were granted twice, the number of crashes, and the
        95 % bound."""
        bound = f" ({self.bound})" if self.bound else ""
        return f"{self.twice} in {self.cuts:,} crashes{bound}"


class CrashConditions(Section, frozen=True, kw_only=True):
    """The conditions under which the crashes were made."""

    quick: Annotated[bool, says("a part of the matrix")]
    ttl_ms: Annotated[Count, says("of every lease")]
    cuts_per_cell: Annotated[AtLeastOne, says("planned")]
    locks_per_s: Annotated[
        Count,
        says("number of locks per second that clients requested from each fleet, over all margins"),
    ]
    instances: Annotated[tuple[int, ...], says("every N")]
    finished_cuts: Annotated[Count, says("cuts made, earlier sittings included")]
    latency_ms: Annotated[
        Amount, says("time added to every fsync while clients took locks; 0 means no added time")
    ] = 0.0

    @property
    def disk(self) -> str:
        """The name of the servers' disk. If lockbench adds a delay to each fsync, the name is this
        delay."""
        return disk_name(self.latency_ms)


class CrashResult(Document, frozen=True, kw_only=True):
    """The result of `lockbench crash`. The result shows how many locks each AOF policy loses in a
    crash, and how many locks are then granted twice. If a figure is null, it is unknown or it does
    not apply."""

    kind: Annotated[Literal["crash"], says("the command that made it")] = "crash"
    fleet: Annotated[OwnFleet, says("servers and disk")]
    conditions: Annotated[CrashConditions, says("what was asked for")]
    groups: Annotated[tuple[CrashGroup, ...], says("groups of cuts")] = ()
    rows: Annotated[
        tuple[CrashRow, ...],
        says(
            "one row for each combination of a group of cuts, a vote margin and a kind of second "
            "client"
        ),
    ]
