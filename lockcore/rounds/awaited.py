"""The interfaces between connections and rounds.

Each reply of a connection reaches its receiver through these interfaces.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, the types that hot paths read are base classes (`Settled`, `Core`) and not Protocols.
For the same reason, no attribute is declared in more than one class.

Rules: a connection (pipeline.py) carries any object that is `Awaited`, and it does not know rounds.
A round counts replies, and it knows its connection only as an `InstancePipe`. This file has both
interfaces, so neither side imports the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from lockcore.facts.model import Counted, Outcome
from lockcore.facts.quorum import quorum_of
from lockcore.rounds.commands import Dialect
from lockcore.rounds.replies import Other

# A function that sends bytes. It returns the number of bytes that the socket did not take yet.
Transmit = Callable[[bytes], int]


def nothing(*_: object) -> None:
    """Do nothing, because no callback is set yet."""


# An instance may bring at most this number of kinds of errors. Further kinds count as OTHER.
MOST_KINDS: Final = 32


class Traffic:
    """The traffic with one instance since `connect`, over all of its connections.

    `aside` describes the swap readings by three numbers. The numbers count the commands, the sent
    bytes and the received bytes. A swap reading asks how often the server swapped databases
    (amnesia.py). lockcore makes at most four swap readings a second, however many locks callers
    take.
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
    """The part of a connection that rounds use.

    `index` is the number of the instance, from 0. `queue` contains the commands that leave next.
    `pending` contains the receivers of the next replies, and the oldest receiver is the first.
    `awaited` is the number of replies that are still missing. `forgot` is called when the instance
    may have just forgotten locks.
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
        """True while there is a connection."""
        return self.transmit is not None

    def expect(self, awaited: Awaited) -> None:
        """Await one more reply."""
        self.pending.append(awaited)
        self.awaited += 1

    def skip(self, replies: int) -> None:
        """Remove the receivers of the next `replies` replies, which will not arrive.

        The caller of this method must report this to the rounds.
        """
        self.awaited -= replies
        for _ in range(replies):
            self.pending.popleft()

    def awaits_since(self, started_ns: int) -> bool:
        """True if an operation that started at `started_ns` or earlier has no answer yet."""
        return bool(self.pending) and self.pending[0].started_ns <= started_ns

    def void_sets(self) -> None:
        """Make the open SETs of the instance SILENT, because it has forgotten locks."""

    def count_late(self) -> None:
        """Count one more reply that came after its round closed."""
        self.traffic.late_replies += 1

    def count_error(self, kind: str) -> None:
        """Count one more vote that was lost for the reason `kind`.

        `kind` is the first word of an error reply, TIMEOUT, CLOSED or FORGOT. lockcore counts at
        most MOST_KINDS different kinds for each instance. lockcore counts all further kinds
        together as OTHER.
        """
        errors = self.traffic.errors
        if kind not in errors and len(errors) >= MOST_KINDS:
            kind = "OTHER"
        errors[kind] = errors.get(kind, 0) + 1
        if kind == "READONLY":
            self.forgot(self, "it is a replica")

    def set_aside(self, commands: int, sent_bytes: int, received_bytes: int) -> None:
        """Note that a part of the traffic was a swap reading (amnesia.py).

        An `InstanceStatus` does not include the traffic of swap readings. With this traffic, the
        traffic per lock would depend on the rate of locks.
        """
        aside = self.traffic.aside
        aside[0] += commands
        aside[1] += sent_bytes
        aside[2] += received_bytes


class Awaited(Protocol):
    """An object that gets one reply from each connection on which it was sent."""

    @property
    def started_ns(self) -> int:
        """The start of this object, on CLOCK_MONOTONIC (ns).

        The lag of a connection is the age of its oldest unanswered object.
        """

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take the reply of an instance."""

    def silence(self, pipe: InstancePipe) -> None:
        """Note that the connection broke before the instance replied."""


class Settled(Counted):
    """An object that a caller waits for.

    `outcome` is None until the object is settled. The shell uses `waiter` to wake the caller.
    `waiter` is None if no caller waits.
    """

    __slots__ = ("outcome", "waiter")
    outcome: Outcome | None
    waiter: Any


# Two rules exist because this file is compiled.
# First, `Core` is a base class and not a Protocol. Machine code looks up each attribute of a
# Protocol by its name, and each look-up costs 180 instructions. With base classes instead of
# Protocols a cycle on gevent fell from 22,763 to 20,709 instructions (callgrind, 200 callers,
# N = 5; docs/lab/lockcore.md).
# Second, only one class declares each attribute. If a subclass declares an attribute again, the
# garbage collector counts the reference twice. Then the owner looks used from outside for ever, and
# no engine is ever freed. A search process of 100,000 simulated schedules stood still in a garbage
# collection of 12 GB.
class Core:
    """The part of the engine that its components and the woken callers use.

    `woken` is a number of objects. The callers of the first `woken` objects in `ready` have already
    been woken. `voters` contains the Pipelines that get the batches. `instances` is the number of
    configured instances. `followed` is True if a caller was just woken and will queue a SET. The
    queued commands should then leave together with this SET. `retired` is True when no more
    attempts begin.
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


# How callers are woken. Entries of `ready` are not removed one by one. `woken` is the number of
# entries that have been read, and `hand_out` removes them all at the end. There are three reasons.
# First, a woken caller may settle more rounds and add to `ready`, and these belong to the same
# pass. Second, a greenlet that parks calls `next_waiter` itself and switches straight to the next
# caller, not through the hub. With the compiled hot path of greenlets a cycle fell from 37,700 to
# 22,400 instructions (docs/lockcore/compiled.md). Third, an interrupt may come at any call. An
# entry is counted before its caller is woken, so no caller is woken twice and none is forgotten.
def next_waiter(engine: Core) -> Any:
    """The waiter to wake now, or None if no caller waits.

    The shell wakes the waiters in the order in which `ready` contains them. The woken callers may
    add more entries to `ready`.
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
    """Wake the callers of all settled objects.

    If an interrupt ends this call, `ready` keeps the objects whose callers have not been woken yet.
    """
    try:
        while (waiter := next_waiter(engine)) is not None:
            wake(waiter)
    finally:
        del engine.ready[: engine.woken]
        engine.woken = 0


class Asked:
    """A command to one instance. The command belongs to no round. The reply goes to `listener`.

    If the connection breaks before the reply comes, lockcore does not call `listener`.
    """

    __slots__ = ("_listener", "started_ns")

    def __init__(
        self, started_ns: int, listener: Callable[[object, InstancePipe], object] = nothing
    ) -> None:
        self.started_ns = started_ns
        self._listener = listener

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Give the reply to the listener."""
        self._listener(reply.value if isinstance(reply, Other) else reply, pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """Do nothing."""


class Scripted(Awaited, Protocol):
    """A command that some instances run as a script. An instance may have forgotten the script."""

    @property
    def source(self) -> bytes:
        """The script in full."""

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take the answer to the full script. lockcore does not send the script again, whatever the
        answer is."""


class SentAgain:
    """A script command that is sent once more for `awaited`.

    Now the command contains the script's source. The source also loads the script into the
    instance. If the instance still does not know the script, that is an error.
    """

    __slots__ = ("awaited", "started_ns")

    def __init__(self, awaited: Scripted, started_ns: int) -> None:
        self.awaited = awaited
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Give the answer to `awaited`."""
        self.awaited.last_reply(reply, pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """Call the method `silence` of `awaited`, because the connection broke."""
        self.awaited.silence(pipe)
