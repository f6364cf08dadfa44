"""Whose turn it is among the callers of one Redlock: *waiting callers, releases → who tries next*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: `Turns` has
dictionaries as attributes and is none itself, as machine code would look its methods up by name.

Rules (docs/lockcore/waiting.md): the lock on the servers stays the only truth. A line only
saves commands that would be refused. Whoever leaves, in whatever way, passes the turn on. A head
that finds no quorum reachable sets the whole line free, so that all find an outage at once, not one
after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from lockcore.clock import FAR_FUTURE_NS
from lockcore.facts.model import ACQUIRED, Lease, Outcome
from lockcore.rounds.awaited import Core, Settled, nothing
from lockcore.rounds.deadlines import Timetable
from lockcore.rounds.rounds import Round


class Turn(Settled):
    """One caller's place in a line. Shells wait for it as for a round of which nothing is sent.

    `outcome` is None while its caller is parked, until `due_ns` at the latest. `has_come`: it may
    try. `poked`: the key was released while it was not parked, so it tries again without waiting.
    `follows`: the caller before it got the lock, so that release will be noticed here. `since_ns`
    is when its caller came.
    """

    __slots__ = ("due_ns", "follows", "has_come", "poked", "resource", "since_ns", "turns")

    def __init__(self, turns: Turns, resource: str, since_ns: int) -> None:
        self.turns = turns
        self.resource = resource
        self.since_ns = since_ns
        self.has_come = self.poked = self.follows = False
        self.due_ns = FAR_FUTURE_NS
        self.outcome = Outcome.CONTENDED
        self.waiter = None

    def park(self, due_ns: int) -> Turn:
        """Its caller is about to wait for the turn, until `due_ns` at the latest."""
        self.outcome = None
        self.due_ns = due_ns
        self.turns.parked.add(due_ns, self)
        return self

    def settle(self) -> None:
        """Its caller waits no more."""
        if self.outcome is None:
            # This comes first. If it is interrupted, the caller is woken twice rather than never.
            self.turns.engine.ready.append(self)
            self.outcome = Outcome.CONTENDED
            self.turns.want_wake()

    def come(self) -> None:
        """The caller's turn has come."""
        if not self.has_come:
            self.settle()
            self.has_come = True

    def abandon(self) -> None:
        """The caller is gone. To leave the line is a step of its own."""
        self.waiter = None


class Absent(Turn):
    """The place of a caller that is not there: the turn was passed to another process.

    Until its time comes, or the turn comes back, whoever comes here stands behind it.
    """

    __slots__ = ()

    def settle(self) -> None:
        """It waits no more."""
        self.outcome = Outcome.CONTENDED
        self.turns.leave(self)


# The turns that wait for a resource, in order. A caller that leaves the middle of the line costs no
# more than one that leaves its head.
Line = OrderedDict[Turn, None]


# Turns have a time of their own: `parked` is a heap of all turns with the time at which each goes
# on by itself. A round has a timeout that is the same for a whole batch, so rounds stand in batches
# (deadlines.py). A turn's time is drawn at random and differs for each caller. It must also be
# cheap to leave early, as most do: a settled turn stays in the heap and is passed over. So a parked
# caller costs the same however many are parked (a test parks 5,000 of them).
class Turns:
    """The lines of the callers of one Redlock.

    `lines` are by resource; an empty line is not kept. In a line, the turns that have come stand
    before those that have not. `want_wake` asks the shell to wake whoever is ready. `emptied` is
    called with a resource when nobody waits for it here any more.
    """

    def __init__(self, engine: Core) -> None:
        self.engine = engine
        self.lines: dict[str, Line] = {}
        self.parked: Timetable[Turn] = Timetable(
            lambda due_ns, turn: turn.outcome is None and turn.due_ns == due_ns
        )
        self.want_wake: Callable[[], object] = nothing
        self.emptied: Callable[[str], object] = nothing

    def join(self, turn: Turn) -> None:
        """Put a turn at the end of the line. A turn at the head of the line has come.

        It goes to the head if its caller asked before the caller of the head did. So an `Absent`,
        which asks since 0, goes to the head.
        """
        line = self.lines.setdefault(turn.resource, Line())
        turn.has_come = not line or turn.since_ns < next(iter(line)).since_ns
        line[turn] = None
        line.move_to_end(turn, last=len(line) == 1 or not turn.has_come)

    def is_taken(self, resource: str) -> bool:
        """True when a caller that can wait must stand in line: somebody here waits already."""
        return bool(self.lines) and resource in self.lines

    def leave(self, turn: Turn, *, unreachable: bool = False, granted: bool = False) -> None:
        """Pass the turn on, and to all when a quorum is `unreachable`. To call it twice is fine."""
        line = self.lines.get(turn.resource)
        if line is None:
            return
        line.pop(turn, None)
        if not line:
            self.lines.pop(turn.resource, None)
            if not granted:
                self.emptied(turn.resource)
            return
        head = next(iter(line))
        if granted and not head.has_come:
            head.follows = True
        head.come()
        for other in reversed(line) if unreachable else ():
            if other.has_come:
                break
            other.come()

    def end(self) -> None:
        """Nobody may wait any more: the Redlock is closed.

        Each caller is told so at its next step.
        """
        for line in list(self.lines.values()):
            for turn in list(line):
                turn.settle()

    def poke(self, resource: str) -> None:
        """The key is being released: the head of its line tries at once."""
        line = self.lines.get(resource)
        if line:
            head = next(iter(line))
            head.poked = True
            head.settle()

    def hold_place(self, resource: str, until_ns: int) -> None:
        """Hold a place in line, so that whoever comes until then stands behind it."""
        place = Absent(self, resource, 0)
        self.join(place)
        place.park(until_ns)

    def take_place(self, resource: str) -> None:
        """The turn has come back: the place that was held at the head of the line is given up."""
        for turn in list(self.lines.get(resource, ()))[:1]:
            if isinstance(turn, Absent):
                turn.settle()

    def expire(self, now_ns: int) -> None:
        """Settle every parked turn whose time has come."""
        self.parked.run(now_ns, lambda turn: turn.settle())


# The trick of an offer. A lease is somebody's only by a clock reading of its own thread, taken when
# it has the lease in its hands. The steps of an operation may run in another thread (the I/O thread
# of a Redlock for threads), and its reading says nothing about when the caller's thread gets to
# run: that thread may wait for a core for longer than the lease lasts. So a step does not return a
# lease. It yields an `Offer`. Where the steps run in the caller's own greenlet or task, the shell
# answers at once with the time. Where they run elsewhere, the caller's thread takes the offer and
# reads the clock. Only then the steps go on with that reading, to a lease or to TOO_LATE.
# Without it a caller that was held up would believe in a lease that has run out (`test_handover.py`
# holds a thread up on each path).
class Offer:
    """A lease for its caller.

    It is valid if the caller's clock shows less than `until_ns` once the caller has it in hand.
    """

    __slots__ = ("lease", "until_ns")
    outcome = ACQUIRED

    def __init__(self, lease: Lease, until_ns: int) -> None:
        self.lease = lease
        self.until_ns = until_ns


Request = Round | Turn | Offer | int
