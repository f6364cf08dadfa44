"""Which instances may vote: *hello, loss, lag, time → a member's state*. Pure.

Rules (the Redlock text's *delayed restart*, done by the client): an instance that may have
forgotten locks abstains until all of them have expired: for max_ttl + drift from the moment it is
noticed, by another identity in the handshake, by -READONLY, and by what the server tells or is
asked on a connection that stays. No server tells of SWAPDB: its counter is read ahead of SETs, ten
times a second at most. The README's table has how long by `rejoin`. Abstaining stops SETs only. An
instance over its lag cap is left alone until it has caught up. One that is down is tried again with
back-off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from lockcore.awaited import Asked, Core, InstancePipe
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, drift_ns
from lockcore.resp import request

Rejoin = Literal["delay", "trust-first", "trust"]
FIRST_BACKOFF_NS = 50 * NS_PER_MS
LONGEST_BACKOFF_NS = 2 * NS_PER_S
ASK_EVERY_NS = NS_PER_S
# A reading takes a server about 10 µs. So 1,000 busy clients take 4 % of its core, where 100 ms
# would take 10 %.
SWAPS_EVERY_NS: Final = NS_PER_S // 4
NOT_COUNTED: Final = (
    -1
)  # a server whose INFO has no statistics of commands, or too many to read them on and on
LONGEST_STATISTICS: Final = 1 << 15  # bytes; a reply of twice as many ends a connection
SAME_START_S = 1.0  # uptime comes in whole seconds
SWAPPED = "databases were swapped"
SWAPS = request(b"INFO", b"commandstats")
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
    """By what two contacts with a server are told to be with one run of one server, the best first."""

    RUN_ID = "run_id"
    REPLICATION_ID = "master_replid"
    PROCESS = "process_id and start time"


NO_IDENTITY = "neither run_id nor master_replid nor process_id with uptime_in_seconds, so a restart could not be noticed"
MEANINGS = {
    IdentityKind.RUN_ID: "every restart is noticed",
    IdentityKind.REPLICATION_ID: "no run_id: a restart is noticed by the new master_replid; a first replica changes "
    "it, too, and costs max_ttl without its vote",
    IdentityKind.PROCESS: "neither run_id nor master_replid: a restart is noticed by another process_id or start time, "
    "not one within a second with the same number; the same server given twice is not noticed",
}


@dataclass(frozen=True, slots=True)
class Hello:
    """What an instance said of itself when it was connected: `uptime_s` ≥ 0 in s, `server` such as
    `valkey 9.1.2`.

    `run_id`: by what it is told apart, of the kind `identity`. `replid`: its replication id, ""
    where it has none. `started_s`: when it started on some clock, in s; compared only where the
    identity is the process. `was_replica`: since it started. `tells`: it says on the connection
    when its memory is emptied; else it is asked every second. `hears`: words of other processes
    come on it (handoff.py). `swaps`: how often it has swapped databases since it started, or since
    its statistics were reset; NOT_COUNTED where it does not count.
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

    def is_run_of(self, known: Hello) -> bool:
        """True when this is the server of `known`, neither restarted nor a replica since."""
        same = (self.run_id, self.replid, self.identity) == (
            known.run_id,
            known.replid,
            known.identity,
        )
        return same and abs(self.started_s - known.started_s) <= SAME_START_S

    def has_swapped_since(self, known: Hello) -> bool:
        """True when this server has swapped databases since it was `known`.

        The count falls to 0 when somebody resets the statistics (CONFIG RESETSTAT). So a smaller
        count above 0 is a swap, too.
        """
        return known.swaps != NOT_COUNTED and 0 < self.swaps != known.swaps


def fields_of(info: bytes | str) -> dict[str, str]:
    """The fields of an INFO reply."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else info
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def swaps_of(info: bytes | str) -> int:
    """How often the server has swapped databases, from its INFO commandstats; NOT_COUNTED where it
    counts nothing.

    A call that failed swapped nothing. A server lists a command only after the first call.
    """
    if len(info) > LONGEST_STATISTICS:
        return NOT_COUNTED
    fields = fields_of(info)
    if not any(name.startswith("cmdstat_") for name in fields):
        return NOT_COUNTED
    counts = dict(
        part.partition("=")[::2] for part in fields.get("cmdstat_swapdb", "calls=0").split(",")
    )
    return int(counts.get("calls", "0")) - int(counts.get("failed_calls", "0"))


def identity_of(fields: Mapping[str, str], now_s: float) -> tuple[IdentityKind, str, float] | None:
    """By what to tell a server apart, from its INFO: kind, value, start (s); None if by nothing.
    `now_s`: any clock."""
    for kind in (IdentityKind.RUN_ID, IdentityKind.REPLICATION_ID):
        if value := fields.get(kind.value):
            return kind, value, 0.0
    if not fields.get("process_id") or "uptime_in_seconds" not in fields:
        return None
    its_now_s = int(fields.get("server_time_usec", "0")) / 1e6 or now_s
    return (
        IdentityKind.PROCESS,
        f"process {fields['process_id']}",
        its_now_s - int(fields["uptime_in_seconds"]),
    )


def forgotten_ns(rejoin: Rejoin, max_ttl_ms: int, drift_factor: float) -> int:
    """How long (ns) an instance must not vote that may have forgotten locks just now."""
    return 0 if rejoin == "trust" else max_ttl_ms * NS_PER_MS + drift_ns(max_ttl_ms, drift_factor)


def abstention_ns(
    hello: Hello, known: Hello | None, rejoin: Rejoin, max_ttl_ms: int, drift_factor: float
) -> int:
    """How long, in ns from now, an instance that just connected must not grant votes; 0 for not at
    all."""
    whole = forgotten_ns(rejoin, max_ttl_ms, drift_factor)
    if known is not None:
        return 0 if hello.is_run_of(known) and not hello.has_swapped_since(known) else whole
    if rejoin != "delay":
        return 0
    return whole if hello.was_replica else max(0, whole - max(0, hello.uptime_s - 1) * NS_PER_S)


class Membership:
    """The standing of one instance: `until_ns` ends an abstention, `retry_ns` is when a lost one is
    tried again, `ask_ns` when one that is connected and does not tell is asked whether it is still
    the same."""

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
        """Connected: it votes at once, or after `abstention` ns."""
        known = self.hello
        self.hello = hello
        self.ask_ns = FAR_FUTURE_NS if hello.tells else now_ns + ASK_EVERY_NS
        self.connecting = False
        self.backoff_ns = FIRST_BACKOFF_NS
        still_abstaining = max(self.until_ns, now_ns + abstention) if abstention else self.until_ns
        self.until_ns = still_abstaining
        self.state = State.ABSTAINING if still_abstaining > now_ns else State.VOTING
        if known is None:
            why = "was a replica" if hello.was_replica else "not up for max_ttl yet"
        elif hello.is_run_of(known):
            why = SWAPPED
        else:
            why = "was a replica" if hello.run_id == known.run_id != hello.replid else "restarted"
        self.reason = f"{why}: {MUST_EXPIRE}" if still_abstaining > now_ns else ""

    def lost(self, reason: str, now_ns: int, *, refused: bool = False) -> None:
        """Not connected (any more), or must not take part: tried again after a back-off that
        doubles to 2 s."""
        self.state = State.REFUSED if refused else State.DOWN
        self.reason = reason
        self.connecting = False
        self.retry_ns = now_ns + self.backoff_ns
        self.ask_ns = FAR_FUTURE_NS
        self.backoff_ns = min(2 * self.backoff_ns, LONGEST_BACKOFF_NS)

    def forgot(self, why: str, abstention: int, now_ns: int) -> None:
        """It may have forgotten locks while it was connected."""
        self.state = State.ABSTAINING
        self.until_ns = max(self.until_ns, now_ns + abstention)
        self.reason = f"{why}: {MUST_EXPIRE}"

    @property
    def is_connected(self) -> bool:
        """True while it has a connection."""
        return self.state not in _UNCONNECTED

    def lagged(self, reason: str) -> None:
        """Over the lag cap: its votes are ABSENT until it has caught up."""
        if self.state is State.VOTING:
            self.state = State.LAGGING
            self.reason = reason

    def caught_up(self) -> None:
        """Everything sent has been answered."""
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
        """True once when it is time to try it again: from then on it is being connected."""
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
    """The other connected instance that is the very server of `hello`, if any: one server must not
    vote twice."""
    if hello.identity is IdentityKind.PROCESS:  # two machines may number alike
        return None
    for other, member in enumerate(members):
        if (
            other != index
            and member.is_connected
            and member.hello
            and member.hello.run_id == hello.run_id
        ):
            return other
    return None


class Amnesia:
    """What is noticed, on connections that stay, of instances that forgot their locks (flushed, or
    once replicas).

    Such a server says so itself (a push between two replies), answers -READONLY, or, where it tells
    nothing, is asked for its replication id once a second. From then on it abstains for `whole_ns`
    (0: not at all) as after a restart, and what it was asked before does not count. `recount`
    counts the voters anew.

    No server says that SWAPDB was called, and no client can be told: SWAPDB invalidates no tracked
    key. But INFO counts the calls. The engine reads this count ahead of the first SET that starts
    at `swaps_due_ns` or later, on the same connection. So the reading is answered before the SET,
    and a swap that it shows voids the SET. An idle client reads nothing. A swap within
    SWAPS_EVERY_NS after a reading is noticed by the next one only.

    Source: Redis' CLIENT TRACKING (a flush is told to every tracking client), REPLICAOF, SWAPDB and
    INFO commandstats.
    """

    def __init__(
        self,
        engine: Core,
        members: Sequence[Membership],
        whole_ns: int,
        recount: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._members = members
        self._whole_ns = whole_ns
        self._recount = recount
        self.swaps_due_ns: int = 0 if whole_ns else FAR_FUTURE_NS

    def noticed(self, pipe: InstancePipe, why: str) -> None:
        """An instance may have forgotten locks just now."""
        if self._whole_ns:
            self._members[pipe.index].forgot(why, self._whole_ns, self._engine.now_ns)
            self._recount()
            pipe.void_sets()

    def ask(self, pipes: Sequence[InstancePipe], now_ns: int) -> None:
        """Ask those who do not tell by themselves, if it is time."""
        for pipe, member in zip(pipes, self._members, strict=True):
            if member.ask_ns <= now_ns:
                member.ask_ns = now_ns + ASK_EVERY_NS
                self._engine.unicast(
                    pipe, request(b"INFO", b"replication"), Asked(now_ns, self._answered)
                )

    def counting_swaps(self, pipes: Sequence[InstancePipe], now_ns: int) -> list[InstancePipe]:
        """The instances to send `SWAPS` now; each reply goes to `swaps_read`. The next time comes
        later."""
        self.swaps_due_ns = now_ns + SWAPS_EVERY_NS
        hellos = [(pipe, self._members[pipe.index].hello) for pipe in pipes]
        return [pipe for pipe, hello in hellos if hello is not None and hello.swaps != NOT_COUNTED]

    def swaps_read(self, info: object, pipe: InstancePipe) -> None:
        """How often an instance has swapped databases; an error says nothing."""
        member = self._members[pipe.index]
        known = member.hello
        if known is None or not isinstance(info, bytes):
            return
        kind_bytes = len("txt:") if known.tells else 0  # RESP3 says that it is a text
        pipe.set_aside(0, 0, len(b"$%d\r\n\r\n" % len(info)) + len(info) + kind_bytes)
        member.hello = hello = replace(known, swaps=swaps_of(info))
        if hello.has_swapped_since(known):
            self.noticed(pipe, SWAPPED)

    def _answered(self, info: object, pipe: InstancePipe) -> None:
        """What an instance said of its replication when it was asked; an error says nothing."""
        if not isinstance(info, bytes):
            return
        member = self._members[pipe.index]
        fields = fields_of(info)
        replid = fields.get("master_replid", "")
        if fields.get("role", "master") != "master":
            self.noticed(pipe, "it is a replica")
        elif member.hello is not None and replid != member.hello.replid:
            member.hello = replace(member.hello, replid=replid)
            self.noticed(pipe, "was a replica")
