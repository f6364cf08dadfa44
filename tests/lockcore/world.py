"""A small world for storms: *events at times → servers that execute, links that carry, break and delay*.

Everything is in one thread and one clock, drawn from one seed. A server is a dictionary with expiry and scripts; a link
is one connection with an order in each direction. A broken link may still deliver a beginning of what was under way to
the server, until its successor kills it: what a kernel may do after a reset.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import accumulate, count
from random import Random
from typing import Any

from hiredis import Reader

from lockcore.clock import NS_PER_MS
from lockcore.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND, Dialect
from lockcore.membership import Hello
from tests.doubles.keyspace import MISCONF, OK, ONE, ZERO, Command, Keyspace
from tests.lockcore.scripted import claims_of, kind_of

START_NS = 3_000_000 * NS_PER_MS
SCRIPTS = (COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND)

Answer = tuple[str, bytes, bytes]  # the kind of the command, its owner token, the bytes


class World:
    """The clock and what is due."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = START_NS
        self.due: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.steps = 0

    def later(self, delay_ms: float, what: Callable[[], None]) -> None:
        """`what` happens after `delay_ms` ms."""
        self.at(self.now_ns + int(delay_ms * NS_PER_MS), what)

    def at(self, time_ns: int, what: Callable[[], None]) -> None:
        """`what` happens at `time_ns`, or now if that is past."""
        heapq.heappush(self.due, (max(time_ns, self.now_ns), next(self.order), what))

    def run(self, until_ns: int) -> None:
        """Let everything happen that is due until then."""
        while self.due and self.due[0][0] <= until_ns:
            self.now_ns, _, what = heapq.heappop(self.due)
            self.steps += 1
            what()
        self.now_ns = max(self.now_ns, until_ns)


class Server:
    """One instance. `down`, `stopped`, `full`: what is wrong with it."""

    def __init__(self, world: World, index: int, dialect: Dialect, rate: float) -> None:
        self.world, self.index, self.dialect = world, index, dialect
        self.data = Keyspace(dialect.release_command, lambda: world.now_ns, rate)
        self.data.scripts.update(script.source for script in SCRIPTS)
        self.run_number = 0
        self.links: dict[int, Link] = {}
        self.down = self.stopped = self.full = False

    def hello(self, client_id: int) -> Hello:
        """What it says of itself."""
        return Hello(f"server-{self.index}-{self.run_number}", 1_000_000, "model 1", client_id)

    def execute(self, command: Command) -> bytes:
        """One command and its reply."""
        name = command[0]
        if name == b"SET" and self.full:
            return MISCONF
        if name == b"CLIENT":
            killed = self.links.pop(int(command[3]), None)
            if killed is not None:
                killed.to_server.clear()
            return OK if killed else b"-ERR No such client\r\n"
        if name == b"DEL":  # only a planted fault sends it
            held = self.data.get(command[1])
            self.data.drop(command[1])
            return ONE if held else ZERO
        return self.data.run(command)

    def restart(self, for_ms: float) -> None:
        """It dies with all it knew, and is back later."""
        self.down = True
        self.data.clear()
        for link in list(self.links.values()):
            link.to_server.clear()
            link.end()
        self.links.clear()
        self.world.later(for_ms, self._return)

    def _return(self) -> None:
        self.down, self.run_number = False, self.run_number + 1

    def stop(self, for_ms: float) -> None:
        """It executes nothing for a while; what comes in waits."""
        self.stopped = True
        self.world.later(for_ms, self._continue)

    def _continue(self) -> None:
        self.stopped = False
        for link in self.world.random.sample(list(self.links.values()), len(self.links)):
            link.serve()


class Link:
    """One connection of a client. `heard(answers, data)`: bytes that arrive, and the answers they complete."""

    ids = count(1)

    def __init__(self, server: Server, heard: Callable[[list[Answer], bytes], None], ended: Any) -> None:
        self.server, self.world = server, server.world
        self.id = next(Link.ids)
        self.heard, self.ended = heard, ended
        self.to_server: deque[tuple[int, bytes]] = deque()
        self.to_client: deque[tuple[int, list[Answer], bytes]] = deque()
        self.reader: Any = Reader()
        self.is_open = True
        self.last_ns = 0
        server.links[self.id] = self

    def send(self, data: bytes) -> None:
        """Bytes leave for the server."""
        self.last_ns = max(self.last_ns, self.world.now_ns + int(self.world.random.expovariate(4) * NS_PER_MS))
        self.to_server.append((self.last_ns, data))
        self.world.at(self.last_ns, self.serve)

    def serve(self) -> None:
        """The server reads and executes what has arrived; its replies leave in pieces of any size."""
        server, answered = self.server, []
        while self.to_server and self.to_server[0][0] <= self.world.now_ns and not server.stopped:
            self.reader.feed(self.to_server.popleft()[1])
            while (command := self.reader.gets()) is not False:
                answered.append((command, server.execute(command)))
        if answered and self.is_open:
            self._answer(answered)

    def _answer(self, answered: list[tuple[Command, bytes]]) -> None:
        answers = [answer for command, reply in answered for answer in answers_of(command, reply)]
        data = b"".join(line for _, _, line in answers)
        random = self.world.random
        cut = random.randrange(len(data) + 1) if random.random() < 0.2 else len(data)
        ends = accumulate(len(line) for _, _, line in answers)
        whole = sum(end <= cut for end in ends)
        due_ns = self.to_client[-1][0] if self.to_client else self.world.now_ns
        for part, piece in ((answers[:whole], data[:cut]), (answers[whole:], data[cut:])):
            due_ns = max(due_ns, self.world.now_ns + int(random.expovariate(4) * NS_PER_MS))
            if piece:
                self.to_client.append((due_ns, part, piece))
                self.world.at(due_ns, self.arrive)

    def arrive(self) -> None:
        """The client reads what has come."""
        while self.to_client and self.to_client[0][0] <= self.world.now_ns and self.is_open:
            _, answers, data = self.to_client.popleft()
            self.heard(answers, data)

    def close(self) -> None:
        """The client gives it up: replies are lost, and of what is under way a beginning may still arrive."""
        self.is_open = False
        self.to_client.clear()
        keep = self.world.random.randrange(len(self.to_server) + 1)
        while len(self.to_server) > keep:
            self.to_server.pop()

    def end(self) -> None:
        """The other side is gone: the client notices after a while, or when it writes."""
        self.world.later(self.world.random.expovariate(2), lambda: self.ended() if self.is_open else None)


def answers_of(command: Command, reply: bytes) -> list[Answer]:
    """What a reply answers, line by line: a merged release has a header and a line for each of its claims."""
    claims = claims_of(command)
    lines = reply.splitlines(keepends=True) if reply.startswith(b"*") else [reply]
    heads: list[Answer] = [("header", b"", lines.pop(0))] if len(lines) > 1 else []
    if not claims or b"NOSCRIPT" in reply:
        return [*heads, ("other", b"", b"".join(lines))]
    if not heads:  # one answer for all
        return [(kind_of(command), claims[0][1], lines[0])]
    return heads + [(kind_of(command), token, line) for (_, token), line in zip(claims, lines, strict=True)]
