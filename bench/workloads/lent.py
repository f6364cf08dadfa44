"""A caller whose greenlet stays parked while all is usual: *what it waited for has come → its next
step, no switch*.

Rules: why, and what is usual: README, "A caller's greenlet stays parked". The stand-in
(lockcore.awaited) goes from wait to wait, and records what `Caller` would. Whatever is unusual
wakes the greenlet, which goes on from there by `Caller`'s own ways; it is there to be killed, too,
wherever its operation is. A lock that is observed is asked by `Caller` alone. Compiled with the
core (lockcore/compiled.py), where a wheel is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import gevent
from greenlet import getcurrent

from bench.recipes.protocol import Acquire
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from bench.workloads.operation import Caller, LocustUser
from lockcore import Denied, Lease, Outcome
from lockcore.awaited import StandIn
from lockcore.clock import monotonic_ns
from lockcore.rounds import ReleaseRound, SetRound
from lockcore.shells.shortcut import Shortcut, Steps

# between two operations
IDLE: Final = 0
# the SET is out
ASKED: Final = 1
HELD: Final = 2
# the release is out
GIVING: Final = 3
RESTING: Final = 4
# an arrival
AWAITING: Final = 5


def kind_of(
    acquire: Acquire, naps: Alarm, rests: Rests, arrivals: PreciseAlarm | None, pacer: Pacer | None
) -> Callable[..., Caller]:
    """What makes callers that lock by `acquire` and wait by these: the last two where starts have a
    schedule."""
    lock = getattr(acquire, "__self__", None)
    if not isinstance(lock, Shortcut) or not type(lock).__module__.startswith("lockcore."):
        # a lock derived from ours may have ways of its own
        return Caller
    return partial(LentCaller, lock=lock, naps=naps, rests=rests, arrivals=arrivals, pacer=pacer)


@dataclass(eq=False)
class LentCaller(Caller):
    """A `Caller` that parks once for many operations, in the greenlet that runs it."""

    lock: Shortcut
    naps: Alarm
    rests: Rests
    arrivals: PreciseAlarm | None
    pacer: Pacer | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for alarm in (self.naps, self.rests, self.arrivals):
            if alarm is not None:
                alarm.around(self.lock.gather, self.lock.leave)
        self._draw: Callable[[], int] = self.resources.__next__
        self._me = StandIn(None, self._step)
        self._user: LocustUser | None = None
        self._running: object = None
        self._stage: int = IDLE
        self._error: BaseException | None = None
        self._asked: SetRound | None = None
        # of an acquire that did not win at once
        self._steps: Steps | None = None
        self._denial: Denied | None = None
        self._giving: ReleaseRound | None = None
        self._lease: Lease | None = None
        self._resource = 0
        self._intended_ns = 0
        self._start_ns = 0
        self._sent_ns = 0
        self._due_ns = 0

    def run(self, user: LocustUser, running: str) -> None:
        """See `Caller.run`; its draws of resources have no end."""
        self._user = user
        self._running = running
        self._me.caller = getcurrent()
        self._forget_error()
        try:
            needed = self._next()
            while True:
                if not needed and self.lock.park() is True and self._stage != HELD:
                    # called off, from a rest or an arrival
                    return
                if self._error is not None:
                    raise self._error
                if self._stage != IDLE:
                    needed = self._go_on()
                elif self._is_over() or self.take is None or self.pacer is not None:
                    return
                elif intended_ns := self.take():
                    needed = self._ask(intended_ns, self._now())
                else:
                    return
        except BaseException:
            self._cut_short()
            raise

    def _forget_error(self) -> None:
        """In a method of its own: where `run` sets None, mypyc takes the attribute for None from
        there on.

        An error of a step would then end as a TypeError that names only the error's class.
        """
        self._error = None

    def _is_over(self) -> bool:
        return cast("LocustUser", self._user)._state != self._running

    # -- the stand-in: each returns True where it cannot go on -------------------------------------

    # The stand-in runs in the hands of somebody else, who reads replies or ends rests. An exception
    # raised here could hit that caller or the hub, and leave the rest of the batch unserved. So it
    # is kept, and the parked greenlet wakes and raises it. `BaseException` is caught because the
    # greenlet is the one that must end by it.
    def _step(self) -> bool:
        """What was waited for has come."""
        try:
            stage = self._stage
            if stage == ASKED:
                return self._answered()
            if stage == GIVING:
                return self._given_back()
            if stage == HELD:
                return self._give_back(self._now())
            if stage == RESTING:
                self.rests.over(self.rests.lateness_ns(self._due_ns))
                return self._next()
            if self.pacer is not None and self.arrivals is not None:
                self.pacer.waited(self._due_ns, self.arrivals.lateness_ns(self._due_ns))
            return self._ask(self._due_ns, self._now())
        except BaseException as error:  # noqa: BLE001 - its greenlet raises it
            self._error = error
            return True

    def _next(self) -> bool:
        """The next operation, now or when it is due."""
        self._stage = IDLE
        pacer = self.pacer
        if self._is_over():
            return True
        if pacer is None:
            if self.take is not None:
                return True
            start_ns = self._now()
            return self._ask(start_ns, start_ns)
        due_ns = pacer.next_ns()
        if not due_ns:
            return True
        if pacer.is_overdue(due_ns):
            return self._ask(due_ns, self._now())
        self._due_ns = due_ns
        self._stage = AWAITING
        cast("PreciseAlarm", self.arrivals).call(due_ns, self._me)
        return False

    # The order of these lines matters when the caller is killed or something raises. The stage is
    # IDLE while the resource is drawn, so a draw that fails breaks off no operation. The mark in
    # `begun` and the cleared fields come before ASKED. From ASKED on `_cut_short` breaks the
    # operation off. With old fields it would take the lease of the operation before for that of
    # this one.
    def _ask(self, intended_ns: int, start_ns: int) -> bool:
        self._stage = IDLE
        self._resource = self._draw()
        self._intended_ns = intended_ns
        self._start_ns = start_ns
        self.begun[self.place] = start_ns
        self._lease = None
        self._asked = None
        self._sent_ns = 0
        self._stage = ASKED
        name = f"r{self._resource}"
        round_ = self.lock.begin_acquire(name, self.ttl_ms, self.wait_ms, start_ns, self._me)
        self._asked = round_
        if round_ is None and not self.lock.is_observed:
            self._steps = self.lock.steps_in_line(name, self.wait_ms)
            return self._carry(first=True)
        return round_ is None or round_.outcome is not None

    def _answered(self) -> bool:
        if self._steps is not None:
            return self._carry(first=False)
        round_ = cast("SetRound", self._asked)
        lease = self.lock.lease_of(round_)
        if lease is not None:
            return self._hold(lease)
        self._steps = self.lock.steps_after(round_, self.wait_ms)
        return self._carry(first=True)

    def _carry(self, *, first: bool) -> bool:
        result = self.lock.carry(cast("Steps", self._steps), self._me, first=first)
        if result is None:
            return False
        self._steps = None
        if isinstance(result, Lease):
            return self._hold(result)
        self._denial = result
        return True

    def _hold(self, lease: Lease) -> bool:
        self._lease = lease
        fault = self._read(lease, self._start_ns, self._now())
        if fault:
            # of our own lock: its record will not be believed
            self.misreport(fault)
        if self.holds_ns is None:
            return self._give_back(self._returned_ns)
        self._stage = HELD
        self.naps.call(self._returned_ns + next(self.holds_ns), self._me)
        return False

    def _give_back(self, sent_ns: int) -> bool:
        self._stage = GIVING
        self._sent_ns = sent_ns
        self._giving = giving = self.lock.begin_release(
            cast("Lease", self._lease), sent_ns, self._me
        )
        return giving.outcome is not None

    def _given_back(self) -> bool:
        replied_ns = self._now()
        lease = self._lease
        giving = self._giving
        self._stage = IDLE
        if lease is not None and giving is not None:
            outcome = giving.outcome or Outcome.UNREACHABLE
            self._note(
                lease,
                outcome,
                self._resource,
                self._intended_ns,
                self._start_ns,
                self._sent_ns,
                replied_ns,
            )
        return self._rest()

    def _rest(self) -> bool:
        if self.thinks_ns is None:
            return self._next()
        self._due_ns = monotonic_ns() + next(self.thinks_ns)
        self._stage = RESTING
        self.rests.call(self._due_ns, self._me)
        return False

    # -- its greenlet ------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """What the stand-in could not: as there, True where this is not over."""
        if self._stage == GIVING:
            return self._given_back()
        if self._stage == HELD:
            return self._give_back(self._now())
        if self._denial is None:
            # settled at once
            if self._asked is not None:
                # it must not starve the hub
                gevent.sleep(0)
                return self._answered()
            # observed, and told by the ordinary ways alone
            self._stage = IDLE
            self.operate(self._resource, self._intended_ns, self._start_ns)
            return self._rest()
        denial = self._denial
        self._denial = None
        self._denied(denial, self._resource, self._intended_ns, self._start_ns, monotonic_ns())
        self._stage = IDLE
        return self._rest()

    # A killed greenlet leaves its stand-in behind: with an alarm, in a round or in a line. Each of
    # these could step it later, in an operation that is over. So all registrations are taken back
    # before the operation is broken off. The stage is kept in a local name and set to IDLE first:
    # the release below may wait, and nothing may step this caller meanwhile.
    def _cut_short(self) -> None:
        """Killed, or raised in the middle."""
        stage = self._stage
        lease = self._lease
        self._stage = IDLE
        for alarm in (self.naps, self.rests, self.arrivals):
            if alarm is not None:
                alarm.forget(self._me.caller)
        if stage == GIVING and self._giving is not None:
            self._giving.waiter = None
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        elif stage == ASKED and lease is None and self._asked is not None:
            self._asked.abandon()
        if stage in (ASKED, HELD, GIVING):
            self._broken_off(
                lease, self._resource, self._intended_ns, self._start_ns, self._sent_ns
            )
