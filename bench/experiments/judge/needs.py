"""What each row needs of a lock: *a row's name → the needs, the rows that a judgement must have*.
Pure.

Rules: a row may be `not applicable` only if the lock lacks something that the row needs. A test
compares the rows here with the rows that are played.
"""

from collections.abc import Collection, Mapping
from typing import Literal

# hold: a context manager. fork: threads, because an event loop does not survive a fork. interrupt:
# a call that another thread or task can interrupt. clock: a wall clock that can be set. virtual
# time: a lock in Python that the explorer can play. ttl: keys that end, and soon enough to wait.
Need = Literal[
    "several holders",
    "readers",
    "one holder",
    "three servers",
    "keys",
    "ttl",
    "hold",
    "fork",
    "interrupt",
    "clock",
    "virtual time",
]
# The judge does not wait for a lock whose keys live longer than this.
LONGEST_TTL_MS = 30_000
CONTENTION = "contention"
# The rows that only inform. They decide nothing, and no other row may say `told`.
INFORMATIVE = (
    "renewal",
    "sigterm",
    "sigkill",
    "stopped",
    "network",
    "restart",
    "failover",
    "eviction",
    "readonly",
    "out-of-memory",
    "loading",
    "busy",
    "same-caller",
    "several-names",
)
# Each row that decides.
NEEDS: Mapping[str, frozenset[Need]] = {
    CONTENTION: frozenset(),
    "search": frozenset(("keys", "one holder", "ttl", "virtual time")),
    "together": frozenset(("keys", "several holders")),
    "writer-beside-reader": frozenset(("keys", "readers")),
    "reader-beside-writer": frozenset(("keys", "readers")),
    "paused-in-acquire": frozenset(("keys", "one holder", "ttl")),
    "clock-ahead": frozenset(("keys", "one holder", "clock")),
    "body-without-lock": frozenset(("keys", "one holder", "hold")),
    "forked": frozenset(("keys", "one holder", "fork")),
    "release-after-expiry": frozenset(("keys", "ttl")),
    "paused-in-release": frozenset(("keys", "ttl")),
    "paused-holder": frozenset(("keys", "ttl")),
    "script-flush": frozenset(("keys",)),
    "late-set": frozenset(("keys",)),
    "one-stopped": frozenset(("keys", "three servers")),
    "one-killed": frozenset(("keys", "three servers")),
    "majority-down": frozenset(("keys",)),
    "exception-in-body": frozenset(("keys", "hold")),
    "interrupted-acquire": frozenset(("keys", "interrupt", "ttl")),
    "interrupted-release": frozenset(("keys", "interrupt")),
}
# A row may be played without them: a client may wait for ever, and some commands have a clock.
MAY_BE_LACKED = frozenset[Need](("ttl", "clock"))
# These rows ask about a second holder, which is no fault of a semaphore.
_OF_ONE_HOLDER = ("sigterm", "sigkill", "stopped", "network", "restart", "failover", "eviction")


def needs_of(name: str) -> frozenset[Need]:
    """What the row called `name` needs of a lock."""
    return NEEDS.get(name, frozenset(("one holder",)) if name in _OF_ONE_HOLDER else frozenset())


def rows_of(chosen: Collection[str] = (), *, capacity: int, shared: bool) -> list[str]:
    """The rows that the judgement of such a lock must have. `chosen`: the rows that the user named,
    beside contention. None means all rows."""
    of_other_locks = frozenset[Need]()
    if not shared:
        of_other_locks |= {"readers"}
        if capacity == 1:
            of_other_locks |= {"several holders"}
    return [
        name
        for name in (*NEEDS, *INFORMATIVE)
        if (not chosen or name == CONTENTION or name in chosen)
        and not needs_of(name) & of_other_locks
    ]


def lacks_of(
    *,
    instances: int,
    capacity: int,
    shared: bool,
    keys: int,
    ttl_ms: int | None,
    observed: Collection[Need] = (),
) -> frozenset[Need]:
    """What a lock lacks, by its facts and by what was observed when a client connected."""
    facts: Mapping[Need, bool] = {
        "one holder": capacity == 1,
        "three servers": instances >= 3,
        "keys": keys > 0,
        "ttl": ttl_ms is not None and ttl_ms <= LONGEST_TTL_MS,
        # Only a command may run where the judge cannot set the clock.
        "clock": "interrupt" not in observed,
        # The explorer knows a mutex, and no event loop.
        "virtual time": not shared and "fork" not in observed,
    }
    return frozenset([*observed, *(need for need, is_met in facts.items() if not is_met)])
