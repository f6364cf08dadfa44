r"""This module sends and receives messages between processes: *a message for another process →
PUBLISH commands; push messages from instances → messages for this process*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
each constant is declared as `Final`. If a class has one object for each message, this class has
`__slots__`.

Rules: a message counts when a quorum of instances has delivered it. Each instance counts once. A
message names a resource by a hash of fixed length, so it contains no text from a user. All tables
have a maximum size. The number of messages that may cause work is also limited. lockcore drops a
message that exceeds a limit. A message within the limits may still get lost on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2s
from typing import Final

from lockcore.clock import NS_PER_MS
from lockcore.facts.membership import Membership
from lockcore.rounds.awaited import Asked, Core, InstancePipe
from lockcore.rounds.claims import Claims, Recent
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.resp import bulk, request

# The first PROCESS_BYTES bytes of an owner token name the process that made the token.
PROCESS_BYTES: Final = 22
NUMBER_BYTES: Final = PROCESS_BYTES + 15
DIGEST_BYTES: Final = 32

# A message lists at most this many processes.
MOST_OTHERS: Final = 1 << 8
LONGEST_MESSAGE: Final = 100 + (PROCESS_BYTES + 1) * MOST_OTHERS  # bytes

# For each instance, at most this many messages are remembered.
MOST_ARRIVALS: Final = 1 << 10

# In each window of WINDOW_NS, at most MOST_PER_WINDOW messages may cause work. At most MOST_OF_ONE
# of these messages may be about one resource.
WINDOW_NS: Final = 10 * NS_PER_MS
MOST_PER_WINDOW: Final = 1 << 6
MOST_OF_ONE: Final = 1 << 4

VERSION: Final = b"2"
WAITS: Final = b"waits"
HEARD: Final = b"heard"
LOOK: Final = b"look"
TURN: Final = b"turn"


class Message:
    """A message from the process `sender` about one resource. `digest` is the hash of the resource.

    `others` are the processes that get the turn after the receiver.
    """

    __slots__ = ("digest", "kind", "others", "sender")

    def __init__(self, kind: bytes, sender: bytes, digest: bytes, others: Sequence[bytes]) -> None:
        self.kind = kind
        self.sender = sender
        self.digest = digest
        self.others = others


class Arrivals:
    """The messages that each instance has delivered.

    An instance counts once for each message, even if it delivers the message several times. Each
    instance has its own table. If the table of an instance is full, all entries of this table are
    removed (`Recent`). So a flood of messages from one instance does not affect the tables of other
    instances.
    """

    def __init__(self, instances: int, quorum: int) -> None:
        self._quorum = quorum
        self._of = [Recent[bytes, bool](MOST_ARRIVALS) for _ in range(instances)]
        self._complete = Recent[bytes, bool](MOST_ARRIVALS)

    def completes(self, message: bytes, index: int) -> bool:
        """Return True if the delivery by instance `index` completes a quorum for the message.

        The result is True only once for each message. If a table becomes full, all its entries are
        removed (`Recent`). After that, the result may be True again.
        """
        if message in self._of[index] or message in self._complete:
            return False
        self._of[index].keep(message, True)
        if sum([message in arrivals for arrivals in self._of]) != self._quorum:
            return False
        self._complete.keep(message, True)
        return True

    def __len__(self) -> int:
        return len(self._complete) + sum(map(len, self._of))


class Allowance:
    """A limit on the number of messages. Within one window of time, only this number of messages
    may cause work.

    The first limit is for all messages together. The second limit applies to each resource
    separately, and it is lower than the first limit.
    """

    def __init__(self) -> None:
        self._end_ns = 0
        self._count = 0
        self._of: dict[bytes, int] = {}

    def admits(self, digest: bytes, now_ns: int) -> bool:
        """Return True if one more message about this resource may cause work now. Return False if
        the message would exceed a limit."""
        if now_ns >= self._end_ns:
            self._end_ns = now_ns + WINDOW_NS
            self._count = 0
            self._of.clear()
        count = self._of.get(digest, 0)
        if count >= MOST_OF_ONE or self._count >= MOST_PER_WINDOW:
            return False
        self._of[digest] = count + 1
        self._count += 1
        return True


class Mail:
    """The object that sends and receives the messages of one process.

    `me` is the name of the process. `inbox` is the channel on which the process receives messages.
    """

    def __init__(
        self,
        engine: Core,
        pipes: Sequence[Pipeline],
        members: Sequence[Membership],
        claims: Claims,
    ) -> None:
        self._engine = engine
        self._pipes = pipes
        self._members = members
        self.me = claims.process
        self._prefix = claims.prefix
        self.inbox = self._inbox_of(self.me)
        # The number of the last message. It always has 15 digits.
        self._number = 10**14
        self._arrivals = Arrivals(engine.instances, engine.quorum)
        self._allowance = Allowance()
        for pipe in pipes:
            pipe.replies.message_head = b">3\r\n" + bulk(b"message") + bulk(self.inbox) + b"$"

    def _inbox_of(self, process: bytes) -> bytes:
        return self._prefix + b"handoff:" + process

    def key_of(self, resource: str) -> bytes:
        """Return the key of a resource on the servers."""
        return self._prefix + resource.encode()

    def digest_of(self, resource: str) -> bytes:
        """Return the name of a resource in messages.

        The name is a hash of the whole key, written as 32 hexadecimal digits.
        """
        key = self.key_of(resource)
        return blake2s(key, digest_size=DIGEST_BYTES // 2).hexdigest().encode()

    @property
    def arrives(self) -> bool:
        """True while a quorum of instances can deliver messages to this process."""
        hellos = [member.hello for member in self._members if member.is_connected]
        return sum(hello is not None and hello.hears for hello in hellos) >= self._engine.quorum

    def send(
        self,
        process: bytes,
        kind: bytes,
        digest: bytes,
        others: Sequence[bytes],
        unheard: Callable[[], object],
    ) -> None:
        """Publish a message to a process.

        `unheard`: a function that is called if a quorum of instances reports that no process
        received the message.
        """
        engine = self._engine
        silent = list[InstancePipe]()

        def published(listeners: object, pipe: InstancePipe) -> None:
            if listeners == 0:
                silent.append(pipe)
                if len(silent) == engine.quorum:
                    unheard()

        self._number += 1
        listed = b",".join(others)
        message = b"%b:%b:%b%d:%b:%b" % (VERSION, kind, self.me, self._number, digest, listed)
        data = request(b"PUBLISH", self._inbox_of(process), message)
        question = Asked(engine.now_ns, published)
        for pipe in self._pipes:
            if pipe.is_open:
                engine.unicast(pipe, data, question)

    def receive(self, message: object, index: int) -> Message | None:
        """Process the text of a message that instance `index` has delivered. If the message now
        counts, return the message. Otherwise return None.

        The result is None if too few instances have delivered the message, if the message has
        counted before, or if the message exceeds a limit. The result is also None if the text is
        not a message of this version of lockcore.
        """
        if not isinstance(message, bytes) or len(message) > LONGEST_MESSAGE:
            return None
        parts = message.split(b":")
        if len(parts) != 5 or parts[0] != VERSION:
            return None
        _, kind, number, digest, others = parts
        if len(number) != NUMBER_BYTES or len(digest) != DIGEST_BYTES:
            return None
        if not self._arrivals.completes(blake2s(message).digest(), index):
            return None
        if not self._allowance.admits(digest, self._engine.now_ns):
            return None
        return Message(kind, number[:PROCESS_BYTES], digest, others.split(b","))
