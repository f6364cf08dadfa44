"""Peers side by side: what is made of the drivers' tallies, when a bar is missed, and who takes
part."""

from dataclasses import replace
from typing import Any

import pytest

from bench.experiments.audit.libraries import read_libraries
from bench.experiments.audit.result import MissingLibrary
from bench.experiments.judge.library import LibraryDriver
from tests.contest.clients.loops import DriverAnswer, bucket_of
from tests.contest.contestants import DRIVERS, takes_part
from tests.contest.judge import bars, judge_bars, side_of
from tests.contest.peers import Standing, leading, row_of
from tests.contest.result import Bar, Conditions, PeersResult, RoundFigures, Row
from tests.contest.round import RoundLoad, figures_of, rate_between, together
from tests.contest.words import peers_sheet

PLAYERS = {
    entry.library.name: LibraryDriver(entry.library, entry.words, ())
    for entry in (*read_libraries(), *read_libraries(DRIVERS))
}
NOTHING = RoundFigures()
MANY = RoundLoad(5, 64, own=True)
SINGLE = RoundLoad(5, 1, own=True)
HOT = RoundLoad(5, 64, own=False)


def result(**sections: Any) -> PeersResult:
    """What `make peers` came to, with these sections and nothing else."""
    conditions = Conditions(
        cores=2, rounds=1, seconds=1.0, seed=1, servers={"plain": "redis 7.0.15"}
    )
    empty = dict.fromkeys(("contestants", "absent", "cycles", "hot", "stopped", "bars"), ())
    return PeersResult(conditions=conditions, **{**empty, **sections})


def row(name: str, load: RoundLoad, *rounds: dict[str, Any], **figures: Any) -> Row:
    """A contestant that showed these figures in two rounds, or each in one."""
    shown = [replace(NOTHING, **one) for one in rounds or (figures, figures)]
    return row_of(Standing(PLAYERS[name], load, shown))


def stopped_at(kept: float) -> RoundFigures:
    return RoundFigures(
        before_per_s=1, stopped_per_s=1, after_per_s=1, kept_ratio=kept, keys_left=0
    )


def named(all_bars: tuple[Bar, ...], word: str) -> Bar:
    return next(bar for bar in all_bars if word in bar.name)


def is_reached(bar: Bar) -> bool:
    return side_of(bar) == "reached"


def rates(ours: float) -> list[Row]:
    return [
        row("lockcore gevent", MANY, cycles_per_s=ours),
        row("lockcore asyncio", MANY, cycles_per_s=ours / 2),
        row("redlock-py", MANY, cycles_per_s=1_000.0),
        row("aioredlock", MANY, cycles_per_s=2_000.0),
        row("node-redlock 4", MANY, cycles_per_s=15_000.0),
        row("redsync rueidis", MANY, cycles_per_s=12_000.0),
    ]


@pytest.mark.parametrize(("rate", "reached"), [(50_000.0, True), (35_000.0, False)])
def test_the_fastest_of_each_side_are_compared(rate: float, reached: bool) -> None:
    all_bars = bars(rates(rate), [], [])
    python = named(all_bars, "Python peer")
    other = named(all_bars, "fastest peer")
    assert (python.value, python.ours, python.theirs) == (
        rate / 2_000,
        "lockcore gevent",
        "aioredlock",
    )
    assert other.value == pytest.approx(rate / 15_000)
    assert other.theirs == "node-redlock 4"
    assert (is_reached(python), is_reached(other)) == (reached, reached)


def test_the_lowest_latency_of_a_peer_must_be_undercut() -> None:
    cells = [
        row("lockcore gevent", SINGLE, p50_us=90.0),
        row("redsync redigo", SINGLE, p50_us=80.0),
    ]
    assert not is_reached(named(bars(cells, [], []), "1 caller"))
    cells[0] = row("lockcore gevent", SINGLE, p50_us=70.0)
    assert is_reached(named(bars(cells, [], []), "1 caller"))


@pytest.mark.parametrize(
    ("instances", "rate", "cpu"), [(1, 66_000.0, 9.0), (3, 120_000.0, 9.0), (5, 150_000.0, 3.0)]
)
def test_the_fastest_in_any_language_and_at_every_n_is_the_bar(
    instances: int, rate: float, cpu: float
) -> None:
    load = RoundLoad(instances, 64, own=True)
    fastest = row("rslock, one thread", load, cycles_per_s=60_000.0, client_us=9.0)
    others = [fastest, row("redsync redigo", load, cycles_per_s=9_000.0, client_us=60.0)]
    for ours, us, expected in ((rate, 0.99 * cpu, True), (0.99 * rate, 1.01 * cpu, False)):
        all_bars = bars(
            [row("lockcore gevent", load, cycles_per_s=ours, client_us=us), *others], [], []
        )
        fast = named(all_bars, "fastest peer")
        cheap = named(all_bars, "client CPU")
        assert (fast.theirs, cheap.theirs) == (fastest.name, fastest.name)
        assert (is_reached(fast), is_reached(cheap)) == (expected, expected)


def test_after_the_first_round_ours_go_on_and_the_fastest_three_of_a_load() -> None:
    names = (
        "lockcore threads",
        "redlock-py",
        "pottery",
        "aioredlock",
        "node-redlock 4",
        "redsync redigo",
    )
    cells = [
        Standing(PLAYERS[name], load, [replace(NOTHING, cycles_per_s=rate)])
        for load, rates in ((MANY, (1, 2, 6, 5, 4, 3)), (SINGLE, (9, 9, 1, 2, 3, 4)))
        for name, rate in zip(names, rates, strict=True)
    ]
    going_on = {(cell.contestant.library.name, cell.load) for cell in leading(cells)}
    assert going_on == {
        ("lockcore threads", MANY),
        ("pottery", MANY),
        ("aioredlock", MANY),
        ("node-redlock 4", MANY),
        ("lockcore threads", SINGLE),
        ("redlock-py", SINGLE),
        ("redsync redigo", SINGLE),
        ("node-redlock 4", SINGLE),
    }
    stops = replace(MANY, stops=True)
    stopped = [
        Standing(PLAYERS[name], stops, [stopped_at(0.5)])
        for name in ("pottery", "lockcore threads")
    ]
    assert leading(stopped) == stopped[1:]


def test_the_hot_key_in_four_processes_has_bars_of_its_own() -> None:
    def four(name: str, rate: float) -> Row:
        return row(name, replace(HOT, processes=4), cycles_per_s=rate, p99_us=1e5)

    ours = row("lockcore gevent", HOT, cycles_per_s=640.0, p99_us=1e5)
    theirs = row("redsync rueidis", HOT, cycles_per_s=320.0, p99_us=1e5)
    all_bars = bars(
        [], [ours, theirs, four("lockcore gevent", 450.0), four("redsync rueidis", 500.0)], []
    )
    lease_rates = {bar.name: bar.value for bar in all_bars if "leases/s" in bar.name}
    assert lease_rates == {
        "hot key, N=5: leases/s ÷ the most of those that never give up": 2.0,
        "hot key, N=5 in 4 processes: leases/s ÷ the most of those that never give up": 0.9,
    }


def test_several_processes_are_one_contestant() -> None:
    one = DriverAnswer(2.0, 10, 8.0, 6.0, {3: 9}, 1, [4, 6], {0: 12}, 2, 12, {"lock": 1})
    other = DriverAnswer(2.0, 20, 7.0, 10.0, {3: 1, 5: 18}, 1, [20, 0], {0: 15, 1: 5}, 0, 20, {})
    assert together([one]) == one
    assert together([one, other]) == DriverAnswer(
        2.0, 30, 15.0, 8.0, {3: 10, 5: 18}, 2, [4, 6, 20, 0], {0: 27, 1: 5}, 2, 32, {"lock": 1}
    )


def test_on_the_hot_key_only_who_never_gives_up_counts() -> None:
    hot = [
        row("lockcore gevent", HOT, cycles_per_s=700.0, p99_us=80_000.0),
        row("redlock-py", HOT, cycles_per_s=900.0, p99_us=1_000.0, gave_up=3),
        row("redsync rueidis", HOT, cycles_per_s=650.0, p99_us=900_000.0),
    ]
    all_bars = bars([], hot, [])
    assert named(all_bars, "leases/s").theirs == "redsync rueidis"
    assert is_reached(named(all_bars, "leases/s"))
    assert is_reached(named(all_bars, "p99 wait"))


@pytest.mark.parametrize(("kept", "reached"), [(0.95, True), (0.8, False)])
def test_a_stopped_instance_may_cost_a_tenth(kept: float, reached: bool) -> None:
    stopped = row_of(
        Standing(PLAYERS["lockcore gevent"], RoundLoad(3, 64, own=True), [stopped_at(kept)])
    )
    assert is_reached(named(bars([], [], [stopped]), "stopped")) is reached


def test_rates_are_of_whole_tenths_between_two_times() -> None:
    bins = dict.fromkeys(range(100), 7)
    assert rate_between(bins, 2.0, 5.0) == pytest.approx(70)
    assert rate_between({}, 2.0, 5.0) == 0


def test_an_answer_becomes_figures() -> None:
    acquires = {bucket_of(us / 1e6): 1 for us in (10.0, 20.0, 30.0, 40.0)}
    figures = figures_of(
        DriverAnswer(2.0, 4, 40.0, 8.0, acquires, leases_by_caller=[1, 3], gave_up=2, all_cycles=5),
        sent=50,
    )
    assert figures.cycles_per_s == 2
    assert (figures.client_us, figures.server_us, figures.commands_per_lease) == (10, 2, 10)
    assert figures.p50_us == pytest.approx(30.0, rel=0.006)
    assert figures.p99_us == pytest.approx(40.0, rel=0.006)
    assert figures.jain == 0.8


def test_an_acquire_that_was_never_granted_took_for_ever() -> None:
    """Who gives up early would else show the shortest waits."""
    for failed, median_us, p99_us in (
        (0, True, True),
        (1, True, False),
        (3, True, False),
        (200, False, False),
    ):
        figures = figures_of(
            DriverAnswer(2.0, acquires={100: 97}, leases_by_caller=[1], failed=failed), sent=0
        )
        assert (figures.p50_us is not None, figures.p99_us is not None) == (median_us, p99_us), (
            failed
        )
        assert figures.failed == failed


def test_waits_without_an_end_miss_a_bar_and_win_none() -> None:
    ours = row("lockcore gevent", SINGLE, p50_us=None)
    (bar,) = bars([ours, row("redsync redigo", SINGLE, p50_us=80.0)], [], [])
    assert (bar.value, is_reached(bar)) == (None, False)
    assert judge_bars([bar]).word == "BARS MISSED"
    theirs = row("redsync redigo", SINGLE, {"p50_us": 1.0}, {"p50_us": None}, {"p50_us": None})
    honest = row("node-redlock 4", SINGLE, p50_us=90.0)
    (bar,) = bars([row("lockcore gevent", SINGLE, p50_us=60.0), theirs, honest], [], [])
    assert (bar.theirs, is_reached(bar)) == ("node-redlock 4", True)


def test_peers_tell_the_pace_of_their_free_resources_where_it_was_measured() -> None:
    paced = row("lockcore gevent", MANY, cycles_per_s=1.0, piece_us=130.0)
    unpaced = row("lockcore gevent", MANY, cycles_per_s=1.0)
    for rows, labels in (([paced], ["pace"]), ([unpaced], [])):
        lines = peers_sheet(result(cycles=rows), judge_bars([]), "").lines
        assert [line.label for line in lines if "130 µs" in line.text] == labels


def test_a_library_that_is_absent_is_named_with_its_reason() -> None:
    absent = (MissingLibrary(name="redsync", reason="go is not installed"),)
    lines = peers_sheet(result(absent=absent), judge_bars([]), "").lines
    assert ("not there", "redsync: go is not installed") in [line[:2] for line in lines]


def test_a_lockcore_that_pushes_takes_part_in_several_processes_only() -> None:
    push = PLAYERS["lockcore gevent, push"]
    assert [takes_part(push, 5, processes) for processes in (1, 4)] == [False, True]
    assert takes_part(PLAYERS["redis-py Lock"], 1, 1)
    assert not takes_part(PLAYERS["redis-py Lock"], 3, 1)


def bar(low: float, high: float) -> Bar:
    return Bar(
        name="a bar", ours="", theirs=None, value=low, low=low, high=high, bar=0.9, at_least=True
    )


@pytest.mark.parametrize(
    ("bars", "word", "code"),
    [
        ([bar(0.95, 1.1)], "BARS REACHED", 0),
        # reached in some rounds: noise
        ([bar(0.8, 1.1)], "NOT KNOWN", 4),
        ([bar(0.5, 0.7), bar(0.8, 1.1)], "BARS MISSED", 1),
        ([], "NOT KNOWN", 4),
    ],
)
def test_a_bar_is_certain_only_when_every_round_is_on_one_side_of_it(
    bars: list[Bar], word: str, code: int
) -> None:
    verdict = judge_bars(bars)
    assert (verdict.word, verdict.exit_code) == (word, code)
    assert judge_bars(bars, interrupted=True).exit_code == 130
    assert peers_sheet(result(bars=bars), verdict, "").verdict == word


@pytest.mark.parametrize(
    ("low", "high", "side", "headline"),
    [
        (0.95, 1.1, "reached", "1 of 1 bars reached"),
        (0.5, 0.7, "missed", "0 of 1 bars reached"),
        # though its median reached it
        (0.8, 1.1, "not known", "0 of 1 bars reached, 1 not known"),
    ],
)
def test_a_bar_is_said_to_be_where_it_surely_is(
    low: float, high: float, side: str, headline: str
) -> None:
    bars = [bar(low, high)]
    shown = peers_sheet(result(bars=bars), judge_bars(bars), "")
    assert shown.headline == headline
    # before a name that may be wrapped
    figures = f"{low:.2f} ({low:.2f} … {high:.2f})   bar ≥ 0.90  a bar"
    assert [line.label for line in shown.lines if line.text.startswith(figures)] == [side]
