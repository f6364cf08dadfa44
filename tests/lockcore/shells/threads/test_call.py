"""One operation between two threads: who is woken when, and what is taken back when nobody is left
to get it."""

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from lockcore.engine.turns import Offer
from lockcore.errors import InstanceClosedError
from lockcore.facts.model import Closed, Lease, Outcome, Tally
from lockcore.shells.threads.call import Call, ring


class Round:
    """Settled when the test says so."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.outcome = outcome
        self.waiter: Any = None


class Carrier:
    """The I/O thread, by hand."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.submitted: list[Any] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.closed = False

    def submit(self, round_: Any) -> None:
        if self.closed:
            raise InstanceClosedError("all instances", "closed")
        self.submitted.append(round_)

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        self.timers.append((due_ns, job))


class Caller:
    """Who waits."""

    def __init__(self, steps: Generator[Any, int, Any], **options: Any) -> None:
        self.carrier = Carrier()
        self.woken = 0
        self.call = Call(self.carrier, steps, self._wake, **options)
        self.call.start()

    def _wake(self) -> None:
        self.woken += 1

    def settle(self, round_: Round, outcome: Outcome) -> None:
        round_.outcome = outcome
        self.call.settled()


def waits_for(round_: Round, log: list[Any]) -> Generator[Any, int, str]:
    """Steps with one round; `log` gets the time they go on at, or that they were closed."""
    try:
        log.append((yield round_))
    except BaseException as error:
        log.append(type(error).__name__)
        raise
    return "value"


def offers(log: list[Any]) -> Generator[Any, int, Any]:
    """Steps that offer a lease valid until 100, until one is taken in time; `log` as in
    `waits_for`."""
    while True:
        lease = Lease("stock", b"token", 10, 0, 1, 100, Closed(Tally(granted=3)))
        try:
            log.append((yield Offer(lease, 100)))
        except BaseException as error:
            log.append(type(error).__name__)
            raise
        if log[-1] < 100:
            return lease


def test_a_lease_is_offered_to_its_caller_who_takes_it_and_is_woken_no_more() -> None:
    log: list[Any] = []
    caller = Caller(offers(log), judged=True)
    assert (caller.woken, caller.call.over, log) == (1, False, [])
    lease = caller.call.take().lease
    caller.call.taken(77)
    assert (caller.woken, caller.call.over, log) == (1, True, [77])
    assert lease.outcome is Outcome.ACQUIRED


def test_a_lease_for_nobody_in_particular_is_judged_in_the_io_thread() -> None:
    log: list[Any] = []
    caller = Caller(offers(log))
    ((_, job),) = caller.carrier.timers
    assert (caller.woken, log) == (0, [])
    job()
    # the real clock
    assert log[0] > 100


def test_an_offer_is_taken_back_or_taken_but_never_both() -> None:
    log: list[Any] = []
    caller = Caller(offers(log), judged=True, undo=log.append)
    caller.call.fail(InstanceClosedError("all", "closed"))
    with pytest.raises(InstanceClosedError):
        caller.call.take()
    assert (caller.call.over, log) == (True, ["InstanceClosedError"])
    log = []
    caller = Caller(offers(log), judged=True, undo=log.append)
    caller.call.take()
    caller.call.fail(InstanceClosedError("all", "closed"))
    assert (caller.call.over, log) == (False, [])
    caller.call.taken(99)
    assert (caller.call.over, log) == (True, [99])


def test_a_value_that_nobody_took_is_taken_back() -> None:
    taken_back: list[Any] = []
    round_ = Round()
    caller = Caller(waits_for(round_, []), undo=taken_back.append)
    caller.settle(round_, Outcome.ACQUIRED)
    caller.call.fail(InstanceClosedError("all", "closed"))
    assert taken_back == ["value"]
    with pytest.raises(InstanceClosedError):
        caller.call.take()


def test_an_offer_to_who_is_gone_is_taken_back() -> None:
    log: list[Any] = []
    caller = Caller(offers(log), judged=True)
    caller.call.take()
    # interrupted with the lease in hand
    caller.call.abandon()
    caller.call.taken(99)
    assert log == ["GeneratorExit"]


def test_steps_whose_wait_cannot_begin_are_told() -> None:
    log: list[Any] = []

    def steps() -> Generator[Any, int, str]:
        yield 0
        return (yield from waits_for(Round(), log))

    caller = Caller(steps())
    caller.carrier.closed = True
    caller.carrier.timers.pop()[1]()
    assert (caller.woken, log) == (1, ["InstanceClosedError"])
    with pytest.raises(InstanceClosedError):
        caller.call.take()


def test_ringing_twice_wakes_once() -> None:
    lock = threading.Lock()
    lock.acquire()
    ring(lock)
    # closed in the moment of a grant
    ring(lock)
    assert lock.acquire(timeout=0)
    assert not lock.acquire(timeout=0)
