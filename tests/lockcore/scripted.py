"""An engine whose instances are a script: *what each instance says, and when → what the engine
sends and decides*.

Nothing moves by itself: the test attaches, replies, breaks and moves the clock. What the engine
sent is read back with hiredis, per instance, as lists of arguments.
"""

import gc
from collections import Counter
from collections.abc import Iterable
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from hiredis import Reader

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import lease_of
from lockcore.engine.engine import Engine
from lockcore.facts.membership import Hello
from lockcore.facts.model import Lease
from lockcore.rounds.awaited import Asked, SentAgain
from lockcore.rounds.commands import (
    COMPARE_AND_DELETE,
    COMPARE_AND_DELETE_MANY,
    COMPARE_AND_EXTEND,
    Dialect,
)
from lockcore.rounds.flight import Flight, MergedReply
from lockcore.rounds.owed import OwedRelease
from lockcore.rounds.rounds import ExtendRound, ReleaseRound, Round, SetRound
from lockcore.settings import Settings
from tests.doubles.keyspace import NIL, OK, ONE, Command

START_NS = 1_000_000 * NS_PER_MS
TTL_MS = 10_000
DELIFEQ = Dialect("delifeq", True)
DELEX = Dialect("delex", True)
EVALSHA = Dialect("evalsha", False)
RELEASES = {b"DELIFEQ", b"DELEX", COMPARE_AND_DELETE.sha, COMPARE_AND_DELETE.source}
MERGED = {COMPARE_AND_DELETE_MANY.sha, COMPARE_AND_DELETE_MANY.source}
EXTENSIONS = {COMPARE_AND_EXTEND.sha, COMPARE_AND_EXTEND.source}


def settings_of(**changed: Any) -> Settings:
    """Settings for scripted fleets: every instance is trusted unless the test is about that."""
    values: dict[str, Any] = {"rejoin": "trust", "merge_releases": False} | changed
    return Settings(**values)


def kind_of(command: Command) -> str:
    """set, release, extend or other."""
    if command[0] == b"SET":
        return "extend" if b"IFEQ" in command else "set"
    if command[0] in RELEASES or command[1] in RELEASES | MERGED:
        return "release"
    return "extend" if command[1] in EXTENSIONS else "other"


def claims_of(command: Command) -> list[tuple[bytes, bytes]]:
    """The (key, owner token) pairs a command is about; none for commands that concern no lock."""
    kind = kind_of(command)
    if kind == "other":
        return []
    if command[0] == b"SET" and kind == "extend":
        return [(command[1], command[4])]
    if command[0] in {b"SET", b"DELIFEQ"}:
        return [(command[1], command[2])]
    if command[0] == b"DELEX":
        return [(command[1], command[3])]
    keys = int(command[2])
    return list(zip(command[3 : 3 + keys], command[3 + keys : 3 + 2 * keys], strict=True))


class ScriptedFleet:
    """Scripted instances behind one engine.

    `at_once`: a batch leaves as soon as it begins, as from a quiet shell.
    """

    def __init__(
        self,
        instances: int,
        *,
        settings: Settings | None = None,
        dialect: Dialect = DELIFEQ,
        at_once: bool = False,
        connect: bool = True,
    ) -> None:
        self.now_ns = START_NS
        self.at_once = at_once
        self.dialect = dialect
        self.wanted = 0
        self.sent: list[list[Command]] = [[] for _ in range(instances)]
        self.unanswered: list[list[Command]] = [[] for _ in range(instances)]
        # (owner token, reply) to SETs
        self.given: Counter[tuple[bytes, bytes]] = Counter()
        self.writes: list[list[bytes]] = [[] for _ in range(instances)]
        # sending to these breaks their connection
        self.breaks: set[int] = set()
        # bytes their sockets have not taken yet
        self.backlog = [0] * instances
        self.settings = settings or settings_of()
        self.engine = Engine(
            [f"host:{7000 + index}" for index in range(instances)], self.settings, self._want_flush
        )
        for index in range(instances if connect else 0):
            self.attach(index)

    def _want_flush(self) -> None:
        self.wanted += 1
        if self.at_once:
            self.flush()

    # -- connections -------------------------------------------------------------------------------

    def attach(
        self,
        index: int,
        run_id: str = "",
        *,
        uptime_s: int = 1_000_000,
        client_id: int = 0,
        dialect: Dialect | None = None,
    ) -> None:
        """Instance `index` is connected (anew)."""
        reader: Any = Reader()
        self.unanswered[index] = []

        def transmit(data: bytes) -> int:
            if index in self.breaks:
                self.detach(index, "broken pipe")
                return 0
            self.writes[index].append(data)
            reader.feed(data)
            while (command := reader.gets()) is not False:
                self.sent[index].append(command)
                self.unanswered[index].append(command)
            return self.backlog[index]

        hello = Hello(run_id or f"run-{index}", uptime_s, "scripted 1", client_id)
        self.engine.members.attach(index, hello, dialect or self.dialect, transmit, self.now_ns)

    def detach(self, index: int, reason: str = "connection reset") -> None:
        """The connection of an instance ended."""
        self.engine.members.detach(index, reason, self.now_ns)

    def reply(self, index: int, *replies: bytes) -> None:
        """The next replies of instance `index` come in, in one piece."""
        assert len(replies) <= len(self.unanswered[index]), "the script answers what was not asked"
        for command, reply in zip(self.unanswered[index], replies, strict=False):
            if kind_of(command) == "set":
                self.given[command[2], reply] += 1
        del self.unanswered[index][: len(replies)]
        self.engine.received(index, b"".join(replies), self.now_ns)

    def reply_all(self, *replies: bytes, of: Iterable[int] | None = None) -> None:
        """The same bytes of every instance, or of those named."""
        for index in range(len(self.sent)) if of is None else of:
            self.reply(index, *replies)

    def drain(self, refused: float = 0) -> None:
        """Every connected instance answers everything: SETs with OK (but a share with nil), all
        else with 1."""
        random = Random(1)
        self.flush()
        while any(self.unanswered):
            for index, commands in enumerate(self.unanswered):
                if self.engine.pipes[index].is_open and commands:
                    said = [NIL if random.random() < refused else OK for _ in commands]
                    self.reply(
                        index,
                        *[
                            ok if kind_of(one) == "set" else ONE
                            for ok, one in zip(said, commands, strict=True)
                        ],
                    )
                else:
                    commands.clear()
            self.flush()

    # -- time --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is queued."""
        self.engine.flush(self.now_ns)

    def after(self, ms: float) -> None:
        """The clock moves; nothing else happens."""
        self.now_ns += int(ms * NS_PER_MS)

    def tick(self, after_ms: float = 0) -> int:
        """The clock moves, the engine is told and sends what comes of it."""
        self.after(after_ms)
        self.engine.tick(self.now_ns)
        self.flush()
        return self.engine.next_tick_ns(self.now_ns)

    # -- rounds ------------------------------------------------------------------------------------

    def begin(self, resource: str = "stock", ttl_ms: int = TTL_MS) -> SetRound:
        """An attempt, queued."""
        round_ = self.engine.set_round(resource, self.engine.terms(ttl_ms), self.now_ns)
        submit(self.engine, round_)
        return round_

    def ask(self, resource: str = "stock", ttl_ms: int = TTL_MS) -> SetRound:
        """An attempt, sent."""
        round_ = self.begin(resource, ttl_ms)
        self.flush()
        return round_

    def won(self, resource: str = "stock", ttl_ms: int = TTL_MS) -> Lease:
        """A lease granted by every voter at once."""
        round_ = self.ask(resource, ttl_ms)
        for pipe in round_.voters:
            self.reply(pipe.index, OK)
        lease = lease_of(round_, self.now_ns)
        assert lease is not None
        return lease

    def release(self, lease: Lease) -> ReleaseRound:
        """A release, sent."""
        return self.release_together([lease])[0]

    def release_together(self, leases: Iterable[Lease]) -> list[ReleaseRound]:
        """Many releases in one turn, sent."""
        rounds = [self.give_back(lease) for lease in leases]
        self.flush()
        return rounds

    def give_back(self, lease: Lease) -> ReleaseRound:
        """A release, queued."""
        round_ = self.engine.release_round(lease, self.now_ns)
        submit(self.engine, round_)
        return round_

    def extend(self, lease: Lease, ttl_ms: int = TTL_MS) -> ExtendRound:
        """An extension, sent."""
        round_ = self.engine.extend_round(lease, self.engine.terms(ttl_ms), self.now_ns)
        submit(self.engine, round_)
        self.flush()
        return round_

    # -- what can be seen --------------------------------------------------------------------------

    def kinds(self, index: int) -> list[str]:
        """The kinds of the commands an instance got, in order."""
        return [kind_of(command) for command in self.sent[index]]

    def order(self, index: int) -> list[tuple[str, bytes]]:
        """(kind, owner token) of every command an instance got, in order."""
        return [
            (kind_of(command), token)
            for command in self.sent[index]
            for _, token in claims_of(command)
        ]

    def about(self, index: int, round_: SetRound) -> list[str]:
        """The kinds of the commands about one attempt's owner token that an instance got, in
        order."""
        token = token_of(round_)
        return [kind for kind, other in self.order(index) if other == token]

    def is_empty(self) -> bool:
        """Nothing is awaited and nothing remembered: whatever was asked has been answered or given
        up."""
        status = self.engine.members.status()
        return self.engine.is_idle and not any(one.pending or one.owed_releases for one in status)


def submit(engine: Engine, round_: Round) -> None:
    """Queue a round of any kind, as a shell does."""
    if isinstance(round_, SetRound):
        engine.submit(round_)
    elif isinstance(round_, ExtendRound):
        engine.submit_extend(round_)
    else:
        engine.submit_release(round_)


def rounds_kept(engine: Engine) -> list[object]:
    """Every round the engine still holds anywhere, found by following its references: what a leak
    would be made of."""
    kinds = (SetRound, ReleaseRound, MergedReply, Flight, Asked, OwedRelease, SentAgain)
    passed = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, Settings)
    seen = {id(engine)}
    ahead = gc.get_referents(engine)
    kept: list[object] = []
    while ahead:
        thing = ahead.pop()
        if id(thing) not in seen and not isinstance(thing, passed):
            seen.add(id(thing))
            if isinstance(thing, kinds):
                kept.append(thing)
            ahead += gc.get_referents(thing)
    return kept


def name_of(round_: Round) -> str | None:
    """The name a round has got, None while it has none."""
    return round_.outcome and round_.outcome.value


def token_of(round_: Round) -> bytes:
    """The owner token of an attempt, read from its bytes."""
    set_round = round_.won if isinstance(round_, ReleaseRound) else round_
    assert isinstance(set_round, SetRound)
    return set_round.claim.split(b"\r\n")[-2]
