"""Redis distributed locks (Redlock), pipelined and multiplexed over N independent instances.

    with Redlock.connect(["redis://a", "redis://b", "redis://c"]) as lock:
        with lock.hold("stock:42", ttl_ms=10_000, wait_ms=500) as lease:
            ...

`AsyncRedlock` has the same methods for asyncio. The module `lockcore.errors` contains the errors,
and `lockcore.otel` contains the telemetry.
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
