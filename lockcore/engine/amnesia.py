"""This module notices when an instance forgets its locks while its connection stays open: *push
messages and replies of an instance → the instance abstains*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
each constant is declared as `Final`.

Rules: an instance that may have forgotten locks abstains until all these locks have expired
(facts/membership.py). Four signs show that an instance may have forgotten locks: a push message
from the server, the error -READONLY, a new replication id, or a new number of database swaps.
However, the new number is not a sign if it is zero. If the server sends no push messages, the
engine asks for the replication id once a second. The engine reads the number of database swaps
before a SET, at most four times a second.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from lockcore.clock import FAR_FUTURE_NS, NS_PER_S
from lockcore.facts.membership import (
    ASK_EVERY_NS,
    NOT_COUNTED,
    SWAPPED,
    Membership,
    fields_of,
    swaps_of,
)
from lockcore.rounds.awaited import Asked, Core, InstancePipe
from lockcore.rounds.resp import request

# A server needs about 10 µs to answer a reading. So 1,000 busy clients use 4 % of the server's
# core. With a period of 100 ms they would use 10 %.
SWAPS_EVERY_NS: Final = NS_PER_S // 4
SWAPS: Final = request(b"INFO", b"commandstats")


# This is how the engine notices SWAPDB. A server does not report a SWAPDB to its clients, because
# SWAPDB invalidates no tracked key. But the server's INFO has the number of SWAPDB calls. The
# engine reads this count ahead of the first SET that starts at `swaps_due_ns` or later, on the same
# connection. Redis answers in order, so this number arrives before the SET's answer. If it shows a
# swap, the engine ignores the SET's answer. If a timer started the readings, the number could
# arrive after an emptied server has granted SETs. An idle client makes no readings. If a swap comes
# within SWAPS_EVERY_NS after a reading, only the next reading shows it. A reading takes a server 4
# to 12 µs (redis 7.0 and 8.2).
class Amnesia:
    """An object that notices when an instance forgets its locks while its connection stays open.

    A server forgets locks if somebody flushes it, or if it was a replica for a while. The server
    then sends a push message between two replies, or it answers -READONLY. If a server sends no
    push messages, the engine asks for its replication id once a second. When the engine notices one
    of these signs, the instance abstains for `whole_ns`, as it does after a restart. If `whole_ns`
    is 0, the engine ignores these signs. When an instance begins to abstain, it may still owe
    answers to SETs. The votes in these answers do not count. `recount` computes the voters again.

    Redis reports a flush to every client that uses CLIENT TRACKING. Source: the Redis commands
    CLIENT TRACKING, REPLICAOF, SWAPDB and INFO commandstats.
    """

    def __init__(
        self,
        engine: Core,
        members: Sequence[Membership],
        whole_ns: int,
        recount: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._members = members
        self._whole_ns = whole_ns
        self._recount = recount
        self.swaps_due_ns: int = 0 if whole_ns else FAR_FUTURE_NS

    def noticed(self, pipe: InstancePipe, why: str) -> None:
        """Make an instance abstain, because it may have just forgotten locks."""
        if self._whole_ns:
            self._members[pipe.index].forgot(why, self._whole_ns, self._engine.now_ns)
            self._recount()
            pipe.void_sets()

    def ask(self, pipes: Sequence[InstancePipe], now_ns: int) -> None:
        """If an instance sends no push messages, ask for its replication id once a second."""
        for pipe, member in zip(pipes, self._members, strict=True):
            if member.ask_ns <= now_ns:
                member.ask_ns = now_ns + ASK_EVERY_NS
                question = Asked(now_ns, self._answered)
                self._engine.unicast(pipe, request(b"INFO", b"replication"), question)

    def counting_swaps(self, pipes: Sequence[InstancePipe], now_ns: int) -> list[InstancePipe]:
        """Return the instances to which the engine must send `SWAPS` now. The method `swaps_read`
        processes each reply.

        Between two `SWAPS` commands, the engine waits at least SWAPS_EVERY_NS.
        """
        self.swaps_due_ns = now_ns + SWAPS_EVERY_NS
        hellos = [(pipe, self._members[pipe.index].hello) for pipe in pipes]
        return [pipe for pipe, hello in hellos if hello is not None and hello.swaps != NOT_COUNTED]

    def swaps_read(self, info: object, pipe: InstancePipe) -> None:
        """Process a reply to `SWAPS`, which contains the number of database swaps.

        This method ignores an error.
        """
        member = self._members[pipe.index]
        earlier = member.hello
        if earlier is None or not isinstance(info, bytes):
            return
        # RESP3 puts the kind of the text in front of the text.
        kind_bytes = len("txt:") if earlier.tells else 0
        pipe.set_aside(0, 0, len(b"$%d\r\n\r\n" % len(info)) + len(info) + kind_bytes)
        member.hello = hello = replace(earlier, swaps=swaps_of(info))
        if hello.has_swapped_since(earlier):
            self.noticed(pipe, SWAPPED)

    def _answered(self, info: object, pipe: InstancePipe) -> None:
        """Process a reply to INFO replication. This method ignores an error."""
        if not isinstance(info, bytes):
            return
        member = self._members[pipe.index]
        fields = fields_of(info)
        replid = fields.get("master_replid", "")
        if fields.get("role", "master") != "master":
            self.noticed(pipe, "it is a replica")
        elif member.hello is not None and replid != member.hello.replid:
            member.hello = replace(member.hello, replid=replid)
            self.noticed(pipe, "was a replica")
