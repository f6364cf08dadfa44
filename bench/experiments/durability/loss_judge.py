"""Judges crashes: *the cuts of one kind of crash → lost locks, double grants and a verdict*. All
functions are pure.

- A lock is *lost* if an instance acknowledged the lock before the crash, but does not know the lock
  after the restart. The judge counts only locks whose lease is still valid after the restart.
- A *double grant* means that a second client gets a lease while the lease of the first client is
  still valid. The first client has q + margin votes. So N − q − margin instances did not vote for
  the first client. The second client needs q votes. So a double grant is possible only if at least
  2q − N + margin instances forget their vote for the first client.
- Under `everysec`, Redis postpones writes while a sync is running. A `kill -9` during this time may
  lose acknowledged locks, so the judge counts such cuts separately. Only the shim's ledger decides
  whether a sync explains a loss. If a lock is lost after a `kill -9` and no sync explains the loss,
  the loss is a violation.
- The verdict on a row depends only on the figures of the row. So if `earned` judges a stored row
  again, the row gets the same verdict.

Sources: the function flushAppendOnlyFile in Redis' aof.c, the section "Performance, crash recovery
and fsync" of the page "Distributed Locks with Redis", and the rule of three.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import asdict, replace

from bench.experiments.durability.loss_result import (
    Crash,
    CrashGroup,
    CrashResult,
    CrashRow,
    MedianAndMax,
    SyncInFlight,
)
from bench.measure.expectation import (
    AS_EXPECTED,
    NOT_KNOWN,
    NOT_SHOWN,
    VIOLATED,
    RowWord,
    conclude_rows,
)
from bench.measure.verdict import Verdict

# The verdict on a row, and the reason. There is no reason if the row is as expected.
Judged = tuple[RowWord, str | None]
# If a group was given up, the warning contains these words.
GIVEN_UP = ": given up: "
# If at least this share of the locks at stake is lost, the loss is called "nearly all".
NEARLY_ALL = 0.9
# A requested sync may wait this long for its thread. During this time it is not yet in the ledger.
ASKED_FOR_S = 0.1


@dataclass(frozen=True, slots=True)
class LossLedger:
    """Facts from the shim's ledger about one killed instance. `in_flight` is the number of syncs
    that were running. `synced_after_write` is true if the last sync of a file ended after the last
    write to this file. `since_write_s` is the time (s) from the instance's last write to the
    instance's end, or None if this time is unknown."""

    instance: int
    in_flight: int
    synced_after_write: bool
    since_write_s: float | None

    def explains(self, window_s: float | None) -> bool:
        """Return whether the instance may have postponed writes because of a sync. There are three
        possible reasons. A sync was running, a sync had just ended, or a sync was waiting for its
        thread."""
        since_s = self.since_write_s
        asked_for = (
            since_s is not None and window_s is not None and window_s <= since_s <= ASKED_FOR_S
        )
        return self.in_flight > 0 or self.synced_after_write or asked_for


@dataclass(frozen=True, slots=True)
class Loss:
    """The number of locks that one instance lost. The number includes only locks with the vote
    margin `margin`. If `instance` is None, the numbers are for all instances together, and each
    lost lock counts once, even if several instances lost it."""

    margin: int
    instance: int | None
    at_stake: int
    lost: int
    window_s: float | None


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """The result of one second client. This client asked for locks of the first client that were
    still valid and had the vote margin `margin`."""

    margin: int
    abstention: bool
    asked: int
    double_grants: int


@dataclass(frozen=True, slots=True)
class CutFacts:
    """The facts of one cut. `load_s` is the random duration of the load before the cut.
    `unavailable_s` has one value for each kind of second client. Each value is a time (s). The time
    begins with the end of the killed instances, and ends when the second client gets a lock on a
    free resource. The first value is for the client that trusts restarted instances. The second
    value is for the client that lets restarted instances abstain."""

    crash: Crash
    number: int
    load_s: float
    ledgers: tuple[LossLedger, ...]
    losses: tuple[Loss, ...]
    asked: tuple[AskedAgain, ...]
    unavailable_s: tuple[float, ...]

    @property
    def is_in_flight(self) -> bool:
        """True if the ledger of a killed instance shows that a sync was running when the instance
        ended. Under `everysec`, this property is true if a killed instance may have postponed
        writes because of a sync."""
        if self.crash.policy != "everysec":
            return any(ledger.in_flight > 0 for ledger in self.ledgers)
        return any(ledger.explains(self._window_of(ledger.instance)) for ledger in self.ledgers)

    @property
    def unexplained(self) -> int:
        """The number of lost locks whose loss no slow sync explains. A slow sync explains a loss if
        the ledger of the instance shows that this sync could have postponed the write."""
        calm = {
            one.instance for one in self.ledgers if not one.explains(self._window_of(one.instance))
        }
        return sum(loss.lost for loss in self.losses if loss.instance in calm)

    def of(self, margin: int | None = None) -> Loss:
        """Return the losses of the locks with the margin `margin`. If `margin` is None, return the
        losses of all locks. The margin of this result is 0. Each lock counts once."""
        losses = [
            loss for loss in self.losses if loss.instance is None and margin in (None, loss.margin)
        ]
        at_stake = sum(loss.at_stake for loss in losses)
        lost = sum(loss.lost for loss in losses)
        return Loss(margin or 0, None, at_stake, lost, _longest(losses))

    def _window_of(self, instance: int) -> float | None:
        return _longest(loss for loss in self.losses if loss.instance == instance)


def _longest(losses: Iterable[Loss]) -> float | None:
    return max((loss.window_s for loss in losses if loss.window_s is not None), default=None)


def spread(values: Iterable[float]) -> MedianAndMax:
    """Return the median and the maximum of the values. If there are no values, the median and the
    maximum are None."""
    numbers = list(values)
    return MedianAndMax(
        median=statistics.median(numbers) if numbers else None, max=max(numbers, default=None)
    )


def group(cuts: Sequence[CutFacts], margin: int | None = None) -> CrashGroup:
    """Return the losses of a group with at least one cut. If `margin` is None, all locks count.
    Otherwise only the locks with this margin count. After some kinds of crash, a running sync may
    explain a loss. For such a crash, the function counts the cuts with a running sync
    separately."""
    crash = cuts[0].crash
    apart = crash.promised_loss == "none-unless-in-flight"
    in_flight = [cut.of(margin) for cut in cuts if cut.is_in_flight]
    counted = [cut.of(margin) for cut in cuts if not (apart and cut.is_in_flight)]
    return judged(
        CrashGroup(
            **asdict(crash),
            cuts=len(cuts),
            at_stake=sum(loss.at_stake for loss in counted),
            lost_total=sum(loss.lost for loss in counted),
            lost_share=None,
            lost_per_cut=spread(loss.lost for loss in counted),
            cuts_with_loss=sum(loss.lost > 0 for loss in counted),
            lost_window_s=spread(loss.window_s for loss in counted if loss.window_s is not None),
            fsync_in_flight=SyncInFlight(
                cuts=len(in_flight),
                apart=apart,
                lost_per_cut_max=max((loss.lost for loss in in_flight), default=0),
            ),
            unexplained=sum(cut.unexplained for cut in cuts),
            expected_loss=crash.promised_loss,
            verdict=NOT_KNOWN,
            reason=None,
        )
    )


Group = TypeVar("Group", bound=CrashGroup)


def judged(one: Group) -> Group:
    """Compute all fields that follow from the figures of a group or a row, such as the verdict.
    Return a copy of the group or the row with the computed fields.

    For a row, the function judges the losses and the double grants. The worse of these two verdicts
    is the verdict on the row.
    """
    one = replace(
        one,
        expected_loss=one.promised_loss,
        lost_share=one.lost_total / one.at_stake if one.at_stake else None,
    )
    words = [judge_loss(one)]
    if isinstance(one, CrashRow):
        words.append(judge_double_grants(one))
    worst = max(
        (verdict for verdict, _ in words), key=(AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED).index
    )
    return replace(
        one, verdict=worst, reason="; ".join(reason for _, reason in words if reason) or None
    )


def judge_loss(losses: CrashGroup) -> Judged:
    """Return the verdict on the losses of a group or a row. The verdict depends only on the figures
    of this group or row."""
    unexplained = losses.unexplained
    if losses.policy == "everysec" and losses.kind in ("kill", "kill-slow-fsync") and unexplained:
        return (
            VIOLATED,
            f"{unexplained} acknowledged locks were lost although no sync was in flight",
        )
    if losses.expected_loss == "none" and losses.lost_total:
        return (
            VIOLATED,
            f"{losses.lost_total} acknowledged locks were lost in {losses.cuts_with_loss} cuts",
        )
    if losses.lost_share is None:
        kept_apart = losses.fsync_in_flight.apart and losses.fsync_in_flight.cuts == losses.cuts
        return (
            NOT_KNOWN,
            "every cut happened during a sync, so no cut could be judged"
            if kept_apart
            else "no acknowledged lock was still valid after a crash",
        )
    if losses.expected_loss == "some" and not losses.lost_total:
        return NOT_SHOWN, "nothing was lost"
    if losses.expected_loss == "nearly-all" and losses.lost_share < NEARLY_ALL:
        return NOT_SHOWN, (
            f"the crashed servers lost only {losses.lost_share:.0%} of the locks that were still "
            "valid"
        )
    return AS_EXPECTED, None


def cells(cuts: Sequence[CutFacts]) -> list[CrashRow]:
    """Return the rows of one finished group of cuts. There is one row for each margin and each kind
    of second client."""
    pairs = sorted({(contest.margin, contest.abstention) for cut in cuts for contest in cut.asked})
    return [_cell(cuts, margin, abstention=abstention) for margin, abstention in pairs]


def _cell(cuts: Sequence[CutFacts], margin: int, *, abstention: bool) -> CrashRow:
    contests = _asked(cuts, margin, abstention=abstention)
    in_flight = _asked([cut for cut in cuts if cut.is_in_flight], margin, abstention=abstention)
    return judged(
        CrashRow(
            **asdict(group(cuts, margin)),
            margin=margin,
            abstention=abstention,
            asked=sum(one.asked for one in contests),
            double_grants=sum(one.double_grants for one in contests),
            double_grants_apart=sum(one.double_grants for one in in_flight),
            cuts_with_double_grants=sum(one.double_grants > 0 for one in contests),
            unavailable_s=spread(cut.unavailable_s[abstention] for cut in cuts),
        )
    )


def _asked(cuts: Sequence[CutFacts], margin: int, *, abstention: bool) -> list[AskedAgain]:
    return [
        one
        for cut in cuts
        for one in cut.asked
        if (one.margin, one.abstention) == (margin, abstention)
    ]


def judge_double_grants(row: CrashRow) -> Judged:
    """Return the verdict on the double grants of a row. This verdict depends only on the figures of
    the row."""
    expected = row.promised_double_grants(row.margin, abstention=row.abstention)
    if not row.asked:
        return NOT_KNOWN, "no client requested a lock that was still valid"
    doubled = row.double_grants
    if expected == "none-unless-in-flight":
        if row.fsync_in_flight.cuts == row.cuts:
            return NOT_KNOWN, "every cut happened during a sync, so no cut could be judged"
        doubled -= row.double_grants_apart
    if expected in ("none", "none-unless-in-flight"):
        message = f"{doubled} locks were granted a second time while they were valid"
        return (VIOLATED, message) if doubled else (AS_EXPECTED, None)
    return (AS_EXPECTED, None) if doubled else (NOT_SHOWN, "no lock was granted a second time")


def earned(result: CrashResult) -> CrashResult:
    """Return a stored `result` with new verdicts. The function computes all verdicts again from the
    figures of the groups and rows."""
    groups = tuple(map(judged, result.groups))
    rows = tuple(map(judged, result.rows))
    failures = [warning for warning in result.warnings if GIVEN_UP in warning]
    whole = judge_crash(groups, rows, failures, interrupted=result.interrupted)
    return replace(result, groups=groups, rows=rows, verdict=whole)


def judge_crash(
    groups: Sequence[CrashGroup],
    rows: Sequence[CrashRow],
    failures: Sequence[str] = (),
    *,
    interrupted: bool = False,
) -> Verdict:
    """Return the verdict on all groups and rows together. `failures` has a sentence for each group
    that was not finished."""
    judged: list[tuple[str, str]] = [(one.verdict, f"{one.key}: {one.reason}") for one in groups]
    judged += [(row.verdict, f"{row.name}: {row.reason}") for row in rows]
    judged += [(NOT_KNOWN, failure) for failure in failures]
    if not rows:
        judged.append((NOT_KNOWN, "no group of cuts was finished"))
    unfinished = "interrupted, so the unfinished groups of cuts are missing" if interrupted else ""
    return conclude_rows(judged, tested="groups and rows as expected", interrupted=unfinished)
