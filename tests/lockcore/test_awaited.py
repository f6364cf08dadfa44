"""Who is woken, and in what order: one after the other, whether the loop or a caller that parks
asks for the next."""

from typing import Any

import pytest

from lockcore.awaited import Core, Settled, StandIn, hand_out, next_waiter
from tests.lockcore.scripted import ScriptedFleet


def settled(waiter: object) -> Settled:
    """Something that somebody waits for."""
    round_ = ScriptedFleet(1).begin("r")
    round_.waiter = waiter
    return round_


def of(*waiters: object) -> Core:
    """An engine for which something is ready that each of them waits for."""
    engine = Core()
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


def test_a_stand_in_is_stepped_in_its_turn_and_its_caller_woken_only_if_it_says_so() -> None:
    names: list[str] = []

    def stand_in(name: str, needed: bool) -> StandIn:
        def step() -> bool:
            names.append(f"step {name}")
            if name == "x":
                engine.ready.append(settled("later"))
            return needed

        return StandIn(name, step)

    engine = of("a", stand_in("x", False), stand_in("y", True), "b", stand_in("z", False))
    hand_out(engine, names.append)
    assert names == ["a", "step x", "step y", "y", "b", "step z", "later"]
    assert (engine.ready, engine.woken) == ([], 0)


def test_a_caller_that_parks_steps_the_stand_ins_before_the_next_caller() -> None:
    steps: list[Any] = []
    engine = of(
        *(StandIn(None, lambda number=number: bool(steps.append(number))) for number in range(3)),
        "a",
    )
    assert (next_waiter(engine), steps) == ("a", [0, 1, 2])
    assert next_waiter(engine) is None


def test_whoever_comes_behind_an_interrupted_stand_in_stays_ready() -> None:
    def step() -> bool:
        raise KeyboardInterrupt

    engine = of(StandIn("x", step), "a")
    names = list[str]()
    with pytest.raises(KeyboardInterrupt):
        hand_out(engine, names.append)
    hand_out(engine, names.append)
    assert names == ["a"]
