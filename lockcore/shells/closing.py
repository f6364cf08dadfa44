"""How a Redlock is closed: *a driver, a deadline, now → go on draining, or shut*.

Rules, in this order: no attempt is begun any more, and who waits for one is told; what is in flight is waited for, and
so is every lease as long as holders give theirs back; what nobody has taken by the deadline is released; what is owed
goes out where a connection can be had at once.
"""

from typing import Any, Protocol

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, monotonic_ns
from lockcore.engine import Engine
from lockcore.rounds import SetRound

LOOK_S = 0.001
GRACE_NS = 100 * NS_PER_MS  # so long nobody gives a lease back: they are held, or forgotten
STILL_NS = 10 * NS_PER_MS  # more between two looks does not count: this process stood still, and its holders with it


class Closable(Protocol):
    """A driver as its closing sees it. `calls`: operations whose callers have yet to take what came of them."""

    engine: Engine
    calls: set[Any]

    def connect_due(self, now_ns: int) -> None:
        """Connect to every instance that is due."""


class Drain:
    """One close, from its begin."""

    def __init__(self, driver: Closable, drain_s: float) -> None:
        self._driver, self._engine = driver, driver.engine
        self._looked_ns = now_ns = monotonic_ns()
        self._idle_ns = 0
        self.deadline_ns = now_ns + int(drain_s * NS_PER_S)
        self._held = 0
        self._tried: set[int] = set()
        self._engine.retire()

    def is_over(self, now_ns: int) -> bool:
        """True when nothing is left to wait for, or no time."""
        engine = self._engine
        if now_ns >= self.deadline_ns:
            return True
        held, since_ns, self._looked_ns = engine.asked - engine.given_back, now_ns - self._looked_ns, now_ns
        if not engine.is_idle or self._driver.calls or self._owes(now_ns) or held != self._held:
            self._idle_ns, self._held = 0, held
            return False
        self._idle_ns += min(since_ns, STILL_NS)
        return held <= 0 or self._idle_ns >= GRACE_NS

    def _owes(self, now_ns: int) -> bool:
        """Whether what is owed may still go out: each instance is tried once."""
        owed = [index for index, debts in enumerate(self._engine.debts) if debts]
        members = self._engine.members
        for index in owed:
            if index not in self._tried:
                self._tried.add(index)
                members[index].retry_ns = now_ns
                self._driver.connect_due(now_ns)
        return any(members[index].connecting for index in owed)

    def give_up(self) -> None:
        """Release what is still undecided, and what is settled but nobody has taken. The driver then sends it."""
        self._engine.deadlines.expire(FAR_FUTURE_NS)
        for settled in self._engine.ready:
            if isinstance(settled, SetRound):
                settled.clean_up()
