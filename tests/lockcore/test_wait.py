"""`wait_ms` is what bounds a wait: on a scripted clock the lock is free after 8 s, and its caller
may wait for 20 s."""

from random import Random
from typing import Any

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import Acquisition
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.settings import RetryPolicy
from tests.doubles.keyspace import NIL, OK
from tests.lockcore.by_hand import Run
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, settings_of
from tests.lockcore.town import Town

POLICIES = ["full-jitter", "poll", "push", "fixed"]
FREE_MS = 8_000
WAIT_MS = 20_000
# the longest window, a quarter more
SOON_MS = 320
MOST_ATTEMPTS = 600
# the quicker a round is, the more attempts a wait has room for
ROUND_MS = 0.3


def waiting(retry: RetryPolicy, wait_ms: float = WAIT_MS) -> Run:
    """A caller that has made its first attempt."""
    fleet = ScriptedFleet(3, settings=settings_of(retry=retry))
    engine = fleet.engine
    acquire = Acquisition(engine, "stock", engine.terms(TTL_MS), wait_ms, fleet.now_ns, Random(1))
    return Run(fleet, acquire.steps(fleet.now_ns))


def ended(run: Run, free_ms: float) -> Lease | Denied:
    """What comes of it, where the lock is free from `free_ms` on."""
    begun_ns = run.fleet.now_ns
    while run.wanted is not None:
        sent_ms = (run.rounds[-1].started_ns - begun_ns) / NS_PER_MS
        run.answer(*[OK if sent_ms >= free_ms else NIL] * 3, after_ms=ROUND_MS)
    result: Lease | Denied = run.result
    return result


@pytest.mark.parametrize("window_ms", [0, 5.0, 200.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_lock_that_is_free_after_8_s_is_got_soon_after_in_a_bounded_number_of_attempts(
    policy: Any, window_ms: float
) -> None:
    run = waiting(RetryPolicy(policy, window_ms))
    begun_ns = run.fleet.now_ns
    lease = ended(run, FREE_MS)
    assert isinstance(lease, Lease)
    assert FREE_MS <= (lease.started_ns - begun_ns) / NS_PER_MS <= FREE_MS + SOON_MS
    assert lease.attempts <= MOST_ATTEMPTS


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_that_is_out_of_attempts_before_its_time_is_noticed(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = RetryPolicy.next_start_ns

    def bounded(self: RetryPolicy, outcome: Outcome, attempts: int, *rest: Any) -> int | None:
        return None if attempts >= 300 else honest(self, outcome, attempts, *rest)

    monkeypatch.setattr(RetryPolicy, "next_start_ns", bounded)
    with pytest.raises(AssertionError):
        test_a_lock_that_is_free_after_8_s_is_got_soon_after_in_a_bounded_number_of_attempts(
            policy, 5.0
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_that_does_not_grow_is_noticed(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockcore.settings.GROWTH_NS", 0)
    with pytest.raises(AssertionError):
        test_a_lock_that_is_free_after_8_s_is_got_soon_after_in_a_bounded_number_of_attempts(
            policy, 5.0
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_in_vain_waits_until_the_end(policy: Any) -> None:
    run = waiting(RetryPolicy(policy))
    denied = ended(run, 10 * WAIT_MS)
    assert isinstance(denied, Denied)
    waited_ms = (denied.ended_ns - denied.started_ns) / NS_PER_MS
    assert WAIT_MS <= waited_ms <= WAIT_MS + 2 * ROUND_MS
    assert denied.attempts <= MOST_ATTEMPTS


def test_the_first_retries_are_as_fast_as_ever() -> None:
    run = waiting(RetryPolicy(), wait_ms=400)
    denied = ended(run, 10 * WAIT_MS)
    assert isinstance(denied, Denied)
    # a round and half a window of 5 ms each
    assert denied.attempts >= 110


def test_none_never_retries_however_long_it_may_wait() -> None:
    denied = ended(waiting(RetryPolicy("none")), FREE_MS)
    assert (denied.outcome, denied.attempts) == (Outcome.CONTENDED, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_attempts_that_were_asked_for_are_a_bound(policy: Any) -> None:
    denied = ended(waiting(RetryPolicy(policy, attempts=7)), FREE_MS)
    assert (denied.outcome, denied.attempts) == (Outcome.CONTENDED, 7)


@pytest.mark.parametrize("gives_back", [True, False])
def test_who_hears_of_releases_gets_it_after_8_s_too(gives_back: bool) -> None:
    """`push` between two processes; the holder releases after 8 s, or dies and its key expires
    after 10."""
    town = Town(2)
    holder = town.houses[0].asks()
    waiter = town.houses[1].asks(WAIT_MS)
    free_ms = FREE_MS if gives_back else TTL_MS
    for _ in range(free_ms // 10):
        town.run(10)
        assert waiter.result is None
    if gives_back:
        town.houses[0].gives_back(holder)
    else:
        town.houses[0].lives = False
    for _ in range(100):
        town.run(10)
    assert isinstance(waiter.result, Lease)
    assert waiter.result.attempts <= 5
