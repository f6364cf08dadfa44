"""Votes into outcomes: every vote table of 1 … 5 instances against a naive reading of the text."""

from itertools import product

import pytest

from lockcore.facts import quorum
from tests.lockcore import reading
from tests.lockcore.reading import ABSENT, ERRORED, GRANTED, NOT_OURS, OURS, REFUSED, SILENT, VOTES

SIZES = range(1, 6)
UNDECIDED = "undecided"


def wrong_names(instances: int) -> list[tuple[str, ...]]:
    """The vote tables that get another name than the text gives them."""
    q = quorum.quorum_of(instances)
    return [
        votes
        for votes in product(VOTES, repeat=instances)
        if quorum.outcome_of(votes.count(GRANTED), votes.count(REFUSED), q).value
        != reading.set_name(votes)
    ]


def wrong_stops(instances: int) -> list[tuple[str, ...]]:
    """The partial vote tables at which a round is settled too early, or not although its name is
    fixed."""
    q = quorum.quorum_of(instances)
    wrong = []
    for votes in product((GRANTED, REFUSED, ERRORED, UNDECIDED), repeat=instances):
        known = tuple(vote for vote in votes if vote != UNDECIDED)
        undecided = votes.count(UNDECIDED)
        is_fixed = len(reading.set_names(known, undecided)) == 1
        if quorum.is_settled(votes.count(GRANTED), votes.count(REFUSED), undecided, q) != is_fixed:
            wrong.append(votes)
    return wrong


def wrong_clean_ups(instances: int) -> list[tuple[str, ...]]:
    """The partial vote tables whose clean-up starts too early or too late."""
    q = quorum.quorum_of(instances)
    wrong = []
    for votes in product((GRANTED, REFUSED, ERRORED, SILENT, ABSENT, UNDECIDED), repeat=instances):
        known = tuple(vote for vote in votes if vote != UNDECIDED)
        undecided = votes.count(UNDECIDED)
        if quorum.is_lost(votes.count(GRANTED), undecided, q) != reading.must_clean_up(
            known, undecided
        ):
            wrong.append(votes)
    return wrong


@pytest.mark.parametrize("instances", SIZES)
def test_every_vote_table_has_the_name_the_text_gives_it(instances: int) -> None:
    assert wrong_names(instances) == []


@pytest.mark.parametrize("instances", SIZES)
def test_a_round_is_settled_exactly_when_no_completion_can_change_its_name(instances: int) -> None:
    assert wrong_stops(instances) == []


@pytest.mark.parametrize("instances", SIZES)
def test_clean_up_starts_exactly_when_a_quorum_has_become_impossible(instances: int) -> None:
    assert wrong_clean_ups(instances) == []


@pytest.mark.parametrize("instances", SIZES)
def test_every_table_of_a_release_has_the_name_the_text_gives_it(instances: int) -> None:
    q = quorum.quorum_of(instances)
    for found in product((OURS, NOT_OURS, ERRORED, SILENT, ABSENT), repeat=instances):
        outcome = quorum.owned_outcome_of(found.count(OURS), found.count(NOT_OURS), instances, q)
        assert outcome.value == reading.owned_name(found), found


@pytest.mark.parametrize("instances", SIZES)
def test_a_release_is_settled_exactly_when_no_reply_can_change_its_name(instances: int) -> None:
    q = quorum.quorum_of(instances)
    for found in product((OURS, NOT_OURS, ERRORED, UNDECIDED), repeat=instances):
        known = tuple(one for one in found if one != UNDECIDED)
        undecided = found.count(UNDECIDED)
        settled = quorum.is_owned_settled(
            found.count(OURS), found.count(NOT_OURS), undecided, instances, q
        )
        assert settled == (len(reading.owned_names(known, undecided)) == 1), found


@pytest.mark.parametrize("instances", range(1, 30))
def test_two_quorums_always_share_an_instance_and_one_is_never_more_than_all(
    instances: int,
) -> None:
    q = quorum.quorum_of(instances)
    assert 2 * q > instances
    assert q <= instances
    assert q == reading.quorum(instances)


@pytest.mark.parametrize("instances", [0, -1])
def test_no_instances_have_no_quorum(instances: int) -> None:
    with pytest.raises(ValueError, match="at least 1 instance"):
        quorum.quorum_of(instances)


# -- negative controls: each planted fault turns a check above red ---------------------------------


@pytest.mark.parametrize("instances", SIZES)
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_quorum_off_by_one_is_noticed(
    instances: int, off_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "quorum_of", lambda count: max(0, count // 2 + 1 + off_by))
    assert wrong_names(instances) != []


@pytest.mark.parametrize("instances", [2, 3, 4, 5])
def test_a_round_settled_at_the_first_lost_quorum_is_noticed(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(granted: int, refused: int, undecided: int, q: int) -> bool:
        return granted >= q or granted + undecided < q

    monkeypatch.setattr(quorum, "is_settled", hasty)
    assert wrong_stops(instances) != []


@pytest.mark.parametrize("instances", [2, 3, 4, 5])
def test_a_round_that_waits_for_every_reply_is_noticed(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "is_settled", lambda granted, refused, undecided, q: undecided == 0)
    assert wrong_stops(instances) != []


@pytest.mark.parametrize("instances", SIZES)
def test_a_clean_up_only_after_all_replies_is_noticed(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = lambda granted, undecided, q: undecided == 0 and granted < q  # noqa: E731
    monkeypatch.setattr(quorum, "is_lost", late)
    assert bool(wrong_clean_ups(instances)) is (instances > 1)
