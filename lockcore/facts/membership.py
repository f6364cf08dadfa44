"""Which instances may vote: *hello, loss, lag, time → the state of a member*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: `VOTING` is
`Final`, as machine code reads a constant faster than a member of an enum.

Rules (the Redlock text's *delayed restart*, done by the client): an instance that may have
forgotten locks abstains until all of them have expired. That is max_ttl + drift from the moment
when it is noticed: by another identity in the handshake, or on a connection that stays
(engine/amnesia.py). The README's table says how long each policy (`rejoin`) has an instance
abstain. Abstaining stops SETs only. An instance over its lag cap is left alone until it has caught
up. An instance that is down is tried again with back-off.
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

# A server whose INFO has no statistics of commands, or so many that it would cost too much to read
# them again and again.
NOT_COUNTED: Final = -1

# Longer statistics are not read. A reply of twice as many bytes would end the connection.
LONGEST_STATISTICS: Final = 1 << 15  # bytes

# Two starts within this time may be the same one, as uptime comes in whole seconds.
SAME_START_S = 1.0

SWAPPED = "databases were swapped"
MUST_EXPIRE = "locks it may have forgotten must expire first"


class State(Enum):
    """What an instance may do now."""

    VOTING = "voting"
    ABSTAINING = "abstaining"
    LAGGING = "lagging"
    DOWN = "down"
    REFUSED = "refused"


VOTING: Final = State.VOTING
_UNCONNECTED: Final = (State.DOWN, State.REFUSED)


class IdentityKind(Enum):
    """How two contacts are recognised as contacts with one run of one server; the best first."""

    RUN_ID = "run_id"
    REPLICATION_ID = "master_replid"
    PROCESS = "process_id and start time"


NO_IDENTITY = (
    "neither run_id nor master_replid nor process_id with uptime_in_seconds, so a restart could "
    "not be noticed"
)
MEANINGS = {
    IdentityKind.RUN_ID: "every restart is noticed",
    IdentityKind.REPLICATION_ID: "no run_id: a restart is noticed by the new master_replid; "
    "a first replica changes it, too, and costs max_ttl without its vote",
    IdentityKind.PROCESS: "neither run_id nor master_replid: a restart is noticed by another "
    "process_id or start time, not one within a second with the same number; the same server "
    "given twice is not noticed",
}


@dataclass(frozen=True, slots=True)
class Hello:
    """What an instance said of itself when it was connected.

    `uptime_s` ≥ 0 is in s, `server` is a text such as `valkey 9.1.2`. `run_id` is what identifies
    it, of the kind `identity`. `replid` is its replication id, "" where it has none. `started_s` is
    when it started on some clock, in s; it is compared only where the identity is the process.
    `was_replica`: it was a replica since it started. `tells`: it says on the connection when its
    memory is emptied; otherwise it is asked every second. `hears`: messages of other processes come
    on the connection (handoff.py). `swaps` is how often it has swapped databases since it started,
    or since its statistics were reset; NOT_COUNTED where it does not count.
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
        """True when this is the server of `earlier`, neither restarted nor a replica since."""
        own = (self.run_id, self.replid, self.identity)
        same = own == (earlier.run_id, earlier.replid, earlier.identity)
        return same and abs(self.started_s - earlier.started_s) <= SAME_START_S

    def has_swapped_since(self, earlier: Hello) -> bool:
        """True when this server has swapped databases since the `earlier` hello.

        The count falls to 0 when somebody resets the statistics (CONFIG RESETSTAT). So a smaller
        count above 0 is a swap, too.
        """
        return earlier.swaps != NOT_COUNTED and 0 < self.swaps != earlier.swaps


def fields_of(info: bytes | str) -> dict[str, str]:
    """The fields of an INFO reply."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else info
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def swaps_of(info: bytes | str) -> int:
    """How often the server has swapped databases, from its INFO commandstats.

    It is NOT_COUNTED where the server counts nothing. A call that failed swapped nothing. A server
    lists a command only after the first call.
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
    """What identifies a server, from its INFO: kind, value, start (s); None if nothing does.

    `now_s` may be a reading of any clock.
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
    """How long (ns) an instance must not vote that may just have forgotten locks."""
    return 0 if rejoin == "trust" else max_ttl_ms * NS_PER_MS + drift_ns(max_ttl_ms, drift_factor)


def abstention_ns(
    hello: Hello, earlier: Hello | None, rejoin: Rejoin, max_ttl_ms: int, drift_factor: float
) -> int:
    """How long, in ns from now, an instance that has just connected must not vote; 0: not at all.

    `earlier` is its hello of the connection before.
    """
    whole = forgotten_ns(rejoin, max_ttl_ms, drift_factor)
    if earlier is not None:
        return 0 if hello.is_run_of(earlier) and not hello.has_swapped_since(earlier) else whole
    if rejoin != "delay":
        return 0
    return whole if hello.was_replica else max(0, whole - max(0, hello.uptime_s - 1) * NS_PER_S)


class Membership:
    """The standing of one instance.

    `until_ns` ends an abstention. `retry_ns` is when an instance that was lost is tried again.
    `ask_ns` is when an instance that is connected, and does not tell, is asked whether it is still
    the same.
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
        """The instance is connected. It votes at once, or after `abstention` ns."""
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
        """The instance is not connected (any more), or must not take part.

        It is tried again after a back-off that doubles to 2 s.
        """
        self.state = State.REFUSED if refused else State.DOWN
        self.reason = reason
        self.connecting = False
        self.retry_ns = now_ns + self.backoff_ns
        self.ask_ns = FAR_FUTURE_NS
        self.backoff_ns = min(2 * self.backoff_ns, LONGEST_BACKOFF_NS)

    def forgot(self, why: str, abstention: int, now_ns: int) -> None:
        """The instance may have forgotten locks while it was connected."""
        until_ns = max(self.until_ns, now_ns + abstention)
        self.state = State.ABSTAINING
        self.until_ns = until_ns
        self.reason = f"{why}: {MUST_EXPIRE}"

    @property
    def is_connected(self) -> bool:
        """True while it has a connection."""
        return self.state not in _UNCONNECTED

    def lagged(self, reason: str) -> None:
        """The instance is over the lag cap: its votes are ABSENT until it has caught up."""
        if self.state is State.VOTING:
            self.state = State.LAGGING
            self.reason = reason

    def caught_up(self) -> None:
        """Everything that was sent has been answered."""
        if self.state is State.LAGGING:
            self.state = State.VOTING
            self.reason = ""

    def abstained(self, now_ns: int) -> bool:
        """True when its abstention has just ended and it votes again."""
        if self.state is not State.ABSTAINING or now_ns < self.until_ns:
            return False
        self.state = State.VOTING
        self.reason = ""
        return True

    def is_taken_up(self, now_ns: int) -> bool:
        """True once when it is time to try the instance again. From then on it is connecting."""
        if self.retry_ns > now_ns or self.connecting or self.is_connected:
            return False
        self.connecting = True
        return True

    @property
    def next_ns(self) -> int:
        """When it is to be looked at, tried again or asked (ns), or FAR_FUTURE_NS."""
        state = self.state
        if state is VOTING:
            return self.ask_ns
        if state is State.ABSTAINING:
            return min(self.until_ns, self.ask_ns)
        return self.ask_ns if self.connecting or self.is_connected else self.retry_ns


def twin_of(members: Sequence[Membership], index: int, hello: Hello) -> int | None:
    """The other connected instance that is the very server of `hello`, if there is one.

    One server must not vote twice.
    """
    # The processes of two machines may have the same number, so this identity says nothing.
    if hello.identity is IdentityKind.PROCESS:
        return None
    for other, member in enumerate(members):
        if other == index or not member.is_connected or not member.hello:
            continue
        if member.hello.run_id == hello.run_id:
            return other
    return None
