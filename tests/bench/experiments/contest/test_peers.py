"""Peers side by side: what is made of the drivers' tallies, when a bar is missed, and who cannot take part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest import installed as peers_installed
from bench.experiments.contest.clients.driver import DRIVERS
from bench.experiments.contest.clients.locks import Lockcore, NotReleasedError
from bench.experiments.contest.clients.loops import run_threads
from bench.experiments.contest.clients.order import Order, Tally, bucket_of
from bench.experiments.contest.installed import PEERS, Absent, Contestant, Peer, install
from bench.experiments.contest.peers import _Cell as Cell
from bench.experiments.contest.peers import bars, judge_peers
from bench.experiments.contest.turn import Load, figures_of, rate_between
from bench.experiments.contest.words import sheet, write_readme
from lockcore import Outcome

ROOT = Path(__file__).parents[4]


def cell(name: str, load: Load, **figures: Any) -> Cell:
    """A contestant that showed these figures in two rounds."""
    peer = next(one for one in PEERS if one.name == name)
    return Cell(Contestant(peer, ()), load, [{"gave_up": 0, **figures}] * 2)


MANY = Load(5, 64, own=True, seconds=1.0)
SINGLE = Load(5, 1, own=True, seconds=1.0)
HOT = Load(5, 64, own=False, seconds=1.0)


def named(found: list[dict[str, Any]], word: str) -> dict[str, Any]:
    return next(bar for bar in found if word in bar["name"])


def rates(ours: float) -> list[Cell]:
    return [
        cell("lockcore gevent", MANY, cycles_per_s=ours),
        cell("lockcore asyncio", MANY, cycles_per_s=ours / 2),
        cell("redlock-py", MANY, cycles_per_s=1_000.0),
        cell("aioredlock", MANY, cycles_per_s=2_000.0),
        cell("node-redlock 4", MANY, cycles_per_s=15_000.0),
        cell("redsync rueidis", MANY, cycles_per_s=12_000.0),
    ]


def test_the_fastest_of_each_side_are_compared() -> None:
    found = bars(rates(50_000.0), [], [])
    python, other = named(found, "Python peer"), named(found, "other peer")
    assert (python["value"], python["ours"], python["theirs"]) == (25.0, "lockcore gevent", "aioredlock")
    assert (other["value"], other["theirs"]) == (pytest.approx(3.333, rel=1e-3), "node-redlock 4")
    assert python["reached"]
    assert other["reached"]


def test_a_slower_lockcore_misses_its_bars() -> None:
    found = bars(rates(35_000.0), [], [])
    assert not named(found, "Python peer")["reached"]
    assert not named(found, "other peer")["reached"]


def test_the_lowest_latency_of_a_peer_must_be_undercut() -> None:
    cells = [cell("lockcore gevent", SINGLE, p50_us=90.0), cell("redsync redigo", SINGLE, p50_us=80.0)]
    assert not named(bars(cells, [], []), "1 caller")["reached"]
    cells[0] = cell("lockcore gevent", SINGLE, p50_us=70.0)
    assert named(bars(cells, [], []), "1 caller")["reached"]


def test_on_the_hot_key_only_who_never_gives_up_counts() -> None:
    hot = [
        cell("lockcore gevent", HOT, cycles_per_s=700.0, p99_us=80_000.0),
        cell("redlock-py", HOT, cycles_per_s=900.0, p99_us=1_000.0),
        cell("redsync rueidis", HOT, cycles_per_s=650.0, p99_us=900_000.0),
    ]
    hot[1].rounds = [{**hot[1].rounds[0], "gave_up": 3}] * 2
    found = bars([], hot, [])
    assert named(found, "leases/s")["theirs"] == "redsync rueidis"
    assert named(found, "leases/s")["reached"]
    assert named(found, "p99 wait")["reached"]


def test_a_stopped_instance_may_cost_a_tenth() -> None:
    load = Load(3, 64, own=True, seconds=0.0)
    kept = cell("lockcore gevent", load, kept_ratio=0.95)
    lost = cell("lockcore gevent", load, kept_ratio=0.8)
    assert named(bars([], [], [kept]), "stopped")["reached"]
    assert not named(bars([], [], [lost]), "stopped")["reached"]


def test_rates_are_of_whole_tenths_between_two_times() -> None:
    bins = dict.fromkeys(range(100), 7)
    assert rate_between(bins, 2.0, 5.0) == pytest.approx(70)
    assert rate_between({}, 2.0, 5.0) == 0


def test_a_tally_becomes_figures() -> None:
    order = Order("x", [], [], 2.0, 0.0, 2, own=True, hold_s=0.0, ttl_ms=1, wait_ms=1)
    answer = Tally(order).to_json() | {
        "cycles": 4, "all_cycles": 5, "acquires": {str(bucket_of(us / 1e6)): 1 for us in (10.0, 20.0, 30.0, 40.0)},
        "leases_by_caller": [1, 3],
        "client_us": 40.0, "server_us": 8.0, "gave_up": 2,
    }  # fmt: skip
    figures = figures_of(answer, sent=50)
    assert figures["cycles_per_s"] == 2
    assert (figures["client_us"], figures["server_us"], figures["commands_per_lease"]) == (10, 2, 10)
    assert (figures["p50_us"], figures["p99_us"]) == (pytest.approx(30.0, rel=0.006), pytest.approx(40.0, rel=0.006))
    assert figures["jain"] == 0.8


def test_an_acquire_that_was_never_granted_took_for_ever() -> None:
    """Who gives up early would else show the shortest waits."""
    order = Order("x", [], [], 2.0, 0.0, 2, own=True, hold_s=0.0, ttl_ms=1, wait_ms=1)
    answer = Tally(order).to_json() | {"acquires": {"100": 97}, "leases_by_caller": [1]}
    for failed, median_us, p99_us in ((0, True, True), (1, True, False), (3, True, False), (200, False, False)):
        figures = figures_of(answer | {"failed": failed}, sent=0)
        assert (figures["p50_us"] is not None, figures["p99_us"] is not None) == (median_us, p99_us), failed
        assert figures["failed"] == failed


def test_waits_without_an_end_miss_a_bar_and_win_none() -> None:
    ours = cell("lockcore gevent", SINGLE, p50_us=None)
    (bar,) = bars([ours, cell("redsync redigo", SINGLE, p50_us=80.0)], [], [])
    assert (bar["value"], bar["reached"]) == (None, False)
    theirs = cell("redsync redigo", SINGLE, p50_us=80.0)
    theirs.rounds = [{"gave_up": 0, "p50_us": 1.0}, {"gave_up": 0, "p50_us": None}, {"gave_up": 0, "p50_us": None}]
    honest = cell("node-redlock 4", SINGLE, p50_us=90.0)
    (bar,) = bars([cell("lockcore gevent", SINGLE, p50_us=60.0), theirs, honest], [], [])
    assert (bar["theirs"], bar["reached"]) == ("node-redlock 4", True)


class Fake:
    """A lock of two calls by script: what an acquire gives (an exception is raised), and whether its release works."""

    def __init__(self, *held: object, release: Exception | None = None) -> None:
        self._held, self._release = list(held), release

    def acquire(self, _resource: str) -> object:
        held = self._held.pop(0) if self._held else "held"
        if isinstance(held, Exception):
            raise held
        return held

    def release(self, _held: object) -> None:
        if self._release is not None:
            raise self._release


def test_every_acquire_counts_and_a_release_that_fails_is_no_cycle() -> None:
    order = Order("x", [], [], 0.05, 0.0, 1, own=True, hold_s=0.0, ttl_ms=1, wait_ms=1)
    document = run_threads(order, Fake(None, None, OSError(), None)).to_json()
    assert (document["failed"], document["gave_up"], document["errors"]) == (4, 3, {"OSError": 1})
    assert sum(document["acquires"].values()) >= document["cycles"] > 0
    document = run_threads(order, Fake(release=NotReleasedError())).to_json()
    assert (document["cycles"], document["all_cycles"], document["failed"]) == (0, 0, 0)
    assert document["errors"]["NotReleasedError"] == sum(document["acquires"].values()) > 0


@pytest.mark.parametrize("answer", [Outcome.GONE, Outcome.UNREACHABLE])
def test_a_release_of_lockcore_that_did_not_release_is_an_error(answer: Outcome) -> None:
    lock = object.__new__(Lockcore)
    lock._try_release = lambda _held: answer
    with pytest.raises(NotReleasedError):
        lock.release(None)
    lock._try_release = lambda _held: Outcome.RELEASED
    lock.release(None)


def test_who_waited_beyond_the_end_counts_in_the_latencies_but_not_in_the_cycles() -> None:
    tally = Tally(Order("x", [], [], 0.0, 0.0, 1, own=False, hold_s=0.0, ttl_ms=1, wait_ms=1))
    tally.start()
    tally.end_s = tally.begin_s + 1e-9
    tally.grant(tally.measure_s)
    tally.complete(0, tally.measure_s)
    assert tally.to_json()["cycles"] == 0
    assert sum(tally.to_json()["acquires"].values()) == 1


def test_what_cannot_be_installed_is_a_reason_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Peer("nowhere", "node", "nowhere", ("nothing 1",))
    monkeypatch.setattr(peers_installed, "PEERS", (nowhere, PEERS[0]))
    monkeypatch.setenv("PATH", str(tmp_path))
    absent, there = install(tmp_path / "cache", (), lambda _text: None)
    assert isinstance(absent, Absent)
    assert absent.reason == "node is not installed"
    assert isinstance(there, Contestant)


def test_every_python_contestant_has_a_driver() -> None:
    assert {peer.name for peer in PEERS if peer.kind in ("python", "lockcore")} == set(DRIVERS)


def test_a_driver_needs_nothing_but_the_standard_library() -> None:
    driver = "bench.experiments.contest.clients.driver"
    code = f"import sys; before = set(sys.modules); import {driver}; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"bench"}


def result() -> dict[str, Any]:
    bar = {"name": "x", "ours": "a", "theirs": None, "value": 2.0, "low": 1.0, "high": 3.0, "bar": 1.0}
    return {
        "started_at": "2026-11-21T00:00:00Z", "interrupted": False,
        "environment": {"cpu_model": "c", "cores": 4, "python": "p"},
        "conditions": {"server": {"name": "redis", "version": "7"}, "cores": 2, "rounds": 3, "seconds": 1.0,
                       "hot_seconds": 3.0},
        "contestants": [], "absent": [{"name": "redsync", "reason": "go is not installed"}],
        "cycles": [], "hot": [], "stopped": [], "bars": [{**bar, "at_least": True, "reached": True}],
    }  # fmt: skip


BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


def test_the_readmes_table_is_renewed_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write_readme(readme, result())
    write_readme(readme, result())
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("Not there: redsync (go is not installed)") == 1


def test_a_readme_without_a_place_is_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing", encoding="utf-8")
    with pytest.raises(EnvironmentNotReadyError, match="has no place for the table"):
        write_readme(readme, result())
    assert readme.read_text(encoding="utf-8") == "nothing"


def bar(low: float, high: float) -> dict[str, Any]:
    return {"name": "a bar", "low": low, "high": high, "bar": 0.9, "at_least": True, "reached": True}


@pytest.mark.parametrize(
    ("bars", "word", "code"),
    [
        ([bar(0.95, 1.1)], "BARS REACHED", 0),
        ([bar(0.8, 1.1)], "NOT KNOWN", 4),  # reached in some rounds: noise
        ([bar(0.5, 0.7), bar(0.8, 1.1)], "BARS MISSED", 1),
        ([], "NOT KNOWN", 4),
    ],
)
def test_a_bar_is_certain_only_when_every_round_is_on_one_side_of_it(
    bars: list[dict[str, Any]], word: str, code: int
) -> None:
    verdict = judge_peers(bars)
    assert (verdict["word"], verdict["exit_code"]) == (word, code)
    assert judge_peers(bars, interrupted=True)["exit_code"] == 130
    assert sheet({**result(), "verdict": verdict}).verdict == word
