"""This module contains the only clock that the lock uses. The clock returns nanoseconds of
CLOCK_MONOTONIC.

Rules: lockcore never judges validity by a wall clock, because a wall clock jumps. On Linux all
processes of a host share one CLOCK_MONOTONIC. So readings of workers on the same host can be
compared. Readings of different hosts cannot be compared. CLOCK_MONOTONIC does not advance while the
host is suspended. The section "Which clock" of docs/lockcore/protocol.md explains why lockcore
still uses this clock.
"""

from time import monotonic_ns
from typing import Final

__all__ = ["FAR_FUTURE_NS", "NS_PER_MS", "NS_PER_S", "drift_ns", "monotonic_ns"]

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

# The time that means "never".
FAR_FUTURE_NS: Final = 1 << 62


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """Return the largest drift between two clocks during one TTL (ns), which is `ttl × drift_factor
    + 2 ms`.

    `ttl_ms` is > 0. `drift_factor` is in [0, 1). There are two reasons for the 2 ms. Redis expires
    keys with a granularity of 1 ms, and the value of PX is rounded. The source is CLOCK_DRIFT in
    the description of Redlock.

    >>> drift_ns(10_000, 0.01) / NS_PER_MS
    102.0
    """
    return int(ttl_ms * drift_factor * NS_PER_MS) + 2 * NS_PER_MS
