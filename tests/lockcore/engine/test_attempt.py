"""What an operation does next: attempts, waits, deadlines and the lease that comes of it."""

from typing import Any

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine import attempt
from lockcore.engine.attempt import lease_of, release_steps
from lockcore.engine.turns import Turn
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.rounds import SetRound
from lockcore.settings import RetryPolicy
from tests.doubles.keyspace import MISCONF, NIL, OK, ONE, ZERO
from tests.lockcore.by_hand import Caller, Run, acquiring
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, settings_of, token_of

# of a TTL of 10 s
DRIFT_MS = 102


def fleet_of(**settings: Any) -> ScriptedFleet:
    return ScriptedFleet(3, settings=settings_of(**settings))


# -- acquire ---------------------------------------------------------------------------------------


def test_a_lease_is_valid_from_its_start_for_the_ttl_without_drift() -> None:
    fleet = fleet_of()
    started_ns = fleet.now_ns
    lease = acquiring(fleet).answer(OK, OK, OK, after_ms=3).result
    assert isinstance(lease, Lease)
    assert lease.started_ns == started_ns
    assert lease.granted_ns == started_ns + 3 * NS_PER_MS
    assert lease.valid_until_ns == started_ns + (TTL_MS - DRIFT_MS) * NS_PER_MS
    assert (lease.resource, lease.ttl_ms, lease.attempts, lease.split_votes) == (
        "stock",
        TTL_MS,
        1,
        0,
    )
    assert lease.outcome is Outcome.ACQUIRED
    assert lease.owner_token == fleet.sent[0][0][2]


@pytest.mark.parametrize(
    "left_ns, outcome", [(1, Outcome.ACQUIRED), (0, Outcome.TOO_LATE), (-1, Outcome.TOO_LATE)]
)
def test_a_quorum_that_comes_when_the_validity_is_used_up_is_too_late(
    left_ns: int, outcome: Outcome
) -> None:
    fleet = fleet_of()
    run = acquiring(fleet)
    fleet.now_ns += (TTL_MS - DRIFT_MS) * NS_PER_MS - left_ns
    run.answer(OK, OK, OK, after_ms=0)
    assert run.result.outcome is outcome
    released = ["release"] if outcome is Outcome.TOO_LATE else []
    assert [fleet.about(index, run.rounds[0]) for index in range(3)] == [["set", *released]] * 3


@pytest.mark.parametrize(
    "replies, outcome",
    [
        ((NIL, NIL, OK), Outcome.CONTENDED),
        ((OK, NIL, MISCONF), Outcome.SPLIT_VOTE),
        ((OK, MISCONF, MISCONF), Outcome.UNREACHABLE),
        ((OK, b"", b""), Outcome.UNREACHABLE),
    ],
)
def test_an_acquire_without_a_wait_makes_one_attempt(
    replies: tuple[bytes, ...], outcome: Outcome
) -> None:
    run = acquiring(fleet_of())
    started_ns = run.fleet.now_ns
    run.answer(*replies)
    denied = run.result
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.attempts, denied.resource) == (outcome, 1, "stock")
    assert denied.split_votes == (outcome is Outcome.SPLIT_VOTE)
    assert (denied.started_ns, denied.ended_ns) == (started_ns, run.fleet.now_ns)
    assert not denied


def test_every_attempt_has_its_own_start_and_owner_token() -> None:
    run = acquiring(fleet_of(), wait_ms=100)
    run.answer(NIL, NIL, NIL)
    run.answer(OK, NIL, MISCONF)
    run.answer(OK, OK, OK)
    lease = run.result
    assert isinstance(lease, Lease)
    assert (lease.attempts, lease.split_votes) == (3, 1)
    # half of the window of 5 ms
    assert run.waits == [2.5, 2.5]
    assert len({token_of(round_) for round_ in run.rounds}) == 3
    assert (
        lease.started_ns
        == run.rounds[2].started_ns
        > run.rounds[1].started_ns
        > run.rounds[0].started_ns
    )
    assert lease.owner_token == token_of(run.rounds[2])


def test_no_attempt_starts_after_the_wait_is_over() -> None:
    run = acquiring(fleet_of(), wait_ms=10)
    while run.result is None:
        run.answer(NIL, NIL, NIL)
    # at 0, 3.5 and 7 ms, and the last one when the wait ends
    assert run.result.attempts == 4
    assert run.result.ended_ns - run.result.started_ns == 11 * NS_PER_MS


def test_the_denial_is_that_of_the_last_attempt() -> None:
    run = acquiring(fleet_of(retry=RetryPolicy(attempts=2)), wait_ms=1_000)
    run.answer(OK, NIL, MISCONF)
    run.answer(NIL, NIL, NIL)
    assert (run.result.outcome, run.result.split_votes) == (Outcome.CONTENDED, 1)
    assert run.result.tally == (0, 3, 0, 0, 0, 0)


def test_too_late_is_cleaned_up_and_tried_again() -> None:
    run = acquiring(fleet_of(), wait_ms=100_000)
    run.answer(OK, OK, OK, after_ms=TTL_MS)
    run.answer(OK, OK, OK)
    assert isinstance(run.result, Lease)
    assert run.result.attempts == 2
    assert run.fleet.about(0, run.rounds[0]) == ["set", "release"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, TimeoutError])
def test_a_cancelled_caller_is_cleaned_up_at_once(error: type[BaseException]) -> None:
    run = acquiring(fleet_of(), wait_ms=100)
    with pytest.raises(error):
        run.steps.throw(error())
    run.fleet.flush()
    assert [run.fleet.about(index, run.rounds[0]) for index in range(3)] == [["set", "release"]] * 3


def test_a_caller_cancelled_between_two_attempts_has_nothing_to_clean_up() -> None:
    fleet = fleet_of()
    caller = acquiring(fleet, 100, Caller)
    round_ = caller.wanted
    fleet.flush()
    fleet.reply_all(NIL)
    caller.go_on()
    assert isinstance(caller.wanted, Turn)
    with pytest.raises(KeyboardInterrupt):
        caller.steps.throw(KeyboardInterrupt())
    fleet.flush()
    assert [fleet.about(index, round_) for index in range(3)] == [["set", "release"]] * 3


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "replies, outcome",
    [
        ((ONE, ONE, ONE), Outcome.RELEASED),
        ((ONE, ZERO, ZERO), Outcome.GONE),
        ((ONE, ZERO, MISCONF), Outcome.UNREACHABLE),
        ((ONE, b"", b""), Outcome.UNREACHABLE),
    ],
)
def test_a_release_says_what_became_of_it(replies: tuple[bytes, ...], outcome: Outcome) -> None:
    fleet = fleet_of()
    lease = fleet.won()
    run = Run(fleet, release_steps(fleet.engine, lease, fleet.now_ns)).answer(*replies)
    assert run.result.outcome is outcome
    assert run.result.resource == "stock"


# -- negative control ------------------------------------------------------------------------------


def test_a_validity_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(
        round_: SetRound, now_ns: int, attempts: int = 1, split_votes: int = 0
    ) -> Lease | None:
        return lease_of(round_, min(now_ns, round_.started_ns), attempts, split_votes)

    monkeypatch.setattr(attempt, "lease_of", blind)
    with pytest.raises(AssertionError):
        test_a_quorum_that_comes_when_the_validity_is_used_up_is_too_late(0, Outcome.TOO_LATE)
