"""When to try again: which outcomes, how long after, until when."""

from random import Random
from typing import Any

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.facts.model import Outcome
from lockcore.settings import RetryPolicy

NOW_NS = 5_000 * NS_PER_MS
LATER_NS = NOW_NS + 1_000 * NS_PER_MS


def wait_ms(
    policy: RetryPolicy, random: float, outcome: Outcome = Outcome.CONTENDED
) -> float | None:
    start_ns = policy.next_start_ns(outcome, 1, NOW_NS, LATER_NS, random)
    return None if start_ns is None else (start_ns - NOW_NS) / NS_PER_MS


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_what_may_change_by_itself_is_tried_again(outcome: Outcome) -> None:
    retried = outcome in (Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.TOO_LATE)
    assert (wait_ms(RetryPolicy(), 0.5, outcome) is not None) is retried


def test_unreachable_is_tried_again_if_asked() -> None:
    assert wait_ms(RetryPolicy(retry_unreachable=True), 0.5, Outcome.UNREACHABLE) == 2.5
    assert wait_ms(RetryPolicy(retry_unreachable=True), 0.5, Outcome.GONE) is None


def test_full_jitter_waits_uniformly_from_nothing_to_the_window() -> None:
    policy = RetryPolicy(window_ms=8)
    assert [wait_ms(policy, share) for share in (0.0, 0.25, 0.5)] == [0, 2, 4]
    random = Random(1)
    waits = [wait_ms(policy, random.random()) or 0 for _ in range(10_000)]
    assert 0 <= min(waits) < 0.1
    assert 7.9 < max(waits) <= 8
    assert abs(sum(waits) / len(waits) - 4) < 0.1


def test_fixed_waits_the_window_and_a_quarter_more_or_less() -> None:
    policy = RetryPolicy("fixed", window_ms=8)
    assert [wait_ms(policy, share) for share in (0.0, 0.5, 0.999999)] == [
        6,
        8,
        pytest.approx(10, abs=0.001),
    ]


def test_none_never_tries_again() -> None:
    assert wait_ms(RetryPolicy("none"), 0.0) is None


def test_the_last_attempt_is_the_last() -> None:
    policy = RetryPolicy(attempts=3)
    starts = [
        policy.next_start_ns(Outcome.CONTENDED, made, NOW_NS, LATER_NS, 0.0)
        for made in (1, 2, 3, 4)
    ]
    assert starts == [NOW_NS, NOW_NS, None, None]


def test_the_last_jittered_attempt_is_made_when_the_wait_ends_and_without_one_there_is_none() -> (
    None
):
    policy = RetryPolicy(window_ms=5)
    deadline_ns = NOW_NS + NS_PER_MS
    assert (
        policy.next_start_ns(Outcome.CONTENDED, 1, NOW_NS, deadline_ns, 0.1)
        == NOW_NS + NS_PER_MS // 2
    )
    assert policy.next_start_ns(Outcome.CONTENDED, 1, NOW_NS, deadline_ns, 0.9) == deadline_ns
    assert policy.next_start_ns(Outcome.CONTENDED, 1, deadline_ns, deadline_ns, 0.0) is None


@pytest.mark.parametrize("policy", ["full-jitter", "poll", "push", "fixed"])
@pytest.mark.parametrize("window_ms", [0, 5.0, 3_600_000])
def test_no_policy_gives_up_before_the_wait_ends_nor_starts_after_it(
    policy: Any, window_ms: float
) -> None:
    retry = RetryPolicy(policy, window_ms)
    deadline_ns = NOW_NS + 4 * NS_PER_MS
    for attempts in (1, 1_000, 1_000_000):
        for random in (0.0, 0.5, 0.999999):
            start_ns = retry.next_start_ns(Outcome.CONTENDED, attempts, NOW_NS, deadline_ns, random)
            assert start_ns is not None
            assert NOW_NS <= start_ns <= deadline_ns
    assert retry.next_start_ns(Outcome.CONTENDED, 1, deadline_ns, deadline_ns, 0.0) is None


def longest_ms(policy: RetryPolicy, attempts: int) -> float:
    """The longest pause after so many attempts."""
    start_ns = policy.next_start_ns(Outcome.CONTENDED, attempts, 0, 10**15, 1.0)
    assert start_ns is not None
    return start_ns / NS_PER_MS


def test_the_window_grows_after_200_attempts_and_up_to_250_ms() -> None:
    windows = [
        longest_ms(RetryPolicy(), attempts) for attempts in (1, 200, 201, 300, 445, 446, 10**6)
    ]
    assert windows == [5, 5, 6, 105, 250, 250, 250]
    assert [longest_ms(RetryPolicy(window_ms=0), attempts) for attempts in (1, 200, 300)] == [
        0,
        0,
        100,
    ]
    assert longest_ms(RetryPolicy("fixed"), 300) == 105 * 1.25


@pytest.mark.parametrize("window_ms", [250, 700])
def test_a_window_that_is_long_already_stays_as_it_is(window_ms: float) -> None:
    assert {
        longest_ms(RetryPolicy(window_ms=window_ms), attempts) for attempts in (1, 201, 10**6)
    } == {window_ms}


def test_what_is_allowed_at_the_edges_is_taken() -> None:
    RetryPolicy(window_ms=0, attempts=1)
    RetryPolicy(window_ms=3_600_000)
    default = RetryPolicy()
    assert (default.policy, default.window_ms, default.attempts) == ("full-jitter", 5.0, None)
    assert not default.retry_unreachable


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"policy": "exponential"}, "use full-jitter, poll, push, fixed or none"),
        ({"window_ms": -1}, "window_ms must be 0 … 3600000, not -1"),
        ({"window_ms": 3_600_001}, "not 3600001"),
        ({"window_ms": float("nan")}, "window_ms"),
        ({"attempts": 0}, "attempts must be 1 … "),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_its_range(
    arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        RetryPolicy(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["poll", "push"])
def test_who_waits_longer_tries_sooner(policy: Any) -> None:
    ages_ms = (0, 100, 300, 3_000)
    starts = [
        RetryPolicy(policy, 5.0).next_start_ns(
            Outcome.CONTENDED, 1, 0, 10**12, 0.5, age * NS_PER_MS
        )
        for age in ages_ms
    ]
    assert starts == [2_500_000, 1_250_000, 625_000, 80_645]
    same = {
        RetryPolicy().next_start_ns(Outcome.CONTENDED, 1, 0, 10**12, 0.5, age * NS_PER_MS)
        for age in ages_ms
    }
    assert same == {2_500_000}
