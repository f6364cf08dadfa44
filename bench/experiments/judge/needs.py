"""Defines the features that each row needs, and the rows that a judgement must have. The functions
are pure.

A row may get the verdict `not applicable` only if the lock lacks a feature that the row needs. A
test compares the rows in this file with the rows that the judge plays.
"""

from collections.abc import Collection, Mapping
from typing import Literal

# The needs that only an observation can show to be lacking. hold: the lock has a context manager.
# fork: the lock uses threads, because an event loop does not survive a fork. interrupt: another
# thread or task can interrupt a call. virtual time: the lock is in Python, and the explorer can
# play it. debug: the servers have the command DEBUG.
Observed = Literal["hold", "fork", "interrupt", "virtual time", "debug"]
# All needs. clock: the wall clock can be set. ttl: the keys end, and soon enough to wait for the
# end.
Need = (
    Observed
    | Literal["several holders", "readers", "one holder", "three servers", "keys", "ttl", "clock"]
)
# The judge does not wait for a lock whose keys live longer than this.
LONGEST_TTL_MS = 30_000
CONTENTION = "contention"
_TAKEOVER = frozenset[Need](("keys", "one holder", "ttl"))
# The rows that only inform. They decide nothing, and no other row may have the verdict `told`.
INFORMATIVE: Mapping[str, frozenset[Need]] = {
    "renewal": frozenset(("keys", "ttl")),
    "sigterm": _TAKEOVER,
    "sigkill": _TAKEOVER,
    "stopped": _TAKEOVER,
    "network": _TAKEOVER,
    "restart": frozenset(("keys", "one holder")),
    "failover": frozenset(("keys", "one holder")),
    "eviction": frozenset(("keys", "one holder")),
    "readonly": frozenset(("keys",)),
    "out-of-memory": frozenset(("keys",)),
    "loading": frozenset(("keys", "debug")),
    "busy": frozenset(("keys",)),
    "same-caller": frozenset(("keys",)),
    "several-names": frozenset(("keys",)),
}
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
# A fault in one of these rows means that two clients had the lock, or could have had it.
SAFETY = frozenset(
    (
        CONTENTION,
        "search",
        "writer-beside-reader",
        "reader-beside-writer",
        "paused-in-acquire",
        "clock-ahead",
        "body-without-lock",
        "forked",
        "release-after-expiry",
        "paused-in-release",
        "failover",
    )
)


def needs_of(name: str) -> frozenset[Need]:
    """Return the features that a lock needs for the row called `name`."""
    return NEEDS.get(name) or INFORMATIVE.get(name, frozenset())


def optional_of(name: str) -> frozenset[Need]:
    """Return the optional needs of the row called `name`. The judge may play the row even if the
    lock does not meet these needs. For example, a lock without a TTL may be released when its
    holder ends. If the lock is a user's command, the judge may still be able to set the clock of
    the command.
    """
    if name == "clock-ahead":
        return frozenset(("clock",))
    return frozenset(("ttl",)) if INFORMATIVE.get(name) == _TAKEOVER else frozenset()


def rows_of(chosen: Collection[str] = (), *, capacity: int, shared: bool) -> list[str]:
    """Return the names of the rows that the judgement of such a lock must have. `chosen` holds the
    rows that the user requested in addition to contention. If `chosen` is empty, all rows are
    required. If `chosen` contains an unknown name, the result contains this name, too. The
    judgement then lacks a required row.
    """
    of_other_locks = frozenset[Need]()
    if not shared:
        of_other_locks |= {"readers"}
        if capacity == 1:
            of_other_locks |= {"several holders"}
    return [
        name
        for name in dict.fromkeys((*NEEDS, *INFORMATIVE, *chosen))
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
    observed: Collection[Observed] = (),
) -> frozenset[Need]:
    """Return the needs that a lock does not meet. `observed` holds the needs that the lock did not
    meet when the judge used the lock. The other arguments describe the lock. The function uses
    these arguments to find further needs that the lock does not meet.
    """
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
