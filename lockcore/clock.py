"""The one clock of the lock: *nothing → nanoseconds of CLOCK_MONOTONIC*.

Rules: lockcore never judges validity by a wall clock, because a wall clock jumps. On Linux all
processes of a host share one CLOCK_MONOTONIC. So readings of several workers can be compared, but
readings of two hosts cannot. The clock stands still while the host is suspended.
docs/lockcore/protocol.md, "Which clock", explains why lockcore uses this clock nevertheless.
"""

from time import monotonic_ns
from typing import Final

__all__ = ["FAR_FUTURE_NS", "NS_PER_MS", "NS_PER_S", "drift_ns", "monotonic_ns"]

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

# The time that means "never".
FAR_FUTURE_NS: Final = 1 << 62


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """The largest difference between clocks over one TTL, in ns: `ttl × drift_factor + 2 ms`.

    `ttl_ms` is > 0. `drift_factor` is in [0, 1). The 2 ms cover the granularity of Redis's own
    expiry, which is 1 ms, and the rounding of PX. Source: CLOCK_DRIFT in the Redlock text.

    >>> drift_ns(10_000, 0.01) / NS_PER_MS
    102.0
    """
    return int(ttl_ms * drift_factor * NS_PER_MS) + 2 * NS_PER_MS
