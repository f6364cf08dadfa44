"""Who waits elsewhere for a resource: *messages of other processes, releases → who tries next*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a constant is
`Final`, and what is kept for each resource has slots.

A head that is refused reads the beginning of the key's value (GETRANGE). That is an owner token,
which names the holder's process. The head then publishes "I wait" to that process. The process that
releases passes the turn, behind its release, to the process that came first, together with the list
of the others.

Rules: messages grant nothing. A lost message costs time, a false one an attempt. mail.py says when
a message counts. A turn that has come that way finds the key free on a quorum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.engine.mail import (
    HEARD,
    LOOK,
    MOST_OTHERS,
    PROCESS_BYTES,
    TURN,
    WAITS,
    Mail,
    Message,
)
from lockcore.engine.turns import Turns
from lockcore.rounds.awaited import Asked, Core, InstancePipe
from lockcore.rounds.commands import OWNER_TOKEN_BYTES
from lockcore.rounds.resp import request

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

# How many processes are remembered that wait for one resource (MOST_OTHERS), where processes wait
# for more than FEW_CROWDS resources.
FEWER_OTHERS: Final = 1 << 5
FEW_CROWDS: Final = 1 << 6

# How many holders of one resource are remembered to whom a message was sent.
MOST_HOLDERS: Final = 1 << 6

# So many looks without a pause between them may find a resource free and have its head try at once.
SOON_FREE: Final = 4


class Crowd:
    """The processes that wait for one resource, in order.

    `left` callers here go before them. `news_ns` is when a message about the resource came last.
    """

    __slots__ = ("left", "news_ns", "others")

    def __init__(self, left: int) -> None:
        self.left = left
        self.news_ns = 0
        self.others: dict[bytes, None] = {}


class Wait:
    """What is known about a resource that callers here wait for.

    `holders` are the owner tokens whose processes were sent a message, and when. `unanswered_ns` is
    when the first of the messages was sent that nobody has answered; 0 without such a message.
    `free_looks` is how many looks in a row found the key free.
    """

    __slots__ = ("free_looks", "holders", "resource", "unanswered_ns")

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.holders: dict[bytes, int] = {}
        self.unanswered_ns = 0
        self.free_looks = 0


class Handoff:
    """The hand-off of one Redlock.

    The engine and the steps of an operation use three methods.

    | who | calls | and then |
    |---|---|---|
    | a head that was refused | `expects` | it waits for a message, or it polls |
    | a head that waits | `look` | it is settled when the key is free, or when the turn comes |
    | a holder | `released` | the next caller here, or the next process, tries |

    The states of a head, by what is kept about its resource (`Wait`):

    | state | `unanswered_ns` | what ends it |
    |---|---|---|
    | looking | as before | a quorum of values: the key is free, or `waits` goes to its holder |
    | waiting | 0, or not long ago | `turn`: it tries. `look`: it looks. ANSWER_NS pass: it polls |
    | polling | long ago | `heard`, `look` or `turn` came, or MISTRUST_NS have passed |

    The states of the process of a holder, by what is kept about the resource (`Crowd`):

    | state | `released` | what ends it |
    |---|---|---|
    | no crowd | wakes the next caller here | `waits` or `turn` came, with other processes |
    | a crowd, `left` > 0 | wakes the next caller here | `left` is 0 |
    | a crowd, `left` = 0 | passes the crowd on with the turn | the crowd is given away |

    A crowd without a message for FORGET_NS is forgotten: the release that it waits for came before
    it was heard, and it has sent its message to another holder since.

    `passing` are the resources that were released here and are to be passed on. `wakeups` counts
    turns that came from other processes, `polls` the looks at who holds a key.
    """

    def __init__(self, engine: Core, turns: Turns, mail: Mail) -> None:
        self.engine = engine
        self.mail = mail
        self._turns = turns
        self.crowds: dict[bytes, Crowd] = {}
        self.passing: list[str] = []
        self.wakeups = 0
        self.polls = 0
        self._waits: dict[bytes, Wait] = {}
        turns.emptied = self._emptied

    # -- here --------------------------------------------------------------------------------------

    def expects(self, resource: str, now_ns: int) -> bool:
        """True when a caller that waits for the resource may expect a message.

        Messages must reach this process, and the resource's holder must have answered, or have had
        no time yet to answer.
        """
        if not self.mail.arrives:
            return False
        wait = self._wait(self.mail.digest_of(resource), resource)
        since_ns = now_ns - (wait.unanswered_ns or now_ns)
        if since_ns > MISTRUST_NS:
            wait.unanswered_ns = 0
        return not ANSWER_NS < since_ns <= MISTRUST_NS

    def _wait(self, digest: bytes, resource: str) -> Wait:
        """What is known about a resource. It is kept as long as callers here wait for it."""
        waits = self._waits
        wait = waits.get(digest)
        if wait is None:
            lines = self._turns.lines
            if len(waits) >= MOST_KEPT + 2 * len(lines):
                kept = {one: wait for one, wait in waits.items() if wait.resource in lines}
                self._waits = kept
            wait = Wait(resource)
            self._waits[digest] = wait
        return wait

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
        digest = self.mail.digest_of(resource) if self.crowds else b""
        crowd = self._crowd(digest)
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
                self._wait(digest, resource)

    def pass_all(self) -> None:
        """The releases have been queued: the messages follow them on every connection."""
        passing = self.passing
        self.passing = []
        last = [] if self.engine.retired else [self.mail.me]
        for resource in passing:
            self._pass_on(self.mail.digest_of(resource), last)

    def _emptied(self, resource: str) -> None:
        """Nobody waits here any more, and nobody got it. Others may be waiting for us."""
        if self.crowds:
            self._pass_on(self.mail.digest_of(resource), [])

    def look(self, resource: str, *, again: bool) -> None:
        """Ask who holds the key. That process is sent a message, or the head here tries again.

        `again`: the head has waited since it looked last.
        """
        self.polls += 1
        wait = self._wait(self.mail.digest_of(resource), resource)
        if again:
            wait.free_looks = 0
        else:
            wait.holders = {}
        self._look(wait)

    def _look(self, wait: Wait) -> None:
        """Read the beginning of the key's value on every instance, however long the value is.

        A quorum of answers is enough. An error is no answer.
        """
        engine = self.engine
        values = list[bytes]()

        def read(reply: object, _: InstancePipe) -> None:
            if isinstance(reply, bytes):
                values.append(reply[:OWNER_TOKEN_BYTES])
                # Equal, not at least: a look ends once.
                if len(values) == engine.quorum:
                    self._looked(wait, values)

        question = Asked(engine.now_ns, read)
        key = self.mail.key_of(wait.resource)
        # GETRANGE includes both ends.
        data = request(b"GETRANGE", key, b"0", b"%d" % (OWNER_TOKEN_BYTES - 1))
        for pipe in engine.voters:
            engine.unicast(pipe, data, question)

    def _looked(self, wait: Wait, values: list[bytes]) -> None:
        """A look has ended: the key is free, or a process has it.

        If it is torn between several processes, each of them is sent a message.

        An empty text that somebody else keeps there looks like no key at all. So after SOON_FREE
        looks without a pause the head waits until it looks again by itself. Otherwise it would
        never rest.
        """
        if 2 * values.count(b"") > len(values):
            wait.free_looks += 1
            if wait.free_looks <= SOON_FREE:
                self._turns.poke(wait.resource)
            return
        wait.free_looks = 0
        holders = wait.holders
        unheard = partial(self._unheard, wait, is_first=not holders)
        now_ns = self.engine.now_ns
        for token in dict.fromkeys(values):
            if not token or token.startswith(self.mail.me):
                continue
            if now_ns < holders.get(token, -TELL_AGAIN_NS) + TELL_AGAIN_NS:
                continue
            if len(holders) >= MOST_HOLDERS:
                holders.clear()
            holders[token] = now_ns
            wait.unanswered_ns = wait.unanswered_ns or now_ns
            digest = self.mail.digest_of(wait.resource)
            self.mail.send(token[:PROCESS_BYTES], WAITS, digest, (), unheard)

    def _unheard(self, wait: Wait, *, is_first: bool) -> None:
        """Nobody listens for the holder.

        The first holder has died, and nobody will answer. Holders do not die so fast that the next
        one has died, too. Then these are clients with another policy, and the head polls.
        """
        if is_first:
            wait.unanswered_ns = 0
        else:
            wait.unanswered_ns = self.engine.now_ns - ANSWER_NS - 1
            self._turns.poke(wait.resource)

    # -- from elsewhere ----------------------------------------------------------------------------

    def heard(self, text: object, index: int) -> None:
        """One instance has brought a message of the inbox."""
        message = self.mail.receive(text, index)
        if message is None:
            return
        if message.kind == TURN:
            self.wakeups += 1
            self._turn(message.digest, message.others)
        elif message.kind == WAITS:
            self._is_waited_for(message.digest, message.sender)
        elif message.kind in {HEARD, LOOK}:
            self._answered(message)

    def _line(self, digest: bytes) -> int:
        """How many callers here wait for the resource with this hash."""
        wait = self._waits.get(digest)
        return 0 if wait is None else len(self._turns.lines.get(wait.resource, ()))

    def _is_waited_for(self, digest: bytes, process: bytes) -> None:
        """A process waits for the resource, and is answered.

        If nobody waits here, the key may have been released before the message came. Then the
        answer says that the process is to look again.
        """
        left = self._line(digest)
        unheard = partial(self._is_gone, digest, process)
        self.mail.send(process, HEARD if left else LOOK, digest, (), unheard)
        self._add(digest, left, (process,))

    def _is_gone(self, digest: bytes, process: bytes) -> None:
        """Nobody listens any more in a process that was remembered as waiting."""
        crowd = self.crowds.get(digest)
        if crowd is not None:
            crowd.others.pop(process, None)
            if not crowd.others:
                del self.crowds[digest]

    def _answered(self, message: Message) -> None:
        """The holder has answered: it knows that callers here wait."""
        wait = self._waits.get(message.digest)
        if wait is not None:
            wait.unanswered_ns = 0
            if message.kind == LOOK and wait.resource in self._turns.lines:
                self._look(wait)

    def _turn(self, digest: bytes, others: Sequence[bytes]) -> None:
        """The key is free, and nobody comes before us."""
        turns = self._turns
        behind = self._take(digest)
        wait = self._waits.get(digest)
        if wait is not None:
            wait.unanswered_ns = 0
            turns.take_place(wait.resource)
        waiting = self._line(digest)
        self._add(digest, max(0, waiting - 1), [*others, *behind])
        if wait is not None and waiting:
            turns.poke(wait.resource)
        else:
            self._pass_on(digest, [])

    # -- crowds ------------------------------------------------------------------------------------

    def _crowd(self, digest: bytes) -> Crowd | None:
        """Who waits elsewhere, unless there has been no message for too long."""
        crowd = self.crowds.get(digest)
        if crowd is not None and crowd.news_ns + FORGET_NS < self.engine.now_ns:
            del self.crowds[digest]
            return None
        return crowd

    def _take(self, digest: bytes) -> list[bytes]:
        """The processes that wait elsewhere. From now on they are no crowd of this process."""
        crowd = self._crowd(digest)
        if crowd is None:
            return []
        del self.crowds[digest]
        return list(crowd.others)

    def _add(self, digest: bytes, left: int, others: Sequence[bytes]) -> None:
        """These processes wait for the resource, too, behind `left` callers here."""
        crowds = self.crowds
        crowd = self._crowd(digest)
        if crowd is None:
            if len(crowds) >= MOST_KEPT:
                for oldest in list(crowds)[: MOST_KEPT // 2]:
                    del crowds[oldest]
            crowd = crowds[digest] = Crowd(left)
        crowd.news_ns = self.engine.now_ns
        most = MOST_OTHERS if len(crowds) <= FEW_CROWDS else FEWER_OTHERS
        me = self.mail.me
        for process in others:
            if len(process) == PROCESS_BYTES and process != me and len(crowd.others) < most:
                crowd.others[process] = None
        if not crowd.others:
            del crowds[digest]

    def _pass_on(self, digest: bytes, last: list[bytes]) -> None:
        """Give the turn, and the crowd, to the first process of the crowd."""
        if others := self._take(digest):
            self._give(digest, [*others, *last])

    def _give(self, digest: bytes, others: list[bytes]) -> None:
        """Give the turn to the first of these processes, with the list of the rest."""
        if not others:
            return
        rest = others[1:]
        if others[0] == self.mail.me:
            self._turn(digest, rest)
        else:
            self.mail.send(others[0], TURN, digest, rest, partial(self._give, digest, rest))
