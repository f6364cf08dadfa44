"""Decides which instances may vote.

Input: handshakes, lost connections, lag and time. Output: the state of each instance.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. `VOTING` is
`Final`, because compiled code reads a constant faster than a member of an enum.

Rules: the client implements the *delayed restart* of the Redlock text. An instance that may have
forgotten locks abstains until all these locks have expired. The abstention begins when the client
notices that locks may be lost. The abstention lasts max_ttl + drift. If the handshake shows a new
identity of the server, locks may be lost. On an open connection, engine/amnesia.py notices lost
locks. A table in the README shows the length of the abstention for each policy (`rejoin`). An
abstaining instance gets no SETs, but it gets other commands. An instance over its lag cap gets no
SETs until it has caught up. If an instance is down, the client connects to it again after a pause
that grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, drift_ns

Rejoin = Literal["delay", "trust-first", "trust"]
FIRST_BACKOFF_NS = 50 * NS_PER_MS
LONGEST_BACKOFF_NS = 2 * NS_PER_S
ASK_EVERY_NS = NS_PER_S

# The value for a server that does not count swaps in its INFO, or whose statistics of commands are
# too long to read again and again.
NOT_COUNTED: Final = -1

# Longer statistics are not read. A reply of twice as many bytes would end the connection.
LONGEST_STATISTICS: Final = 1 << 15  # bytes

# Two start times within this time may mean the same start, because uptime has whole seconds.
SAME_START_S = 1.0

SWAPPED = "databases were swapped"
MUST_EXPIRE = "locks that the instance may have forgotten must expire first"


class State(Enum):
    """The present state of an instance."""

    VOTING = "voting"
    ABSTAINING = "abstaining"
    LAGGING = "lagging"
    DOWN = "down"
    REFUSED = "refused"


VOTING: Final = State.VOTING
_UNCONNECTED: Final = (State.DOWN, State.REFUSED)


class IdentityKind(Enum):
    """The kinds of evidence that two contacts reached the same run of a server.

    The kinds are sorted. The first kind is the best evidence.
    """

    RUN_ID = "run_id"
    REPLICATION_ID = "master_replid"
    PROCESS = "process_id and start time"


NO_IDENTITY = (
    "the server reports neither run_id nor master_replid nor process_id with uptime_in_seconds, "
    "so lockcore could not notice a restart"
)
MEANINGS = {
    IdentityKind.RUN_ID: "every restart is noticed",
    IdentityKind.REPLICATION_ID: "the server reports no run_id, so a new master_replid counts as "
    "a restart; the first replica also changes master_replid, and "
    "then the instance waits max_ttl before it votes again",
    IdentityKind.PROCESS: "without run_id and master_replid, a new process_id or start time counts "
    "as a restart; lockcore cannot notice a restart with the same process_id within a second after "
    "the last start; it also cannot notice that a server is named twice",
}


@dataclass(frozen=True, slots=True)
class Hello:
    """The facts about an instance from its handshake.

    `uptime_s` ≥ 0 is the age (s) of the server's process. `server` is a text such as `valkey
    9.1.2`. `run_id` identifies the run of the server, and `identity` names the INFO fields from
    which `run_id` comes. `replid` is the replication id, or "" if there is none. `started_s` is the
    time (s) at which the server started, on the clock of the server or of this client. lockcore
    compares `started_s` only if `identity` is PROCESS. `was_replica` is True if the server was a
    replica at any time since its start. `tells` is True if the server reports a flush on the
    connection. If `tells` is False, the client asks the server every second. `hears` is True if the
    connection brings messages of other processes (handoff.py). `swaps` is the number of database
    swaps since the start of the server, or since a reset of its statistics. `swaps` is NOT_COUNTED
    if the server does not count swaps.
    """

    run_id: str
    uptime_s: int
    server: str
    client_id: int
    replid: str = ""
    identity: IdentityKind = IdentityKind.RUN_ID
    started_s: float = 0.0
    was_replica: bool = False
    tells: bool = True
    hears: bool = False
    swaps: int = NOT_COUNTED

    def is_run_of(self, earlier: Hello) -> bool:
        """True if `earlier` is from the same run of the server.

        If the server was a replica between the two hellos, the result is False.
        """
        own = (self.run_id, self.replid, self.identity)
        same = own == (earlier.run_id, earlier.replid, earlier.identity)
        return same and abs(self.started_s - earlier.started_s) <= SAME_START_S

    def has_swapped_since(self, earlier: Hello) -> bool:
        """True when this server has swapped databases since the `earlier` hello.

        A reset of the statistics (CONFIG RESETSTAT) sets the count to 0. After a reset, a count
        above 0 means that the server has swapped since the reset.
        """
        return earlier.swaps != NOT_COUNTED and 0 < self.swaps != earlier.swaps


def fields_of(info: bytes | str) -> dict[str, str]:
    """The fields of an INFO reply."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else info
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def swaps_of(info: bytes | str) -> int:
    """The number of database swaps of a server, from its INFO commandstats.

    The result is NOT_COUNTED if the server does not count swaps. The result does not include failed
    calls, because a failed call swaps nothing. A server lists a command only after the command's
    first call.
    """
    if len(info) > LONGEST_STATISTICS:
        return NOT_COUNTED
    fields = fields_of(info)
    if not any(name.startswith("cmdstat_") for name in fields):
        return NOT_COUNTED
    parts = fields.get("cmdstat_swapdb", "calls=0").split(",")
    counts = dict(part.partition("=")[::2] for part in parts)
    return int(counts.get("calls", "0")) - int(counts.get("failed_calls", "0"))


def identity_of(fields: Mapping[str, str], now_s: float) -> tuple[IdentityKind, str, float] | None:
    """The identity of a server from its INFO, as (kind, value, start in s).

    The result is None if INFO has no identity. `now_s` may be a reading of any clock.
    """
    for kind in (IdentityKind.RUN_ID, IdentityKind.REPLICATION_ID):
        if value := fields.get(kind.value):
            return kind, value, 0.0
    if not fields.get("process_id") or "uptime_in_seconds" not in fields:
        return None
    its_now_s = int(fields.get("server_time_usec", "0")) / 1e6 or now_s
    started_s = its_now_s - int(fields["uptime_in_seconds"])
    return IdentityKind.PROCESS, f"process {fields['process_id']}", started_s


def forgotten_ns(rejoin: Rejoin, max_ttl_ms: int, drift_factor: float) -> int:
    """The duration (ns) for which an instance abstains after it may have forgotten locks."""
    return 0 if rejoin == "trust" else max_ttl_ms * NS_PER_MS + drift_ns(max_ttl_ms, drift_factor)


def abstention_ns(
    hello: Hello, earlier: Hello | None, rejoin: Rejoin, max_ttl_ms: int, drift_factor: float
) -> int:
    """The duration (ns) for which a newly connected instance abstains.

    The result is 0 if the instance may vote at once.

    `earlier` is the instance's hello on its previous connection.
    """
    whole = forgotten_ns(rejoin, max_ttl_ms, drift_factor)
    if earlier is not None:
        return 0 if hello.is_run_of(earlier) and not hello.has_swapped_since(earlier) else whole
    if rejoin != "delay":
        return 0
    return whole if hello.was_replica else max(0, whole - max(0, hello.uptime_s - 1) * NS_PER_S)


class Membership:
    """The state of one instance, and the times of its next changes.

    `until_ns` ends an abstention. At `retry_ns` the client connects to a lost instance again. If a
    connected instance sends no push messages, the client asks this instance for its replication id
    at `ask_ns`.
    """

    __slots__ = (
        "ask_ns",
        "backoff_ns",
        "connecting",
        "hello",
        "reason",
        "retry_ns",
        "state",
        "until_ns",
    )

    def __init__(self) -> None:
        self.state = State.DOWN
        self.reason = "not connected yet"
        self.hello: Hello | None = None
        self.until_ns = 0
        self.retry_ns = 0
        self.ask_ns = FAR_FUTURE_NS
        self.backoff_ns = FIRST_BACKOFF_NS
        self.connecting = False

    def joined(self, hello: Hello, abstention: int, now_ns: int) -> None:
        """Note that the instance is connected.

        The instance abstains for `abstention` ns. If the instance already abstains until a later
        time, this later time stays.
        """
        earlier = self.hello
        self.hello = hello
        self.ask_ns = FAR_FUTURE_NS if hello.tells else now_ns + ASK_EVERY_NS
        self.connecting = False
        self.backoff_ns = FIRST_BACKOFF_NS
        still_abstaining = max(self.until_ns, now_ns + abstention) if abstention else self.until_ns
        self.until_ns = still_abstaining
        self.state = State.ABSTAINING if still_abstaining > now_ns else State.VOTING
        if earlier is None:
            why = "was a replica" if hello.was_replica else "not up for max_ttl yet"
        elif hello.is_run_of(earlier):
            why = SWAPPED
        else:
            same_run = hello.run_id == earlier.run_id != hello.replid
            why = "was a replica" if same_run else "restarted"
        self.reason = f"{why}: {MUST_EXPIRE}" if still_abstaining > now_ns else ""

    def lost(self, reason: str, now_ns: int, *, refused: bool = False) -> None:
        """Note that a connection failed or ended, or that the instance must not take part.

        The client connects again after a pause. The pause begins at 50 ms and doubles up to 2 s.
        """
        self.state = State.REFUSED if refused else State.DOWN
        self.reason = reason
        self.connecting = False
        self.retry_ns = now_ns + self.backoff_ns
        self.ask_ns = FAR_FUTURE_NS
        self.backoff_ns = min(2 * self.backoff_ns, LONGEST_BACKOFF_NS)

    def forgot(self, why: str, abstention: int, now_ns: int) -> None:
        """Note that the instance may have forgotten locks while it was connected."""
        until_ns = max(self.until_ns, now_ns + abstention)
        self.state = State.ABSTAINING
        self.until_ns = until_ns
        self.reason = f"{why}: {MUST_EXPIRE}"

    @property
    def is_connected(self) -> bool:
        """True while the instance has a connection."""
        return self.state not in _UNCONNECTED

    def lagged(self, reason: str) -> None:
        """Note that the instance is over the lag cap.

        The instance votes ABSENT until it has answered all commands.
        """
        if self.state is State.VOTING:
            self.state = State.LAGGING
            self.reason = reason

    def caught_up(self) -> None:
        """Let a lagging instance vote again, because it has answered all commands."""
        if self.state is State.LAGGING:
            self.state = State.VOTING
            self.reason = ""

    def abstained(self, now_ns: int) -> bool:
        """If the abstention has just ended, let the instance vote again and return True. In all
        other cases return False."""
        if self.state is not State.ABSTAINING or now_ns < self.until_ns:
            return False
        self.state = State.VOTING
        self.reason = ""
        return True

    def is_taken_up(self, now_ns: int) -> bool:
        """Return True if the client should connect again now.

        After this result, `connecting` is True until the connection succeeds or fails. Meanwhile
        this method returns False.
        """
        if self.retry_ns > now_ns or self.connecting or self.is_connected:
            return False
        self.connecting = True
        return True

    @property
    def next_ns(self) -> int:
        """The time (ns) at which the client next checks the instance, connects to it or asks it a
        question. FAR_FUTURE_NS means never."""
        state = self.state
        if state is VOTING:
            return self.ask_ns
        if state is State.ABSTAINING:
            return min(self.until_ns, self.ask_ns)
        return self.ask_ns if self.connecting or self.is_connected else self.retry_ns


def twin_of(members: Sequence[Membership], index: int, hello: Hello) -> int | None:
    """Look for another connected instance that is the same server, and return its index or None.

    One server must not vote twice.
    """
    # Processes of two machines may have the same number, so a process number proves nothing.
    if hello.identity is IdentityKind.PROCESS:
        return None
    for other, member in enumerate(members):
        if other == index or not member.is_connected or not member.hello:
            continue
        if member.hello.run_id == hello.run_id:
            return other
    return None
