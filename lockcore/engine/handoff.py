"""This module passes keys from one process to the next: *messages from other processes, and
releases of this process → the caller that tries next*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
each constant is declared as `Final`. If a class has one object for each resource, this class has
`__slots__`.

The head of a line is its first caller. If the servers refuse the head's SET, the head reads the
beginning of the key's value (GETRANGE). This value is an owner token, which names the holder's
process. The head then publishes "I wait" to the holder's process. After a release, the holder's
process sends a message. This message passes the turn to the first waiting process, and it lists the
other waiting processes.

Rules: a message never grants a lock. A lost message only delays a caller, and a false message only
causes a useless attempt. The module mail.py decides when a message counts. Each instance executes
the release before it delivers the message that passes the turn. So when this message counts, the
key is free on a quorum of instances.
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

# After this time a waiting head sends its message to the same holder again.
TELL_AGAIN_NS: Final = 3 * NS_PER_S

# If a holder has not answered for this time, the head assumes that no message reaches the holder.
# Then the head polls for the next MISTRUST_NS.
ANSWER_NS: Final = 500 * NS_PER_MS
MISTRUST_NS: Final = 10 * NS_PER_S

# A crowd without a message for this time is forgotten. By then, each process that still waits has
# sent its message again.
FORGET_NS: Final = 2 * TELL_AGAIN_NS

MOST_KEPT: Final = 1 << 11

# A crowd keeps at most MOST_OTHERS processes. If there are crowds for more than FEW_CROWDS
# resources, a crowd keeps at most FEWER_OTHERS processes.
FEWER_OTHERS: Final = 1 << 5
FEW_CROWDS: Final = 1 << 6

# A head sends messages to holders, and remembers at most this many of these holders.
MOST_HOLDERS: Final = 1 << 6

# If a look shows a free key, the head tries at once. After this many tries without a pause, the
# head waits before its next look.
SOON_FREE: Final = 4


class Crowd:
    """The processes that wait for one resource, in the order in which they get the turn.

    `left` is the number of callers of this process that may try before the turn goes to the waiting
    processes. `news_ns` is the time of the last message about the resource.
    """

    __slots__ = ("left", "news_ns", "others")

    def __init__(self, left: int) -> None:
        self.left = left
        self.news_ns = 0
        self.others: dict[bytes, None] = {}


class Wait:
    """The state of a resource for which callers of this process wait.

    `holders` maps an owner token to the time of the last message to its process. `unanswered_ns` is
    the time of the first message without an answer, or 0 if all messages are answered. The head has
    read the key `free_looks` times in succession, and the key was free each time.
    """

    __slots__ = ("free_looks", "holders", "resource", "unanswered_ns")

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.holders: dict[bytes, int] = {}
        self.unanswered_ns = 0
        self.free_looks = 0


class Handoff:
    """The object that passes the keys of one Redlock from process to process.

    The engine and the steps of an operation use three methods.

    - A head calls `expects` after the servers have refused its SET. If the result is True, the head
      waits for a message. If the result is False, the head polls.
    - A waiting head calls `look`. The head then tries as soon as the key is free, or as soon as the
      head gets the turn.
    - A holder's process calls `released`. After that, either the next caller of this process or the
      next process tries.

    If a resource has a head, the resource also has a `Wait`. A head is looking, waiting or polling.

    - A looking head has asked the instances for the key's value. If a quorum shows that the key is
      free, the head tries. If the key is not free, the head sends `waits` to the holder.
    - A waiting head has sent `waits` to the holder. If `turn` arrives, the head tries. If `look`
      arrives, the head reads the key again. If `waits` stays without an answer for ANSWER_NS, the
      head begins to poll.
    - A polling head tries again and again without a message. The head stops polling if `heard`,
      `look` or `turn` arrives, or if MISTRUST_NS have passed since `unanswered_ns`.

    If a caller of this process holds a resource, the resource may have a `Crowd`. A crowd begins
    when a message `waits` or `turn` names another waiting process.

    - If there is no crowd, `released` wakes the next caller of this process.
    - If there is a crowd, `left` callers of this process try before the processes of the crowd try.
      Each call of `released` wakes one of these callers and reduces `left` by 1.
    - If `left` is 0, or if no caller of this process waits, `released` passes the turn to the
      crowd. After that, the crowd no longer exists in this process.

    If a crowd gets no message for FORGET_NS, this class forgets the crowd. By then, each process
    that still waits has sent a new message. Because no new message arrived here, the new messages
    went to another holder.

    `passing` contains the resources that this process has released and that another process may
    acquire next. `pass_all` sends the messages that pass the turns for these resources. `wakeups`
    is the number of turns that this process got from other processes. `polls` counts how often this
    process has asked the instances for the holder of a key.
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
        """Return True if a caller that waits for the resource can expect a message.

        A caller can expect a message only if messages reach this process. There is one more
        condition: the holder of the resource has answered a message, or the time for its answer has
        not passed yet.
        """
        if not self.mail.arrives:
            return False
        wait = self._wait(self.mail.digest_of(resource), resource)
        since_ns = now_ns - (wait.unanswered_ns or now_ns)
        if since_ns > MISTRUST_NS:
            wait.unanswered_ns = 0
        return not ANSWER_NS < since_ns <= MISTRUST_NS

    def _wait(self, digest: bytes, resource: str) -> Wait:
        """Return the state of a resource. The `Handoff` keeps this state while callers of this
        process wait for the resource."""
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

    # The list of waiting processes travels with the lock. The first `left` callers of this process
    # go before the other processes. When such a caller is next, the head here is poked while the
    # release is queued. So the head's SET leaves in the same write as the release (`followed`). The
    # other processes need no gap between the release and this SET, because each of them gets a
    # message in its turn. Writes per lease over five instances fell from 10.4 to 5.5, and the
    # client's CPU from 1,060 to 620 µs (4 processes of 16 callers, from source, one run each beside
    # other work; docs/lab/lockcore.md). Without a crowd, release and SET leave in separate writes.
    # Otherwise a process whose messages do not arrive, and which polls, could not get the key in
    # between. If the turn goes to another process while no caller stands in line here, this process
    # holds a place in its line for 250 ms. New callers then stand behind the other process.
    def released(self, resource: str) -> None:
        """Decide which caller tries next, because a caller of this process is about to release its
        lease.

        If the next caller belongs to this process, this caller tries at once. If the next caller
        belongs to another process, that caller tries after the release.
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
        """Queue the messages that pass turns to other processes.

        The messages follow the releases that are already queued.
        """
        passing = self.passing
        self.passing = []
        last = [] if self.engine.retired else [self.mail.me]
        for resource in passing:
            self._pass_on(self.mail.digest_of(resource), last)

    def _emptied(self, resource: str) -> None:
        """Pass the turn to another process, because the last waiting caller of this process has
        left without the lock.

        Without this call, other processes could wait for a message of this process in vain.
        """
        if self.crowds:
            self._pass_on(self.mail.digest_of(resource), [])

    def look(self, resource: str, *, again: bool) -> None:
        """Ask the instances for the key's holder.

        The process of the holder gets a message. If the key is free, the head of this process tries
        again. `again` is True if the head has already read the key during its present wait.
        """
        self.polls += 1
        wait = self._wait(self.mail.digest_of(resource), resource)
        if again:
            wait.free_looks = 0
        else:
            wait.holders = {}
        self._look(wait)

    def _look(self, wait: Wait) -> None:
        """Read the beginning of the key's value on every voter. The command reads only as many
        bytes as an owner token has.

        This method needs the answers of a quorum of instances. An error does not count as an
        answer.
        """
        engine = self.engine
        values = list[bytes]()

        def read(reply: object, _: InstancePipe) -> None:
            if isinstance(reply, bytes):
                values.append(reply[:OWNER_TOKEN_BYTES])
                # The comparison is `==` and not `>=`, because a look ends only once.
                if len(values) == engine.quorum:
                    self._looked(wait, values)

        question = Asked(engine.now_ns, read)
        key = self.mail.key_of(wait.resource)
        # GETRANGE includes both ends.
        data = request(b"GETRANGE", key, b"0", b"%d" % (OWNER_TOKEN_BYTES - 1))
        for pipe in engine.voters:
            engine.unicast(pipe, data, question)

    def _looked(self, wait: Wait, values: list[bytes]) -> None:
        """Decide what the head does after it has read the key's values. The values show either that
        the key is free, or which processes hold the key.

        Several processes may hold the key, each on some of the instances. In this case, the head
        sends a message to each of these processes.

        If another program has set the key to an empty string, the key looks free, but every attempt
        fails. So the head counts how often it has found the key free. If this count is at most
        SOON_FREE, the head tries at once. If the count is larger, the head waits for its next
        regular read of the key. Without this limit, the head would try again and again without a
        pause.
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
        """Decide what the head does if its message to a holder has reached no process.

        If this holder is the first holder to which the head sent a message, the head assumes that
        this holder has died. It is unlikely that a second holder has died as well. If the message
        to a second holder also reaches no process, the head assumes that these holders use another
        policy. With another policy, they receive no messages. Then the head polls.
        """
        if is_first:
            wait.unanswered_ns = 0
        else:
            wait.unanswered_ns = self.engine.now_ns - ANSWER_NS - 1
            self._turns.poke(wait.resource)

    # -- from elsewhere ----------------------------------------------------------------------------

    def heard(self, text: object, index: int) -> None:
        """Process a message that one instance has delivered."""
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
        """Return the number of callers of this process that wait for the resource with this
        hash."""
        wait = self._waits.get(digest)
        return 0 if wait is None else len(self._turns.lines.get(wait.resource, ()))

    def _is_waited_for(self, digest: bytes, process: bytes) -> None:
        """Answer the message of a process that waits for the resource.

        If no caller of this process waits for the resource, the answer is `look`. After this
        answer, the waiting process reads the key again. The holder may have released the key before
        the message of the waiting process arrived.
        """
        left = self._line(digest)
        unheard = partial(self._is_gone, digest, process)
        self.mail.send(process, HEARD if left else LOOK, digest, (), unheard)
        self._add(digest, left, (process,))

    def _is_gone(self, digest: bytes, process: bytes) -> None:
        """Remove a waiting process that no longer receives messages."""
        crowd = self.crowds.get(digest)
        if crowd is not None:
            crowd.others.pop(process, None)
            if not crowd.others:
                del self.crowds[digest]

    def _answered(self, message: Message) -> None:
        """Process the answer of a holder. The answer proves that the holder knows about the waiting
        callers of this process."""
        wait = self._waits.get(message.digest)
        if wait is not None:
            wait.unanswered_ns = 0
            if message.kind == LOOK and wait.resource in self._turns.lines:
                self._look(wait)

    def _turn(self, digest: bytes, others: Sequence[bytes]) -> None:
        """Let the head of this process try, because the key is free and this process has the
        turn."""
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
        """Return the processes that wait for the resource.

        If no process waits, or if the last message about the resource is too old, this method
        returns None.
        """
        crowd = self.crowds.get(digest)
        if crowd is not None and crowd.news_ns + FORGET_NS < self.engine.now_ns:
            del self.crowds[digest]
            return None
        return crowd

    def _take(self, digest: bytes) -> list[bytes]:
        """Remove and return the processes that wait for the resource."""
        crowd = self._crowd(digest)
        if crowd is None:
            return []
        del self.crowds[digest]
        return list(crowd.others)

    def _add(self, digest: bytes, left: int, others: Sequence[bytes]) -> None:
        """Add waiting processes to the crowd of the resource.

        `left`: the number of callers of this process that may try before the crowd. This number
        matters only if this call creates the crowd.
        """
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
        """Pass the turn to the first process of the crowd.

        The message lists the other processes.
        """
        if others := self._take(digest):
            self._give(digest, [*others, *last])

    def _give(self, digest: bytes, others: list[bytes]) -> None:
        """Pass the turn to the first process in `others`.

        The message lists the rest of `others`.
        """
        if not others:
            return
        rest = others[1:]
        if others[0] == self.mail.me:
            self._turn(digest, rest)
        else:
            self.mail.send(others[0], TURN, digest, rest, partial(self._give, digest, rest))
