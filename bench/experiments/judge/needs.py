"""The requirements of each row: *a row's name → its needs, the rows that a judgement must have*.
Pure.

Rules: a row may be `not applicable` only if the lock lacks something that the row needs. A test
compares the rows here with the rows that are played.
"""

from collections.abc import Collection, Mapping
from typing import Literal

# hold: the lock has a context manager. fork: the lock uses threads, because an event loop does not
# survive a fork. interrupt: another thread or task can interrupt a call. clock: the wall clock can
# be set. virtual time: the lock is in Python, and the explorer can play it. ttl: the keys end, and
# soon enough to wait for the end.
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
# The rows that only inform. They decide nothing, and no other row may have the verdict `told`.
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
# A row may be played without these needs, because a client may wait for ever, and because some
# commands have a clock.
MAY_BE_LACKED = frozenset[Need](("ttl", "clock"))
# These rows ask about a second holder. In a semaphore a second holder is not a fault.
_OF_ONE_HOLDER = ("sigterm", "sigkill", "stopped", "network", "restart", "failover", "eviction")


def needs_of(name: str) -> frozenset[Need]:
    """Return the features that a lock needs for the row called `name`."""
    return NEEDS.get(name, frozenset(("one holder",)) if name in _OF_ONE_HOLDER else frozenset())


def rows_of(chosen: Collection[str] = (), *, capacity: int, shared: bool) -> list[str]:
    """Return the rows that the judgement of a lock with this capacity must have. `chosen` holds the
    rows that the user named, in addition to contention. An empty `chosen` means all rows."""
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
    """Return the needs that a lock does not meet. They follow from the facts about the lock, and
    from observations when a client connected."""
    facts: Mapping[Need, bool] = {
        "one holder": capacity == 1,
        "three servers": instances >= 3,
        "keys": keys > 0,
        "ttl": ttl_ms is not None and ttl_ms <= LONGEST_TTL_MS,
        # The clock may be out of the judge's reach only if the lock is a command.
        "clock": "interrupt" not in observed,
        # The explorer can only play a mutex without an event loop.
        "virtual time": not shared and "fork" not in observed,
    }
    return frozenset([*observed, *(need for need, is_met in facts.items() if not is_met)])
