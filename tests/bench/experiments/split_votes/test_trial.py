"""The chance of a split vote is exact, a split vote that is found was one, rounds are cut where
they end, and what a contender says of an attempt is never too good: a vote ends when its clean-up
may have left."""

from collections import Counter
from itertools import product
from math import sqrt
from statistics import NormalDist

import pytest

from bench.experiments.split_votes.contender_process import lost_ns
from bench.experiments.split_votes.judge import (
    closed_form,
    double_grants,
    ending_of,
    rounds_of,
    until_grant,
)
from bench.experiments.split_votes.plan import Attempt, CastVote
from bench.measure.statistics import wilson
from lockcore import AttemptRecord, Outcome, Tally, Vote
from lockcore.facts.quorum import outcome_of, quorum_of

G = Vote.GRANTED
R = Vote.REFUSED
KINDS = dict(zip("GRESA", Vote, strict=True))


def tables(instances: int, contenders: int) -> list[tuple[int, ...]]:
    """Every way N instances can fall to K contenders, as votes per contender."""
    ways = product(range(contenders), repeat=instances)
    return [tuple(Counter(way)[who] for who in range(contenders)) for way in ways]


# -- the chance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", range(1, 8))
@pytest.mark.parametrize("contenders", range(1, 6))
def test_the_closed_form_is_the_share_of_vote_tables_that_nobody_wins(
    instances: int, contenders: int
) -> None:
    every = tables(instances, contenders)
    lost = sum(max(votes) < quorum_of(instances) for votes in every)
    assert closed_form(instances, contenders) == pytest.approx(lost / len(every), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (718, 2000), (0, 1), (1, 1)]
)
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    ours = wilson(successes, trials)
    z = NormalDist().inv_cdf(0.975)
    # where the score test is just about to reject (scipy takes 2 s to import)
    for end in (ours.low, ours.high):
        deviation = abs(successes / trials - end)
        assert deviation == pytest.approx(z * sqrt(end * (1 - end) / trials), abs=1e-6)
    assert ours.low < ours.high
    assert ours.rate == successes / trials
    assert 0 <= ours.low <= ours.rate <= ours.high <= 1


def test_nothing_tried_is_no_rate() -> None:
    assert (wilson(0, 0).rate, wilson(0, 0).low, wilson(0, 0).high) == (None, None, None)


# -- one round -------------------------------------------------------------------------------------


def attempt(
    who: int,
    votes: str,
    *,
    at: int = 0,
    sent: int = 10,
    replied: int = 20,
    ended: int = 30,
    released: int = 0,
) -> Attempt:
    """`votes`: one of G R E S A per instance; all replies come at the same time.

    `released`: 0 = never.
    """

    def cast_vote(vote: str) -> CastVote:
        if vote == "A":
            return CastVote(KINDS[vote], 0, 0, 0)
        return CastVote(KINDS[vote], sent, replied if vote in "GRE" else 0, released)

    cast = tuple(map(cast_vote, votes))
    outcome = outcome_of(votes.count("G"), votes.count("R"), quorum_of(len(votes)))
    return Attempt(
        who, at, ended, outcome, cast, valid_until_ns=1000 if outcome is Outcome.ACQUIRED else 0
    )


@pytest.mark.parametrize(
    ("votes", "ending"),
    [
        (("GGRRR", "RRGGR", "RRRRG"), "split"),
        (("GGGRR", "RRRGG"), "won"),
        # a tie at even N
        (("GGRR", "RRGG"), "split"),
        (("GR", "RG"), "split"),
        # the silent one is not live: four instances, two votes each
        (("GGRRS", "RRGGS"), "split"),
        (("GGRRA", "RRGGA"), "split"),
        (("GGRRE", "RRGGE"), "split"),
        (("GRRSS", "RGRSS", "RRGSS"), "split"),
        # two of five answer
        (("GRSSS", "RGSSS"), "unreachable"),
        (("SSSSS", "SSSSS"), "unreachable"),
    ],
)
def test_a_round_in_which_all_votes_stand_is_decided_by_its_table(
    votes: tuple[str, ...], ending: str
) -> None:
    assert ending_of([attempt(who, kinds) for who, kinds in enumerate(votes)]) == ending


def test_a_free_live_instance_could_still_carry_somebody() -> None:
    """Two votes each; the fifth instance refused somebody, so it lives, but for whom it voted is
    not known."""
    assert ending_of([attempt(0, "GGRRS"), attempt(1, "RRGGS"), attempt(2, "RRRRR")]) == "unproven"
    assert ending_of([attempt(0, "GGRRS"), attempt(1, "RRGGS"), attempt(2, "RRRRG")]) == "split"


def test_votes_that_never_stood_together_prove_nothing() -> None:
    early = attempt(0, "GSS", replied=20, released=25)
    late = [attempt(1, "SGS", sent=40, replied=50), attempt(2, "SSG", sent=40, replied=50)]
    assert ending_of([early, *late]) == "unproven"
    assert ending_of([attempt(0, "GSS", replied=20, released=51), *late]) == "split"


def test_an_instance_that_only_refused_lives_and_may_still_be_anybodys() -> None:
    two = [attempt(0, "GRR"), attempt(1, "RGR")]
    assert ending_of(two) == "unproven"
    assert ending_of([*two, attempt(2, "RRG")]) == "split"


def test_a_quorum_must_have_answered_by_then() -> None:
    """Three of five live.

    While only two of them had answered, nobody could tell a split vote from an outage.
    """
    early = [
        attempt(0, "GRSSS", replied=20, released=30),
        attempt(1, "RGSSS", replied=20, released=30),
    ]
    assert ending_of([*early, attempt(2, "SSGSS", replied=50)]) == "unproven"
    assert ending_of([*early, attempt(2, "SSGSS", replied=25)]) == "split"


# -- rounds and courses ----------------------------------------------------------------------------


def lost(who: int, start: int, end: int) -> Attempt:
    return Attempt(who, start, end, Outcome.CONTENDED, (CastVote(R),))


def won(who: int, start: int, granted: int, released: int = 0, valid_until: int = 1000) -> Attempt:
    vote = CastVote(G, start, granted, released)
    return Attempt(who, start, granted, Outcome.ACQUIRED, (vote,), valid_until)


def sizes(*attempts: Attempt) -> list[int]:
    return [len(round_) for round_ in rounds_of(attempts)]


def test_overlapping_attempts_are_one_round_also_in_a_chain() -> None:
    assert sizes(lost(0, 0, 10), lost(1, 5, 15), lost(2, 12, 20)) == [3]
    assert sizes(lost(2, 12, 20), lost(0, 0, 10), lost(1, 5, 15)) == [3], (
        "in whatever order they are told"
    )


def test_attempts_that_do_not_overlap_are_rounds_of_their_own() -> None:
    assert sizes(lost(0, 0, 10), lost(1, 10, 20), lost(2, 25, 30)) == [1, 1, 1]


def test_what_starts_while_a_lease_is_valid_belongs_to_no_round() -> None:
    assert sizes(won(0, 0, 10, released=50), lost(1, 5, 20), lost(2, 10, 30), lost(3, 49, 55)) == [
        2
    ]
    assert sizes(won(0, 0, 10, valid_until=40), lost(1, 39, 60), lost(2, 40, 60)) == [1, 1]


def test_a_grant_ends_its_round_for_those_that_start_after_its_release() -> None:
    slow = lost(1, 5, 100)
    assert sizes(won(0, 0, 10, released=20), slow, lost(2, 30, 40), lost(3, 35, 45)) == [2, 2]


def test_leases_that_overlap_are_found_and_those_that_touch_are_not() -> None:
    assert double_grants([won(0, 0, 10, released=50), won(1, 0, 49)]) == 1
    assert (
        double_grants([won(0, 0, 10, released=50), won(1, 0, 50, released=60), won(2, 0, 60)]) == 0
    )
    assert double_grants([won(0, 0, 10, valid_until=40), won(1, 0, 40)]) == 0
    assert (
        double_grants([won(0, 0, 10, valid_until=90), won(1, 0, 20, released=30), won(2, 0, 80)])
        == 2
    )


def test_a_course_counts_up_to_the_first_grant() -> None:
    attempts = [
        lost(0, 100, 110),
        lost(1, 101, 111),
        lost(0, 120, 130),
        won(1, 125, 140, released=200),
        lost(2, 141, 150),
    ]
    course = until_grant(attempts)
    assert (course.first_grant_ns, course.attempts, course.winners_attempt) == (40, 4, 2)


def test_a_course_without_a_grant_has_no_time() -> None:
    course = until_grant([lost(0, 100, 110), lost(1, 101, 111)])
    assert (course.first_grant_ns, course.attempts, course.winners_attempt) == (0, 2, 0)


# -- when an attempt was lost ----------------------------------------------------------------------


def record(
    votes: str, replied: tuple[int, ...], outcome: Outcome = Outcome.CONTENDED
) -> AttemptRecord:
    return AttemptRecord(
        resource="r",
        attempt=1,
        acquire_ns=0,
        started_ns=0,
        decided_ns=60,
        closed_ns=70,
        outcome=outcome,
        tally=Tally(),
        validity_ns=0,
        margin=0,
        votes=tuple(KINDS[vote] for vote in votes),
        sent_ns=(1,) * len(votes),
        replied_ns=replied,
    )


@pytest.mark.parametrize(
    ("votes", "replied", "lost"),
    [
        # the third refusal of five, whatever order they came in
        ("GGRRR", (10, 20, 30, 50, 40), 50),
        ("RRRRR", (50, 40, 30, 20, 10), 30),
        # four instances: the second
        ("GRRR", (10, 20, 40, 30), 30),
        ("GRR", (30, 10, 20), 20),
        # the silent ones are known at the close
        ("GERSS", (10, 20, 30, 0, 0), 70),
        ("R", (10,), 10),
    ],
)
def test_an_attempt_is_lost_with_the_reply_that_leaves_no_quorum(
    votes: str, replied: tuple[int, ...], lost: int
) -> None:
    assert lost_ns(record(votes, replied)) == lost


def test_one_that_was_won_too_late_is_lost_when_that_was_decided() -> None:
    assert lost_ns(record("GGGRR", (10, 20, 30, 40, 50), Outcome.TOO_LATE)) == 60
