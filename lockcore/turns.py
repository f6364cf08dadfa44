"""Whose turn it is among the callers of one Redlock: *who waits here, what is released → who tries
next*. Pure.

Rules (README, "Turns"): the lock on the servers stays the only truth; a line only saves commands
that would be refused. Whoever leaves, in whatever way, passes the turn on. A head that finds no
quorum reachable sets the whole line free, so that an outage is found by all at once and not by one
after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from lockcore.awaited import Core, Settled
from lockcore.clock import FAR_FUTURE_NS
from lockcore.deadlines import FEWEST, Timetable
from lockcore.model import ACQUIRED, Lease, Outcome
from lockcore.rounds import Round, SetRound

HOLDERS_KEPT = 1 << 13  # of leases that nobody gives back, the newest


class Turn(Settled):
    """One caller's place in a line; shells wait for it as for a round of which nothing is sent.

    `outcome`: None while its caller is parked (until `due_ns`, at the latest). `has_come`: it may
    try. `poked`: the key was released while it was not parked, so it tries again without waiting.
    `follows`: who stood before it got the lock, so its release will be noticed here. `since_ns`:
    when its caller came. `watches`: for who has it.
    """

    __slots__ = (
        "due_ns",
        "follows",
        "has_come",
        "poked",
        "resource",
        "since_ns",
        "turns",
        "watches",
    )

    def __init__(self, turns: Turns, resource: str, since_ns: int) -> None:
        self.turns = turns
        self.resource = resource
        self.since_ns = since_ns
        self.has_come = self.poked = self.follows = self.watches = False
        self.due_ns = FAR_FUTURE_NS
        self.outcome = Outcome.CONTENDED
        self.waiter = None

    def park(self, due_ns: int) -> Turn:
        """Its caller is about to wait for it, until `due_ns` at the latest."""
        self.outcome = None
        self.due_ns = due_ns
        self.turns.parked.add(due_ns, self)
        return self

    def settle(self) -> None:
        """Its caller waits no more."""
        if self.outcome is None:
            self.turns.engine.ready.append(
                self
            )  # first: interrupted here it is woken twice rather than never
            self.outcome = Outcome.CONTENDED
            self.turns.want_wake()

    def come(self) -> None:
        """The caller's turn has come."""
        if not self.has_come:
            self.settle()
            self.has_come = True

    def abandon(self) -> None:
        """The caller is gone; leaving the line is its own step."""
        self.waiter = None


class Absent(Turn):
    """The place of whoever comes back, until its time comes: the turn was passed to another
    process, and who comes here stands behind it."""

    __slots__ = ()

    def settle(self) -> None:
        """It waits no more."""
        self.outcome = Outcome.CONTENDED
        self.turns.leave(self)


Line = OrderedDict[Turn, None]
"""Who waits for a resource, in order; who leaves its middle costs no more than who leaves its head."""


class Turns:
    """`lines`: by resource; an empty one is not kept. `want_wake` asks the shell to wake who is
    ready.

    `holders`: with `wait_for_own`, by resource, the attempt that was sent last; a saving, nothing
    depends on it. Those that have been given back leave together, when twice as many are there as
    at the last time: to delete each is dear. `parked`: whose time comes when. Of a line, those
    whose turn has come stand before those whose has not.
    """

    def __init__(self, engine: Core, *, wait_for_own: bool) -> None:
        self.engine = engine
        self.wait_for_own = wait_for_own
        self.lines: dict[str, Line] = {}
        self.holders: dict[str, SetRound] = {}
        self._room = FEWEST
        self.parked: Timetable[Turn] = Timetable(
            lambda due_ns, turn: turn.outcome is None and turn.due_ns == due_ns
        )
        self.want_wake: Callable[[], object] = int  # nothing, until a shell says what
        self.emptied: Callable[[str], object] = (
            str  # nothing, where no other process is to hear of it
        )

    def join(self, turn: Turn) -> None:
        """To the end of the line; at its head it has come. Its caller may have asked before the
        head's came."""
        line = self.lines.setdefault(turn.resource, Line())
        turn.has_come = not line or turn.since_ns < next(iter(line)).since_ns
        line[turn] = None
        line.move_to_end(turn, last=len(line) == 1 or not turn.has_come)

    def is_taken(self, resource: str) -> bool:
        """Who can wait stands in line: somebody here waits for it, or has it or asks for it and
        that is waited for."""
        holder = self.holders.get(resource)
        return (holder is not None and not holder.cleaned) or (
            bool(self.lines) and resource in self.lines
        )

    def sent(self, round_: SetRound) -> None:
        """An attempt goes out."""
        if not self.wait_for_own:
            return
        holders = self.holders
        holders[round_.resource] = round_
        if len(holders) > self._room:
            kept = [
                (resource, holder) for resource, holder in holders.items() if not holder.cleaned
            ]
            self.holders = dict(kept[-HOLDERS_KEPT:])
            self._room = FEWEST + 2 * len(self.holders)

    def given_back(self, round_: SetRound) -> None:
        """It is released, or was lost: the head waits for it no more."""
        if self.lines and self.holders.get(round_.resource) is round_:
            line = self.lines.get(round_.resource)
            head = next(iter(line)) if line else None
            if head is not None and head.watches:
                head.settle()

    def held_until_ns(self, resource: str) -> int:
        """Until when somebody here has it; 0 when nobody does, as far as is known."""
        round_ = self.holders.get(resource)
        if (
            round_ is None
            or round_.cleaned
            or (round_.outcome is not None and round_.outcome is not ACQUIRED)
        ):
            return 0
        return (
            round_.lease_end_ns
        )  # of an attempt on its way: of what it may be granted. If it is lost, the head hears

    def leave(self, turn: Turn, *, unreachable: bool = False, granted: bool = False) -> None:
        """Pass the turn on; to all when a quorum is `unreachable`. Twice is once."""
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
        """Nobody may wait any more: the Redlock is closed, as each will be told at its next step."""
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
        """Who comes until then stands in line, though nobody does yet."""
        place = Absent(self, resource, 0)
        self.join(place)
        place.park(until_ns)

    def take_place(self, resource: str) -> None:
        """The turn has come back."""
        for turn in list(self.lines.get(resource, ()))[:1]:
            if isinstance(turn, Absent):
                turn.settle()

    def expire(self, now_ns: int) -> None:
        """Settle every parked turn whose time has come."""
        self.parked.run(now_ns, lambda turn: turn.settle())


class Offer:
    """A lease for its caller: valid if the caller's clock shows less than `until_ns` once it has it
    in hand."""

    __slots__ = ("lease", "until_ns")
    outcome = ACQUIRED

    def __init__(self, lease: Lease, until_ns: int) -> None:
        self.lease = lease
        self.until_ns = until_ns


Wanted = Round | Turn | Offer | int
