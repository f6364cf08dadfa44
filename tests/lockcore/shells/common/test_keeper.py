"""A lease kept alive in the background: when it is extended, how often, and how its holder learns
that it is gone."""

import asyncio

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import extend_steps
from lockcore.errors import ForeignProcessError
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.rounds import ExtendRound
from lockcore.shells.common.keeper import KeepAlive, keeper_steps
from tests.doubles.keyspace import MISCONF, NIL, OK
from tests.lockcore.by_hand import Caller, Run
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, settings_of
from tests.lockcore.source import needs_source

EVERY_MS = 3_000


class Kept:
    """A lease under a keeper, run by hand."""

    def __init__(self, extensions: int = 1_000) -> None:
        self.fleet = ScriptedFleet(3)
        self.lease = self.fleet.won()
        self.renewed: list[Lease] = []
        keeper = KeepAlive(self.lease, EVERY_MS, extensions, None)
        count = keeper.renewed

        def renewed(lease: Lease) -> None:
            self.renewed.append(lease)
            count(lease)

        keeper.renewed = renewed  # type: ignore[method-assign]
        self.run = Run(self.fleet, keeper_steps(keeper, self.fleet.engine))

    def sent(self) -> int:
        """Extensions that reached instance 0."""
        return self.fleet.kinds(0).count("extend")


def test_it_is_extended_every_so_often_from_the_start_of_the_last_extension() -> None:
    kept = Kept()
    for _ in range(3):
        kept.run.answer(OK, OK, OK, after_ms=7)
    starts = [round_.started_ns for round_ in kept.run.rounds]
    assert [
        later - earlier
        for earlier, later in zip([kept.lease.started_ns, *starts], starts, strict=False)
    ] == [EVERY_MS * NS_PER_MS] * 4
    assert [lease.started_ns for lease in kept.renewed] == starts[:3]
    assert kept.renewed[-1].valid_until_ns > kept.lease.valid_until_ns


def test_extensions_are_bounded_in_number() -> None:
    kept = Kept(extensions=2)
    kept.run.answer(OK, OK, OK)
    kept.run.answer(OK, OK, OK)
    assert (len(kept.renewed), kept.sent()) == (2, 2)
    # it only waits for the end, and says it then
    assert kept.run.wanted is None
    assert kept.run.result.outcome is Outcome.GONE
    assert kept.run.result.ended_ns == kept.renewed[-1].valid_until_ns


def test_a_lease_that_is_gone_ends_it_at_once() -> None:
    kept = Kept()
    kept.run.answer(OK, OK, OK)
    kept.run.answer(NIL, NIL, NIL)
    assert isinstance(kept.run.result, Denied)
    assert kept.run.result.outcome is Outcome.GONE
    assert len(kept.renewed) == 1


def test_too_few_answers_are_tried_again_after_a_tenth_of_the_period() -> None:
    kept = Kept()
    kept.run.answer(OK, MISCONF, MISCONF)
    kept.run.answer(OK, MISCONF, MISCONF)
    kept.run.answer(OK, OK, OK)
    first, second, third, _ = kept.run.rounds
    # answered after 1 ms
    assert second.started_ns - first.started_ns == (EVERY_MS // 10 + 1) * NS_PER_MS
    assert third.started_ns - second.started_ns == (EVERY_MS // 10 + 1) * NS_PER_MS
    assert len(kept.renewed) == 1


def test_after_its_own_end_nothing_is_sent() -> None:
    kept = Kept()
    while kept.run.wanted is not None:
        kept.run.answer(MISCONF, MISCONF, MISCONF)
    assert kept.run.result.outcome is Outcome.GONE
    assert kept.run.result.ended_ns == kept.lease.valid_until_ns
    assert kept.run.rounds[-1].started_ns < kept.lease.valid_until_ns
    assert kept.sent() == len(kept.run.rounds)


def test_a_keeper_that_was_held_up_beyond_the_end_sends_nothing(fleet: ScriptedFleet) -> None:
    """The process was stopped: when it runs again the lease is over."""
    lease = fleet.won()
    steps = keeper_steps(KeepAlive(lease, EVERY_MS, 10, None), fleet.engine)
    assert next(steps) == lease.started_ns + EVERY_MS * NS_PER_MS
    with pytest.raises(StopIteration) as done:
        steps.send(lease.valid_until_ns)
    assert done.value.value.outcome is Outcome.GONE
    assert fleet.kinds(0) == ["set"]


def test_an_extension_by_hand_moves_its_plan_and_is_never_shortened(fleet: ScriptedFleet) -> None:
    """A lease of 1 s, kept alive, is extended to 10 s by its holder: the keeper goes on where that
    ends."""
    lease = fleet.won(ttl_ms=1_000)
    steps = keeper_steps(KeepAlive(lease, 300, 10, None), fleet.engine)
    assert next(steps) == lease.started_ns + 300 * NS_PER_MS
    fleet.after(100)
    by_hand = (
        Run(fleet, extend_steps(fleet.engine, lease, TTL_MS, fleet.now_ns))
        .answer(OK, OK, OK)
        .result
    )
    due_ns = steps.send(lease.started_ns + 300 * NS_PER_MS)
    assert isinstance(due_ns, int)
    assert due_ns == by_hand.valid_until_ns - (1_000 - 12) * NS_PER_MS + 1
    fleet.now_ns = due_ns
    round_ = steps.send(due_ns)
    assert isinstance(round_, ExtendRound)
    assert round_.started_ns + round_.terms.usable_ns > by_hand.valid_until_ns


def test_an_extension_on_its_way_that_ends_later_is_waited_for(fleet: ScriptedFleet) -> None:
    """The holder's extension to 10 s has not been answered when the keeper's turn comes: it sends
    nothing shorter."""
    lease = fleet.won(ttl_ms=1_000)
    steps = keeper_steps(KeepAlive(lease, 300, 10, None), fleet.engine)
    due_ns = next(steps)
    fleet.after(299)
    Run(fleet, extend_steps(fleet.engine, lease, TTL_MS, fleet.now_ns))
    fleet.now_ns = due_ns
    assert steps.send(due_ns) == lease.valid_until_ns
    assert fleet.kinds(0) == ["set", "extend"]


# -- the handle ------------------------------------------------------------------------------------


def handle(
    extensions: int = 10, every_ms: float | None = None
) -> tuple[ScriptedFleet, KeepAlive, list[Denied]]:
    fleet = ScriptedFleet(3)
    told: list[Denied] = []
    return fleet, KeepAlive(fleet.won(), every_ms, extensions, told.append), told


def test_a_handle_holds_the_newest_lease_and_counts() -> None:
    fleet, keeper, told = handle()
    first = keeper.lease
    run = Run(fleet, keeper_steps(keeper, fleet.engine))
    # unless told otherwise
    assert run.waits == [pytest.approx(TTL_MS / 3, abs=0.001)]
    run.answer(OK, OK, OK)
    assert keeper.lease.valid_until_ns > first.valid_until_ns
    assert (keeper.renewals, keeper.gone, keeper.stopped, told) == (1, None, False, [])


def test_a_holder_is_told_once_that_the_lease_is_gone() -> None:
    fleet, keeper, told = handle()
    run = Run(fleet, keeper_steps(keeper, fleet.engine)).answer(NIL, NIL, NIL)
    keeper.ended(run.result)
    assert keeper.stopped
    assert [denied.outcome for denied in told] == [Outcome.GONE]
    assert keeper.gone is told[0]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
def test_a_holder_hears_of_its_end_before_the_observer_does_also_where_it_raises(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    events: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: events.append(args.exc_type.__name__))

    def on_gone(_: Denied) -> None:
        events.append("holder")
        raise error

    fleet = ScriptedFleet(3)
    keeper = KeepAlive(fleet.won(), None, 10, on_gone)
    keeper.tell_gone = lambda _: events.append("observer")
    run = Run(fleet, keeper_steps(keeper, fleet.engine)).answer(NIL, NIL, NIL)
    keeper.ended(run.result)
    keeper.ended(run.result)
    assert events == ["holder", error.__name__, "observer"]


def test_its_lease_is_the_newest_one_after_an_extension_by_hand() -> None:
    fleet, keeper, _ = handle()
    fleet.after(100)
    by_hand = (
        Run(fleet, extend_steps(fleet.engine, keeper.lease, TTL_MS, fleet.now_ns))
        .answer(OK, OK, OK)
        .result
    )
    assert keeper.lease is by_hand


def test_the_copy_in_a_forked_child_is_over_and_calls_nobody() -> None:
    fleet, keeper, told = handle()
    steps = keeper_steps(keeper, fleet.engine)
    next(steps)
    keeper.tell_gone = lambda _: pytest.fail("the observer was told")
    tally = (0, 0, 0, 0, 3, 0)
    denied = Denied("stock", Outcome.UNREACHABLE, tally, 1, 0, 1, 2)  # type: ignore[arg-type]
    keeper.forked(denied)
    assert (keeper.stopped, keeper.gone, told) == (True, denied, [])
    assert isinstance(keeper.error, ForeignProcessError)
    with pytest.raises(KeyboardInterrupt):
        # its greenlet or task is ended
        steps.throw(KeyboardInterrupt())
    assert (keeper.gone, told) == (denied, [])
    assert isinstance(keeper.error, ForeignProcessError)


# -- an extension that nobody answers --------------------------------------------------------------


def silent(timeout_ms: float, before_end_ms: float) -> tuple[ScriptedFleet, Lease, Caller]:
    """A lease, and an extension sent so long before its end, which no instance answers."""
    fleet = ScriptedFleet(3, settings=settings_of(instance_timeout_ms=timeout_ms))
    lease = fleet.won()
    fleet.now_ns = lease.valid_until_ns - int(before_end_ms * NS_PER_MS)
    caller = Caller(fleet, extend_steps(fleet.engine, lease, TTL_MS, fleet.now_ns))
    fleet.flush()
    return fleet, lease, caller


def test_an_extension_under_way_ends_with_the_lease_and_is_cleaned_up() -> None:
    """Its instances answer nothing, and its timeout of 2 s would end it 1.9 s after the lease."""
    fleet, lease, caller = silent(2_000, 100)
    assert fleet.engine.next_tick_ns(fleet.now_ns) <= lease.valid_until_ns
    fleet.tick(100)
    caller.go_on()
    assert caller.result is not None
    assert (caller.result.outcome, caller.result.ended_ns) == (Outcome.GONE, lease.valid_until_ns)
    fleet.flush()
    assert fleet.kinds(0) == ["set", "extend", "release"], (
        "what is executed later gives nobody a key"
    )


def test_an_extension_whose_timeout_comes_first_ends_with_that() -> None:
    fleet, lease, caller = silent(50, 100)
    fleet.tick(50)
    caller.go_on()
    assert caller.result.outcome is Outcome.UNREACHABLE
    assert caller.result.ended_ns < lease.valid_until_ns
    assert fleet.kinds(0) == ["set", "extend"]


def test_an_extension_goes_on_where_another_one_has_moved_the_leases_end() -> None:
    fleet, lease, caller = silent(2_000, 100)
    fleet.after(50)
    other = Caller(fleet, extend_steps(fleet.engine, lease, TTL_MS, fleet.now_ns))
    fleet.flush()
    round_ = other.wanted
    for pipe in fleet.engine.pipes:
        round_.reply(b"OK", pipe)
    other.go_on()
    assert isinstance(other.result, Lease)
    fleet.tick(60)
    assert fleet.now_ns > lease.valid_until_ns
    assert caller.wanted.outcome is None, "the lease has not ended"
    fleet.tick(2_000)
    caller.go_on()
    assert caller.result.outcome is Outcome.UNREACHABLE


@needs_source
def test_an_extension_that_outlives_its_lease_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExtendRound, "due_ns", property(lambda self: self.timeout_due_ns))
    with pytest.raises(AssertionError):
        test_an_extension_under_way_ends_with_the_lease_and_is_cleaned_up()


def test_a_stopped_handle_tells_nobody_anything() -> None:
    """Whoever releases knows that it is gone."""
    fleet, keeper, told = handle()
    cancelled: list[bool] = []
    keeper.cancel = lambda: cancelled.append(True)
    run = Run(fleet, keeper_steps(keeper, fleet.engine)).answer(NIL, NIL, NIL)
    keeper.stop()
    keeper.stop()
    keeper.ended(run.result)
    assert (cancelled, keeper.gone, told) == ([True], None, [])


def test_a_holder_may_stop_the_keeper_that_is_telling_him(fleet: ScriptedFleet) -> None:
    keeper = KeepAlive(fleet.won(), None, 10, lambda _: keeper.stop())
    keeper.cancel = lambda: pytest.fail("the keeper was cancelled while it told its holder")
    tally = (0, 3, 0, 0, 0, 0)
    keeper.ended(Denied("stock", Outcome.GONE, tally, 1, 0, 1, 2))  # type: ignore[arg-type]
    assert keeper.gone is not None


@pytest.mark.parametrize(
    "error", [ForeignProcessError(), ValueError("a fault of ours"), ZeroDivisionError()]
)
def test_whatever_goes_wrong_in_its_steps_ends_it_with_a_loss_that_is_told(
    error: Exception,
) -> None:
    fleet, keeper, told = handle()
    steps = keeper_steps(keeper, fleet.engine)
    next(steps)
    assert isinstance(steps.send(keeper.lease.started_ns + 4_000 * NS_PER_MS), ExtendRound)
    with pytest.raises(StopIteration) as done:
        steps.throw(error)
    keeper.ended(done.value.value)
    assert (keeper.gone, keeper.error, keeper.stopped) == (told[0], error, True)
    assert told[0].outcome is Outcome.UNREACHABLE


def test_a_cancelled_keeper_tells_its_holder_and_stays_cancelled() -> None:
    fleet, keeper, told = handle()
    steps = keeper_steps(keeper, fleet.engine)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert [denied.outcome for denied in told] == [Outcome.UNREACHABLE]
    keeper.ended(told[0])
    assert len(told) == 1


@pytest.mark.parametrize("early_ns", [1, 400_000, 999_999])
def test_a_timer_that_comes_early_is_waited_for_again(fleet: ScriptedFleet, early_ns: int) -> None:
    """After an extension by hand, the keeper's own would end before it if it were sent a moment
    early."""
    lease = fleet.won(ttl_ms=1_000)
    steps = keeper_steps(KeepAlive(lease, 300, 10, None), fleet.engine)
    assert next(steps) == lease.started_ns + 300 * NS_PER_MS
    fleet.after(300)
    Run(fleet, extend_steps(fleet.engine, lease, 1_000, fleet.now_ns)).answer(OK, OK, OK)
    due_ns = steps.send(fleet.now_ns)
    assert isinstance(due_ns, int)
    fleet.now_ns = due_ns - early_ns
    assert steps.send(fleet.now_ns) == due_ns
    fleet.now_ns = due_ns
    assert isinstance(steps.send(due_ns), ExtendRound)


@pytest.mark.parametrize(
    "extensions, every_ms, words",
    [
        (0, None, "extensions must be 1 … 1099511627776, not 0"),
        (1, 0.5, "every_ms must be 1 … 86400000, not 0.5"),
        (1, TTL_MS, "every_ms must be below the validity of 9898 ms, not 10000"),
        (1, float("nan"), "every_ms"),
    ],
)
def test_a_handle_that_makes_no_sense_is_refused(
    extensions: int, every_ms: float | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        handle(extensions, every_ms)
