r"""Who waits elsewhere for a resource: *messages of other processes, releases → who tries next*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a constant is
`Final`, and what hot paths read has slots.

A head that is refused reads the beginning of the key's value (GETRANGE). That is an owner token,
which names the holder's process. The head then publishes "I wait" to that process. The process that
releases passes the turn, behind its release, to the process that came first, together with the list
of the others (docs/lockcore/handoff.md).

Rules: messages grant nothing. A lost message costs time, a false one an attempt. A message counts
when a quorum of instances has brought it, each counted once. A turn that has come that way finds
the key free there. A message carries no text that a user chose: it names a resource by a hash of
fixed length, which only a process that knows the resource can turn back into its name. Everything
that is kept is bounded, and so is what is done for messages in a stretch of time. What exceeds a
bound is as lost as a message can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2s
from typing import Final

from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.engine.turns import Turns
from lockcore.facts.membership import Membership
from lockcore.rounds.awaited import Asked, Core, InstancePipe
from lockcore.rounds.claims import Claims, Recent
from lockcore.rounds.commands import OWNER_TOKEN_BYTES
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.resp import bulk, request

# An owner token begins with so many bytes that name the process which made it.
PROCESS_BYTES: Final = 22

FIRST_LOOK_NS: Final = 250 * NS_PER_MS
LONGEST_LOOK_NS: Final = 800 * NS_PER_MS

# A head that waits tells the same holder again after this time.
TELL_AGAIN_NS: Final = 3 * NS_PER_S

# A holder that has not answered for this long is taken for one that no message reaches, and for
# the next MISTRUST_NS the head polls.
ANSWER_NS: Final = 500 * NS_PER_MS
MISTRUST_NS: Final = 10 * NS_PER_S

# A process that still waits has sent its message again by then.
FORGET_NS: Final = 2 * TELL_AGAIN_NS

MOST_KEPT: Final = 1 << 11

# How many processes are remembered that wait for one resource; fewer where processes wait for more
# than FEW_CROWDS resources.
MOST_OTHERS: Final = 1 << 8
FEWER_OTHERS: Final = 1 << 5
FEW_CROWDS: Final = 1 << 6

# How many holders of one resource are remembered to whom a message was sent.
MOST_HOLDERS: Final = 1 << 6
MOST_ARRIVALS: Final = 1 << 10

# In each window something is done for so many messages, and for so many about one resource.
WINDOW_NS: Final = 10 * NS_PER_MS
MOST_PER_WINDOW: Final = 1 << 6
MOST_OF_ONE: Final = 1 << 4

# So many looks in quick succession may find a resource free and have its head try at once.
SOON_FREE: Final = 4
SUCCESSION_NS: Final = FIRST_LOOK_NS // 2

VERSION: Final = b"2"
NUMBER_BYTES: Final = PROCESS_BYTES + 15
DIGEST_BYTES: Final = 32

# A longer message is remembered by its hash.
LONGEST_KEPT: Final = 128  # bytes
LONGEST_MESSAGE: Final = 100 + (PROCESS_BYTES + 1) * MOST_OTHERS  # bytes

WAITS: Final = b"waits"
HEARD: Final = b"heard"
LOOK: Final = b"look"
TURN: Final = b"turn"

# What is called with a resource and with the beginnings of its values on a quorum. A beginning is
# empty where the key is free.
Holders = Callable[[str, "list[bytes]"], object]


class Crowd:
    """The processes that wait for one resource, in order.

    `left` callers here go before them. `news_ns` is when a message about the resource came last.
    """

    __slots__ = ("left", "news_ns", "others")

    def __init__(self, left: int) -> None:
        self.left = left
        self.news_ns = 0
        self.others: dict[bytes, None] = {}


class Generations:
    """The newest texts that were added: between `most` and twice as many."""

    __slots__ = ("_most", "_newer", "_older")

    def __init__(self, most: int) -> None:
        self._most = most
        self._newer: set[bytes] = set()
        self._older: set[bytes] = set()

    def has(self, text: bytes) -> bool:
        """True when the text was added, and is not forgotten."""
        return text in self._newer or text in self._older

    def add(self, text: bytes) -> None:
        """Remember the text. The oldest texts are forgotten together."""
        if len(self._newer) >= self._most:
            self._older = self._newer
            self._newer = set()
        self._newer.add(text)

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)


class Arrivals:
    """Which messages each instance has brought.

    An instance counts once, however often it brings a message. A flood from one instance pushes
    out what this instance has brought, and nothing else.
    """

    def __init__(self, instances: int, quorum: int) -> None:
        self._quorum = quorum
        self._of = [Generations(MOST_ARRIVALS) for _ in range(instances)]
        self._complete = Generations(MOST_ARRIVALS)

    def completes(self, message: bytes, index: int) -> bool:
        """Whether this instance is the one that makes a quorum which has brought the message.

        It is True once for a message.
        """
        own = self._of[index]
        if own.has(message) or self._complete.has(message):
            return False
        own.add(message)
        instances = 0
        for arrivals in self._of:
            instances += arrivals.has(message)
        if instances < self._quorum:
            return False
        self._complete.add(message)
        return True

    def __len__(self) -> int:
        return len(self._complete) + sum(map(len, self._of))


class Allowance:
    """For how many messages something is done in a window of time.

    There is a bound for all of them, and a lower one for those about one resource.
    """

    def __init__(self) -> None:
        self._end_ns = 0
        self._count = 0
        self._of: dict[bytes, int] = {}

    def admits(self, digest: bytes, now_ns: int) -> bool:
        """Whether there is room for one more message about this resource."""
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


class Handoff:
    """The hand-off of one Redlock, whose owner tokens begin with `me`.

    `passing` are the resources that were released here and are to be passed on. `crowds` has the
    processes that wait, by the hash of the resource. `wakeups` counts turns that came from other
    processes, `polls` the looks at who holds a key.

    `_names` has the resources that callers here wait for, by hash. The others are by resource:
    `_holders` to which processes a message was sent, and when; `_unanswered` since when nothing
    that was sent has been answered; `_found_free` how many looks in a row found it free, and when
    the last one did.
    """

    def __init__(
        self,
        engine: Core,
        turns: Turns,
        pipes: Sequence[Pipeline],
        members: Sequence[Membership],
        claims: Claims,
    ) -> None:
        self.engine = engine
        self.me = claims.process
        self._prefix = claims.prefix
        self._turns = turns
        self._pipes = pipes
        self._members = members
        self.inbox = self._inbox(self.me)
        self.crowds: dict[bytes, Crowd] = {}
        self.passing: list[str] = []
        self.wakeups = 0
        self.polls = 0
        # The number of the last message. It always has 15 digits.
        self._sent = 10**14
        self._arrivals = Arrivals(engine.instances, engine.quorum)
        self._allowance = Allowance()
        self._digests: Recent[str, bytes] = Recent(MOST_KEPT)
        self._names: dict[bytes, str] = {}
        self._holders: Recent[str, dict[bytes, int]] = Recent(MOST_KEPT)
        self._unanswered: Recent[str, int] = Recent(MOST_KEPT)
        self._found_free: Recent[str, tuple[int, int]] = Recent(MOST_KEPT)
        self._swept_ns = 0
        turns.emptied = self._emptied
        for pipe in pipes:
            pipe.heard = self.heard
            pipe.replies.message_head = b">3\r\n" + bulk(b"message") + bulk(self.inbox) + b"$"

    def _inbox(self, process: bytes) -> bytes:
        return self._prefix + b"handoff:" + process

    @property
    def hears(self) -> bool:
        """True when the messages of a quorum reach it. Otherwise there is nothing to wait for."""
        hellos = [member.hello for member in self._members if member.is_connected]
        return sum(hello is not None and hello.hears for hello in hellos) >= self.engine.quorum

    def gets_through(self, resource: str, now_ns: int) -> bool:
        """True when the resource's holder answers, or has had no time yet to answer."""
        since_ns = now_ns - self._unanswered.get(resource, now_ns)
        if since_ns > MISTRUST_NS:
            del self._unanswered[resource]
        return not ANSWER_NS < since_ns <= MISTRUST_NS

    # -- names -------------------------------------------------------------------------------------

    def digest_of(self, resource: str) -> bytes:
        """The hash by which messages name a resource: 32 hexadecimal digits of its whole key."""
        digest = self._digests.get(resource)
        if digest is None:
            key = self._prefix + resource.encode()
            digest = blake2s(key, digest_size=DIGEST_BYTES // 2).hexdigest().encode()
            self._digests.keep(resource, digest)
        return digest

    def _note_name(self, resource: str) -> None:
        """Callers here wait for the resource, so messages about it concern them.

        The name is kept as long as anybody waits.
        """
        names = self._names
        lines = self._turns.lines
        names[self.digest_of(resource)] = resource
        if len(names) > MOST_KEPT + 2 * len(lines):
            self._names = {digest: name for digest, name in names.items() if name in lines}
            self._names[self.digest_of(resource)] = resource

    # -- here --------------------------------------------------------------------------------------

    # The line between processes travels with the lock, and callers of the same process go first.
    # While `left` callers here stand before the other processes, the head here is poked as the
    # release is queued, so its SET leaves in the same write (`followed`). Nobody else needs a gap
    # between the two: the processes that wait have been heard, and get a message in their turn.
    # Writes per lease over five instances fell from 10.4 to 5.5, and the client's CPU from 1,060 to
    # 620 µs (4 processes of 16 callers, from source, one run each beside other work;
    # docs/lab/lockcore.md). While nobody has been heard, release and SET leave apart. Otherwise a
    # process that is not heard, and polls, could not come in between.
    # When it is the turn of another process, and nobody here stands in line, a place is held for
    # 250 ms: whoever comes here stands behind the process that the turn was passed to.
    def released(self, resource: str) -> None:
        """A lease is about to be released.

        The next caller here tries at once, or the next one elsewhere behind the release.
        """
        turns = self._turns
        self._found_free.pop(resource, None)
        crowd = self.crowds.get(self.digest_of(resource)) if self.crowds else None
        if crowd is None:
            turns.poke(resource)
        elif crowd.left > 0 and resource in turns.lines:
            crowd.left -= 1
            turns.poke(resource)
            self.engine.followed = True
        else:
            self.passing.append(resource)
            if resource not in turns.lines and not self.engine.retired:
                turns.hold_place(resource, self.engine.now_ns + FIRST_LOOK_NS)
                self._note_name(resource)

    def pass_all(self) -> None:
        """The releases have been queued: the messages follow them on every connection."""
        passing = self.passing
        self.passing = []
        for resource in passing:
            self._pass_on(self.digest_of(resource), () if self.engine.retired else (self.me,))

    def _emptied(self, resource: str) -> None:
        """Nobody waits here any more, and nobody got it. Others may be waiting for us."""
        if self.crowds:
            self._pass_on(self.digest_of(resource), ())

    def look(self, resource: str, *, again: bool) -> None:
        """Ask who holds the key. That process is sent a message, or the head here tries again."""
        self.polls += 1
        self._note_name(resource)
        if not again:
            self._holders.pop(resource, None)
        self._ask(resource, self.looked)

    def _ask(self, resource: str, listener: Holders) -> None:
        """Read the beginning of the key's value on every instance, however long the value is.

        A quorum of answers is enough. An error is no answer.
        """
        engine = self.engine
        values = list[bytes]()

        def read(reply: object, _: InstancePipe) -> None:
            if isinstance(reply, bytes):
                values.append(reply[:OWNER_TOKEN_BYTES])
                # Equal, not at least: the listener is called once.
                if len(values) == engine.quorum:
                    listener(resource, values)

        question = Asked(engine.now_ns, read)
        key = self._prefix + resource.encode()
        # GETRANGE includes both ends.
        data = request(b"GETRANGE", key, b"0", b"%d" % (OWNER_TOKEN_BYTES - 1))
        for pipe in engine.voters:
            engine.unicast(pipe, data, question)

    def looked(self, resource: str, values: list[bytes]) -> None:
        """A look has ended: the key is free, or a process has it.

        If it is torn between several processes, each of them is sent a message.
        """
        if 2 * values.count(b"") > len(values):
            self._is_free(resource)
            return
        self._found_free.pop(resource, None)
        holders = self._holders.get(resource)
        now_ns = self.engine.now_ns
        if holders is None:
            holders = self._holders.keep(resource, {})
        unheard = self._is_anothers if holders else self._is_nobodys
        for token in dict.fromkeys(values):
            if not token or token.startswith(self.me):
                continue
            if now_ns < holders.get(token, -TELL_AGAIN_NS) + TELL_AGAIN_NS:
                continue
            if len(holders) >= MOST_HOLDERS:
                holders.clear()
            holders[token] = now_ns
            if resource not in self._unanswered:
                self._unanswered.keep(resource, now_ns)
            process = token[:PROCESS_BYTES]
            digest = self.digest_of(resource)
            self._send(process, WAITS, digest, b"", partial(unheard, resource))

    def _is_free(self, resource: str) -> None:
        """The key is free: the head tries at once.

        An empty text that somebody else keeps there looks like no key at all. So after SOON_FREE
        looks in quick succession the head waits until it looks again by itself. Otherwise it would
        never rest.
        """
        now_ns = self.engine.now_ns
        times, last_ns = self._found_free.get(resource, (0, now_ns))
        if now_ns - last_ns > SUCCESSION_NS:
            times = 0
        self._found_free.keep(resource, (times + 1, now_ns))
        if times < SOON_FREE:
            self._turns.poke(resource)

    def _is_nobodys(self, resource: str) -> None:
        """Nobody listens for its holder, so the holder has died and nobody will answer."""
        self._unanswered.pop(resource, None)

    def _is_anothers(self, resource: str) -> None:
        """Nobody listens for its new holder either, and holders do not die so fast.

        So these are clients with another policy, and the head polls.
        """
        self._unanswered.keep(resource, self.engine.now_ns - ANSWER_NS - 1)
        self._turns.poke(resource)

    # -- from elsewhere ----------------------------------------------------------------------------

    def heard(self, message: object, index: int) -> None:
        """One instance has brought a message of the inbox.

        Whatever is no message of this library and version does nothing.
        """
        if not isinstance(message, bytes) or len(message) > LONGEST_MESSAGE:
            return
        parts = message.split(b":")
        if len(parts) != 5 or parts[0] != VERSION:
            return
        _, kind, number, digest, others = parts
        if len(number) != NUMBER_BYTES or len(digest) != DIGEST_BYTES:
            return
        content = message if len(message) <= LONGEST_KEPT else blake2s(message).digest()
        if not self._arrivals.completes(content, index):
            return
        if not self._allowance.admits(digest, self.engine.now_ns):
            return
        if kind == TURN:
            self.wakeups += 1
            self._turn(digest, others.split(b","))
        elif kind == WAITS:
            self._waits(digest, number[:PROCESS_BYTES])
        elif kind in {HEARD, LOOK}:
            self._answered(digest, look=kind == LOOK)

    def _waits(self, digest: bytes, process: bytes) -> None:
        """A process waits for the resource, and is answered.

        If nobody waits here, the key may have been released before the message came. Then the
        answer says that the process is to look again.
        """
        name = self._names.get(digest)
        line = None if name is None else self._turns.lines.get(name)
        answer = HEARD if line else LOOK
        self._send(process, answer, digest, b"", partial(self._is_gone, digest, process))
        self._crowd(digest, len(line or ()), (process,))

    def _is_gone(self, digest: bytes, process: bytes) -> None:
        """Nobody listens any more in a process that was remembered as waiting."""
        crowd = self.crowds.get(digest)
        if crowd is not None:
            crowd.others.pop(process, None)
            if not crowd.others:
                del self.crowds[digest]

    def _answered(self, digest: bytes, *, look: bool) -> None:
        """The holder has answered: it knows that callers here wait."""
        name = self._names.get(digest)
        if name is not None:
            self._unanswered.pop(name, None)
            if look and name in self._turns.lines:
                self._ask(name, self.looked)

    def _turn(self, digest: bytes, others: Sequence[bytes]) -> None:
        """The key is free, and nobody comes before us."""
        turns = self._turns
        crowd = self.crowds.pop(digest, None)
        name = self._names.get(digest)
        if name is not None:
            self._unanswered.pop(name, None)
            turns.take_place(name)
        line = None if name is None else turns.lines.get(name)
        left = max(0, len(line or ()) - 1)
        self._crowd(digest, left, others)
        if crowd is not None:
            self._crowd(digest, left, list(crowd.others))
        if line and name is not None:
            turns.poke(name)
        else:
            self._pass_on(digest, ())

    def _crowd(self, digest: bytes, left: int, others: Sequence[bytes]) -> None:
        """These processes wait for the resource, too, behind `left` callers here."""
        crowds = self.crowds
        crowd = crowds.get(digest)
        if crowd is None:
            if len(crowds) >= MOST_KEPT:
                for oldest in list(crowds)[: MOST_KEPT // 2]:
                    del crowds[oldest]
            crowd = crowds[digest] = Crowd(left)
        crowd.news_ns = self.engine.now_ns
        most = MOST_OTHERS if len(crowds) <= FEW_CROWDS else FEWER_OTHERS
        for process in others:
            if len(process) == PROCESS_BYTES and process != self.me and len(crowd.others) < most:
                crowd.others[process] = None
        if not crowd.others:
            del crowds[digest]

    def sweep(self, now_ns: int) -> None:
        """Forget, once a second, crowds of which no message has come for FORGET_NS.

        What they wait for was released before they were heard, and they have asked somebody else
        since. A process that still waits for what is held here has sent its message again.
        """
        if not self.crowds or now_ns < self._swept_ns + NS_PER_S:
            return
        self._swept_ns = now_ns
        forgotten = [
            digest for digest, crowd in self.crowds.items() if crowd.news_ns + FORGET_NS < now_ns
        ]
        for digest in forgotten:
            del self.crowds[digest]

    # -- messages ----------------------------------------------------------------------------------

    def _pass_on(self, digest: bytes, last: Sequence[bytes]) -> None:
        crowd = self.crowds.pop(digest, None)
        if crowd is not None:
            self.give(digest, [*crowd.others, *last])

    def give(self, digest: bytes, others: Sequence[bytes]) -> None:
        """Give the turn to the first of these processes, with the list of the rest."""
        if not others:
            return
        rest = others[1:]
        if others[0] == self.me:
            self._turn(digest, rest)
            return
        self._send(others[0], TURN, digest, b",".join(rest), partial(self.give, digest, rest))

    def _send(
        self,
        process: bytes,
        kind: bytes,
        digest: bytes,
        others: bytes,
        unheard: Callable[[], object],
    ) -> None:
        """Publish a message to a process.

        `unheard` is called when a quorum says that nobody listens.
        """
        engine = self.engine
        silent = list[InstancePipe]()

        def published(listeners: object, pipe: InstancePipe) -> None:
            if listeners == 0:
                silent.append(pipe)
                if len(silent) == engine.quorum:
                    unheard()

        self._sent += 1
        message = b"%b:%b:%b%d:%b:%b" % (VERSION, kind, self.me, self._sent, digest, others)
        data = request(b"PUBLISH", self._inbox(process), message)
        question = Asked(engine.now_ns, published)
        for pipe in self._pipes:
            if pipe.is_open:
                engine.unicast(pipe, data, question)
