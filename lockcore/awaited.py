"""What replies are given to: *a connection's next reply → whoever awaits it*. Pure.

Rules: a connection (pipeline.py) carries whatever is `Awaited` and knows no round; a round counts
and knows no connection but as an `InstancePipe`. Each side names here what it needs of the other,
so that neither imports the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lockcore.commands import Dialect
from lockcore.model import Counted, Outcome


class InstancePipe(Protocol):
    """The connection to one instance, as what it carries sees it. `index`: of the instance, from 0."""

    index: int
    dialect: Dialect
    late_replies: int
    queue: list[bytes]

    @property
    def is_open(self) -> bool:
        """True while it is connected."""

    def expect(self, awaited: Awaited) -> None:
        """One more reply to await."""

    def skip(self, replies: int) -> None:
        """The next `replies` awaited ones will not come by themselves."""

    def awaits_since(self, started_ns: int) -> bool:
        """True when something begun at `started_ns` or before has not been answered."""

    def count_error(self, kind: str) -> None:
        """One more vote lost to `kind`."""

    def set_aside(self, commands: int, sent_bytes: int, received_bytes: int) -> None:
        """So much of what is exchanged comes by the clock and is no part of what locks cost."""

    def void_sets(self) -> None:
        """It has forgotten locks: SETs still out there are SILENT."""


class Awaited(Protocol):
    """Something with one reply to come per connection that it was sent on.

    The trick of the hot path, *counting inline*: while `undecided` is > 0, the connection itself
    compares a reply with `success_reply`, takes one off `undecided` and one off `missing`, and
    calls `carried` when `missing` is 0: no call into the round. Otherwise (0: closed; **negative**:
    as many undecided as its absolute value, but even a success may settle another name) every reply
    goes through `reply`. The sign is a flag that costs the hot path no comparison.
    """

    undecided: int

    @property
    def started_ns(self) -> int:
        """When it was begun: its age is the lag of its connection."""

    @property
    def success(self) -> bytes:
        """The bytes of the plainest answer; empty when none is foreseen."""

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """What the instance said."""

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke before it said anything."""


class Settled(Counted):
    """What a shell wakes somebody for. `outcome`: None until it is settled. `waiter`: whatever it
    wakes by; None when nobody waits (any more)."""

    __slots__ = ("outcome", "waiter")
    outcome: Outcome | None
    waiter: Any


class StandIn:
    """A waiter in the place of a caller that has parked: no stack is switched, as long as nothing
    unusual happens.

    `step` is called when what it waits for has come, in whatever greenlet that is noticed. It must
    neither wait nor raise. It returns True where the `caller` itself is to be woken.
    """

    __slots__ = ("caller", "step")

    def __init__(self, caller: Any, step: Callable[[], bool]) -> None:
        self.caller = caller
        self.step = step


class Core:
    """The engine as its parts, and who is woken, see it: `woken` of the `ready` have been;
    `voters`, of so many `instances`: the Pipelines that batches are sent on; `followed`: what is
    queued leaves with the SET of who has just been woken; `retired`: no attempt is begun any more.

    A base class, no Protocol: machine code would look up each attribute by its name. An attribute
    is declared once: of one that a subclass declares again, machine code has the garbage collector
    count the reference twice, so whoever has it is never freed."""

    ready: list[Settled]
    woken: int
    now_ns: int
    instances: int
    quorum: int
    voters: tuple[Any, ...]
    retired: bool
    followed: bool

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance."""


def next_waiter(engine: Core) -> Any:
    """Who is to be woken next, and at once, in order, also of what was added meanwhile; None:
    nobody. Stand-ins are stepped on the way."""
    ready = engine.ready
    woken = engine.woken
    while woken < len(ready):
        settled = ready[woken]
        woken += 1
        waiter = settled.waiter
        if waiter is not None:
            stand_in = (
                waiter if isinstance(waiter, StandIn) else None
            )  # before it is taken: an interrupt may come
            settled.waiter = None
            engine.woken = woken
            if stand_in is None:
                return waiter
            if stand_in.step():
                return stand_in.caller
    engine.woken = woken
    return None


def hand_out(engine: Core, wake: Callable[[Any], object]) -> None:
    """Wake whoever waits for what is settled. Should that be interrupted, the rest stays ready."""
    try:
        while (waiter := next_waiter(engine)) is not None:
            wake(waiter)
    finally:
        del engine.ready[: engine.woken]
        engine.woken = 0


class Ignored:
    """A command whose reply does not matter."""

    __slots__ = ("started_ns",)
    undecided = 0
    success = b""

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Nobody asked."""

    def silence(self, pipe: InstancePipe) -> None:
        """Nobody asked."""


class Asked(Ignored):
    """A question that is no round's: its reply is `heard`; one that breaks with its connection is
    none."""

    __slots__ = ("_heard",)

    def __init__(self, started_ns: int, heard: Callable[[object, InstancePipe], None]) -> None:
        super().__init__(started_ns)
        self._heard = heard

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """What the instance said."""
        self._heard(reply, pipe)


class Scripted(Awaited, Protocol):
    """A command that may be a script, which an instance may have forgotten."""

    @property
    def source(self) -> bytes:
        """The script in full."""

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """The answer to its source: not to be sent again."""


class SentAgain:
    """A script sent again with its source, which also teaches it, on behalf of `awaited`: once,
    else it is an error."""

    __slots__ = ("awaited", "started_ns")
    undecided = 0
    success = b""

    def __init__(self, awaited: Scripted, started_ns: int) -> None:
        self.awaited = awaited
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """The answer to both."""
        self.awaited.last_reply(reply, pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke."""
        self.awaited.silence(pipe)
