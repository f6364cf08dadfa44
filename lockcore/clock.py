"""The one clock of the lock: *nothing → nanoseconds of CLOCK_MONOTONIC*.

Rules: validity is never judged by a wall clock, which jumps. On Linux CLOCK_MONOTONIC is one clock
for every process of a host, so readings of several workers may be compared; readings of two hosts
may not. It stands still while the host is suspended. docs/lockcore/protocol.md, "Which clock",
says why it is this one nevertheless.
"""

from time import monotonic_ns
from typing import Final

__all__ = ["FAR_FUTURE_NS", "NS_PER_MS", "NS_PER_S", "drift_ns", "monotonic_ns"]

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

# The time that stands for never.
FAR_FUTURE_NS: Final = 1 << 62


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """What clocks may differ by over one TTL, in ns: `ttl × drift_factor + 2 ms`.

    `ttl_ms` > 0; `drift_factor` in [0, 1). Source: the Redlock text's CLOCK_DRIFT; the 2 ms cover
    Redis's own expiry granularity of 1 ms and the rounding of PX.

    >>> drift_ns(10_000, 0.01) / NS_PER_MS
    102.0
    """
    return int(ttl_ms * drift_factor * NS_PER_MS) + 2 * NS_PER_MS
