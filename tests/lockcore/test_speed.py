"""What the pure parts cost: figures that later changes can be held against. Compare with

    pytest tests/lockcore/test_speed.py --benchmark-only --benchmark-autosave
    pytest tests/lockcore/test_speed.py --benchmark-only --benchmark-compare

A figure is for `ROUNDS` attempts on five instances, as a loop turn under load has them; one test bounds the whole
cycle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.attempt import lease_of
from lockcore.commands import Dialect
from lockcore.engine import Engine
from lockcore.membership import Hello
from lockcore.model import Outcome
from lockcore.resp import ReplyReader
from lockcore.rounds import SetRound
from tests.lockcore.scripted import DELIFEQ, EVALSHA, MISCONF, NIL, OK, ONE, START_NS, settings_of

INSTANCES, ROUNDS = 5, 64
TTL_MS = 10_000
NAMES = [f"r{number}" for number in range(ROUNDS)]
brief = pytest.mark.benchmark(max_time=0.1, min_rounds=10)


def engine_of(dialect: Dialect = DELIFEQ, **settings: Any) -> Engine:
    """An engine whose instances take everything and say nothing."""
    engine = Engine([f"host:{index}" for index in range(INSTANCES)], settings_of(**settings), lambda: None)
    for index in range(INSTANCES):
        engine.attach(index, Hello(f"run {index}", 1, "none", 0), dialect, lambda data: 0, START_NS)
    return engine


def begin(engine: Engine) -> list[SetRound]:
    """A batch of attempts, queued."""
    terms = engine.terms(TTL_MS)
    rounds = [engine.set_round(name, terms, START_NS) for name in NAMES]
    for round_ in rounds:
        engine.submit(round_)
    return rounds


def answer(engine: Engine, data: bytes) -> None:
    """The same bytes of every instance."""
    for index in range(INSTANCES):
        engine.received(index, data, START_NS)


def cycle(engine: Engine) -> list[SetRound]:
    """A batch of attempts granted by all, then released."""
    rounds = begin(engine)
    engine.flush(START_NS)
    answer(engine, OK * ROUNDS)
    for round_ in engine.take_ready():
        lease = lease_of(round_, START_NS)  # type: ignore[arg-type]
        assert lease is not None
        if lease.round.watched:  # type: ignore[attr-defined]
            lease.round.decided(Outcome.ACQUIRED, START_NS)  # type: ignore[attr-defined]
        engine.submit_release(engine.release_round(lease, START_NS))
    engine.flush(START_NS)
    answer(engine, ONE * ROUNDS)
    engine.take_ready()
    return rounds


@brief
def test_speed_of_encoding_a_batch_of_attempts(benchmark: Callable[..., Any]) -> None:
    engine = engine_of()
    terms = engine.terms(TTL_MS)

    def encode() -> list[bytes]:
        rounds = [engine.set_round(name, terms, START_NS) for name in NAMES]
        return [terms.set_head + round_.claim + terms.set_tail for round_ in rounds]

    assert len(benchmark(encode)) == ROUNDS


@brief
@pytest.mark.parametrize("dialect", [DELIFEQ, EVALSHA], ids=["delifeq", "evalsha"])
def test_speed_of_encoding_a_batch_of_releases(benchmark: Callable[..., Any], dialect: Dialect) -> None:
    engine = engine_of()
    claims = [engine.set_round(name, engine.terms(TTL_MS), START_NS).claim for name in NAMES]
    encode = dialect.encode_release
    assert len(benchmark(lambda: [encode(claim) for claim in claims])) == ROUNDS


@brief
def test_speed_of_parsing_replies(benchmark: Callable[..., Any]) -> None:
    replies, data = ReplyReader(), (OK + NIL + ONE + MISCONF) * (ROUNDS // 4)
    assert len(benchmark(replies.all, data)) == ROUNDS


@brief
@pytest.mark.parametrize("company", ["alone", "batch"])
def test_speed_of_flushing(benchmark: Any, company: str) -> None:
    """All attempts in one flush, or each in its own."""
    engine = engine_of()

    def flush() -> None:
        if company == "batch":
            begin(engine)
        else:
            for name in NAMES:
                engine.submit(engine.set_round(name, engine.terms(TTL_MS), START_NS))
                engine.flush(START_NS)
        engine.flush(START_NS)

    def afresh() -> None:
        answer(engine, OK * engine.status()[0].pending)
        engine.take_ready()

    benchmark.pedantic(flush, setup=afresh, rounds=30)
    assert engine.status()[0].pending == ROUNDS


@brief
@pytest.mark.parametrize("replies", ["granted", "mixed"])
def test_speed_of_counting_votes(benchmark: Any, replies: str) -> None:
    """Five instances answer a batch: all grant it, or some refuse here and there."""
    engine = engine_of()
    lines = [OK] * ROUNDS if replies == "granted" else [NIL if number % 5 == 2 else OK for number in range(ROUNDS)]
    kept: list[list[SetRound]] = []

    def asked() -> None:
        engine.flush(START_NS)
        answer(engine, ONE * engine.status()[0].pending)  # the clean-ups of the round before
        engine.take_ready()
        kept.append(begin(engine))
        engine.flush(START_NS)

    benchmark.pedantic(answer, args=(engine, b"".join(lines)), setup=asked, rounds=30)
    assert None not in [round_.outcome for round_ in kept[-1]]


@brief
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
    """All that is decided, encoded, counted: 3 µs when nothing else runs; the margin is for shared machines."""
    engine, best = engine_of(), float("inf")
    for _ in range(30):
        before = time.thread_time()
        cycle(engine)
        best = min(best, (time.thread_time() - before) / ROUNDS)
    assert best < 15e-6
