"""An operation run by hand: *its steps and what the instances say → what it waits for, and what it gives*."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

from lockcore.attempt import Acquisition
from lockcore.clock import NS_PER_MS
from lockcore.rounds import ExtendRound, SetRound
from lockcore.turns import Offer, Turn
from tests.lockcore.scripted import ONE, TTL_MS, ScriptedFleet


class NoChance(Random):
    """Draws what the test says."""

    share = 0.5

    def random(self) -> float:
        return self.share


class Run:
    """An operation run by hand: each `answer` is what the instances say to the round it waits for."""

    def __init__(self, fleet: ScriptedFleet, steps: Generator[Any, int, Any]) -> None:
        self.fleet, self.steps = fleet, steps
        self.result: Any = None
        self.waits: list[float] = []
        self.rounds: list[Any] = []
        self.wanted = self._next(None)

    def _next(self, now_ns: int | None) -> Any:
        try:
            wanted = next(self.steps) if now_ns is None else self.steps.send(now_ns)
        except StopIteration as done:
            self.result = done.value
            return None
        if isinstance(wanted, Offer):
            return self._next(self.fleet.now_ns)
        if isinstance(wanted, int):
            self.waits.append((wanted - self.fleet.now_ns) / NS_PER_MS)
            self.fleet.now_ns = max(wanted, self.fleet.now_ns)
            return self._next(self.fleet.now_ns)
        if isinstance(wanted, Turn):
            self.waits.append((wanted.due_ns - self.fleet.now_ns) / NS_PER_MS)
            self.fleet.now_ns = max(wanted.due_ns, self.fleet.now_ns)
            self.fleet.tick()
            return self._next(self.fleet.now_ns)
        self.rounds.append(wanted)
        if isinstance(wanted, SetRound):
            self.fleet.engine.submit(wanted)
        elif isinstance(wanted, ExtendRound):
            self.fleet.engine.submit_extend(wanted)
        else:
            self.fleet.engine.submit_release(wanted)
        self.fleet.flush()
        return wanted

    def answer(self, *replies: bytes, after_ms: float = 1) -> Run:
        """One reply per instance, then the caller runs again; without a reply it is silent until the timeout."""
        self.fleet.after(after_ms)
        for index, reply in enumerate(replies):
            if reply:
                self.fleet.reply(index, reply)
        if self.wanted.outcome is None:
            self.fleet.tick(60)
        self.wanted = self._next(self.fleet.now_ns)
        self.fleet.flush()
        for index, commands in enumerate(self.fleet.unanswered):  # clean-ups
            if self.wanted is None or not commands:
                continue
            self.fleet.reply(index, *[ONE] * (len(commands) - 1))
        return self


def acquiring(fleet: ScriptedFleet, wait_ms: float = 0) -> Run:
    """An acquire, begun."""
    engine = fleet.engine
    acquire = Acquisition(engine, "stock", engine.terms(TTL_MS), wait_ms, fleet.now_ns, NoChance())
    return Run(fleet, acquire.steps(fleet.now_ns))
