"""What replies are given to: *a connection's next reply → whoever awaits it*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: what is read on
hot paths is a base class (`Settled`, `Core`) and no Protocol, and it declares each attribute once.

Rules: a connection (pipeline.py) carries whatever is `Awaited` and knows no round. A round counts,
and it knows its connection only as an `InstancePipe`. Each side names here what it needs of the
other, so that neither imports the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from lockcore.facts.model import Counted, Outcome
from lockcore.facts.quorum import quorum_of
from lockcore.rounds.commands import Dialect
from lockcore.rounds.replies import Other

# How bytes go out. It returns how many bytes are kept because the socket would not take them.
Transmit = Callable[[bytes], int]


def nothing(*_: object) -> None:
    """Do nothing: nobody has said yet what is to be done."""


# An instance may bring so many kinds of errors. Further kinds are counted as OTHER.
MOST_KINDS: Final = 32


class Traffic:
    """What was exchanged with one instance since `connect`, over all of its connections.

    `aside` are the commands, bytes sent and bytes received that come by the clock, not with a lock.
    """

    __slots__ = (
        "aside",
        "bytes_received",
        "bytes_sent",
        "commands",
        "errors",
        "late_replies",
        "reads",
        "reconnects",
        "writes",
    )

    def __init__(self) -> None:
        self.commands = self.bytes_sent = self.bytes_received = self.writes = self.reads = 0
        self.late_replies = self.reconnects = 0
        self.errors: dict[str, int] = {}
        self.aside = [0, 0, 0]


class InstancePipe:
    """The connection to one instance, as what it carries sees it.

    `index` is the number of the instance, from 0. `queue` are the commands that leave next,
    `pending` what awaits its replies, oldest first, and `awaited` the number of replies that are
    still to come. `forgot` is called when the instance may have forgotten locks just now.
    """

    __slots__ = ("awaited", "dialect", "forgot", "index", "pending", "queue", "traffic", "transmit")

    def __init__(self, index: int) -> None:
        self.index = index
        self.dialect = Dialect("evalsha", native_extend=False)
        self.queue: list[bytes] = []
        self.pending: deque[Any] = deque()
        self.awaited = 0
        self.transmit: Transmit | None = None
        self.traffic = Traffic()
        self.forgot: Callable[[InstancePipe, str], object] = nothing

    @property
    def is_open(self) -> bool:
        """True while a connection carries it."""
        return self.transmit is not None

    def expect(self, awaited: Awaited) -> None:
        """Await one more reply."""
        self.pending.append(awaited)
        self.awaited += 1

    def skip(self, replies: int) -> None:
        """The next `replies` awaited ones will not come by themselves.

        The caller tells the rounds that awaited them.
        """
        self.awaited -= replies
        for _ in range(replies):
            self.pending.popleft()

    def awaits_since(self, started_ns: int) -> bool:
        """True when something begun at `started_ns` or before has not been answered."""
        return bool(self.pending) and self.pending[0].started_ns <= started_ns

    def void_sets(self) -> None:
        """The instance has forgotten locks, so the SETs that are still out become SILENT."""

    def count_late(self) -> None:
        """Count one more reply that came when its round was closed."""
        self.traffic.late_replies += 1

    def count_error(self, kind: str) -> None:
        """Count one more vote that was lost to `kind`.

        The kind is an error reply's first word, TIMEOUT, CLOSED or FORGOT. A server that makes up
        words gets MOST_KINDS of them. Further words are counted as OTHER.
        """
        errors = self.traffic.errors
        if kind not in errors and len(errors) >= MOST_KINDS:
            kind = "OTHER"
        errors[kind] = errors.get(kind, 0) + 1
        if kind == "READONLY":
            self.forgot(self, "it is a replica")

    def set_aside(self, commands: int, sent_bytes: int, received_bytes: int) -> None:
        """So much of what is exchanged comes by the clock and is no part of what locks cost.

        The status leaves it out. Otherwise the cost of a lock would depend on the rate of locks.
        """
        aside = self.traffic.aside
        aside[0] += commands
        aside[1] += sent_bytes
        aside[2] += received_bytes


class Awaited(Protocol):
    """Something with one reply to come per connection that it was sent on."""

    @property
    def started_ns(self) -> int:
        """When it was begun: its age is the lag of its connection."""

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take the reply of an instance."""

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke before the instance replied."""


class Settled(Counted):
    """What a shell wakes somebody for.

    `outcome` is None until it is settled. `waiter` is what the shell wakes its caller by; it is
    None when nobody waits (any more).
    """

    __slots__ = ("outcome", "waiter")
    outcome: Outcome | None
    waiter: Any


# Two rules that exist because this file is compiled.
# `Core` is a base class and no Protocol. Of a Protocol, machine code looks up each attribute by its
# name, which costs 180 instructions each. With base classes in the place of Protocols a cycle on
# gevent fell from 22,763 to 20,709 instructions (callgrind, 200 callers, N = 5;
# docs/lab/lockcore.md).
# Each attribute is declared in one class only. Of an attribute that a subclass declares again,
# machine code has the garbage collector count the reference twice. Then the owner looks used from
# outside for ever, and no engine is ever freed: a search process of 100,000 simulated schedules
# stood still in a collection of 12 GB.
class Core:
    """The engine as its parts, and whoever is woken, see it.

    `woken` of the `ready` have been woken. `voters` are the Pipelines that batches are sent on, of
    so many `instances`. `followed`: what is queued leaves with the SET of the caller that has just
    been woken. `retired`: no attempt is begun any more.
    """

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.quorum = quorum_of(instances)
        self.voters: tuple[Any, ...] = ()
        self.ready: list[Settled] = []
        self.woken = 0
        self.now_ns = 0
        self.retired = False
        self.followed = False

    def take_ready(self) -> list[Settled]:
        """The rounds and turns that were settled since the last call."""
        ready = self.ready
        self.ready = []
        self.woken = 0
        return ready

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance."""


# How callers are woken. `ready` is not emptied one by one: `woken` says how far it has been read,
# and `hand_out` cuts off the front when nobody is left. There are three reasons.
# A caller that is woken settles further rounds and adds to `ready`, and they belong to the same
# pass. A greenlet that parks asks `next_waiter` itself and switches straight to the next caller,
# not through the hub: with the compiled hot path of greenlets that was 37,700 → 22,400 instructions
# per cycle (docs/lockcore/compiled.md). And an interrupt may come at any call: whoever was woken is
# counted before the call, so nobody is woken twice and nobody is forgotten.
def next_waiter(engine: Core) -> Any:
    """The waiter that is to be woken next, and at once; None if there is none.

    The order is that of `ready`, with whatever is added meanwhile.
    """
    ready = engine.ready
    woken = engine.woken
    while woken < len(ready):
        settled = ready[woken]
        woken += 1
        waiter = settled.waiter
        if waiter is not None:
            settled.waiter = None
            engine.woken = woken
            return waiter
    engine.woken = woken
    return None


def hand_out(engine: Core, wake: Callable[[Any], object]) -> None:
    """Wake whoever waits for what is settled. If that is interrupted, the rest stays ready."""
    try:
        while (waiter := next_waiter(engine)) is not None:
            wake(waiter)
    finally:
        del engine.ready[: engine.woken]
        engine.woken = 0


class Asked:
    """A question that is no round's: its reply goes to `listener`.

    If the connection breaks before, there is no reply.
    """

    __slots__ = ("_listener", "started_ns")

    def __init__(
        self, started_ns: int, listener: Callable[[object, InstancePipe], object] = nothing
    ) -> None:
        self.started_ns = started_ns
        self._listener = listener

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Hand the reply on."""
        self._listener(reply.value if isinstance(reply, Other) else reply, pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """Do nothing."""


class Scripted(Awaited, Protocol):
    """A command that may be a script, which an instance may have forgotten."""

    @property
    def source(self) -> bytes:
        """The script in full."""

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take the answer to its source. The script is not sent again."""


class SentAgain:
    """A script that is sent once more on behalf of `awaited`, with its source.

    The source also teaches the script to the instance. If the instance does not know the script
    even so, that is an error.
    """

    __slots__ = ("awaited", "started_ns")

    def __init__(self, awaited: Scripted, started_ns: int) -> None:
        self.awaited = awaited
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Hand the answer on."""
        self.awaited.last_reply(reply, pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke: hand that on."""
        self.awaited.silence(pipe)
