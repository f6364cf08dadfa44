"""Acquire and release: what a vote means, when a round is over, when it is tried again.

On every way of waiting.
"""

import time
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet
from lockcore import Denied, Lease, Outcome, RetryPolicy
from lockcore.errors import ContendedError, SplitVoteError, TooLateError, UnreachableError, error_of
from tests.doubles.instance import REFUSE, Instances
from tests.doubles.keyspace import error
from tests.integration.lockcore.keys import keys_on, ttls_on, values_on
from tests.integration.lockcore.shell import TTL_MS, Connect, Scripted, Shell

pytestmark = pytest.mark.integration
FULL = error("OOM command not allowed when used memory > 'maxmemory'.")
# well below the 2.5 s an instance may be silent here
SOON_S = 1.5


@pytest.mark.parametrize("instances", [1, 4, 5])
def test_one_holder_at_a_time_on_real_servers(
    shell: Shell, connect: Connect, fleet: Fleet, instances: int
) -> None:
    urls = fleet.urls[:instances]
    prefix = f"{uuid4().hex}:"
    lock = connect(urls, key_prefix=prefix)
    other = connect(urls, key_prefix=prefix)
    lease = lock.try_acquire("stock", TTL_MS)
    assert isinstance(lease, Lease)
    assert lease.outcome is Outcome.ACQUIRED
    shell.until(lambda: not lease.tally.undecided, "every vote")
    denied = other.try_acquire("stock", TTL_MS)
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.tally.granted, denied.attempts) == (Outcome.CONTENDED, 0, 1)
    assert values_on(urls, f"{prefix}stock") == [lease.owner_token] * instances
    assert all(0 < ttl <= TTL_MS for ttl in ttls_on(urls, f"{prefix}stock"))
    assert other.try_acquire("another", TTL_MS)
    assert lock.try_release(lease) is Outcome.RELEASED
    assert other.try_acquire("stock", TTL_MS)


@pytest.mark.parametrize(
    ("answers", "outcome", "raised"),
    [
        ([REFUSE, REFUSE, None], Outcome.CONTENDED, ContendedError),
        ([REFUSE, FULL, None], Outcome.SPLIT_VOTE, SplitVoteError),
        ([REFUSE, REFUSE, None, None, FULL], Outcome.SPLIT_VOTE, SplitVoteError),
        ([FULL, FULL, None], Outcome.UNREACHABLE, UnreachableError),
    ],
    ids=lambda value: value.value if isinstance(value, Outcome) else "",
)
def test_a_lost_round_has_the_name_of_its_votes_and_leaves_nothing(
    shell: Shell,
    connect: Connect,
    scripted: Scripted,
    answers: list[Any],
    outcome: Outcome,
    raised: type[Exception],
) -> None:
    instances = scripted(len(answers))
    for instance, answer in zip(instances, answers, strict=True):
        instance.says["set"] = answer
    lock = connect(instances.urls)
    denied = lock.try_acquire("stock", TTL_MS)
    assert (denied.outcome, bool(denied)) == (outcome, False)
    assert denied.split_votes == (outcome is Outcome.SPLIT_VOTE)
    with pytest.raises(raised, match="'stock'"):
        lock.acquire("stock", TTL_MS)
    shell.until(lambda: instances.were_told(["set", "release"] * 2), "clean-up on every instance")
    assert instances.keys == []


@pytest.mark.parametrize("says", [None, REFUSE], ids=["granted", "refused"])
def test_nobody_waits_for_a_silent_instance_once_the_rest_has_decided(
    connect: Connect, scripted: Scripted, says: bytes | None
) -> None:
    instances = scripted(5)
    lock = connect(instances.urls)
    for instance in instances[:3]:
        instance.says["set"] = says
    instances[3:].pause()
    started = time.monotonic()
    lease = lock.try_acquire("stock", TTL_MS)
    assert lease.outcome is (Outcome.CONTENDED if says else Outcome.ACQUIRED)
    if lease:
        assert lock.try_extend(lease).outcome is Outcome.ACQUIRED
        assert lock.try_release(lease) is Outcome.RELEASED
    assert time.monotonic() - started < SOON_S


def test_a_grant_that_reaches_its_caller_after_its_end_is_too_late_and_given_back(
    shell: Shell, lock: Any, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[int] = []

    # this caller reads the clock before it asks, and again a TTL later
    def held_up() -> int:
        readings.append(time.monotonic_ns())
        return readings[-1] + (TTL_MS * 1_000_000 if len(readings) > 1 else 0)

    if (shortcut := getattr(lock._driver, "_shortcut", None)) is not None:
        monkeypatch.setattr(shortcut, "now", held_up)
    else:
        monkeypatch.setattr(f"{type(lock._driver).__module__}.monotonic_ns", held_up)
    denied = lock.try_acquire("stock", TTL_MS)
    monkeypatch.undo()
    assert (denied.outcome, denied.tally.granted >= 2) == (Outcome.TOO_LATE, True)
    assert isinstance(error_of(denied), TooLateError)
    shell.until(lambda: instances.were_told(["set", "release"]), "clean-up on every instance")
    assert instances.keys == []


def test_a_retry_waits_for_its_time_and_none_comes_after_the_deadline(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    instances.put(b"stock", b"somebody else")
    # 30 … 50 ms
    lock = connect(instances.urls, retry=RetryPolicy("fixed", 40))
    denied = lock.try_acquire("stock", TTL_MS, 200)
    assert (denied.outcome, denied.attempts <= 7) == (Outcome.CONTENDED, True)
    if denied.attempts < 3:
        pytest.skip(
            f"not known here: {denied.attempts} attempts in 200 ms, where every 50 ms allows one"
        )
    # uvloop counts whole ms
    assert denied.ended_ns - denied.started_ns >= (denied.attempts - 1) * 29 * 1_000_000


def test_who_waits_gets_it_when_it_is_released(
    shell: Shell, connect: Connect, fleet: Fleet
) -> None:
    prefix = f"{uuid4().hex}:"
    holder, waiting = (connect(fleet.urls, key_prefix=prefix) for _ in range(2))
    lease = holder.acquire("stock", TTL_MS)
    job = shell.start(shell.raw(waiting).try_acquire, "stock", TTL_MS, 9_000)
    shell.sleep(0.03)
    assert not job.is_done()
    holder.release(lease)
    won = job.result()
    assert (won.outcome, won.attempts > 1) == (Outcome.ACQUIRED, True)
    assert won.granted_ns > lease.granted_ns
    waiting.release(won)
    shell.until(lambda: keys_on(fleet.urls, prefix) == [], "the release on every instance")


def test_a_fleet_that_answers_byte_by_byte_is_understood(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    for instance in instances:
        instance.one_byte_at_a_time = True
    lease = lock.acquire("stock", TTL_MS)
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.CONTENDED
    lease = lock.extend(lease)
    lock.release(lease)
    shell.until(lambda: instances.keys == [], "the release on every instance")
