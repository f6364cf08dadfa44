"""The settings of a Redlock, and the times of its attempts.

Pure. Input: keyword arguments. Output: one checked object, or an exception. The retry policy also
computes the start of the next attempt, from the number of attempts, the time and a random number.

Rules: every number carries its unit in its name. A value out of range is a ValueError that names
the value and its range.
"""

from dataclasses import dataclass
from typing import Final, Literal

from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns
from lockcore.facts.arguments import A_DAY_MS, check_number, check_prefix, check_whole
from lockcore.facts.membership import Rejoin
from lockcore.facts.model import Outcome
from lockcore.observer import Observer

DEFAULT_TIMEOUT_MS = 50.0
MOST_UNOBSERVED = 1 << 30
SILENCE_NS = 2 * NS_PER_S
MOST_ATTEMPTS = 1 << 40

# The policies `poll` and `push` halve the window after a wait of this many windows.
OLD: Final = 20

# After this many attempts of one acquire, the window grows. Each further attempt makes the window
# longer by GROWTH_NS, up to LONGEST_WINDOW_NS. A `window_ms` above this limit does not grow.
QUICK_ATTEMPTS: Final = 200
GROWTH_NS: Final = NS_PER_MS
LONGEST_WINDOW_NS: Final = 250 * NS_PER_MS
POLICIES = ("full-jitter", "poll", "push", "fixed", "none")
RETRIED = frozenset({Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.TOO_LATE})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules for further attempts of an acquire.

    `policy` has five values. With `full-jitter`, an acquire waits a random time U(0, window) before
    each further attempt. With `poll`, an acquire also waits a random time U(0, window), but the
    window shrinks during the wait. With `push`, an acquire waits for the message of a release
    (handoff.py). If messages do not reach this process, the acquire polls. With `fixed`, an acquire
    waits for the length of the window, plus or minus 25 %. With each of these four policies, the
    last attempt comes when the wait ends. With `none`, an acquire never tries again, however long
    its caller may wait.

    `window_ms` ≥ 0 is the window in ms. `attempts` ≥ 1 is the largest number of rounds. If
    `attempts` is None, only `wait_ms` limits the number of rounds. If `retry_unreachable` is True,
    an acquire also tries again after an attempt without a possible quorum. Full jitter spreads
    contenders best. In a measurement with 20 contenders, the first grant came after 152 ms with a
    fixed delay of 200 ± 50 ms. With a random delay U(0, 5 ms) the first grant came after 0.9 ms.
    Choose a window of at least five times the duration of an uncontended acquire.

    The window grows after the 200th attempt. Each further attempt makes the window 1 ms longer, up
    to 250 ms. After 200 refusals the holder probably keeps the lock for a long time, so frequent
    attempts gain little. The first 200 attempts last about half a second with the default window,
    so this does not slow down a hot lock. If a lock becomes free after 8 s, its waiter has made
    some 370 attempts. The waiter then gets the lock within 180 ms, and after 60 ms on average. A
    wait of 20 s without success costs some 480 attempts.

    >>> RetryPolicy("sometimes")
    Traceback (most recent call last):
    ValueError: retry policy 'sometimes' is unknown; use full-jitter, poll, push, fixed or none
    """

    policy: Literal["full-jitter", "poll", "push", "fixed", "none"] = "full-jitter"
    window_ms: float = 5.0
    attempts: int | None = None
    retry_unreachable: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(
                f"retry policy {self.policy!r} is unknown; use {', '.join(POLICIES[:-1])} or none"
            )
        check_number("retry window_ms", self.window_ms, 0, 3_600_000)
        if self.attempts is not None:
            check_whole("retry attempts", self.attempts, 1, MOST_ATTEMPTS)
        if not isinstance(self.retry_unreachable, bool):
            raise TypeError(
                f"retry_unreachable must be True or False, not {self.retry_unreachable!r}"
            )

    def next_start_ns(  # noqa: PLR0917 - called in one place
        self,
        outcome: Outcome,
        attempts: int,
        now_ns: int,
        deadline_ns: int,
        random: float,
        age_ns: int = 0,
    ) -> int | None:
        """The start (ns) of the next attempt, or None if there is no next attempt.

        `random` is uniform in [0, 1). The caller has waited for `age_ns` so far.
        """
        retried = outcome in RETRIED or (self.retry_unreachable and outcome is Outcome.UNREACHABLE)
        if not retried or self.policy == "none" or now_ns >= deadline_ns:
            return None
        if self.attempts is not None and attempts >= self.attempts:
            return None
        share = 0.75 + 0.5 * random if self.policy == "fixed" else random
        return min(now_ns + int(self._window_ns(attempts, age_ns) * share), deadline_ns)

    def _window_ns(self, attempts: int, age_ns: int) -> float:
        """The length (ns) of the window after `attempts` attempts."""
        window_ns = self.window_ms * NS_PER_MS
        if self.policy in ("poll", "push") and window_ns:
            window_ns /= 1 + age_ns / (OLD * window_ns)
        grown_ns = window_ns + max(0, attempts - QUICK_ATTEMPTS) * GROWTH_NS
        return max(window_ns, min(grown_ns, LONGEST_WINDOW_NS))


@dataclass(frozen=True, slots=True)
class LagCap:
    """The limits of an instance's lag. An instance that exceeds a limit gets no SETs.

    At most `operations` commands may be unanswered. At most `bytes` bytes may wait in this process
    until the socket takes them. The oldest unanswered command may be at most `age_ms` ms old.
    """

    operations: int = 20_000
    bytes: int = 8 << 20
    age_ms: float = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        check_whole("lag_cap.operations", self.operations, 1, 1 << 40)
        check_whole("lag_cap.bytes", self.bytes, 1, 1 << 40)
        check_number("lag_cap.age_ms", self.age_ms, 0.1, A_DAY_MS)


DEFAULT_RETRY = RetryPolicy()
DEFAULT_LAG_CAP = LagCap()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a Redlock. `connect` sets them, and they never change.

    `max_ttl_ms` is the largest TTL that a caller may request. A restarted instance abstains for
    this time. `max_ttl_ms` must be the same in all clients of the fleet. If `instance_timeout_ms`
    is None, the timeout is min(50 ms, TTL ÷ 4). The README explains `rejoin`. At least one of
    `observe_every` attempts is observed. If `merge_releases` is True, releases by script that leave
    together become one call.

    >>> Settings(max_ttl_ms=2_000).timeout_ns(ttl_ms=100)
    25000000
    >>> Settings(max_ttl_ms=2_000).check_ttl(5_000)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ttl_ms is 5000, which is above max_ttl_ms (2000); a restarted instance ...
    """

    key_prefix: str = ""
    max_ttl_ms: int = 10_000
    instance_timeout_ms: float | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    drift_factor: float = 0.01
    rejoin: Rejoin = "delay"
    observer: Observer | None = None
    observe_every: int = 1
    connect_timeout_s: float = 1.0
    merge_releases: bool = True
    lag_cap: LagCap = DEFAULT_LAG_CAP

    def __post_init__(self) -> None:
        check_whole("max_ttl_ms", self.max_ttl_ms, 1, A_DAY_MS)
        check_whole("observe_every", self.observe_every, 1, MOST_UNOBSERVED)
        check_number("drift_factor", self.drift_factor, 0.0, 0.5)
        check_number("connect_timeout_s", self.connect_timeout_s, 0.001, 60.0)
        for name, kind, words in (
            ("retry", RetryPolicy, "a RetryPolicy"),
            ("lag_cap", LagCap, "a LagCap"),
            ("key_prefix", str, "text"),
            ("merge_releases", bool, "True or False"),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must be {words}, not {value!r}")
        check_prefix(self.key_prefix)
        if self.observer is not None and not callable(getattr(self.observer, "observe", None)):
            raise TypeError(f"observer must have a method observe(record), not {self.observer!r}")
        if self.rejoin not in ("delay", "trust-first", "trust"):
            raise ValueError(f"rejoin must be delay, trust-first or trust, not {self.rejoin!r}")
        if self.instance_timeout_ms is not None:
            check_number("instance_timeout_ms", self.instance_timeout_ms, 0.1, self.max_ttl_ms / 4)
        self._check_validity("max_ttl_ms", self.max_ttl_ms)

    @property
    def silence_ns(self) -> int:
        """The longest time (ns) that a connection may stay open without any answer.

        The time is 2 s, or twice the larger of `lag_cap.age_ms` and `instance_timeout_ms`,
        whichever is longer.
        """
        patience_ms = max(self.lag_cap.age_ms, self.instance_timeout_ms or 0)
        return max(SILENCE_NS, int(2 * patience_ms * NS_PER_MS))

    def timeout_ns(self, ttl_ms: int) -> int:
        """The time (ns) for which an attempt with `ttl_ms` waits for an instance.

        Raises ValueError when `instance_timeout_ms` is longer than a quarter of the TTL.
        """
        fixed = self.instance_timeout_ms
        if fixed is None:
            return int(min(DEFAULT_TIMEOUT_MS, ttl_ms / 4) * NS_PER_MS)
        if fixed > ttl_ms / 4:
            raise ValueError(
                f"instance_timeout_ms {fixed:g} is above a quarter of the TTL ({ttl_ms} ms), so "
                f"one silent instance would use up the lease; use at most {ttl_ms / 4:g} or a "
                "longer TTL"
            )
        return int(fixed * NS_PER_MS)

    def check_ttl(self, ttl_ms: int) -> None:
        """Check a TTL.

        Raises TypeError unless the TTL is a whole number. Raises ValueError if the TTL is above
        max_ttl_ms. Also raises ValueError if the drift uses up the whole TTL.
        """
        check_whole("ttl_ms", ttl_ms, 1, A_DAY_MS)
        if ttl_ms > self.max_ttl_ms:
            raise ValueError(
                f"ttl_ms is {ttl_ms}, which is above max_ttl_ms ({self.max_ttl_ms}); a "
                "restarted instance abstains only for max_ttl_ms, so raise max_ttl_ms for "
                "every client of the fleet"
            )
        self._check_validity("ttl_ms", ttl_ms)

    def _check_validity(self, name: str, ttl_ms: int) -> None:
        drift_ms = drift_ns(ttl_ms, self.drift_factor) / NS_PER_MS
        if drift_ms >= ttl_ms:
            least = int(2 / (1 - self.drift_factor)) + 1
            raise ValueError(
                f"a lease with {name} {ttl_ms} could never be valid, because clocks may drift "
                f"apart by {drift_ms:g} ms in this time; use at least {least}"
            )
