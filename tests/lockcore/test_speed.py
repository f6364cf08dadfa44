"""What the pure parts cost: figures that later changes can be held against. Compare with

    pytest tests/lockcore/test_speed.py --benchmark-only --benchmark-autosave
    pytest tests/lockcore/test_speed.py --benchmark-only --benchmark-compare

A figure is for `ROUNDS` attempts on five instances, as a loop turn under load has them; one test
bounds the whole cycle.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.engine.attempt import lease_of
from lockcore.engine.engine import Engine
from lockcore.facts.membership import Hello
from lockcore.facts.model import Outcome
from lockcore.rounds.rounds import SetRound
from tests.doubles.keyspace import NIL, OK, ONE, ZERO
from tests.lockcore.scripted import DELIFEQ, START_NS, settings_of

INSTANCES = 5
ROUNDS = 64
TTL_MS = 10_000
NAMES = [f"r{number}" for number in range(ROUNDS)]


def engine_of(**settings: Any) -> Engine:
    """An engine whose instances take everything and say nothing."""
    engine = Engine(
        [f"host:{index}" for index in range(INSTANCES)], settings_of(**settings), lambda: None
    )
    for index in range(INSTANCES):
        engine.members.attach(
            index, Hello(f"run {index}", 1, "none", 0), DELIFEQ, lambda data: 0, START_NS
        )
    return engine


def cycle(engine: Engine) -> list[SetRound]:
    """A batch of attempts granted by all, then released."""
    terms = engine.terms(TTL_MS)
    rounds = [engine.set_round(name, terms, START_NS) for name in NAMES]
    for round_ in rounds:
        engine.submit(round_)
    answered(engine, OK * ROUNDS)
    for round_ in engine.take_ready():
        lease = lease_of(round_, START_NS)  # type: ignore[arg-type]
        assert lease is not None
        if lease.round.watched:  # type: ignore[attr-defined]
            lease.round.decided(Outcome.ACQUIRED, START_NS)  # type: ignore[attr-defined]
        engine.submit_release(engine.release_round(lease, START_NS))
    answered(engine, ONE * ROUNDS)
    engine.take_ready()
    return rounds


def answered(engine: Engine, data: bytes) -> None:
    """What is queued is sent, and every instance says the same."""
    engine.flush(START_NS)
    for index in range(INSTANCES):
        engine.received(index, data, START_NS)


@pytest.mark.benchmark(max_time=0.1, min_rounds=10)
@pytest.mark.parametrize("observed", ["nobody", "everything"])
def test_speed_of_whole_cycles(benchmark: Callable[..., Any], observed: str) -> None:
    class Nobody:
        seen = 0

        def observe(self, record: object) -> None:
            self.seen += 1

    observer = Nobody() if observed == "everything" else None
    engine = engine_of(observer=observer)
    rounds = benchmark(cycle, engine)
    assert {round_.tally.granted for round_ in rounds} == {INSTANCES}
    assert observer is None or observer.seen >= ROUNDS


def test_a_cycle_of_acquire_and_release_costs_few_microseconds() -> None:
    """All that is decided, encoded, counted: 3 µs when nothing else runs; the margin is for shared
    machines."""
    engine = engine_of()
    best = float("inf")
    for _ in range(30):
        before = time.thread_time()
        cycle(engine)
        best = min(best, (time.thread_time() - before) / ROUNDS)
    assert best < 15e-6


def test_refusals_cost_the_same_each_however_many_a_batch_holds() -> None:
    """Six times the rounds, a tenth of them refused: six times the time, thirty-six if each looked
    at all others."""

    def seconds(rounds: int) -> float:
        engine = engine_of()
        best = float("inf")
        terms = settings_of().max_ttl_ms
        for _ in range(7):
            for number in range(rounds):
                engine.submit(engine.set_round(f"r{number}", engine.terms(terms), START_NS))
            before = time.thread_time()
            answered(engine, (OK * 9 + NIL) * (rounds // 10))
            best = min(best, time.thread_time() - before)
            engine.flush(START_NS)
            for index in range(INSTANCES):
                engine.received(index, ZERO * (rounds // 10), START_NS)
            engine.take_ready()
        return best

    assert seconds(6000) < 14 * seconds(1000)
