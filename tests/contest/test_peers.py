"""Peers side by side: what is made of the drivers' tallies, when a bar is missed, and who cannot
take part."""

import json
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace as replace_load
from pathlib import Path
from typing import Any

import pytest
from bench.experiments.contest import installed as peers_installed
from bench.experiments.contest import speed as speeds
from bench.experiments.contest.clients.driver import LIBRARIES
from bench.experiments.contest.clients.loops import PUSH, DriverAnswer, bucket_of
from bench.experiments.contest.experiment import Standing, leading, row_of
from bench.experiments.contest.installed import PEERS, Contestant, install
from bench.experiments.contest.judge import bars, judge_bars, side_of
from bench.experiments.contest.result import (
    ContestBar,
    Missing,
    Peer,
    PeersResult,
    TurnFigures,
    TurnRow,
)
from bench.experiments.contest.speed import SpeedEntry, bars_of, figures_of_run, rows_of
from bench.experiments.contest.turn import TurnLoad, figures_of, rate_between, together
from bench.experiments.contest.words import readme_section, sheet, speed_sheet, suite
from msgspec.structs import replace

from bench.errors import EnvironmentNotReadyError
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from bench.measure.server_facts import ServerBinary
from bench.report.generated import put_between_marks

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "tests" / "histories" / "results"
OLD = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))
NOTHING = TurnFigures(cycles_per_s=0.0, p50_us=None, client_us=None, server_us=None)
MANY = TurnLoad(5, 64, own=True)
SINGLE = TurnLoad(5, 1, own=True)
HOT = TurnLoad(5, 64, own=False)


def row(name: str, load: TurnLoad, *rounds: dict[str, Any], **figures: Any) -> TurnRow:
    """A contestant that showed these figures in two rounds, or each in one."""
    peer = next(one for one in PEERS if one.name == name)
    shown = [replace(NOTHING, **one) for one in rounds or (figures, figures)]
    return row_of(Standing(Contestant(peer, ()), load, shown))


def stopped_at(kept: float) -> TurnFigures:
    return TurnFigures(before_per_s=1, stopped_per_s=1, after_per_s=1, kept_ratio=kept, keys_left=0)


def named(found: tuple[ContestBar, ...], word: str) -> ContestBar:
    return next(bar for bar in found if word in bar.name)


def is_reached(bar: ContestBar) -> bool:
    return side_of(bar) == "reached"


def rates(ours: float) -> list[TurnRow]:
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
    found = bars(rates(rate), [], [])
    python = named(found, "Python peer")
    other = named(found, "fastest peer")
    assert (python.value, python.ours, python.theirs) == (
        rate / 2_000,
        "lockcore gevent",
        "aioredlock",
    )
    assert (other.value, other.theirs) == (pytest.approx(rate / 15_000), "node-redlock 4")
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
    load = TurnLoad(instances, 64, own=True)
    fastest = row("rslock, one thread", load, cycles_per_s=60_000.0, client_us=9.0)
    others = [fastest, row("redsync redigo", load, cycles_per_s=9_000.0, client_us=60.0)]
    for ours, us, expected in ((rate, 0.99 * cpu, True), (0.99 * rate, 1.01 * cpu, False)):
        found = bars(
            [row("lockcore gevent", load, cycles_per_s=ours, client_us=us), *others], [], []
        )
        fast = named(found, "fastest peer")
        cheap = named(found, "client CPU")
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
    peers = {peer.name: Contestant(peer, ()) for peer in PEERS if peer.name in names}
    cells = [
        Standing(peers[name], load, [replace(NOTHING, cycles_per_s=rate)])
        for load, rates in ((MANY, (1, 2, 6, 5, 4, 3)), (SINGLE, (9, 9, 1, 2, 3, 4)))
        for name, rate in zip(names, rates, strict=True)
    ]
    going_on = {(cell.contestant.peer.name, cell.load) for cell in leading(cells)}
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
    stops = replace_load(MANY, stops=True)
    stopped = [
        Standing(peers[name], stops, [stopped_at(0.5)]) for name in ("pottery", "lockcore threads")
    ]
    assert leading(stopped) == stopped[1:]


def test_the_hot_key_in_four_processes_has_bars_of_its_own() -> None:
    def four(name: str, rate: float) -> TurnRow:
        return row(name, replace_load(HOT, processes=4), cycles_per_s=rate, p99_us=1e5)

    ours = row("lockcore gevent", HOT, cycles_per_s=640.0, p99_us=1e5)
    theirs = row("redsync rueidis", HOT, cycles_per_s=320.0, p99_us=1e5)
    found = bars(
        [], [ours, theirs, four("lockcore gevent", 450.0), four("redsync rueidis", 500.0)], []
    )
    rates_found = {bar.name: bar.value for bar in found if "leases/s" in bar.name}
    assert rates_found == {
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
    found = bars([], hot, [])
    assert named(found, "leases/s").theirs == "redsync rueidis"
    assert is_reached(named(found, "leases/s"))
    assert is_reached(named(found, "p99 wait"))


@pytest.mark.parametrize(("kept", "reached"), [(0.95, True), (0.8, False)])
def test_a_stopped_instance_may_cost_a_tenth(kept: float, reached: bool) -> None:
    stopped = row_of(
        Standing(Contestant(PEERS[0], ()), TurnLoad(3, 64, own=True), [stopped_at(kept)])
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
    assert (figures.p50_us, figures.p99_us) == (
        pytest.approx(30.0, rel=0.006),
        pytest.approx(40.0, rel=0.006),
    )
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


def test_a_ceilings_ratio_is_taken_inside_a_round() -> None:
    def speed(client_us: float, cycles_per_s: float = 100.0) -> TurnFigures:
        return TurnFigures(
            cycles_per_s=cycles_per_s, client_us=client_us, server_us=10.0, p50_us=None
        )

    ceiling = SpeedEntry("replay")
    entry = SpeedEntry("x")
    top, found = rows_of(
        {ceiling: [speed(0.0, 200.0), speed(6.0)], entry: [speed(10.0), speed(6.0)]}
    )
    assert (top.ratio.low, top.ratio.high) == (1.0, 1.0)
    assert (found.ratio.median, found.ratio.low, found.ratio.high) == (0.75, 0.5, 1.0)
    assert (found.wall_ratio.low, found.client_us, found.p50_us) == (0.5, 8.0, None)


def test_rows_are_compared_inside_a_round_and_what_ours_did_not_show_counts_against_us() -> None:
    def speed(client_us: float | None) -> TurnFigures:
        return TurnFigures(
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


def test_a_turn_that_is_made_once_stands_beside_every_round_of_the_other() -> None:
    def turn(client_us: float) -> TurnFigures:
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
    def turn(client_us: float, elsewhere_ratio: float) -> TurnFigures:
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
    _, found = rows_of({replay: tops, core: [turn(4.0, 0.01), turn(4.0, 0.0), turn(9.0, 0.06)]})
    assert (found.ratio.low, found.ratio.high) == (0.8, 0.8)
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
    stored = typed(json.loads((RESULTS / "run.json").read_text(encoding="utf-8")), RunResult)
    good = replace(stored, verdict=replace(stored.verdict, exit_code=0))
    bad = replace(good, **{part: replace(getattr(good, part), **{figure: value})})
    said = [bad, good]
    monkeypatch.setattr(speeds, "_run", lambda *_: said.pop(0) if said else bad)
    entry = SpeedEntry("lockbench run", locust="fast")
    assert figures_of_run(entry, None, 1.0).cycles_per_s == good.rate.achieved_per_s
    with pytest.raises(EnvironmentNotReadyError, match="lockbench run gave no figures"):
        figures_of_run(entry, None, 1.0)


def test_who_gives_no_figures_misses_its_bars_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def turn(entry: SpeedEntry, *_: object) -> TurnFigures:
        if entry.share:
            raise EnvironmentNotReadyError("open loop gave no figures")
        figures = replace(
            NOTHING, cycles_per_s=100.0, client_us=4.0, server_us=1.0, elsewhere_ratio=0.0
        )
        return replace(figures, piece_us=120.0)

    monkeypatch.setattr(speeds, "_turn", turn)
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
        "a fixed piece of work took 120 µs of the cores, 120 to 120 from turn to turn"
    )


def test_without_the_server_of_its_bars_nothing_is_known_and_that_is_said_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with Valkey alone one row of fifteen was measured, and the word was BARS
    MISSED."""
    figures = replace(
        NOTHING, cycles_per_s=100.0, client_us=4.0, server_us=1.0, elsewhere_ratio=0.0
    )
    monkeypatch.setattr(speeds, "_turn", lambda *_: figures)
    monkeypatch.setattr(speeds, "start_fleet", lambda *_, **__: nullcontext("a fleet"))
    plain = ServerBinary("there", "redis", "7.0.15")
    native = ServerBinary("there", "valkey", "9.1.2")
    told: list[str] = []
    monkeypatch.setattr(speeds, "servers_by_kind", lambda: {"native": native})
    result = speeds.measure(6, 1.0, 1, told.append)
    assert told[0].startswith("this machine lacks a server without DELEX and DELIFEQ")
    assert "install redis-server. 14 of 16 rows are not measured" in told[0]
    verdict = judge_bars(result.bars, absent=result.conditions.absent)
    assert (verdict.word, verdict.exit_code, result.bars) == ("NOT KNOWN", 4, ())
    assert verdict.reasons[0] == result.conditions.absent == told[0]
    assert ("because", told[0]) in [
        line[:2] for line in speed_sheet(result, verdict, "there").lines
    ]
    for servers, lost in (({"plain": plain}, 2), ({"plain": plain, "native": native}, 0)):
        sentence = speeds.absence(servers)
        assert (f"{lost} of 16 rows" in sentence) is bool(lost)


def test_peers_tell_the_pace_of_their_free_resources_where_it_was_measured() -> None:
    turns = [replace(turn, piece_us=130.0) for turn in RESULT.cycles[0].rounds]
    paced = replace(
        RESULT, cycles=(replace(RESULT.cycles[0], rounds=tuple(turns)), *RESULT.cycles[1:])
    )
    assert any(line[0] == "pace" and "130 µs" in line[1] for line in sheet(paced).lines)
    assert "pace" not in [line[0] for line in sheet(RESULT).lines]


def test_what_cannot_be_installed_is_a_reason_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Peer("nowhere", "node", "nowhere", ("nothing 1",))
    monkeypatch.setattr(peers_installed, "PEERS", (nowhere, PEERS[0]))
    monkeypatch.setenv("PATH", str(tmp_path))
    absent, there = install(tmp_path / "cache", (), lambda _text: None)
    assert absent == Missing(name="nowhere", reason="node is not installed")
    assert isinstance(there, Contestant)


def test_an_installation_that_is_cut_ends_with_all_that_it_started(tmp_path: Path) -> None:
    cut = threading.Event()
    child = tmp_path / "child"
    script = f"sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait"
    ended: list[str] = []
    call = peers_installed._call
    thread = threading.Thread(
        target=lambda: ended.append(call(["sh", "-c", script], tmp_path, cut))
    )
    thread.start()
    deadline_s = time.monotonic() + 30
    while not child.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    cut.set()
    thread.join(5)
    assert ended == ["sh was cut short"]
    pid = int(child.read_text("ascii"))
    while _runs(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether the process is there, and more than a zombie that nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("script", "reason"), [("exit 0", ""), ("echo no wheel >&2; exit 1", "sh failed: no wheel")]
)
def test_why_an_installation_failed_is_its_last_line(
    tmp_path: Path, script: str, reason: str
) -> None:
    assert peers_installed._call(["sh", "-c", script], tmp_path, threading.Event()) == reason


OF_BENCH = {"control", "redis-py by hand", "raw", "replay"}


def test_every_python_contestant_has_a_driver() -> None:
    named = {peer.name.removesuffix(PUSH) for peer in PEERS if peer.kind in ("python", "lockcore")}
    assert named == set(LIBRARIES) - OF_BENCH


def test_a_driver_needs_nothing_but_the_standard_library() -> None:
    driver = "bench.experiments.contest.clients.driver"
    code = (
        f"import sys; before = set(sys.modules); import {driver}; print(*set(sys.modules) - before)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"bench"}


RESULT = typed(OLD, PeersResult)


BEGIN = "<!-- peers: begin -->"
END = "<!-- peers: end -->"


def test_the_readmes_table_is_renewed_between_its_markers_or_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no place", encoding="utf-8")
    with pytest.raises(EnvironmentNotReadyError, match="has no place for the table"):
        put_between_marks(readme, "peers", readme_section(RESULT))
    assert readme.read_text(encoding="utf-8") == "no place"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        absent = (Missing(name="redsync", reason="go is not installed"),)
        put_between_marks(readme, "peers", readme_section(replace(RESULT, absent=absent)))
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("Not there: redsync (go is not installed)") == 1


def bar(low: float, high: float) -> ContestBar:
    return ContestBar(
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
    bars: list[ContestBar], word: str, code: int
) -> None:
    verdict = judge_bars(bars)
    assert (verdict.word, verdict.exit_code) == (word, code)
    assert judge_bars(bars, interrupted=True).exit_code == 130
    assert sheet(replace(RESULT, verdict=verdict)).verdict == word


@pytest.mark.parametrize(
    ("low", "high", "side", "status", "headline"),
    [
        (0.95, 1.1, "reached", "pass", "1 of 1 bars reached"),
        (0.5, 0.7, "missed", "fail", "0 of 1 bars reached"),
        # though its median reached it
        (0.8, 1.1, "not known", "unknown", "0 of 1 bars reached, 1 not known"),
    ],
)
def test_a_bar_is_said_to_be_where_it_surely_is(
    low: float, high: float, side: str, status: str, headline: str
) -> None:
    result = replace(RESULT, bars=(bar(low, high),), verdict=judge_bars([bar(low, high)]))
    shown = sheet(result)
    assert shown.headline == headline
    # before a name that may be wrapped
    figures = f"{low:.2f} ({low:.2f} … {high:.2f})   bar ≥ 0.90  a bar"
    assert [line.label for line in shown.lines if line.text.startswith(figures)] == [side]
    assert [case.status for case in suite(result).cases] == [status]
    assert f"- {'**missed**' if side == 'missed' else side}: a bar: " in readme_section(result)
