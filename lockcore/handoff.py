r"""Who waits elsewhere for a resource: *messages from other processes, releases → who tries next*.
Pure.

This file is compiled, so it follows the rules of README.md, "Compiled".

A head that is refused reads the beginning of the key's value (GETRANGE). That is an owner token,
which names the holder's process. The head then publishes "I wait" to that process. The process that
releases passes the turn, behind its release, to the process that came first, together with the list
of the others (README, "Hand-off").

Rules: messages grant nothing. A lost message costs time, a false one an attempt. A message counts
when a quorum of instances has brought it, each counted once; a turn that has come that way finds
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

from lockcore.awaited import Asked, Core, InstancePipe
from lockcore.claims import Claims, Recent
from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.commands import OWNER_TOKEN_BYTES
from lockcore.membership import Membership
from lockcore.pipeline import Pipeline
from lockcore.resp import bulk, request
from lockcore.turns import Turns

PROCESS_BYTES: Final = 22  # of an owner token: the process that made it
FIRST_LOOK_NS: Final = 250 * NS_PER_MS
LONGEST_LOOK_NS: Final = 800 * NS_PER_MS
TELL_AGAIN_NS: Final = 3 * NS_PER_S
ANSWER_NS: Final = 500 * NS_PER_MS
MISTRUST_NS: Final = 10 * NS_PER_S
FORGET_NS: Final = 2 * TELL_AGAIN_NS  # a process that still waits has said so again by then
MOST_KEPT: Final = 1 << 11
MOST_OTHERS: Final = 1 << 8  # processes that wait for one resource
FEWER_OTHERS: Final = 1 << 5  # the same, for more than FEW_CROWDS resources
FEW_CROWDS: Final = 1 << 6
MOST_HOLDERS: Final = 1 << 6  # holders of one resource to whom a message was sent
MOST_ARRIVALS: Final = 1 << 10
WINDOW_NS: Final = 10 * NS_PER_MS
MOST_PER_WINDOW: Final = 1 << 6  # messages for which anything is done
MOST_OF_ONE: Final = 1 << 4  # messages about one resource for which anything is done
SOON_FREE: Final = 4  # looks in succession that found a resource free
SUCCESSION_NS: Final = FIRST_LOOK_NS // 2
VERSION: Final = b"2"
NUMBER_BYTES: Final = PROCESS_BYTES + 15
DIGEST_BYTES: Final = 32
LONGEST_KEPT: Final = 128  # bytes of a message; of a longer one a hash is kept
LONGEST_MESSAGE: Final = 100 + (PROCESS_BYTES + 1) * MOST_OTHERS
WAITS: Final = b"waits"
HEARD: Final = b"heard"
LOOK: Final = b"look"
TURN: Final = b"turn"
Holders = Callable[
    [str, "list[bytes]"], object
]  # a resource; its value's beginning on a quorum, empty where it is free


class Crowd:
    """Processes that wait for one resource, in order, and how many callers here go before them.
    `news_ns`: when a message about it came last."""

    __slots__ = ("left", "news_ns", "others")

    def __init__(self, left: int) -> None:
        self.left = left
        self.news_ns = 0
        self.others: dict[bytes, None] = {}


class Generations:
    """The newest texts that were added, between `most` and twice as many."""

    __slots__ = ("_most", "_newer", "_older")

    def __init__(self, most: int) -> None:
        self._most = most
        self._newer: set[bytes] = set()
        self._older: set[bytes] = set()

    def has(self, text: bytes) -> bool:
        """True when it was added, and is not forgotten."""
        return text in self._newer or text in self._older

    def add(self, text: bytes) -> None:
        """Remember it; the oldest are forgotten together."""
        if len(self._newer) >= self._most:
            self._older = self._newer
            self._newer = set()
        self._newer.add(text)

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)


class Arrivals:
    """Which messages each instance has brought. An instance counts once, however often it brings
    one. A flood from one instance makes it forget what that instance has brought, and nothing
    else."""

    def __init__(self, instances: int, quorum: int) -> None:
        self._quorum = quorum
        self._of = [Generations(MOST_ARRIVALS) for _ in range(instances)]
        self._complete = Generations(MOST_ARRIVALS)

    def completes(self, message: bytes, index: int) -> bool:
        """Whether it makes a quorum of instances that this one has brought it, too; True once for a
        message."""
        own = self._of[index]
        if own.has(message) or self._complete.has(message):
            return False
        own.add(message)
        brought = 0
        for arrived in self._of:
            brought += arrived.has(message)
        if brought < self._quorum:
            return False
        self._complete.add(message)
        return True

    def __len__(self) -> int:
        return len(self._complete) + sum(map(len, self._of))


class Allowance:
    """For how many messages anything is done in a window of time: so many in all, fewer of one
    resource."""

    def __init__(self) -> None:
        self._end_ns = 0
        self._count = 0
        self._of: dict[bytes, int] = {}

    def admits(self, digest: bytes, now_ns: int) -> bool:
        """Whether there is room for one more about this resource."""
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
    """Of one Redlock, whose owner tokens begin with `me`. `passing`: released here, to be passed
    on. `crowds`: by the hash of a resource. `wakeups`: turns that came from elsewhere; `polls`:
    looks at who holds a key."""

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
        self._sent = 10**14  # messages: always 15 digits
        self._arrivals = Arrivals(engine.instances, engine.quorum)
        self._allowance = Allowance()
        self._digests: Recent[str, bytes] = Recent(MOST_KEPT)
        self._names: dict[bytes, str] = {}  # of the resources that callers here wait for, by hash
        self._holders: Recent[str, dict[bytes, int]] = Recent(
            MOST_KEPT
        )  # by resource: to whose process was sent, when
        self._unanswered: Recent[str, int] = Recent(
            MOST_KEPT
        )  # by resource: since when nothing sent was answered
        self._found_free: Recent[str, tuple[int, int]] = Recent(
            MOST_KEPT
        )  # by resource: looks in a row, the last one
        self._swept_ns = 0
        turns.emptied = self._emptied
        for pipe in pipes:
            pipe.heard = self.heard
            pipe.message_head = b">3\r\n" + bulk(b"message") + bulk(self.inbox) + b"$"

    def _inbox(self, process: bytes) -> bytes:
        return self._prefix + b"handoff:" + process

    @property
    def hears(self) -> bool:
        """Messages of a quorum reach it: else there is nothing to wait for."""
        hellos = [member.hello for member in self._members if member.is_connected]
        return sum(hello is not None and hello.hears for hello in hellos) >= self.engine.quorum

    def gets_through(self, resource: str, now_ns: int) -> bool:
        """The resource's holder answers, or there was no time yet to answer."""
        since_ns = now_ns - self._unanswered.get(resource, now_ns)
        if since_ns > MISTRUST_NS:
            del self._unanswered[resource]
        return not ANSWER_NS < since_ns <= MISTRUST_NS

    # -- names -------------------------------------------------------------------------------------

    def digest_of(self, resource: str) -> bytes:
        """The hash by which messages name a resource: of its whole key, 32 hexadecimal digits."""
        digest = self._digests.get(resource)
        if digest is None:
            key = self._prefix + resource.encode()
            digest = self._digests.keep(
                resource, blake2s(key, digest_size=DIGEST_BYTES // 2).hexdigest().encode()
            )
        return digest

    def _note_name(self, resource: str) -> None:
        """Callers here wait for it, so that messages about it concern them. Kept as long as anybody
        waits."""
        names = self._names
        lines = self._turns.lines
        names[self.digest_of(resource)] = resource
        if len(names) > MOST_KEPT + 2 * len(lines):
            self._names = {digest: name for digest, name in names.items() if name in lines}
            self._names[self.digest_of(resource)] = resource

    # -- here --------------------------------------------------------------------------------------

    def released(self, resource: str) -> None:
        """A lease is about to be released: the next one here tries at once, or, behind the release,
        one elsewhere."""
        turns = self._turns
        self._found_free.pop(resource, None)
        crowd = self.crowds.get(self.digest_of(resource)) if self.crowds else None
        if crowd is None:
            turns.poke(resource)
        elif crowd.left > 0 and resource in turns.lines:
            crowd.left -= 1
            turns.poke(resource)
            self.engine.followed = (
                True  # other processes have been heard: no gap between is needed for them
            )
        else:
            self.passing.append(resource)
            if resource not in turns.lines and not self.engine.retired:
                turns.hold_place(resource, self.engine.now_ns + FIRST_LOOK_NS)
                self._note_name(resource)

    def pass_all(self) -> None:
        """What was released has been queued: the messages follow it on every connection."""
        passing = self.passing
        self.passing = []
        for resource in passing:
            self._pass_on(self.digest_of(resource), () if self.engine.retired else (self.me,))

    def _emptied(self, resource: str) -> None:
        """Nobody waits here any more, and got nothing: others may be waiting for us."""
        if self.crowds:
            self._pass_on(self.digest_of(resource), ())

    def look(self, resource: str, *, again: bool) -> None:
        """Ask who holds it: that process is sent a message, or the head here tries again."""
        self.polls += 1
        self._note_name(resource)
        if not again:
            self._holders.pop(resource, None)
        self._ask(resource, self.looked)

    def _ask(self, resource: str, answered: Holders) -> None:
        """Read the beginning of its value on every instance, however long that is. A quorum of
        answers is enough; an error is no answer."""
        engine = self.engine
        values = list[bytes]()

        def read(reply: object, _: InstancePipe) -> None:
            if isinstance(reply, bytes):
                values.append(reply[:OWNER_TOKEN_BYTES])
                if len(values) == engine.quorum:  # and no more than once
                    answered(resource, values)

        look = Asked(engine.now_ns, read)
        key = self._prefix + resource.encode()
        data = request(
            b"GETRANGE", key, b"0", b"%d" % (OWNER_TOKEN_BYTES - 1)
        )  # both ends are included
        for pipe in engine.voters:
            engine.unicast(pipe, data, look)

    def looked(self, resource: str, values: list[bytes]) -> None:
        """It is free, or a process's; torn between several, each is sent a message."""
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
            if (
                not token
                or token.startswith(self.me)
                or now_ns < holders.get(token, -TELL_AGAIN_NS) + TELL_AGAIN_NS
            ):
                continue
            if len(holders) >= MOST_HOLDERS:
                holders.clear()
            holders[token] = now_ns
            if resource not in self._unanswered:
                self._unanswered.keep(resource, now_ns)
            self._send(
                token[:PROCESS_BYTES],
                WAITS,
                self.digest_of(resource),
                b"",
                partial(unheard, resource),
            )

    def _is_free(self, resource: str) -> None:
        """The head tries at once. An empty text that somebody else keeps there looks like no key at
        all. So after SOON_FREE looks in quick succession the head waits until it looks again by
        itself, or it would never rest."""
        now_ns = self.engine.now_ns
        times, last_ns = self._found_free.get(resource, (0, now_ns))
        if now_ns - last_ns > SUCCESSION_NS:
            times = 0
        self._found_free.keep(resource, (times + 1, now_ns))
        if times < SOON_FREE:
            self._turns.poke(resource)

    def _is_nobodys(self, resource: str) -> None:
        """Its holder died: nobody answers."""
        self._unanswered.pop(resource, None)

    def _is_anothers(self, resource: str) -> None:
        """Its new holder hears nothing either: these are clients with another policy, as they do
        not die so fast. The head polls."""
        self._unanswered.keep(resource, self.engine.now_ns - ANSWER_NS - 1)
        self._turns.poke(resource)

    # -- from elsewhere ----------------------------------------------------------------------------

    def heard(self, message: object, index: int) -> None:
        """A message of the inbox, brought by one instance. Everything that is none of ours does
        nothing, as do those of other versions."""
        if not isinstance(message, bytes) or len(message) > LONGEST_MESSAGE:
            return
        parts = message.split(b":")
        if len(parts) != 5 or parts[0] != VERSION:
            return
        _, kind, number, digest, others = parts
        if len(number) != NUMBER_BYTES or len(digest) != DIGEST_BYTES:
            return
        content = message if len(message) <= LONGEST_KEPT else blake2s(message).digest()
        if not self._arrivals.completes(content, index) or not self._allowance.admits(
            digest, self.engine.now_ns
        ):
            return
        if kind == TURN:
            self.wakeups += 1
            self._turn(digest, others.split(b","))
        elif kind == WAITS:
            self._waits(digest, number[:PROCESS_BYTES])
        elif kind in {HEARD, LOOK}:
            self._answered(digest, look=kind == LOOK)

    def _waits(self, digest: bytes, process: bytes) -> None:
        """A process waits for it. If nobody does here, it may have been released before this was
        heard: then the process is to look again."""
        name = self._names.get(digest)
        line = None if name is None else self._turns.lines.get(name)
        self._send(
            process, HEARD if line else LOOK, digest, b"", partial(self._is_gone, digest, process)
        )
        self._crowd(digest, len(line or ()), (process,))

    def _is_gone(self, digest: bytes, process: bytes) -> None:
        """Nobody listens any more where somebody is said to wait."""
        crowd = self.crowds.get(digest)
        if crowd is not None:
            crowd.others.pop(process, None)
            if not crowd.others:
                del self.crowds[digest]

    def _answered(self, digest: bytes, *, look: bool) -> None:
        """The holder knows that callers here wait."""
        name = self._names.get(digest)
        if name is not None:
            self._unanswered.pop(name, None)
            if look and name in self._turns.lines:
                self._ask(name, self.looked)

    def _turn(self, digest: bytes, others: Sequence[bytes]) -> None:
        """It is free, and nobody comes before us."""
        turns = self._turns
        waiting = self.crowds.pop(digest, None)
        name = self._names.get(digest)
        if name is not None:
            self._unanswered.pop(name, None)
            turns.take_place(name)
        line = None if name is None else turns.lines.get(name)
        left = max(0, len(line or ()) - 1)
        self._crowd(digest, left, others)
        if waiting is not None:
            self._crowd(digest, left, list(waiting.others))
        if line and name is not None:
            turns.poke(name)
        else:
            self._pass_on(digest, ())

    def _crowd(self, digest: bytes, left: int, others: Sequence[bytes]) -> None:
        """These processes wait for it, too, behind so many callers here."""
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
        """Forget, once a second, the processes that wait for what was released before they were
        heard: they have asked somebody else since. One that still waits for what is held here has
        said so again."""
        if not self.crowds or now_ns < self._swept_ns + NS_PER_S:
            return
        self._swept_ns = now_ns
        for digest in [
            digest for digest, crowd in self.crowds.items() if crowd.news_ns + FORGET_NS < now_ns
        ]:
            del self.crowds[digest]

    # -- messages ----------------------------------------------------------------------------------

    def _pass_on(self, digest: bytes, last: Sequence[bytes]) -> None:
        crowd = self.crowds.pop(digest, None)
        if crowd is not None:
            self.give(digest, [*crowd.others, *last])

    def give(self, digest: bytes, others: Sequence[bytes]) -> None:
        """The turn to the first of them, with the rest."""
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
        """Publish a message to a process. `unheard`: what to do where a quorum says that nobody
        listens."""
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
        sent = Asked(engine.now_ns, published)
        for pipe in self._pipes:
            if pipe.is_open:
                engine.unicast(pipe, data, sent)
