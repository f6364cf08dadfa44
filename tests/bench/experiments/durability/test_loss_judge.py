"""What crashes cost, from facts: each rule with the fault that must turn it red."""

from dataclasses import replace

import pytest

from bench.experiments.durability.loss_judge import (
    AskedAgain,
    CutFacts,
    Loss,
    LossLedger,
    cells,
    group,
    judge_double_grants,
)
from bench.experiments.durability.loss_plan import is_possible
from bench.experiments.durability.loss_result import Crash, MedianAndMax
from bench.experiments.durability.policies import AOF_POLICIES, KINDS
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED

CALM = LossLedger(0, 0, False, 0.002)
SYNCING = LossLedger(0, 1, False, 0.7)


def crash(policy="everysec", kind="power-cut", *, instances=3, crashed=1, restart="at-once"):
    return Crash(instances, policy, kind, crashed, restart)


def cut(of, lost=0, *, window_s=None, stake=100, ledger=CALM, doubled=0, abstaining=0, number=0):
    if not lost:
        window_s = None
    elif window_s is None:
        window_s = 0.5
    losses = tuple(Loss(0, place, stake, lost, window_s) for place in (0, None))
    asked = (AskedAgain(0, False, 20, doubled), AskedAgain(0, True, 20, abstaining))
    return CutFacts(of, number, 1.5, (ledger,), losses, asked, (0.01, 2.0))


def grants_of(cuts, margin, *, abstention):
    return judge_double_grants(
        next(row for row in cells(cuts) if (row.margin, row.abstention) == (margin, abstention))
    )


def judge_loss(cuts):
    told = group(cuts)
    return told.verdict, told.reason


# -- what is expected ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy, kind, expected",
    [
        ("none", "shutdown", "nearly-all"),
        ("none", "kill", "nearly-all"),
        ("no", "shutdown", "none"),
        ("no", "kill", "none"),
        ("no", "power-cut", "nearly-all"),
        ("no", "power-cut-torn", "some"),
        ("everysec", "shutdown", "none"),
        ("everysec", "kill", "none-unless-in-flight"),
        *(("everysec", kind, "some") for kind in [*KINDS][2:]),
        *(("always", kind, "none") for kind in KINDS),
    ],
)
def test_what_each_policy_promises_under_each_crash(policy, kind, expected) -> None:
    assert is_possible(policy, kind)
    assert crash(policy, kind).promised_loss == expected


def test_every_pair_is_either_expected_or_impossible() -> None:
    pairs = [(policy, kind) for policy in AOF_POLICIES for kind in KINDS]
    assert sum(not is_possible(*pair) for pair in pairs) == 4


@pytest.mark.parametrize(
    "instances, crashed, margin, expected",
    [
        (1, 1, 0, "some"),
        (3, 1, 0, "some"),
        (3, 1, 1, "none"),
        (3, 2, 1, "some"),
        (5, 1, 0, "some"),
        (5, 1, 1, "none"),
        (5, 2, 1, "some"),
        (5, 2, 2, "none"),
        (5, 3, 2, "some"),
        (4, 1, 0, "none"),
        (4, 2, 0, "some"),
        (4, 2, 1, "none"),
        (4, 3, 1, "some"),
        (2, 1, 0, "none"),
        (2, 2, 0, "some"),
        (7, 3, 3, "none"),
        (7, 4, 3, "some"),
    ],
)
def test_a_second_grant_needs_a_quorum_that_does_not_know_the_first(
    instances, crashed, margin, expected
) -> None:
    """Against counting: who forgot, and who never knew, must be a quorum together."""
    quorum = instances // 2 + 1
    never_knew = instances - quorum - margin
    assert (min(crashed, quorum + margin) + never_knew >= quorum) == (expected == "some")
    of = crash("none", "kill", instances=instances, crashed=crashed)
    assert of.promised_double_grants(margin, abstention=False) == expected


def test_delay_and_abstention_make_every_crash_safe() -> None:
    assert crash("none", "kill").promised_double_grants(0, abstention=True) == "none"
    assert (
        crash("none", "kill", restart="delayed").promised_double_grants(0, abstention=False)
        == "none"
    )
    assert (
        crash("everysec", "kill").promised_double_grants(0, abstention=False)
        == "none-unless-in-flight"
    )


# -- losses: as expected, and red ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_always_that_loses_one_lock_in_one_cut_is_violated(kind) -> None:
    fine = [cut(crash("always", kind), number=number) for number in range(20)]
    assert judge_loss(fine) == (AS_EXPECTED, None)
    bad = [*fine[:-1], cut(crash("always", kind), 1, ledger=SYNCING)]
    assert judge_loss(bad) == (VIOLATED, "1 acknowledged locks were lost in 1 cuts")


def test_a_power_cut_that_loses_nothing_under_everysec_was_none() -> None:
    """The shim that forgets to cut the files."""
    assert judge_loss([cut(crash()) for _ in range(20)])[0] == NOT_SHOWN
    assert judge_loss([cut(crash()), cut(crash(), 7)]) == (AS_EXPECTED, None)


def test_everysec_loses_nothing_at_kill_unless_a_sync_was_in_flight() -> None:
    of = crash(kind="kill")
    cuts = [cut(of), cut(of, 40, ledger=SYNCING, window_s=0.6)]
    assert judge_loss(cuts) == (AS_EXPECTED, None)
    figures = group(cuts)
    assert (figures.lost_total, figures.lost_per_cut.max, figures.at_stake) == (0, 0, 100)
    apart = figures.fsync_in_flight
    assert (apart.cuts, apart.apart, apart.lost_per_cut_max) == (1, True, 40)


@pytest.mark.parametrize("kind", ["kill", "kill-slow-fsync"])
def test_a_ledger_that_misses_the_sync_makes_the_loss_a_violation(kind) -> None:
    blind = replace(SYNCING, in_flight=0)
    verdict, reason = judge_loss(
        [cut(crash(kind=kind)), cut(crash(kind=kind), 40, ledger=blind, window_s=0.69)]
    )
    assert (verdict, reason) == (
        VIOLATED,
        "40 acknowledged locks were lost although no sync was in flight",
    )
    assert (
        judge_loss([cut(crash(kind=kind)), cut(crash(kind=kind), 40, ledger=SYNCING)])[0]
        == AS_EXPECTED
    )


@pytest.mark.parametrize(
    "ledger, window_s, explained",
    [
        # it ran
        (LossLedger(0, 1, False, 1.0), 1.0, True),
        # it had just ended, and what it held up was not yet written
        (LossLedger(0, 0, True, 0.5), 0.4, True),
        # asked for: its thread had not begun
        (LossLedger(0, 0, False, 0.05), 0.04, True),
        # but what was acknowledged before the last append was written
        (LossLedger(0, 0, False, 0.05), 0.2, False),
        # no thread is that late
        (LossLedger(0, 0, False, 0.5), 0.4, False),
        # nothing known of appends
        (LossLedger(0, 0, False, None), 0.01, False),
        (LossLedger(0, 0, False, 0.01), None, False),
    ],
)
def test_what_a_ledger_may_explain(ledger, window_s, explained) -> None:
    assert ledger.explains(window_s) is explained


def test_a_calm_instance_is_not_excused_by_a_syncing_one() -> None:
    of = crash(kind="kill", crashed=2)
    losses = (Loss(0, 0, 9, 3, 0.5), Loss(0, 1, 9, 2, 0.4), Loss(0, None, 9, 4, 0.5))
    both = CutFacts(of, 0, 1.5, (SYNCING, replace(CALM, instance=1)), losses, (), ())
    assert both.unexplained == 2
    assert judge_loss([both])[0] == VIOLATED


def test_no_at_a_power_cut_must_lose_nearly_all() -> None:
    of = crash("no")
    assert judge_loss([cut(of, 95)])[0] == AS_EXPECTED
    assert judge_loss([cut(of, 60)]) == (
        NOT_SHOWN,
        "the crashed servers lost only 60% of the locks that were still valid",
    )


def test_nothing_at_stake_shows_nothing() -> None:
    assert judge_loss([cut(crash("always"), stake=0)])[0] == NOT_KNOWN
    only_apart = [cut(crash(kind="kill"), ledger=SYNCING)]
    assert judge_loss(only_apart) == (
        NOT_KNOWN,
        "every cut happened during a sync, so no cut could be judged",
    )


# -- double grants ---------------------------------------------------------------------------------


def test_double_grants_where_there_must_be_some_and_where_there_must_be_none() -> None:
    of = crash("none", "kill")
    assert grants_of([cut(of, 100, doubled=3)], 0, abstention=False)[0] == AS_EXPECTED
    assert grants_of([cut(of, 100)], 0, abstention=False)[0] == NOT_SHOWN
    assert grants_of([cut(of, 100, abstaining=1)], 0, abstention=True)[0] == VIOLATED
    delayed = crash("none", "kill", restart="delayed")
    assert grants_of([cut(delayed, 100, doubled=1)], 0, abstention=False)[0] == VIOLATED
    safe = crash("always", "power-cut")
    assert grants_of([cut(safe, doubled=1)], 0, abstention=False)[0] == VIOLATED


def test_double_grants_after_a_kill_are_excused_by_a_sync_in_flight_alone() -> None:
    of = crash(kind="kill")
    excused = cut(of, 40, ledger=SYNCING, doubled=5)
    assert grants_of([cut(of), excused], 0, abstention=False)[0] == AS_EXPECTED
    assert grants_of([cut(of, doubled=5)], 0, abstention=False)[0] == VIOLATED
    assert grants_of([excused], 0, abstention=False)[0] == NOT_KNOWN


def test_nobody_asked_shows_nothing() -> None:
    silent = replace(cut(crash()), asked=(AskedAgain(0, False, 0, 0),))
    assert grants_of([silent], 0, abstention=False)[0] == NOT_KNOWN


# -- figures and rows ------------------------------------------------------------------------------


def test_a_cell_holds_its_figures_and_the_worst_verdict() -> None:
    cuts = [
        cut(crash(), 10, window_s=0.2, doubled=2),
        cut(crash(), 30, window_s=0.8, abstaining=1, number=1),
    ]
    trusting, abstaining = cells(cuts)
    assert (trusting.margin, trusting.abstention, trusting.cuts) == (0, False, 2)
    assert trusting.lost_per_cut == MedianAndMax(median=20, max=30)
    assert trusting.lost_window_s == MedianAndMax(median=0.5, max=0.8)
    assert (trusting.double_grants, trusting.asked, trusting.cuts_with_double_grants) == (2, 40, 1)
    assert (trusting.verdict, trusting.reason) == (AS_EXPECTED, None)
    assert trusting.unavailable_s.max == 0.01
    assert (abstaining.verdict, abstaining.unavailable_s.max) == (VIOLATED, 2.0)
    assert group(cuts).lost_total == 40
