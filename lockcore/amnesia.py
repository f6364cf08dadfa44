"""Instances that forgot their locks on a connection that stays: *what they say → they abstain*. Pure.

Rules: a server that becomes a replica and is promoted again, or is flushed, keeps run id, uptime and connections. It
says so itself (a push between two replies), answers -READONLY, or, where it tells nothing, is asked for its replication
id once a second. From then on it abstains as after a restart, and what it was asked before does not count: it would
grant what it has forgotten. Source: Redis' CLIENT TRACKING (a flush is told to every tracking client) and REPLICAOF.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockcore.clock import FAR_FUTURE_NS
from lockcore.membership import ASK_EVERY_NS, fields_of, forgotten_ns
from lockcore.resp import request
from lockcore.rounds import Ignored

if TYPE_CHECKING:
    from lockcore.engine import Engine
    from lockcore.pipeline import Pipeline


class Amnesia:
    """What is noticed of the instances of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def noticed(self, index: int, why: str) -> None:
        """An instance may have forgotten locks just now."""
        engine, settings = self._engine, self._engine.settings
        whole_ns = forgotten_ns(settings.rejoin, settings.max_ttl_ms, settings.drift_factor)
        if whole_ns:
            engine.members[index].forgot(why, whole_ns, engine.now_ns)
            engine.recount()
            engine.pipes[index].void_sets()

    @property
    def next_ns(self) -> int:
        """When to ask next (ns), or FAR_FUTURE_NS."""
        return min((member.ask_ns for member in self._engine.members if member.is_asked), default=FAR_FUTURE_NS)

    def ask(self, now_ns: int) -> None:
        """Ask those who do not tell by themselves, if it is time."""
        engine = self._engine
        for pipe, member in zip(engine.pipes, engine.members, strict=True):
            if member.is_asked and member.ask_ns <= now_ns:
                member.ask_ns = now_ns + ASK_EVERY_NS
                engine.unicast(pipe, request(b"INFO", b"replication"), _Question(self, now_ns))

    def answered(self, index: int, info: bytes) -> None:
        """What an instance said of its replication when it was asked."""
        member, fields = self._engine.members[index], fields_of(info)
        replid = fields.get("master_replid", "")
        if fields.get("role", "master") != "master":
            self.noticed(index, "it is a replica")
        elif member.hello is not None and replid != member.hello.replid:
            member.hello = replace(member.hello, replid=replid)
            self.noticed(index, "was a replica")


class _Question(Ignored):
    """INFO replication, under way."""

    __slots__ = ("_amnesia",)

    def __init__(self, amnesia: Amnesia, started_ns: int) -> None:
        super().__init__(started_ns)
        self._amnesia = amnesia

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """Its answer; an error says nothing."""
        if isinstance(reply, bytes):
            self._amnesia.answered(pipe.index, reply)
