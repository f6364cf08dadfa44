"""An operation run by hand: *its steps and what the instances say → what it waits for, and what it
gives*."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import Acquisition
from lockcore.engine.turns import Offer, Turn
from tests.doubles.keyspace import ONE
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, submit


class NoChance(Random):
    """Draws what the test says."""

    share = 0.5

    def random(self) -> float:
        return self.share


class Killed(BaseException):
    """A caller is killed, or interrupted."""


class Caller:
    """Runs the steps of an operation up to their next wait, whenever that has ended."""

    def __init__(self, fleet: ScriptedFleet, steps: Generator[Any, int, Any]) -> None:
        self.fleet = fleet
        self.steps = steps
        self.result: Any = None
        self.wanted: Any = None
        self._run(lambda: next(self.steps))

    def _run(self, step: Callable[[], Any]) -> None:
        try:
            while not self._begin(step()):
                step = lambda: self.steps.send(self.fleet.now_ns)  # noqa: E731
        except StopIteration as done:
            self.wanted = None
            self.result = done.value
        except Killed:
            self.wanted = None

    def _begin(self, wanted: Any) -> bool:
        """Begin what the steps want; whether that has to be waited for."""
        self.wanted = wanted
        if not isinstance(wanted, Turn | Offer):
            submit(self.fleet.engine, wanted)
        return wanted.outcome is None

    def go_on(self) -> None:
        """Run, if what it waited for is settled."""
        if self.wanted is not None and self.wanted.outcome is not None:
            self._run(lambda: self.steps.send(self.fleet.now_ns))

    def kill(self) -> None:
        """End it where it waits."""
        self._run(lambda: self.steps.throw(Killed()))


class Run(Caller):
    """The only caller there is: it is never late.

    Each `answer` is what the instances say to the round it waits for.
    """

    def __init__(self, fleet: ScriptedFleet, steps: Generator[Any, int, Any]) -> None:
        self.waits: list[float] = []
        self.rounds: list[Any] = []
        super().__init__(fleet, steps)

    def _begin(self, wanted: Any) -> bool:
        if isinstance(wanted, int | Turn):
            due_ns = wanted if isinstance(wanted, int) else wanted.due_ns
            self.waits.append((due_ns - self.fleet.now_ns) / NS_PER_MS)
            self.fleet.now_ns = max(due_ns, self.fleet.now_ns)
            self.fleet.tick()
            return False
        super()._begin(wanted)
        if not isinstance(wanted, Offer):
            self.rounds.append(wanted)
            self.fleet.flush()
        return not isinstance(wanted, Offer)

    def answer(self, *replies: bytes, after_ms: float = 1) -> Run:
        """One reply per instance, then the caller runs again; without a reply it is silent until
        the timeout."""
        self.fleet.after(after_ms)
        for index, reply in enumerate(replies):
            if reply:
                self.fleet.reply(index, reply)
        if self.wanted.outcome is None:
            self.fleet.tick(60)
        self.go_on()
        self.fleet.flush()
        for index, commands in enumerate(self.fleet.unanswered):  # clean-ups
            if self.wanted is None or not commands:
                continue
            self.fleet.reply(index, *[ONE] * (len(commands) - 1))
        return self


def acquiring(fleet: ScriptedFleet, wait_ms: float = 0, run: Callable[..., Any] = Run) -> Any:
    """An acquire, begun."""
    engine = fleet.engine
    acquire = Acquisition(engine, "stock", engine.terms(TTL_MS), wait_ms, fleet.now_ns, NoChance())
    return run(fleet, acquire.steps(fleet.now_ns))
