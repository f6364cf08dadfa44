"""This module gives turns to the callers of one Redlock.

Input: waiting callers, and releases. Output: the next caller that may try.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, `Turns` is not a subclass of `dict`, but has dictionaries as attributes. With a
subclass, machine code would look up the methods by name.

Rules (docs/lockcore/waiting.md): only the keys on the servers decide who holds a lock. The only
purpose of a line of callers is to avoid commands that the servers would refuse. If a caller leaves
the line, the next caller in the line may try. If the head of the line cannot reach a quorum, all
callers of the line may try at once. So all these callers notice an outage at the same time.
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
    """One caller's place in a line. A shell waits for turns and for rounds in the same way, but it
    sends no commands for a turn.

    While the caller is parked, `outcome` is None. The caller is parked until `due_ns` at the
    latest. `has_come` is True if the caller may try for the lock. `poked` is True if the key was
    released after the caller began its last attempt. If `poked` is True, the caller tries again
    without waiting. `follows` is True if the previous caller in the line got the lock. If `follows`
    is True, this process itself holds the lock, so it notices the release without a message.
    `since_ns` is the time of the caller's arrival.
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
        """Park the caller. The caller waits for the turn until `due_ns` at the latest."""
        self.outcome = None
        self.due_ns = due_ns
        self.turns.parked.add(due_ns, self)
        return self

    def settle(self) -> None:
        """End the wait of the caller."""
        if self.outcome is None:
            # The turn is added first, so an interrupt wakes the caller twice rather than never.
            self.turns.engine.ready.append(self)
            self.outcome = Outcome.CONTENDED
            self.turns.want_wake()

    def come(self) -> None:
        """Let the caller try, because it is now the turn of this caller."""
        if not self.has_come:
            self.settle()
            self.has_come = True

    def abandon(self) -> None:
        """Forget the caller, because the caller has left.

        The turn is still in its line after this call. `Turns.leave` removes the turn from the line.
        """
        self.waiter = None


class Absent(Turn):
    """A place in a line. The place belongs to no caller.

    While a caller of another process has the turn, an `Absent` is the head of the line in this
    process. New callers wait behind the `Absent`. The `Absent` leaves the line when its time is
    over, or when a caller of this process may try again.
    """

    __slots__ = ()

    def settle(self) -> None:
        """Give up the place."""
        self.outcome = Outcome.CONTENDED
        self.turns.leave(self)


# The turns that wait for a resource, in order. Leaving the middle of the line costs no more than
# leaving its head.
Line = OrderedDict[Turn, None]


# `parked` is a heap of all turns. Each entry has the time at which its turn goes on without a
# message. Rounds have one timeout for a whole batch, so deadlines.py keeps rounds in batches. But a
# turn's time is random and differs for each caller. Most turns end before their time, and this
# early end must be cheap. So a settled turn stays in the heap, and the heap skips it later. A
# parked caller then costs the same, however many callers are parked (a test parks 5,000 of them).
class Turns:
    """The lines of the callers of one Redlock.

    If callers of this process wait for a resource, `lines` contains a line for this resource. A
    line begins with the turns whose `has_come` is True. The turns whose `has_come` is False follow.
    `want_wake` asks the shell to wake the callers that are ready. When the last waiting caller of a
    resource has left, `emptied` is called with the resource.
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
        """Put a turn at the end of the line. If the line was empty, `has_come` becomes True at
        once.

        Compare the arrival of this caller with the arrival of the first caller in the line. If this
        caller arrived earlier, its turn becomes the head of the line, and `has_come` becomes True.
        An `Absent` always becomes the head of the line, because its arrival time `since_ns` is 0.
        """
        line = self.lines.setdefault(turn.resource, Line())
        turn.has_come = not line or turn.since_ns < next(iter(line)).since_ns
        line[turn] = None
        line.move_to_end(turn, last=len(line) == 1 or not turn.has_come)

    def is_taken(self, resource: str) -> bool:
        """Return True if callers of this process already wait for the resource. In this case, a new
        caller that can wait joins the line."""
        return bool(self.lines) and resource in self.lines

    def leave(self, turn: Turn, *, unreachable: bool = False, granted: bool = False) -> None:
        """Remove a turn from its line, and let the next caller in the line try. If a quorum is
        `unreachable`, all callers in the line get a turn.

        A second call for the same turn has no effect.
        """
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
        """End all waits, because the Redlock is closed.

        Each caller gets an InstanceClosedError at its next step.
        """
        for line in list(self.lines.values()):
            for turn in list(line):
                turn.settle()

    def poke(self, resource: str) -> None:
        """Let the head of the line try at once, because the key is being released."""
        line = self.lines.get(resource)
        if line:
            head = next(iter(line))
            head.poked = True
            head.settle()

    def hold_place(self, resource: str, until_ns: int) -> None:
        """Put an `Absent` at the head of the line until `until_ns`.

        New callers wait behind the `Absent`.
        """
        place = Absent(self, resource, 0)
        self.join(place)
        place.park(until_ns)

    def take_place(self, resource: str) -> None:
        """Remove the `Absent` at the head of the line, because this process may try again."""
        for turn in list(self.lines.get(resource, ()))[:1]:
            if isinstance(turn, Absent):
                turn.settle()

    def expire(self, now_ns: int) -> None:
        """Settle every parked turn whose `due_ns` has passed."""
        self.parked.run(now_ns, lambda turn: turn.settle())


# The trick of an offer. A lease belongs to a caller only if the caller's own thread reads the clock
# after it has received the lease. The steps of an operation may run in another thread (the I/O
# thread of a Redlock for threads). A clock reading there says nothing about the caller's thread,
# which may wait for a core for longer than the lease lasts. So a step does not return a lease. It
# yields an `Offer`. If the steps run in the caller's own greenlet or task, the shell answers at
# once with the time. If the steps run elsewhere, the caller's thread takes the offer and reads the
# clock. Only then do the steps go on with this time, to a lease or to TOO_LATE. Without offers, a
# delayed caller would use an expired lease (`test_handover.py` delays a thread on each path).
class Offer:
    """An offer of a lease to a caller.

    The caller reads its clock after it has received the offer. The lease is valid only if this
    reading is before `until_ns`.
    """

    __slots__ = ("lease", "until_ns")
    outcome = ACQUIRED

    def __init__(self, lease: Lease, until_ns: int) -> None:
        self.lease = lease
        self.until_ns = until_ns


Request = Round | Turn | Offer | int
