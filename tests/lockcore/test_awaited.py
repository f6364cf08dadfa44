"""Who is woken, and in what order: one after the other, whether the loop or a caller that parks asks for the next."""

from dataclasses import dataclass, field

import pytest

from lockcore.awaited import Settled, hand_out, next_waiter
from tests.lockcore.scripted import ScriptedFleet


@dataclass
class Woken:
    """An engine with these ready, and who was woken."""

    ready: list[Settled]
    woken: int = 0
    names: list[str] = field(default_factory=list)


def settled(waiter: str | None) -> Settled:
    """Something that somebody waits for."""
    round_ = ScriptedFleet(1).begin("r")
    round_.waiter = waiter
    return round_


def of(*names: str | None) -> Woken:
    return Woken(list(map(settled, names)))


def test_everybody_is_woken_once_in_order_also_who_comes_meanwhile() -> None:
    engine = of("a", None, "b")

    def wake(name: str) -> None:
        engine.names.append(name)
        if name == "b":
            engine.ready.append(settled("c"))

    hand_out(engine, wake)
    assert (engine.names, engine.ready, engine.woken) == (["a", "b", "c"], [], 0)


def test_a_caller_that_parks_hands_over_to_the_next_and_nobody_is_woken_twice() -> None:
    engine = of("a", "b", "c", "d")

    def wake(name: str) -> None:  # runs until it parks: then whoever is next runs, in its stead
        engine.names.append(name)
        if name != "c" and (after := next_waiter(engine)) is not None:
            wake(after)

    hand_out(engine, wake)
    assert (engine.names, engine.ready, engine.woken) == (["a", "b", "c", "d"], [], 0)
    assert next_waiter(engine) is None


def test_whoever_comes_behind_an_interrupt_stays_ready() -> None:
    engine = of("a", "b", "c")

    def wake(name: str) -> None:
        if name == "b":
            raise KeyboardInterrupt
        engine.names.append(name)

    with pytest.raises(KeyboardInterrupt):
        hand_out(engine, wake)
    assert ([one.waiter for one in engine.ready], engine.woken) == (["c"], 0)
    hand_out(engine, wake)
    assert engine.names == ["a", "c"]
