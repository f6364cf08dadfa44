r"""Who waits elsewhere for a resource: *words from other processes, releases → who tries next*. Pure.

A head that is refused looks whose token the key holds (GET) and leaves word in that process's inbox: "I wait". Who
releases then passes the turn, behind its release, to the process that came first, together with the others that wait
(README, "Hand-off").

Rules: words grant nothing; what gets lost costs time. A turn counts when a quorum of instances has brought it: there
the key is free then. It is given on by whom it finds idle; one who does not listen any more (PUBLISH answers 0) is
passed over. Everything kept is bounded, and what is forgotten is as lost words are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lockcore.awaited import Asked, Core, Ignored, InstancePipe
from lockcore.claims import Claims, Recent
from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.membership import Membership
from lockcore.pipeline import Pipeline
from lockcore.resp import request
from lockcore.turns import Turns

PROCESS_BYTES: Final = 22  # of an owner token: the process that made it
FIRST_LOOK_NS: Final = 250 * NS_PER_MS
LONGEST_LOOK_NS: Final = 800 * NS_PER_MS
TELL_AGAIN_NS: Final = 3 * NS_PER_S
ANSWER_NS: Final = 500 * NS_PER_MS
MISTRUST_NS: Final = 10 * NS_PER_S
MOST_KEPT: Final = 1 << 11
MOST_OTHERS: Final = 1 << 8  # processes that wait for one resource
Told = Callable[[str, "list[bytes | None]"], object]  # of a resource, and the owner tokens on a quorum of instances


class Crowd:
    """Who waits elsewhere, in order, and how many callers here go before them."""

    __slots__ = ("left", "others")

    def __init__(self, left: int) -> None:
        self.left = left
        self.others: dict[bytes, None] = {}


class Handoff:
    """Of one Redlock, whose owner tokens begin with `me`. `passing`: released here, to be passed on. `wakeups`: turns
    that came from elsewhere; `polls`: looks at who holds a key."""

    def __init__(
        self, engine: Core, turns: Turns, pipes: Sequence[Pipeline], members: Sequence[Membership], claims: Claims
    ) -> None:
        self.engine, self.me, self._prefix = engine, claims.process, claims.prefix
        self._turns, self._pipes, self._members = turns, pipes, members
        self.inbox = self._inbox(self.me)
        self.crowds: dict[str, Crowd] = {}
        self.passing: list[str] = []
        self.wakeups = self.polls = self._words = 0
        self._arrived: dict[bytes, int] = {}  # words, and how many instances have brought each
        self._told: Recent[str, dict[bytes, int]] = Recent(MOST_KEPT)  # by resource: which leases' processes, when
        self._unanswered: Recent[str, int] = Recent(MOST_KEPT)  # by resource: told when, and no word came since
        turns.emptied = self._emptied
        for pipe in pipes:
            pipe.heard = self.heard

    def _inbox(self, process: bytes) -> bytes:
        return self._prefix + b"handoff:" + process

    @property
    def hears(self) -> bool:
        """Words of a quorum reach it: else there is nothing to wait for."""
        hellos = [member.hello for member in self._members if member.is_connected]
        return sum(hello is not None and hello.hears for hello in hellos) >= self.engine.quorum

    def gets_through(self, resource: str, now_ns: int) -> bool:
        """Who has the resource answers, or was only just told that it is waited for."""
        since_ns = now_ns - self._unanswered.get(resource, now_ns)
        if since_ns > MISTRUST_NS:
            del self._unanswered[resource]
        return not ANSWER_NS < since_ns <= MISTRUST_NS

    # -- here ----------------------------------------------------------------------------------------------------------

    def released(self, resource: str) -> None:
        """A lease is about to be released: the next one here tries at once, or, behind the release, one elsewhere."""
        turns, crowd = self._turns, self.crowds.get(resource)
        if crowd is None:
            turns.poke(resource)
        elif crowd.left > 0 and resource in turns.lines:
            crowd.left -= 1
            turns.poke(resource)
            self.engine.followed = True  # whoever waits elsewhere has been heard: needs no gap between
        else:
            self.passing.append(resource)
            if resource not in turns.lines and not self.engine.retired:
                turns.hold_place(resource, self.engine.now_ns + FIRST_LOOK_NS)

    def pass_all(self) -> None:
        """What was released has been queued: the words follow it on every connection."""
        passing, self.passing = self.passing, []
        for resource in passing:
            self._pass_on(resource, () if self.engine.retired else (self.me,))

    def _emptied(self, resource: str) -> None:
        """Nobody waits here any more, and got nothing: others may be waiting for us."""
        if resource in self.crowds:
            self._pass_on(resource, ())

    def look(self, resource: str, *, again: bool) -> None:
        """Ask who holds it: word is left with that process, or the head here tries again."""
        self.polls += 1
        if not again:
            self._told.pop(resource, None)
        self._ask(resource, self.looked)

    def _ask(self, resource: str, told: Told) -> None:
        """GET its key on every instance. A quorum of answers is enough; an error says nothing."""
        engine, held_by = self.engine, list[bytes | None]()

        def heard(reply: object, _: InstancePipe) -> None:
            if reply is None or isinstance(reply, bytes):
                held_by.append(reply)
                if len(held_by) == engine.quorum:  # and no more than once
                    told(resource, held_by)

        look, data = Asked(engine.now_ns, heard), request(b"GET", self._prefix + resource.encode())
        for pipe in engine.voters:
            engine.unicast(pipe, data, look)

    def looked(self, resource: str, held_by: list[bytes | None]) -> None:
        """It is free, or a process's; torn between several, each is told."""
        if 2 * held_by.count(None) > len(held_by):
            self._turns.poke(resource)
            return
        told, now_ns = self._told.get(resource), self.engine.now_ns
        if told is None:
            told = self._told.keep(resource, {})
        unheard = self._is_anothers if told else self._is_nobodys
        for token in dict.fromkeys(held_by):
            if token is None or token.startswith(self.me) or now_ns < told.get(token, -TELL_AGAIN_NS) + TELL_AGAIN_NS:
                continue
            told[token] = now_ns
            if resource not in self._unanswered:
                self._unanswered.keep(resource, now_ns)
            self._tell(token[:PROCESS_BYTES], b"waits", b"", resource, self._notice(resource, unheard))

    def _is_nobodys(self, resource: str) -> None:
        """Who has it died: nobody answers."""
        self._unanswered.pop(resource, None)

    def _is_anothers(self, resource: str) -> None:
        """Who has it now hears nothing either: clients with another policy, as they do not die so fast. One polls."""
        self._unanswered.keep(resource, self.engine.now_ns - ANSWER_NS - 1)
        self._turns.poke(resource)

    # -- from elsewhere ------------------------------------------------------------------------------------------------

    def heard(self, word: object) -> None:
        """A message of the inbox; whatever is none of ours is nothing."""
        parts = word.split(b" ", 3) if isinstance(word, bytes) else []
        if len(parts) != 4 or len(parts[1]) <= PROCESS_BYTES:
            return
        kind, number, said, name = parts
        arrived = self._arrived[number] = self._arrived.get(number, 0) + 1
        if len(self._arrived) > MOST_KEPT:
            del self._arrived[next(iter(self._arrived))]  # the oldest
        resource = name.decode(errors="replace")
        if kind == b"waits" and arrived == 1:
            self._waits(number[:PROCESS_BYTES], resource)
        elif arrived == self.engine.quorum:
            self._unanswered.pop(resource, None)
            if kind == b"turn":
                self.wakeups += 1
                self._turn(said.split(b","), resource)

    def _waits(self, process: bytes, resource: str) -> None:
        self._tell(process, b"heard", b"", resource, Ignored(self.engine.now_ns))
        line = self._turns.lines.get(resource)
        self._crowd(resource, len(line or ()), (process,))
        if not line:  # it may have been released before this was heard
            self._ask(resource, self._checked)

    def _checked(self, resource: str, held_by: list[bytes | None]) -> None:
        if 2 * sum(token is not None and token.startswith(self.me) for token in held_by) <= len(held_by):
            self._pass_on(resource, ())

    def _turn(self, others: Sequence[bytes], resource: str) -> None:
        """It is free, and nobody comes before us."""
        turns, waiting = self._turns, self.crowds.pop(resource, None)
        turns.take_place(resource)
        line = turns.lines.get(resource)
        left = max(0, len(line or ()) - 1)
        self._crowd(resource, left, others)
        if waiting is not None:
            self._crowd(resource, left, list(waiting.others))
        if line:
            turns.poke(resource)
        else:
            self._pass_on(resource, ())

    def _crowd(self, resource: str, left: int, others: Sequence[bytes]) -> None:
        crowd = self.crowds.get(resource)
        if crowd is None:
            if len(self.crowds) >= MOST_KEPT:
                self.crowds.clear()
            crowd = self.crowds[resource] = Crowd(left)
        for process in others:
            if len(process) == PROCESS_BYTES and process != self.me and len(crowd.others) < MOST_OTHERS:
                crowd.others[process] = None
        if not crowd.others:
            del self.crowds[resource]

    # -- words ---------------------------------------------------------------------------------------------------------

    def _pass_on(self, resource: str, last: Sequence[bytes]) -> None:
        crowd = self.crowds.pop(resource, None)
        if crowd is not None:
            self.give([*crowd.others, *last], resource)

    def give(self, others: Sequence[bytes], resource: str) -> None:
        """The turn to the first of them, with the rest."""
        if not others:
            return
        if others[0] == self.me:
            self._turn(others[1:], resource)
            return
        passed = self._notice(resource, partial(self.give, others[1:]))
        self._tell(others[0], b"turn", b",".join(others[1:]), resource, passed)

    def _notice(self, resource: str, unheard: Callable[[str], object]) -> Asked:
        """A word on its way. `unheard`: what to do with the resource where a quorum says that nobody listens."""
        engine, silent = self.engine, list[InstancePipe]()

        def heard(listeners: object, pipe: InstancePipe) -> None:
            if listeners == 0:
                silent.append(pipe)
                if len(silent) == engine.quorum:
                    unheard(resource)

        return Asked(engine.now_ns, heard)

    def _tell(self, process: bytes, kind: bytes, said: bytes, resource: str, awaited: Ignored) -> None:
        self._words += 1
        word = b"%b %b%d %b %b" % (kind, self.me, self._words, said, resource.encode())
        data = request(b"PUBLISH", self._inbox(process), word)
        for pipe in self._pipes:
            if pipe.is_open:
                self.engine.unicast(pipe, data, awaited)
