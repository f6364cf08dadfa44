"""Was the load what it claims to be: *the generator's own health → VALID | INVALID and why*.

Rules
- Open loop: INVALID when less than 0.99 of the schedule was started, or when the p99 of the timer's lateness is more
  than 10 % of the acquire p99 shown.
- Closed loop with at least 8 users: INVALID when Little's ratio is outside 0.95…1.05.
- A load process at 0.9 of a core or more is a warning: the rate is a lower bound.
- Little's ratio = time-average of callers in an operation (intended start … released or failed) or thinking ÷ users.

Source: Little's law L = λ·W for a closed system, where L must be the number of users.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure.facts import Facts, Window
from bench.measure.record import Records

STARTED_SHARE = 0.99
LATENESS_SHARE = 0.10
LITTLE_USERS = 8
LITTLE_TOLERANCE = 0.05
BUSY_CORE = 0.9
GENERATOR_BOUND = "generator-bound: the rate is a lower bound"

Section = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Health:
    """What the verdict is made from. Counts are of the whole run; None = not known or not applicable."""

    cpu_ratio: float | None
    scheduler_lag_p99_s: float | None
    timer_lateness_p99_s: float | None
    late_starts: int
    queued_starts: int
    scheduled_starts: int
    started: int
    littles_law_ratio: float | None
    acquire_p99_s: float | None


def ends_ns(records: Records) -> NDArray[np.int64]:
    """When each operation was over: its release returned, or its acquire if it released nothing."""
    return np.asarray(np.maximum(records["ended_ns"], records["release_replied_ns"]))


def busy_ns(records: Records, window: Window) -> int:
    """Time in ns that operations took of the window, summed: each from its intended start to its end, clipped."""
    clipped = np.minimum(ends_ns(records), window.stop_ns) - np.maximum(records["intended_ns"], window.start_ns)
    return int(np.maximum(clipped, 0).sum())


def littles_law_ratio(busy: int, ended_in_window: int, facts: Facts, window: Window) -> float | None:
    """Callers in an operation or thinking ÷ users, over the window; None in open loop.

    `busy` is `busy_ns` of all operations; each that ended in the window is followed by a mean think time.
    """
    span = window.stop_ns - window.start_ns
    if facts.rate_per_s is not None or span <= 0 or not facts.users:
        return None
    return (busy + ended_in_window * facts.think_mean_ns) / span / facts.users


def judge_generator(health: Health, facts: Facts) -> Section:
    """The section `generator`, with its verdict and the sentence that explains an INVALID (else None)."""
    reason = _open_loop_fault(health) if facts.rate_per_s is not None else _closed_loop_fault(health, facts)
    return {
        "cpu_ratio": health.cpu_ratio,
        "scheduler_lag_p99_s": health.scheduler_lag_p99_s,
        "timer_lateness_p99_s": health.timer_lateness_p99_s,
        "late_starts": health.late_starts,
        "queued_starts": health.queued_starts,
        "littles_law_ratio": health.littles_law_ratio,
        "verdict": "INVALID" if reason else "VALID",
        "reason": reason,
    }


def _open_loop_fault(health: Health) -> str | None:
    if not health.scheduled_starts:
        return "nothing of the schedule was due: no operation was offered"
    share = health.started / health.scheduled_starts
    if share < STARTED_SHARE:
        return (
            f"only {share:.1%} of the {health.scheduled_starts} operations due were started (99 % are needed): "
            "lower --rate, or raise --users if callers were missing"
        )
    lag, p99 = health.timer_lateness_p99_s, health.acquire_p99_s
    if lag is not None and p99 is not None and lag > LATENESS_SHARE * p99:
        return (
            f"the timer was late by {lag * 1e3:.3g} ms (p99), more than 10 % of the acquire p99 "
            f"of {p99 * 1e3:.3g} ms that it would be part of"
        )
    return None


def _closed_loop_fault(health: Health, facts: Facts) -> str | None:
    ratio = health.littles_law_ratio
    if facts.users < LITTLE_USERS or ratio is None or abs(ratio - 1) <= LITTLE_TOLERANCE:
        return None
    return f"Little's ratio is {ratio:.3f}: on average {ratio * facts.users:.1f} of {facts.users} callers were at work"
