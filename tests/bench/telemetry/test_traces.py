"""Which operations are traced, and what their spans say: real times, right parents."""

import random

import numpy as np
import pytest

from bench.telemetry.load_log import Ask, Extension, ObservedAttempt, checksum
from bench.telemetry.run import Run
from bench.telemetry.traces import PER_REASON, TraceSpan, Tracing, choose

MS = 1_000_000
ADDRESSES = [("10.0.0.1", 7001), ("10.0.0.2", 7002), ("10.0.0.3", 7003)]
NONE_SEEN = np.zeros(10_000, bool)


def reasons_of(records, one_in=0, observed=NONE_SEEN):
    chosen = choose(records, observed[: len(records)], one_in, random.Random(1))
    return [(one.number("sequence"), one.reason) for one in chosen]


def test_slow_failed_refused_split_and_lost_operations_are_chosen(records) -> None:
    odd = [
        {"start": 1, "ended": 2, "outcome": "unreachable"},
        {"start": 1, "ended": 2, "outcome": "too_late"},
        {"start": 1, "ended": 2, "outcome": "contended"},
        {"start": 1, "ended": 2, "attempts": 2, "split": 1},
        {"start": 1, "ended": 2, "release_sent": 3, "release_replied": 4, "release": "gone"},
        {"start": 1, "ended": 500},
    ]
    usual = [{"start": 1, "ended": 2 + number / 1000} for number in range(100)]
    chosen = dict(reasons_of(records(*odd, *usual)))
    assert [chosen[number] for number in range(1, 7)] == [
        "failed",
        "failed",
        "refused",
        "split vote",
        "release",
        "slow",
    ]
    assert len(chosen) == 6 + PER_REASON // 2 - 1


def test_no_reason_chooses_more_than_its_share_observed_ones_first(records) -> None:
    many = records(*[{"start": 1, "ended": 2, "outcome": "contended"} for _ in range(200)])
    chosen = reasons_of(many, observed=np.arange(200) >= 195)
    assert len(chosen) == len(dict(chosen)) == PER_REASON
    assert set(dict(chosen)) >= set(range(196, 201))


@pytest.mark.parametrize(
    "vote, reason",
    [("silent", "no vote"), ("errored", "no vote"), ("refused", None), ("absent", None)],
)
def test_a_silent_or_failing_instance_is_a_reason_to_trace_and_a_known_absence_is_none(
    records, vote: str, reason: str | None
) -> None:
    usual = [{"start": 1, "ended": 3} for _ in range(199)]
    one = {"start": 1, "ended": 2, "votes": {"granted": 2, vote: 1}}
    assert dict(reasons_of(records(*usual, one))).get(200) == reason


def test_one_ordinary_operation_in_so_many_is_chosen(records) -> None:
    many = records(*[{"start": 1, "ended": 2} for _ in range(400)])
    by_chance = [
        number for number, reason in reasons_of(many, one_in=50) if reason == "one in many"
    ]
    # one may be among the slowest
    assert len(by_chance) in (7, 8)
    assert [reason for _, reason in reasons_of(many) if reason == "one in many"] == []
    assert reasons_of(records(), one_in=1) == []


# -- spans -----------------------------------------------------------------------------------------


def attempt(
    number: int, started_ms: float, outcome: str, votes: str, resource: str = "r0"
) -> ObservedAttempt:
    """`votes`: g granted, r refused, s silent, a absent; sent after 0.1 ms, answered after 0.5."""
    at_ns = round(started_ms * MS)
    names = {"g": "granted", "r": "refused", "s": "silent", "a": "absent", "e": "errored"}

    def ask(vote: str) -> Ask:
        sent_ns = 0 if vote == "a" else at_ns + MS // 10
        replied_ns = at_ns + MS // 2 if vote in "gre" else 0
        error = "OOM" if vote == "e" else ""
        return Ask(names[vote], sent_ns, replied_ns, error)

    asks = tuple(map(ask, votes))
    return ObservedAttempt(
        checksum(resource), number, 100 * MS, at_ns, at_ns + MS, at_ns + 2 * MS, outcome, asks
    )


def tracing(one_in: int = 0) -> Tracing:
    run = Run("r", "redlock", "always", ADDRESSES, databases=[0, 0, 7])
    return Tracing(run, one_in, 10**18, random.Random(1))


def traced(records, *attempts: ObservedAttempt) -> list[TraceSpan]:
    made = tracing()
    made.note(attempts)
    return list(made.look(records))


def contended(records):
    """A holder, and one who was refused once, saw a split vote, and won when the holder had
    released."""
    return records(
        {"start": 50, "ended": 51, "release_sent": 104, "release_replied": 105, "resource": 0},
        {
            "start": 100,
            "intended": 99,
            "attempt": 106,
            "ended": 107,
            "release_sent": 120,
            "release_replied": 121,
            "attempts": 3,
            "split": 1,
            "resource": 0,
            "votes": {"granted": 2, "silent": 1},
        },
    )


ROUNDS = (
    attempt(1, 100, "contended", "rrr"),
    attempt(2, 103, "split_vote", "gra"),
    attempt(3, 106, "acquired", "ggs"),
)


def test_a_command_has_its_database_and_the_first_word_of_its_error_reply(records) -> None:
    """As the conventions for Redis have it: `db.namespace`, `db.response.status_code`, and
    `error.type` alike."""
    refused = records({"start": 100, "ended": 101, "outcome": "unreachable", "attempts": 1})
    spans = traced(refused, attempt(1, 100, "unreachable", "ges"))
    keys = ("db.namespace", "db.response.status_code", "error.type")
    sets = [[one.attributes.get(key) for key in keys] for one in spans if one.name == "SET"]
    assert sets == [["0", None, None], ["0", "OOM", "OOM"], ["7", None, "silent"]]


def test_an_observed_acquire_has_a_child_for_each_instance_asked_and_each_wait(records) -> None:
    spans = traced(contended(records), *ROUNDS)
    (acquire,) = [
        one
        for one in spans
        if one.name == "redlock.acquire" and one.attributes["redlock.attempts"] == 3
    ]
    children = [one for one in spans if one.parent == acquire.span_id]
    assert {one.trace_id for one in children} == {acquire.trace_id}
    sets = [one for one in children if one.name == "SET"]
    keys = ("redlock.attempt", "server.port", "redlock.vote")
    assert [tuple(one.attributes[key] for key in keys) for one in sets] == [
        (1, 7001, "refused"),
        (1, 7002, "refused"),
        (1, 7003, "refused"),
        (2, 7001, "granted"),
        (2, 7002, "refused"),
        (3, 7001, "granted"),
        (3, 7002, "granted"),
        (3, 7003, "silent"),
    ]
    assert {(one.begun_ns, one.ended_ns) for one in sets[:3]} == {(100.1 * MS, 100.5 * MS)}
    silent = sets[-1]
    assert (silent.begun_ns, silent.ended_ns) == (106.1 * MS, 108 * MS)
    assert silent.failed
    assert silent.attributes["error.type"] == "silent"
    waits = [(one.begun_ns, one.ended_ns) for one in children if one.name == "redlock.retry_wait"]
    assert waits == [(101 * MS, 103 * MS), (104 * MS, 106 * MS)]


def test_a_release_lies_within_the_lease_which_begins_with_the_acquire(records) -> None:
    spans = traced(contended(records), *ROUNDS)
    (acquire,) = [one for one in spans if one.attributes.get("redlock.attempts") == 3]
    (lease,) = [one for one in spans if one.span_id == acquire.parent]
    (release,) = [
        one for one in spans if one.name == "redlock.release" and one.parent == lease.span_id
    ]
    assert (release.begun_ns, release.ended_ns) == (120 * MS, 121 * MS)
    assert (lease.name, lease.parent, lease.begun_ns, lease.ended_ns) == (
        "redlock.lease",
        0,
        99 * MS,
        121 * MS,
    )


def test_who_waited_is_linked_to_who_held_the_lock(records) -> None:
    holder, waiter = sorted(
        (one for one in traced(contended(records), *ROUNDS) if one.name == "redlock.acquire"),
        key=lambda one: one.attributes["redlock.attempts"],
    )
    assert waiter.holder == (holder.trace_id, holder.span_id)
    assert holder.holder is None


def test_a_holder_is_traced_for_who_waited_although_nothing_else_asks_for_it(records) -> None:
    slower = [{"start": 1, "ended": 90, "resource": 1} for _ in range(PER_REASON)]
    waited = {"start": 60, "ended": 65, "outcome": "contended", "attempts": 2, "resource": 0}
    held = {"start": 50, "ended": 51, "release_sent": 62, "release_replied": 63, "resource": 0}
    elsewhere = {"start": 50, "ended": 51, "release_sent": 64, "release_replied": 65, "resource": 2}
    later = {"start": 50, "ended": 51, "release_sent": 66, "release_replied": 67, "resource": 0}
    chosen = dict(reasons_of(records(waited, held, elsewhere, later, *slower)))
    assert (chosen[1], chosen[2]) == ("refused", "holder")
    assert not {3, 4} & set(chosen)


def test_an_acquire_says_what_became_of_it(records) -> None:
    (acquire,) = [
        one
        for one in traced(contended(records), *ROUNDS)
        if one.attributes.get("redlock.attempts") == 3
    ]
    assert (acquire.begun_ns, acquire.ended_ns) == (99 * MS, 107 * MS)
    assert acquire.attributes == {
        "redlock.recipe": "redlock",
        "redlock.fsync": "always",
        "redlock.outcome": "acquired",
        "redlock.attempts": 3,
        "redlock.split_votes": 1,
        "redlock.queued": 0.001,
        "redlock.trace.reason": "split vote",
        "redlock.votes.granted": 2,
        "redlock.votes.refused": 0,
        "redlock.votes.errored": 0,
        "redlock.votes.silent": 1,
        "redlock.votes.absent": 0,
        "redlock.votes.undecided": 0,
        "redlock.validity": pytest.approx(9.993),
        "redlock.vote.margin": 0,
    }
    assert not acquire.failed


@pytest.mark.parametrize(
    "last, votes", [(2, {"granted": 1, "refused": 2}), (1, {"refused": 2, "undecided": 1})]
)
def test_a_denied_acquire_says_the_votes_of_its_children_where_its_last_round_was_observed(
    records, last: int, votes: dict[str, int]
) -> None:
    """It did not wait for the third vote, which nobody patches into its record."""
    lost = records(
        {
            "start": 99,
            "attempt": 100,
            "ended": 110,
            "outcome": "contended",
            "attempts": 2,
            "votes": {"refused": 2, "undecided": 1},
        },
    )
    attempts = attempt(1, 100, "contended", "rrr"), attempt(2, 105, "contended", "rrg")
    (acquire,) = [one for one in traced(lost, *attempts[:last]) if one.name == "redlock.acquire"]
    kinds = "granted", "refused", "errored", "silent", "absent", "undecided"
    shown = {kind: acquire.attributes[f"redlock.votes.{kind}"] for kind in kinds}
    assert shown == {**dict.fromkeys(kinds, 0), **votes}


def test_a_lost_acquire_is_found_by_when_it_began_and_is_an_error_unless_the_lock_was_held(
    records,
) -> None:
    lost = records(
        {
            "start": 99,
            "attempt": 100,
            "ended": 110,
            "outcome": "split_vote",
            "attempts": 2,
            "split": 2,
        },
        {"start": 99, "ended": 110, "outcome": "contended", "resource": 1},
    )
    spans = traced(lost, attempt(1, 100, "split_vote", "grr"), attempt(2, 105, "split_vote", "rgr"))
    assert {one.parent for one in spans if one.name == "redlock.acquire"} == {0}, "nothing was held"
    acquires = {
        one.attributes["redlock.outcome"]: one for one in spans if one.name == "redlock.acquire"
    }
    assert acquires["split_vote"].failed
    assert not acquires["contended"].failed


def test_a_wait_is_shown_only_between_two_attempts_that_are_known(records) -> None:
    won = records({"start": 99, "attempt": 900, "ended": 910, "attempts": 300})
    lost = (attempt(number, 100 + 2 * number, "contended", "rrr") for number in (1, 2))
    spans = traced(won, *lost, attempt(300, 900, "acquired", "ggg"))
    assert sorted({one.attributes["redlock.attempt"] for one in spans if one.name == "SET"}) == [
        1,
        2,
        300,
    ]
    assert sum(one.name == "redlock.retry_wait" for one in spans) == 1
    (acquire,) = [one for one in spans if one.name == "redlock.acquire"]
    assert acquire.attributes["redlock.attempts"] == 300


def test_attempts_of_another_resource_are_not_mixed_in(records) -> None:
    spans = traced(contended(records), *ROUNDS, attempt(1, 106, "acquired", "ggg", "r5"))
    assert sum(one.name == "SET" for one in spans) == 8


def test_extensions_are_children_of_their_lease(records) -> None:
    made = tracing()
    made.note(
        (),
        [
            Extension(checksum(resource), 106 * MS, 110 * MS, 111 * MS, outcome)
            for resource, outcome in (("r0", "extended"), ("r0", "gone"), ("r1", "extended"))
        ],
    )
    spans = list(made.look(contended(records)))
    (waiter,) = [one for one in spans if one.attributes.get("redlock.attempts") == 3]
    extended, gone = [one for one in spans if one.name == "redlock.extend"]
    assert {extended.parent, gone.parent} == {waiter.parent}
    assert (extended.begun_ns, extended.ended_ns, extended.failed) == (110 * MS, 111 * MS, "")
    common = {"redlock.recipe": "redlock", "redlock.fsync": "always"}
    assert (gone.attributes, gone.failed) == ({**common, "redlock.outcome": "gone"}, "gone")


def test_a_margin_is_said_only_once_no_vote_is_open(records) -> None:
    made = records({"start": 100, "ended": 107, "votes": {"granted": 2, "undecided": 1}})
    (acquire,) = traced(made)
    assert acquire.attributes["redlock.votes.undecided"] == 1
    assert "redlock.vote.margin" not in acquire.attributes


def test_every_traced_acquire_is_an_exemplar_of_its_bucket(records) -> None:
    made = tracing()
    spans = list(made.look(contended(records)))
    shown = {one.trace_id: one for one in made.exemplars["acquired"].values()}
    assert set(shown) == {one.trace_id for one in spans}
    assert sorted(one.value for one in shown.values()) == pytest.approx([0.001, 0.008])
    assert {one.at_ns for one in shown.values()} == {10**18 + 51 * MS, 10**18 + 107 * MS}
