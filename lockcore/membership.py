"""Which instances may vote: *hello, loss, lag, time → a member's state*. Pure.

Rules (the Redlock text's *delayed restart*, done by the client): an instance that restarted may have forgotten locks,
so it abstains until every lock it could have forgotten has expired. A changed run id abstains for max_ttl + drift
from the reconnect, whatever its uptime says. A first contact abstains for max_ttl + drift − (uptime − 1 s) under
`delay`, not at all under `trust-first` and `trust`; `trust` also trusts changed run ids. Abstaining stops SETs only.
An instance over its lag cap is left alone until it has caught up. One that is down is tried again with back-off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns

Rejoin = Literal["delay", "trust-first", "trust"]
FIRST_BACKOFF_NS = 50 * NS_PER_MS
LONGEST_BACKOFF_NS = 2 * NS_PER_S


class State(Enum):
    """What an instance may do now."""

    VOTING = "voting"
    ABSTAINING = "abstaining"
    LAGGING = "lagging"
    DOWN = "down"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Hello:
    """What an instance said of itself when it was connected: `uptime_s` ≥ 0 in s, `server` such as `valkey 9.1.2`."""

    run_id: str
    uptime_s: int
    server: str
    client_id: int


def abstention_ns(hello: Hello, known_run_id: str | None, rejoin: Rejoin, max_ttl_ms: int, drift_factor: float) -> int:
    """How long, in ns from now, an instance that just connected must not grant votes; 0 for not at all."""
    whole = max_ttl_ms * NS_PER_MS + drift_ns(max_ttl_ms, drift_factor)
    if known_run_id is None:
        if rejoin != "delay":
            return 0
        return max(0, whole - max(0, hello.uptime_s - 1) * NS_PER_S)
    if hello.run_id == known_run_id or rejoin == "trust":
        return 0
    return whole


class Member:
    """The standing of one instance: `until_ns` ends an abstention, `retry_ns` is when a lost one is tried again."""

    __slots__ = ("backoff_ns", "connecting", "hello", "reason", "retry_ns", "state", "until_ns")

    def __init__(self) -> None:
        self.state = State.DOWN
        self.reason = "not connected yet"
        self.hello: Hello | None = None
        self.until_ns = 0
        self.retry_ns = 0
        self.backoff_ns = FIRST_BACKOFF_NS
        self.connecting = False

    def joined(self, hello: Hello, abstention: int, now_ns: int) -> None:
        """Connected: it votes at once, or after `abstention` ns."""
        restarted = self.hello is not None
        self.hello = hello
        self.connecting = False
        self.backoff_ns = FIRST_BACKOFF_NS
        still_abstaining = max(self.until_ns, now_ns + abstention) if abstention else self.until_ns
        self.until_ns = still_abstaining
        self.state = State.ABSTAINING if still_abstaining > now_ns else State.VOTING
        why = "restarted: locks it may have forgotten" if restarted else "not up for max_ttl yet: locks it may not know"
        self.reason = f"{why} must expire first" if still_abstaining > now_ns else ""

    def lost(self, reason: str, now_ns: int, *, refused: bool = False) -> None:
        """Not connected (any more), or must not take part: tried again after a back-off that doubles to 2 s."""
        self.state = State.REFUSED if refused else State.DOWN
        self.reason = reason
        self.connecting = False
        self.retry_ns = now_ns + self.backoff_ns
        self.backoff_ns = min(2 * self.backoff_ns, LONGEST_BACKOFF_NS)

    def lagged(self, reason: str) -> None:
        """Over the lag cap: its votes are ABSENT until it has caught up."""
        if self.state is State.VOTING:
            self.state, self.reason = State.LAGGING, reason

    def caught_up(self) -> None:
        """Everything sent has been answered."""
        if self.state is State.LAGGING:
            self.state, self.reason = State.VOTING, ""

    def abstained(self, now_ns: int) -> bool:
        """True when its abstention has just ended and it votes again."""
        if self.state is not State.ABSTAINING or now_ns < self.until_ns:
            return False
        self.state, self.reason = State.VOTING, ""
        return True

    def is_taken_up(self, now_ns: int) -> bool:
        """True once when it is time to try it again: from then on it is being connected."""
        if not self.is_due or self.retry_ns > now_ns:
            return False
        self.connecting = True
        return True

    @property
    def is_due(self) -> bool:
        """True when it should be tried again as soon as `retry_ns` has come."""
        return self.state in (State.DOWN, State.REFUSED) and not self.connecting


def twin_of(members: Sequence[Member], index: int, hello: Hello) -> int | None:
    """The other connected instance that is the very server of `hello`, if any: one server must not vote twice."""
    for other, member in enumerate(members):
        connected = member.state not in (State.DOWN, State.REFUSED)
        if other != index and connected and member.hello and member.hello.run_id == hello.run_id:
            return other
    return None
