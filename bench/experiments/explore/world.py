"""Provides virtual time. A world runs the events of simulated processes in the order of their
times.

The whole world runs in one real thread and has one clock. Events at the same time happen in the
order in which they were requested. An `Actor` is one simulated thread of a `Process`. All events of
a paused process wait until the pause ends. At each place where a schedule may change the course,
the world calls the function `choose`. If `choose` returns None, the usual course continues.
"""

from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from greenlet import getcurrent, greenlet

from bench.experiments.explore.schedule import Change, Choose, Place
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS

START_NS = 3_000_000 * NS_PER_MS
# One observation. It has a time (ns), a name, and further details that depend on the name.
Event = tuple[Any, ...]


class OverError(BaseException):
    """Raised in a waiting simulated thread to end the thread when the world ends."""


class KilledError(BaseException):
    """Raised in a waiting simulated thread when a schedule kills this thread."""


def places(where: str, who: int) -> Iterator[Place]:
    """Return an endless iterator of the places of the kind `where` that `who` visits. `who` is the
    number of a client or server. The visits are numbered from 1."""
    return map(partial(Place, where, who), count(1))


def nothing() -> None:
    """Do nothing. If an event has no other listener, this function is its listener."""


class World:
    """A simulated world: its clock, its planned events, and the observations.

    Until `is_begun` becomes true, the world makes no changes and does not record the places that
    clients and servers pass. `is_over` becomes true when a rule is broken, a client's program
    fails, or the world ends.
    """

    def __init__(self, choose: Choose) -> None:
        # All clients connect in the second before START_NS.
        self.now_ns = START_NS - 1_000 * NS_PER_MS
        self.is_over = self.is_begun = False
        self.seen: list[Event] = []
        self.actors: list[Actor] = []
        # The passed places in order, each with its time (ns).
        self.passed: dict[Place, int] = {}
        # A function that waits for a time, if the schedule is played in real time.
        self.until: Callable[[int], object] | None = None
        self._choose = choose
        # The heap has one entry for each time (ns) at which events are due. `_due` has a list with
        # the events of each time, in the order of their requests. This order makes a schedule
        # repeatable. Callables cannot be compared. So a heap of events would need a number in each
        # entry to keep the order.
        self._times: list[int] = []
        self._due: dict[int, list[Callable[[], object]]] = {}

    def at(self, time_ns: int, what: Callable[[], object]) -> None:
        """Call `what` at `time_ns`, or as soon as possible if `time_ns` is in the past."""
        due_ns = time_ns if time_ns > self.now_ns else self.now_ns
        if (due := self._due.get(due_ns)) is None:
            self._due[due_ns] = [what]
            heappush(self._times, due_ns)
        else:
            due.append(what)

    def later(self, delay_ns: int, what: Callable[[], object]) -> None:
        """Call `what` after `delay_ns` (≥ 0)."""
        self.at(self.now_ns + delay_ns, what)

    def run(self, until_ns: int, busy: Sized = (None,)) -> None:
        """Run events until the time `until_ns`. Stop earlier if `busy` is empty, or if the world
        has ended.
        """
        times = self._times
        while times and times[0] <= until_ns and busy and not self.is_over:
            self.now_ns = now_ns = times[0]
            if self.until is not None:
                self.until(now_ns)
            due = self._due[now_ns]
            while due and busy and not self.is_over:
                due.pop(0)()
            if not due:
                del self._due[heappop(times)]
        if busy and not self.is_over:
            self.now_ns = max(self.now_ns, until_ns)

    def change(self, visits: Iterator[Place]) -> Change | None:
        """Get the next place from `visits`, and return the change that the schedule makes at this
        place. Return None if the schedule makes no change.
        """
        if not self.is_begun:
            return None
        place = next(visits)
        self.passed[place] = self.now_ns
        return self._choose(place)

    def note(self, what: str, *details: object) -> None:
        """Record an observation with the current virtual time."""
        self.seen.append((self.now_ns, what, *details))

    def end(self) -> None:
        """End all simulated threads that still wait."""
        self.is_over = True
        for actor in self.actors:
            # During its clean-up an actor may wait again. The loop then ends the actor again.
            for _ in range(5):
                if actor.dead or not actor:
                    break
                actor.throw(OverError)
        self.actors.clear()
        self._due.clear()
        self._times.clear()


class Process:
    """A simulated process, which is a client.

    The process is paused until the time `paused_ns`. A paused process runs no code and receives no
    data. The wall clock of the process is `ahead_ns` ahead of the world's wall clock.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.paused_ns = self.ahead_ns = 0
        self.steps = places("step", number)
        self.sends = places("send", number)
        self.replies = places("reply", number)
        self.on_kill: Callable[[], object] = nothing

    def run(self, what: Callable[[], object]) -> None:
        """Call `what` in the process. If the process is paused, call `what` when the pause ends.

        Each call passes a place of the kind `step`, unless the process is paused. A schedule may
        pause the process or kill a caller at this place.
        """
        world = self.world
        if world.now_ns < self.paused_ns:
            world.at(self.paused_ns, partial(self.run, what))
            return
        change = world.change(self.steps)
        if change is None:
            what()
        elif change.what == "pause":
            world.note("pause", self.number, change.for_ns)
            self.paused_ns = world.now_ns + change.for_ns
            world.at(self.paused_ns, what)
        else:
            self.on_kill()
            what()

    def start(self, work: Callable[[], object], delay_ns: int = 0) -> "Actor":
        """Start a new simulated thread of the process after `delay_ns`."""
        actor = Actor(self, work)
        self.world.actors.append(actor)
        self.world.later(delay_ns, partial(actor.go, actor.turn))
        return actor


class Actor(greenlet):  # type: ignore[misc]
    """One simulated thread of a process.

    The number `turn` grows with every wait. Each wake-up is meant for the wait with one number. So
    a late wake-up for an earlier wait has no effect.
    """

    def __init__(self, process: Process, work: Callable[[], object]) -> None:
        maker = getcurrent()
        # The parent is the greenlet to which a wait switches back.
        super().__init__(self._live, maker.parent if isinstance(maker, Actor) else maker)
        self.process = process
        self.world = process.world
        self._work = work
        self.turn = 0

    def _live(self) -> None:
        with suppress(OverError, KilledError):
            self._work()

    def go(self, turn: int) -> None:
        """Continue the thread now if the number of its current wait is `turn`."""
        if turn == self.turn and not self.dead:
            self.turn += 1
            self.switch()

    def wake(self, turn: int) -> None:
        """If the number of the thread's current wait is `turn`, continue the thread as soon as its
        process runs.
        """
        if turn == self.turn:
            self.process.run(partial(self.go, turn))

    def wait(self, until_ns: int = FAR_FUTURE_NS) -> None:
        """Wait until the thread is woken, or until `until_ns`. Raises OverError or KilledError."""
        if self.world.is_over:
            raise OverError
        if until_ns < FAR_FUTURE_NS:
            self.world.at(until_ns, partial(self.wake, self.turn))
        self.parent.switch()
        if self.world.is_over:
            raise OverError

    def kill(self) -> None:
        """Kill the thread, which must be in a wait."""
        if not self.dead and self:
            self.turn += 1
            self.throw(KilledError)


def here() -> Actor:
    """Return the simulated thread that runs now. A simulated thread must be running."""
    actor = getcurrent()
    assert isinstance(actor, Actor), "only a client's program waits"
    return actor
