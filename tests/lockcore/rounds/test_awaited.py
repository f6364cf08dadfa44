"""Who is woken, and in what order: one after the other, whether the loop or a caller that parks
asks for the next."""

import pytest

from lockcore.rounds.awaited import Core, Settled, hand_out, next_waiter
from tests.lockcore.scripted import ScriptedFleet


def settled(waiter: object) -> Settled:
    """Something that somebody waits for."""
    round_ = ScriptedFleet(1).begin("r")
    round_.waiter = waiter
    return round_


def of(*waiters: object) -> Core:
    """An engine for which something is ready that each of them waits for."""
    engine = Core(1)
    engine.ready = list(map(settled, waiters))
    engine.woken = 0
    return engine


def test_everybody_is_woken_once_in_order_also_who_comes_meanwhile() -> None:
    engine = of("a", None, "b")
    names = list[str]()

    def wake(name: str) -> None:
        names.append(name)
        if name == "b":
            engine.ready.append(settled("c"))

    hand_out(engine, wake)
    assert (names, engine.ready, engine.woken) == (["a", "b", "c"], [], 0)


def test_a_caller_that_parks_hands_over_to_the_next_and_nobody_is_woken_twice() -> None:
    engine = of("a", "b", "c", "d")
    names = list[str]()

    # runs until it parks: then whoever is next runs, in its stead
    def wake(name: str) -> None:
        names.append(name)
        if name != "c" and (after := next_waiter(engine)) is not None:
            wake(after)

    hand_out(engine, wake)
    assert (names, engine.ready, engine.woken) == (["a", "b", "c", "d"], [], 0)
    assert next_waiter(engine) is None


def test_whoever_comes_behind_an_interrupt_stays_ready() -> None:
    engine = of("a", "b", "c")
    names = list[str]()

    def wake(name: str) -> None:
        if name == "b":
            raise KeyboardInterrupt
        names.append(name)

    with pytest.raises(KeyboardInterrupt):
        hand_out(engine, wake)
    assert ([one.waiter for one in engine.ready], engine.woken) == (["c"], 0)
    hand_out(engine, wake)
    assert names == ["a", "c"]
