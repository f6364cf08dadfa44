"""Taking turns: one at a time, whole operations, own time without pauses; who leaves leaves nobody
waiting."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import gevent
import numpy as np
import pytest
from gevent.event import Event

from bench.measure.record import RECORD_DTYPE, records_of
from bench.workloads import turns as module
from bench.workloads.plan import Ring
from bench.workloads.turns import RingPlace
from lockcore.clock import NS_PER_MS, monotonic_ns

OPERATION_S = 0.002


class Load:
    """Callers that note when each of their operations was done."""

    def __init__(self, ring: Ring, callers: int = 3, operation_s: float = OPERATION_S) -> None:
        self.turns = RingPlace(ring, callers)
        # real begin and end, and what was waited until then
        self.spans: list[tuple[int, int, int]] = []
        self._operation_s = operation_s
        self.ended = Event()
        self.callers = [gevent.spawn(self._operate) for _ in range(callers)]

    def _operate(self) -> None:
        while not self.ended.is_set():
            began_ns = self.turns.take()
            gevent.sleep(self._operation_s)
            self.spans.append((began_ns, monotonic_ns(), self.turns.waited_ns))

    def run(self, own_ms: int) -> None:
        """To the end, as a worker does."""
        self.turns.run(monotonic_ns(), own_ms * NS_PER_MS, lambda: len(self.spans))
        self.ended.set()
        gevent.joinall(self.callers)
        self.turns.leave()


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_NS", 20 * NS_PER_MS)
    monkeypatch.setattr(module, "TAIL_NS", 0)


def loads(folder: Path, count: int, **more: float) -> list[Load]:
    return [Load(Ring(folder, place, count), **more) for place in range(count)]


def run_all(some: list[Load], own_ms: list[int]) -> None:
    jobs = [gevent.spawn(one.run, length_ms) for one, length_ms in zip(some, own_ms, strict=True)]
    gevent.joinall(jobs, timeout=60)
    assert [(job.ready(), job.exception) for job in jobs] == [(True, None)] * len(jobs), (
        "somebody waits for a turn"
    )


@pytest.mark.parametrize("operation_s", [OPERATION_S, 0.03])
def test_only_one_works_at_a_time_and_no_operation_spans_a_pause(
    tmp_path: Path, operation_s: float
) -> None:
    some = loads(tmp_path, 3, operation_s=operation_s)
    run_all(some, [100, 100, 100])
    spans = sorted(
        (began, ended, number) for number, one in enumerate(some) for began, ended, _ in one.spans
    )
    assert {number for *_, number in spans} == {0, 1, 2}
    for (_, ended, first), (began, _, second) in pairwise(spans):
        assert first == second or ended <= began
    turns = [first for (*_, first), (*_, second) in pairwise(spans) if first != second]
    assert len(turns) >= 6, "turns are short"


def test_a_turn_that_is_over_before_anybody_woke_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose cores are taken away in between."""
    monkeypatch.setattr(module, "SLICE_NS", 0)
    some = loads(tmp_path, 2)
    run_all(some, [1, 1])
    assert all(one.spans for one in some), "whoever has the turn works"
    assert all(0 <= one.turns.kept_ns < 60_000 * NS_PER_MS for one in some)


def test_own_time_stands_still_while_others_work(tmp_path: Path) -> None:
    some = loads(tmp_path, 2)
    began_ns = monotonic_ns()
    run_all(some, [100, 100])
    real_ms = (monotonic_ns() - began_ns) / NS_PER_MS
    for one in some:
        own = sorted((begin - waited, end - waited) for begin, end, waited in one.spans)
        assert real_ms > 190
        assert (own[-1][1] - own[0][0]) / NS_PER_MS < 0.75 * real_ms


def test_who_stays_longer_goes_on_alone(tmp_path: Path) -> None:
    """Seen: the last one gave its turn to nobody, and waited for ever."""
    run_all(loads(tmp_path, 3), [40, 160, 40])


def test_a_member_that_has_died_is_passed_over(tmp_path: Path) -> None:
    """A killed process leaves its pipe, and no word that it has gone."""
    some = [Load(Ring(tmp_path, place, 3)) for place in (0, 2)]
    os.mkfifo(tmp_path / "turn-1")
    (tmp_path / "ready-1").touch()
    run_all(some, [100, 100])
    assert all(one.spans for one in some)


def test_whoever_waits_is_let_go_when_the_run_is_to_end(tmp_path: Path) -> None:
    # the other never comes
    lonely = Load(Ring(tmp_path, 0, 2))
    job = gevent.spawn(lonely.turns.run, monotonic_ns(), 10**12, lambda: 0)
    gevent.sleep(0.05)
    assert not lonely.spans
    lonely.ended.set()
    lonely.turns.leave()
    gevent.joinall(lonely.callers, timeout=5)
    assert all(caller.dead for caller in lonely.callers)
    job.kill()


def test_a_history_is_brought_to_own_time_and_what_did_not_happen_stays_so(tmp_path: Path) -> None:
    turns = RingPlace(Ring(tmp_path, 0, 1), 1)
    turns._shifts = [(0, 100), (3, 1_000)]
    records = records_of(np.zeros(5, RECORD_DTYPE))
    records["start_ns"] = [5_000, 5_001, 5_002, 9_000, 9_001]
    records["resource"] = 7
    first, second = (tmp_path / f"history-0-{os.getpid()}.{number}.bin" for number in (0, 1))
    records[:2].tofile(first)
    records[2:].tofile(second)
    turns.shift(tmp_path, 0)
    shifted = np.concatenate([np.fromfile(path, RECORD_DTYPE) for path in (first, second)])
    assert shifted["start_ns"].tolist() == [4_900, 4_901, 4_902, 8_000, 8_001]
    assert set(shifted["granted_ns"].tolist()) == {0}
    assert set(shifted["resource"].tolist()) == {7}
