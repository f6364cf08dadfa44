"""lockcore beside the ceiling: how rows are compared, what makes a bar certain, and what is said
where figures are missing."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench.errors import EnvironmentNotReadyError
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from bench.measure.server_facts import ServerBinary
from bench.measure.statistics import Spread
from bench.measure.verdict import Kind, Verdict
from tests.contest import speed as speeds
from tests.contest.judge import WORDS, bar_of, judge_bars, side_of
from tests.contest.result import RoundFigures
from tests.contest.speed import SpeedEntry, bars_of, figures_of_run, rows_of
from tests.contest.words import speed_sheet

STORED_RUN = Path(__file__).parents[1] / "histories" / "results" / "run.json"
NOTHING = RoundFigures()


def test_the_bars_are_those_that_hold_speed() -> None:
    bars = {entry.name: entry.bar for entry in speeds.ENTRIES}
    assert bars["lockcore gevent"] == 0.72
    assert bars["lockcore asyncio + uvloop"] == 0.68
    assert bars["lockbench run"] == 0.58


def verdict_of(*ends: tuple[float, float], added: tuple[float, float] | None = None) -> Verdict:
    """The verdict over a bar of 0.8 for each of `ends`, the range of its rounds, and over one of
    2.0 for what telemetry `added`."""

    def spread(low: float, high: float) -> Spread:
        return Spread(median=(low + high) / 2, low=low, high=high)

    bars = [bar_of("gevent", spread(*one), 0.8, at_least=True) for one in ends]
    return judge_bars([*bars, *([bar_of("telemetry", spread(*added), 2.0)] if added else [])])


@pytest.mark.parametrize(
    ("verdict", "word", "code"),
    [
        (verdict_of((0.85, 0.95), added=(0.5, 1.5)), "BARS REACHED", 0),
        (verdict_of(), "NOT KNOWN", 4),
        (verdict_of((0.85, 0.95), (0.7, 0.75)), "BARS MISSED", 1),
        # its median reaches the bar, its rounds do not
        (verdict_of((0.75, 0.85)), "NOT KNOWN", 4),
        (verdict_of((0.85, 0.95), added=(1.5, 3.0)), "NOT KNOWN", 4),
        # what failed stays failed beside what is undecided
        (verdict_of((0.7, 0.75), (0.75, 0.85)), "BARS MISSED", 1),
    ],
)
def test_the_good_word_is_said_over_bars_that_are_surely_reached(
    verdict: Verdict, word: str, code: int
) -> None:
    assert (verdict.word, verdict.exit_code) == (word, code)
    assert (WORDS[word].kind is Kind.GOOD) == (code == 0)
    assert verdict.evidence[0].least == 1


def test_a_ceilings_ratio_is_taken_inside_a_round() -> None:
    def speed(client_us: float, cycles_per_s: float = 100.0) -> RoundFigures:
        return RoundFigures(
            cycles_per_s=cycles_per_s, client_us=client_us, server_us=10.0, p50_us=None
        )

    ceiling = SpeedEntry("replay")
    entry = SpeedEntry("x")
    top, row = rows_of({ceiling: [speed(0.0, 200.0), speed(6.0)], entry: [speed(10.0), speed(6.0)]})
    assert (top.ratio.low, top.ratio.high) == (1.0, 1.0)
    assert (row.ratio.median, row.ratio.low, row.ratio.high) == (0.75, 0.5, 1.0)
    assert (row.wall_ratio.low, row.client_us, row.p50_us) == (0.5, 8.0, None)


def test_rows_are_compared_inside_a_round_and_what_ours_did_not_show_counts_against_us() -> None:
    def speed(client_us: float | None) -> RoundFigures:
        return RoundFigures(
            cycles_per_s=100.0, client_us=client_us, server_us=1.0, p50_us=None, beside_ratio=0.02
        )

    core = SpeedEntry("lockcore gevent")
    run = SpeedEntry("lockbench run")
    cost, beside = bars_of({core: [speed(10.0), speed(6.0)], run: [speed(12.0), speed(9.0)]})
    assert (cost.low, cost.high, cost.at_least) == (1.2, 1.5, False)
    assert (beside.value, beside.bar) == (0.02, 0.05)
    cost, _ = bars_of({core: [speed(10.0)], run: [speed(None)]})
    assert (cost.value, side_of(cost)) == (None, "missed")
    assert [bar.name for bar in bars_of({core: [speed(None)], run: [speed(5.0)]})] == [beside.name]
    (unseen,) = bars_of({run: [replace(speed(5.0), beside_ratio=None)]})
    assert (unseen.value, unseen.name) == (None, beside.name)


def test_a_round_that_is_made_once_stands_beside_every_one_of_the_other() -> None:
    def turn(client_us: float) -> RoundFigures:
        return replace(NOTHING, cycles_per_s=100.0, client_us=client_us, server_us=1.0)

    base = speeds.GROWN[0]
    often = speeds.GROWN[1]
    once = next(entry for entry in speeds.GROWN if entry.once)
    measured = {base: [turn(4.0), turn(5.0), turn(8.0)], often: [turn(6.0)] * 3, once: [turn(5.0)]}
    cost, long = bars_of(measured, speeds.GROWN_BARS)
    assert (cost.low, cost.high) == (0.75, 1.5)
    # of one round it would have been certain
    assert (long.value, long.low, long.high) == (1.0, 0.625, 1.25)
    assert judge_bars([long]).exit_code == 4


def test_rounds_in_which_the_cores_were_not_ours_are_left_out() -> None:
    def turn(client_us: float, elsewhere_ratio: float) -> RoundFigures:
        return replace(
            NOTHING,
            cycles_per_s=100.0,
            client_us=client_us,
            server_us=1.0,
            elsewhere_ratio=elsewhere_ratio,
        )

    replay = SpeedEntry("replay")
    core = SpeedEntry("lockcore gevent", bar=0.8)
    tops = [turn(3.0, 0.0), turn(3.0, 0.2), turn(3.0, 0.0)]
    _, row = rows_of({replay: tops, core: [turn(4.0, 0.01), turn(4.0, 0.0), turn(9.0, 0.06)]})
    assert (row.ratio.low, row.ratio.high) == (0.8, 0.8)
    (bar, *_) = bars_of({replay: tops[:1], core: [turn(9.0, 0.06)]})
    assert (bar.low, bar.busy) == (0.4, True)
    verdict = judge_bars([bar])
    assert verdict.exit_code == 4
    assert (
        "something else used the cores in every round: lockcore gevent: CPU ratio"
        in verdict.reasons
    )


@pytest.mark.parametrize(
    "spoilt",
    [
        ("verdict", "exit_code", 1),
        ("rate", "achieved_per_s", 0.0),
        ("cost", "server_cpu_us_per_cycle", None),
    ],
    ids=lambda spoilt: spoilt[1],
)
def test_a_run_that_does_not_stand_by_its_figures_is_made_again_and_is_no_row(
    spoilt: tuple[str, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, figure, value = spoilt
    stored = typed(json.loads(STORED_RUN.read_text(encoding="utf-8")), RunResult)
    good = structs.replace(stored, verdict=structs.replace(stored.verdict, exit_code=0))
    bad = structs.replace(good, **{part: structs.replace(getattr(good, part), **{figure: value})})
    runs = [bad, good]
    monkeypatch.setattr(speeds, "_run", lambda *_: runs.pop(0) if runs else bad)
    entry = SpeedEntry("lockbench run", locust="fast")
    no_fleet: Any = None
    assert figures_of_run(entry, no_fleet, 1.0).cycles_per_s == good.rate.achieved_per_s
    with pytest.raises(EnvironmentNotReadyError, match="lockbench run gave no figures"):
        figures_of_run(entry, no_fleet, 1.0)


def test_who_gives_no_figures_misses_its_bars_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def turn(entry: SpeedEntry, *_: object) -> RoundFigures:
        if entry.share:
            raise EnvironmentNotReadyError("open loop gave no figures")
        figures = replace(
            NOTHING, cycles_per_s=100.0, client_us=4.0, server_us=1.0, elsewhere_ratio=0.0
        )
        return replace(figures, piece_us=120.0)

    monkeypatch.setattr(speeds, "_round", turn)
    monkeypatch.setattr(
        speeds, "servers_by_kind", lambda: {"plain": ServerBinary("there", "redis", "7.0.15")}
    )
    monkeypatch.setattr(speeds, "start_fleet", lambda *_, **__: nullcontext("a fleet"))
    result = speeds.measure(2, 1.0, 1, lambda _: None, grow=True)
    missed = [bar for bar in result.bars if side_of(bar) == "missed"]
    assert [bar.name.partition(":")[0] for bar in missed] == ["open loop at 60 % of it"]
    assert len(result.bars) == len(speeds.GROWN_BARS)
    verdict = judge_bars(result.bars)
    assert verdict.exit_code == 1
    lines = dict(line[:2] for line in speed_sheet(result, verdict, "there").lines)
    assert lines["no figures"] == "open loop gave no figures"
    assert lines["pace"].startswith(
        "a fixed piece of work took 120 µs of the cores, 120 to 120 from one measurement"
    )


def test_without_the_server_of_its_bars_nothing_is_known_and_that_is_said_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with Valkey alone one row of fifteen was measured, and the word was BARS
    MISSED."""
    figures = replace(
        NOTHING, cycles_per_s=100.0, client_us=4.0, server_us=1.0, elsewhere_ratio=0.0
    )
    monkeypatch.setattr(speeds, "_round", lambda *_: figures)
    monkeypatch.setattr(speeds, "start_fleet", lambda *_, **__: nullcontext("a fleet"))
    plain = ServerBinary("there", "redis", "7.0.15")
    native = ServerBinary("there", "valkey", "9.1.2")
    messages: list[str] = []
    monkeypatch.setattr(speeds, "servers_by_kind", lambda: {"native": native})
    result = speeds.measure(6, 1.0, 1, messages.append)
    assert messages[0].startswith("this machine lacks a server without DELEX and DELIFEQ")
    assert "install redis-server. 14 of 16 rows are not measured" in messages[0]
    verdict = judge_bars(result.bars, absent=result.conditions.absent)
    assert (verdict.word, verdict.exit_code, result.bars) == ("NOT KNOWN", 4, ())
    assert verdict.reasons[0] == result.conditions.absent == messages[0]
    assert ("because", messages[0]) in [
        line[:2] for line in speed_sheet(result, verdict, "there").lines
    ]
    for servers, lost in (({"plain": plain}, 2), ({"plain": plain, "native": native}, 0)):
        sentence = speeds.absence(servers)
        assert (f"{lost} of 16 rows" in sentence) is bool(lost)
