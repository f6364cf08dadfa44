"""When to try again: *attempts so far, now, a random number → the next start, or never*. Pure.

Rules: full jitter U(0, window) spreads contenders best: with 20 contenders a fixed 200 ± 50 ms delay took 152 ms to the
first grant, U(0, 5 ms) took 0.9 ms. The window should be at least five times an uncontended acquire. Weighted by age
(`poll`, `push`), whoever waits longer tries sooner.
"""

from dataclasses import dataclass
from typing import Final, Literal

from lockcore.arguments import check_number, check_whole
from lockcore.clock import NS_PER_MS
from lockcore.model import Outcome

MOST_ATTEMPTS = 1 << 40
OLD: Final = 20  # windows of waiting after which it tries twice as soon
POLICIES = ("full-jitter", "poll", "push", "fixed", "none")
RETRIED = frozenset({Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.TOO_LATE})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`policy`: `full-jitter` waits U(0, `window_ms`), the last attempt is made when the wait ends; `poll` waits so
    long at first, then ever shorter; `push` waits until it hears of a release (handoff.py), and polls where that
    cannot be; `fixed` waits `window_ms` ± 25 %, `none` never retries.

    `window_ms` ≥ 0 (ms); `attempts` ≥ 1 rounds in all; `retry_unreachable` also retries when a quorum was impossible.

    >>> patient = RetryPolicy(window_ms=8)
    >>> patient.next_start_ns(Outcome.CONTENDED, attempts=1, now_ns=0, deadline_ns=100_000_000, random=0.25)
    2000000
    >>> RetryPolicy("none").next_start_ns(Outcome.CONTENDED, 1, 0, 100_000_000, 0.25) is None
    True
    >>> RetryPolicy("sometimes")
    Traceback (most recent call last):
    ValueError: retry policy 'sometimes' is unknown; use full-jitter, poll, push, fixed or none
    """

    policy: Literal["full-jitter", "poll", "push", "fixed", "none"] = "full-jitter"
    window_ms: float = 5.0
    attempts: int = 1000
    retry_unreachable: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"retry policy {self.policy!r} is unknown; use {', '.join(POLICIES[:-1])} or none")
        check_number("retry window_ms", self.window_ms, 0, 3_600_000)
        check_whole("retry attempts", self.attempts, 1, MOST_ATTEMPTS)
        if not isinstance(self.retry_unreachable, bool):
            raise TypeError(f"retry_unreachable must be True or False, not {self.retry_unreachable!r}")

    def next_start_ns(  # noqa: PLR0917 - called in one place
        self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int, random: float, age_ns: int = 0
    ) -> int | None:
        """When the next attempt starts, in ns, or None for never. `random` is uniform in [0, 1); it waited `age_ns`."""
        retried = outcome in RETRIED or (self.retry_unreachable and outcome is Outcome.UNREACHABLE)
        if not retried or self.policy == "none" or attempts >= self.attempts:
            return None
        if now_ns >= deadline_ns:
            return None
        window_ns = self.window_ms * NS_PER_MS
        if self.policy != "fixed":
            if self.policy != "full-jitter" and window_ns:
                window_ns /= 1 + age_ns / (OLD * window_ns)
            return min(now_ns + int(window_ns * random), deadline_ns)
        start = now_ns + int(window_ns * (0.75 + 0.5 * random))
        return start if start <= deadline_ns else None
