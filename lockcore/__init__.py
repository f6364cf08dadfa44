"""Redis distributed locks (Redlock), pipelined and multiplexed over N independent instances.

    with Redlock.connect(["redis://a", "redis://b", "redis://c"]) as lock:
        with lock.hold("stock:42", ttl_ms=10_000, wait_ms=500) as lease:
            ...

`AsyncRedlock` is the same for asyncio. Errors are in `lockcore.errors`, telemetry is in
`lockcore.otel`.
"""

from lockcore.facts.model import (
    AttemptRecord,
    Denied,
    InstanceStatus,
    Lease,
    Outcome,
    Tally,
    Vote,
)
from lockcore.observer import Observer
from lockcore.redlock import AsyncRedlock, Redlock
from lockcore.settings import LagCap, RetryPolicy, Settings
from lockcore.shells.common.keeper import KeepAlive

__all__ = [
    "AsyncRedlock",
    "AttemptRecord",
    "Denied",
    "InstanceStatus",
    "KeepAlive",
    "LagCap",
    "Lease",
    "Observer",
    "Outcome",
    "Redlock",
    "RetryPolicy",
    "Settings",
    "Tally",
    "Vote",
]
