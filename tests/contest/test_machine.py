"""The two cores during a round: who used them, how fast they were, and what that changes in a
comparison."""

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from operator import sub

import pytest

from bench.experiments.judge.library import Language
from tests.contest import machine as machines
from tests.contest.judge import bars, judge_bars
from tests.contest.machine import PAUSE_S, Machine
from tests.contest.result import RoundFigures, Row
from tests.contest.speed import (
    CONTROLS,
    UNWATCHED,
    WATCHED,
    SpeedEntry,
    bars_of,
    rows_of,
)

LATE_S = 60.0


def test_what_our_children_use_is_ours_and_what_others_use_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([(5.0, 4.0, 10.0), (8.0, 6.0, 12.0)])
    monkeypatch.setattr(machines, "spent", lambda: next(readings))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with Machine() as machine:
        pass
    assert machine.elsewhere_ratio == 0.25
    monkeypatch.undo()
    before = machines.spent()
    subprocess.run(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True
    )
    busy_s, ours_s, _ = map(sub, machines.spent(), before)
    assert ours_s >= 0.29
    assert busy_s >= 0.25


@pytest.mark.parametrize("steps", [1_000, 20_000])
def test_how_fast_the_cores_are_is_told_by_a_piece_of_work_on_each_of_them(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = set[int]()
    done = Counter[int]()

    def piece() -> None:
        (core,) = os.sched_getaffinity(0)
        cores.add(core)
        done[core] += 1
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < steps / 1e6:
            pass
        # as if somebody else had the core
        time.sleep(3 * steps / 1e6)

    monkeypatch.setattr(machines, "piece", piece)
    allowed = os.sched_getaffinity(0)
    with Machine() as machine:
        deadline_s = time.monotonic() + LATE_S
        while (cores != allowed or min(done.values()) < 4) and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
    assert cores == allowed
    assert machine.piece_us == pytest.approx(steps, rel=0.5)
    assert os.sched_getaffinity(0) == allowed


def test_turns_are_compared_as_at_one_pace_of_the_cores() -> None:
    def turn(client_us: float, piece_us: float | None) -> RoundFigures:
        slower = (piece_us or 100.0) / 100.0
        return RoundFigures(
            cycles_per_s=100.0 / slower,
            client_us=client_us * slower,
            server_us=10.0 * slower,
            p50_us=50.0 * slower,
            piece_us=piece_us,
        )

    replay = SpeedEntry("replay")
    core = SpeedEntry("lockcore gevent", bar=0.8)
    fast = SpeedEntry("Locust, fast events")
    stock = SpeedEntry("Locust, with telemetry")
    paces = [100.0, 200.0, 100.0]
    measured = {
        replay: [turn(2.0, pace) for pace in paces],
        core: [turn(5.0, pace) for pace in reversed(paces[:2])] + [turn(5.0, 100.0)],
        fast: [turn(3.0, pace) for pace in paces],
        stock: [turn(4.0, pace) for pace in paces],
    }
    _, row, *_ = rows_of(measured)
    assert (row.ratio.low, row.ratio.high) == pytest.approx((0.8, 0.8))
    assert (row.wall_ratio.low, row.wall_ratio.high) == (1.0, 1.0)
    # what is shown is what was measured
    assert (row.client_us, row.rounds[0].client_us) == (5.0, 10.0)
    added = next(bar for bar in bars_of(measured) if bar.name.startswith("telemetry adds"))
    assert (added.low, added.high) == (1.0, 1.0)
    assert (added.null, added.measurable) == (None, True), "it was not run"
    assert turn(5.0, 200.0).at_pace(100.0).p50_us == 50.0
    unpaced = {
        entry: [replace(each, piece_us=None) for each in turns] for entry, turns in measured.items()
    }
    _, row, *_ = rows_of(unpaced)
    assert (row.ratio.low, row.ratio.high) == pytest.approx((0.4, 1.6))


def test_what_telemetry_adds_stands_beside_what_nothing_adds_to_nothing() -> None:
    def rounds(*client_us: float) -> list[RoundFigures]:
        return [RoundFigures(cycles_per_s=1.0, client_us=us, server_us=1.0) for us in client_us]

    fast, with_it, again = (SpeedEntry(name) for name in (UNWATCHED, WATCHED, CONTROLS[WATCHED]))
    base = {fast: rounds(3.0, 3.0, 3.0), with_it: rounds(3.4, 3.5, 3.6)}
    for other_us, measurable, ends in (
        ([3.1, 3.2, 2.9], True, (0.4, 0.6)),
        ([3.1, 3.9, 1.0], False, (-2.0, 0.9)),
    ):
        (bar,) = bars_of(base | {again: rounds(*other_us)})
        assert bar.name.startswith("telemetry adds")
        assert bar.measurable is measurable
        assert (bar.low, bar.high) == pytest.approx(ends)
        assert bar.null is not None
        assert (bar.null.low, bar.null.high) == pytest.approx(
            (min(other_us) - 3.0, max(other_us) - 3.0)
        )


def test_peers_are_compared_as_at_one_pace_where_it_was_measured() -> None:
    def row(name: str, kind: Language, rate: float, piece_us: float | None) -> Row:
        turn = RoundFigures(
            cycles_per_s=rate, client_us=10.0, server_us=1.0, p50_us=1.0, piece_us=piece_us
        )
        return Row(**vars(turn), name=name, kind=kind, instances=5, callers=64, rounds=(turn,))

    def rate_bar(ours_us: float | None, theirs_us: float | None) -> tuple[float | None, ...]:
        rows = [
            row("lockcore gevent", "lockcore", 300.0, ours_us),
            row("rslock, one thread", "rust", 100.0, theirs_us),
        ]
        bar = next(bar for bar in bars(rows, (), ()) if "64 callers: cycles/s" in bar.name)
        return bar.value, bar.low, bar.high

    assert rate_bar(100.0, 100.0) == (3.0, 3.0, 3.0)
    # theirs ran while the cores were slow, or the piece was misled
    assert rate_bar(100.0, 150.0) == (2.0, 2.0, 3.0)
    assert rate_bar(150.0, 100.0) == pytest.approx((4.5, 3.0, 4.5))
    assert rate_bar(100.0, None) == rate_bar(None, 150.0) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("rounds", [1, 9])
def test_a_pace_that_turns_what_was_seen_into_its_contrary_leaves_it_unknown(rounds: int) -> None:
    def turns(client_us: float, piece_us: float) -> list[RoundFigures]:
        turn = RoundFigures(
            cycles_per_s=100.0, client_us=client_us, server_us=0.0, p50_us=9.0, piece_us=piece_us
        )
        return [turn] * rounds

    replay = SpeedEntry("replay")
    core = SpeedEntry("lockcore gevent", bar=0.8)
    (bar, *_) = bars_of({replay: turns(1.0, 100.0), core: turns(2.0, 200.0)})
    assert (bar.value, bar.low, bar.high) == (1.0, 0.5, 1.0)
    verdict = judge_bars([bar])
    assert (verdict.exit_code, bar.name in verdict.reasons[0]) == (4, True)
