"""Rounds in turns, or there and back: what is finished counts, what is not is no measurement, and
invalid rounds are run again."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec import structs

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.compare import experiment as comparison
from bench.experiments.compare import pairs
from bench.experiments.compare.experiment import compare_now
from bench.experiments.compare.judge import judge_exact
from bench.experiments.compare.judge import middle as middle_of
from bench.experiments.compare.pairs import (
    RUNS,
    CompareOrder,
    Comparison,
    Side,
    run_pairs,
    take_turns,
)
from bench.gates.threshold import FOREVER_S, find_metric
from bench.measure.environment import lockcore_form
from bench.run import short
from bench.run.conclude import SHOWS_A_FLAW
from bench.run.experiment import ExperimentOrder
from bench.run.interrupt import Interrupts
from bench.run.servers import BEHIND_A_PROXY
from bench.scenario import Delay, Fault, load
from bench.topology.faults.injection import Need
from bench.topology.faults.kinds import needs_of
from tests.bench.whole_run import SAMPLE, run_of

RATE = find_metric("rate")


class Stage:
    """Stands for servers and Locust: notes what is asked, answers with `statuses` in turn (the last
    one stays)."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.needs: list[frozenset[Need]] = []
        self.ran: list[tuple[str, int]] = []
        self.rates: dict[str, float] = {}
        self.rings: list[Any] = []
        self.series: list[Any] = []
        self.threads: set[threading.Thread] = set()
        self.statuses = ["pass"]
        self.stop_at: tuple[int, str] = (10**6, "")

    @contextlib.contextmanager
    def open_servers(self, scenario: Any, *, faults: Any, **_more: Any) -> Iterator[str]:
        self.opened.append(scenario.fsync)
        self.needs.append(needs_of(faults))
        yield f"servers {len(self.opened)}"

    def run_on(
        self, servers: Any, order: Any, interrupts: Any, show: Any, *, environ: Any, series: Any
    ) -> Any:
        assert show is None, "nobody looks"
        number = len(self.ran)
        name = environ["PYTHONPATH"].partition(":")[0]
        if number == self.stop_at[0]:
            if self.stop_at[1] == "interrupt":
                interrupts.count = 1
            else:
                raise EnvironmentNotReadyError("a server died")
        self.ran.append((name, order.scenario.seed))
        self.rings.append((name, servers, order.ring))
        self.series.append((name, series))
        self.threads.add(threading.current_thread())
        result = copy.deepcopy(SAMPLE)
        result["fleet"]["server"] = None
        result["rate"]["achieved_per_s"] = self.rates.get(name, 100.0) * (1 + number % 2)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        result["verdict"] = {"status": status, "reasons": []}
        return SimpleNamespace(result=run_of(result))


class FakeSeries:
    """Stands for a load process that has several runs; all that were made, in order."""

    made: ClassVar[list[FakeSeries]] = []

    def __init__(self) -> None:
        self.closed = False
        self.made.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(FakeSeries, "made", [])
    monkeypatch.setattr(pairs, "LocustSeries", FakeSeries)
    monkeypatch.setattr(pairs, "open_servers", stage.open_servers)
    monkeypatch.setattr(short, "run_on", stage.run_on)
    # its folders are names only
    monkeypatch.setattr(Side, "described", lambda _side, run: run)
    return stage


def order(
    count: int = 6,
    *,
    processes: int = 2,
    folder: Path = Path(),
    looks: tuple[int, ...] = (8,),
    **changes: Any,
) -> CompareOrder:
    scenario = load(None, {"duration": "1s", "processes": str(processes)})
    sides = [Side("a", scenario, ("a",)), Side("b", replace(scenario, **changes), ("b",))]
    plan = Comparison("gate", sides, (RATE,), (), 0.1, 7, count, looks=looks)
    return ExperimentOrder(plan, "7f3a", ["lockbench", "gate"], folder)


def quiet(_text: str) -> None:
    """Say nothing."""


def test_lockcore_and_packages_of_a_side_are_its_own_and_not_the_leaders(tmp_path: Path) -> None:
    sample = run_of(SAMPLE)
    run = structs.replace(
        sample, environment=structs.replace(sample.environment, lockcore="compiled")
    )
    info = tmp_path / "good" / "hdrhistogram-99.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hdrhistogram\nVersion: 99\n")
    broken = tmp_path / "broken" / "lockcore"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('planted')")
    found = [
        Side("x", load(), paths).described(run).environment
        for paths in ((), (str(info.parent),), (str(broken.parent),))
    ]
    assert found[0] == run.environment
    assert found[1].packages["hdrhistogram"] == "99"
    assert found[1].lockcore == lockcore_form()
    assert found[2].lockcore == "not known"


def test_in_turns_every_side_runs_once_and_all_at_the_same_time(stage: Stage) -> None:
    done = run_pairs(order(20, processes=1), quiet)
    assert (done.finished, len(stage.ran)) == (20, 40)
    rounds = [stage.rings[start : start + 2] for start in range(0, 40, 2)]
    for number, one in enumerate(rounds):
        places = {ring.place for _, _, ring in one}
        assert (places, {ring.places for _, _, ring in one}) == ({0, 1}, {2})
        assert len({ring.folder for _, _, ring in one}) == 1
        assert {seed for _, seed in stage.ran[2 * number : 2 * number + 2]} == {7 + number}
    first = [next(name for name, _, ring in one if ring.place == 0) for one in rounds]
    assert set(first) == {"a", "b"}, "who begins is random"
    assert stage.opened == ["everysec"] * 2, "a fleet for each, kept for the whole time"
    assert {(name, servers) for name, servers, _ in stage.rings} == {
        (name, servers) for name in "ab" for servers in ("servers 1", "servers 2")
    }, "and who gets which is random"


def test_in_turns_a_load_process_has_some_runs_and_is_renewed(stage: Stage) -> None:
    """A Locust started for each run took half of a gate's time on a busy machine."""
    run_pairs(order(2 * RUNS + 1, processes=1), quiet)
    assert sorted(Counter(id(one) for _, one in stage.series).values()) == [
        1,
        1,
        RUNS,
        RUNS,
        RUNS,
        RUNS,
    ]
    sides = {id(one): name for name, one in stage.series}
    assert all(sides[id(one)] == name for name, one in stage.series), "each its own library"
    assert all(one.closed for one in FakeSeries.made), "none is left"
    assert len(stage.threads) <= 2, "a load process ends with the thread that started it"
    stage.series.clear()
    run_pairs(order(2), quiet)
    assert {one for _, one in stage.series} == {None}, (
        "there and back every run has a process of its own"
    )


@pytest.mark.parametrize(
    "unfit",
    [
        {"rate_per_s": 100.0},
        {"processes": 2},
        {"targets": ("redis://h",)},
        {"hold": Delay("fixed", 11.0)},
        {"faults": (Fault("stop", 0, None, ("instance:0",), "fixed", {}),)},
    ],
)
def test_what_goes_on_while_others_run_does_not_take_turns(unfit: dict[str, Any]) -> None:
    assert take_turns(order(processes=1).plan)
    assert not take_turns(order(**{"processes": 1, **unfit}).plan)


def test_the_partner_of_one_that_died_is_asked_to_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def run_on(_servers: Any, order: Any, interrupts: Any, _show: Any, **_more: Any) -> Any:
        if order.ring.place == 0:
            raise EnvironmentNotReadyError("a server died")
        deadline = time.monotonic() + 20
        while not interrupts.count and time.monotonic() < deadline:
            time.sleep(0.01)
        asked.append(interrupts.count)
        return stage.run_on("", order, Interrupts(), None, environ={"PYTHONPATH": "b"})

    monkeypatch.setattr(short, "run_on", run_on)
    with pytest.raises(BenchError, match="a server died"):
        run_pairs(order(2, processes=1), quiet)
    assert asked == [1]


def test_a_round_of_which_a_side_was_killed_is_run_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ends early, as a result; the other side would wait for its turn until it is
    overdue."""
    # in the first two rounds
    killed = [0, 1]

    def run_on(_servers: Any, order: Any, interrupts: Any, _show: Any, **more: Any) -> Any:
        found = stage.run_on("", order, Interrupts(), None, **more)
        if not killed or order.scenario.seed > 7:
            return found
        if order.ring.place == 0:
            return SimpleNamespace(result=structs.replace(found.result, duration_s=0.1))
        deadline = time.monotonic() + 20
        while not interrupts.count and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.pop()
        return found

    monkeypatch.setattr(short, "run_on", run_on)
    done = run_pairs(order(4, processes=1), quiet)
    assert (done.finished, done.repeated, killed) == (4, 2, [])
    assert {run.status for run in done.runs} == {"pass"}


def test_enough_is_enough_and_what_is_so_far_is_said_with_the_next_pair(stage: Stage) -> None:
    said: list[str] = []
    done = run_pairs(
        order(20), said.append, lambda rounds: (f"{rounds.finished} so far, ", rounds.finished == 5)
    )
    assert (done.finished, len(stage.ran)) == (5, 20)
    assert said[0] == "pair 1 of 20"
    assert said[4].startswith("pair 5 of 20: 4 so far, at most ")


def test_where_one_side_needs_proxies_the_other_stands_behind_them_too(stage: Stage) -> None:
    late = Fault("proxy", 0, None, ("instance:0",), "fixed", {"delay": "1ms"})
    run_pairs(order(1, faults=(late,)), quiet)
    assert stage.needs == [{Need.PROXY}] * 4
    run_pairs(order(1), quiet)
    assert stage.needs[4:] == [frozenset()]


def test_a_round_goes_there_and_back_in_random_order_with_one_seed(stage: Stage) -> None:
    done = run_pairs(order(20), quiet)
    rounds = [stage.ran[start : start + 4] for start in range(0, 80, 4)]
    assert {"".join(name for name, _ in turn) for turn in rounds} == {"abba", "baab"}
    assert [{seed for _, seed in turn} for turn in rounds] == [{7 + number} for number in range(20)]
    assert done.finished == 20
    stage.ran.clear()
    run_pairs(order(20), quiet)
    assert [stage.ran[start : start + 4] for start in range(0, 80, 4)] == rounds, "the seed decides"


def test_a_value_is_the_geometric_mean_of_both_runs(stage: Stage) -> None:
    # the stage doubles every other run
    done = run_pairs(order(3), quiet)
    assert done.values(0, RATE) == pytest.approx([100 * 2**0.5] * 3)
    done.runs[0].figures["rate"] = None
    assert done.values(done.runs[0].side, RATE)[0] is None


def test_sides_with_equal_servers_share_them_and_others_do_not(stage: Stage) -> None:
    run_pairs(order(), quiet)
    assert stage.opened == ["everysec"]
    stage.opened.clear()
    run_pairs(order(fsync="always"), quiet)
    assert sorted(stage.opened) == ["always", "everysec"]


def test_with_faults_every_run_has_servers_of_its_own(stage: Stage) -> None:
    faulty = load(
        None,
        {"duration": "1s", "faults": ['{ at = "0s", kind = "stop", target = ["instance:0"] }']},
    )
    run_pairs(order(2, faults=faulty.faults), quiet)
    assert len(stage.opened) == 8


def test_an_invalid_round_is_run_again_but_not_for_ever(stage: Stage) -> None:
    stage.statuses = ["invalid", "pass"]
    done = run_pairs(order(), quiet)
    assert (done.repeated, done.finished, len(stage.ran)) == (1, 6, 28)
    assert {run.status for run in done.runs} == {"pass"}
    stage.statuses = ["invalid"]
    done = run_pairs(order(), quiet)
    assert (done.repeated, done.finished) == (3, 6)
    assert {run.status for run in done.runs} == {"invalid"}


def test_ctrl_c_keeps_the_finished_rounds_and_drops_the_torn_one(stage: Stage) -> None:
    stage.stop_at = (10, "interrupt")
    done = run_pairs(order(), quiet)
    assert (done.finished, len(done.runs), done.interrupted) == (2, 8, True)


def test_ctrl_c_in_the_first_round_leaves_nothing_to_judge(stage: Stage) -> None:
    stage.stop_at = (1, "interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_pairs(order(), quiet)


def test_what_breaks_later_keeps_the_finished_rounds_and_says_why(stage: Stage) -> None:
    stage.stop_at = (5, "break")
    done = run_pairs(order(), quiet)
    assert (done.finished, done.interrupted, done.stopped) == (1, False, "a server died")
    stage.ran.clear()
    stage.stop_at = (0, "break")
    with pytest.raises(BenchError, match="a server died"):
        run_pairs(order(), quiet)


def asked(count: int, folder: Path, looks: tuple[int, ...] = (8,), processes: int = 2) -> Any:
    return compare_now(order(count, processes=processes, folder=folder, looks=looks), quiet)


def test_one_command_more_fails_at_once_without_a_pair(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costs = {"commands": 10, "bytes_sent": 1295}
    monkeypatch.setattr(
        comparison, "count_exactly", lambda _order: judge_exact(costs, costs | {"commands": 11})
    )
    done = asked(8, tmp_path)
    assert (done.exit_code, done.result.verdict.reasons) == (1, ("commands per acquire: 10 → 11",))
    assert (stage.ran, done.result.finished_pairs) == ([], 0)
    (tmp_path / "result.json").unlink()
    monkeypatch.setattr(comparison, "count_exactly", lambda _order: judge_exact(costs, costs))
    assert asked(8, tmp_path).exit_code == 0, "negative control"


def test_a_gate_stops_at_the_first_look_that_answers_and_not_between(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costs = {"commands": 10, "bytes_sent": 1295}
    monkeypatch.setattr(comparison, "count_exactly", lambda _order: judge_exact(costs, costs))
    stage.rates = {"b": 1.0}
    done = asked(24, tmp_path, (9, 12, 16, 24), processes=1)
    assert (done.exit_code, done.result.finished_pairs, done.result.planned_pairs) == (1, 9, 24)
    assert done.result.verdict.reasons[0].startswith("rate got worse")
    assert done.result.looks == (9, 12, 16, 24)
    stage.statuses = ["pass", "pass", "pass", "violated"]
    stage.rates = {}
    (tmp_path / "result.json").unlink()
    done = asked(24, tmp_path, (9, 12, 16, 24), processes=1)
    assert (done.exit_code, done.result.finished_pairs) == (5, 2), (
        "what is certain does not wait for a look"
    )


@pytest.mark.parametrize(
    ("looks", "word", "code"), [((12, 24), "inconclusive", 130), ((9, 24), "fail", 1)]
)
def test_a_gate_that_is_cut_between_two_looks_is_not_judged(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    looks: tuple[int, ...],
    word: str,
    code: int,
) -> None:
    """Who watches could cut it when it suits him; had it been a look (the second row), the same
    pairs would fail."""
    costs = {"commands": 10, "bytes_sent": 1295}
    monkeypatch.setattr(comparison, "count_exactly", lambda _order: judge_exact(costs, costs))
    stage.rates = {"b": 1.0}
    stage.stop_at = (9 * 2, "interrupt")
    done = asked(24, tmp_path, looks, processes=1)
    assert (done.exit_code, done.result.finished_pairs) == (code, 9)
    assert [one.verdict for one in done.result.metrics if one.role == "judged"] == [word]
    assert ("got worse" in " ".join(done.result.verdict.reasons)) is (word == "fail")


@pytest.mark.parametrize(
    ("values", "middle"),
    [((4.0, 9.0), 6.0), ((1.0, 0.0), 0.0), ((0.0, 0.0), 0.0), ((1.0, None), None)],
)
def test_a_share_of_nothing_acquired_is_a_value(
    values: tuple[float | None, ...], middle: float | None
) -> None:
    assert middle_of(values) == (middle if middle is None else pytest.approx(middle))


@pytest.mark.parametrize("runs", [1, 2])
def test_an_hour_that_stands_for_ever_stays_an_hour(runs: int) -> None:
    assert middle_of([FOREVER_S] * runs) == FOREVER_S, (
        "else it is shown as 3600.00 s, not as endless"
    )


def test_a_change_of_nothing_is_said_but_that_of_the_share_acquired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = [
        SimpleNamespace(metric=name, ratio=1.0, role="judged")
        for name in ("rate", "acquire.success")
    ]
    monkeypatch.setattr(comparison, "judge_figures", lambda *_: figures)
    monkeypatch.setattr(
        comparison, "verdict_over", lambda *_, **__: SimpleNamespace(status="inconclusive")
    )
    monkeypatch.setattr(comparison, "_asked", lambda *_: None)
    question = SimpleNamespace(kind="gate", looks=(7,))
    rounds = SimpleNamespace(finished=2, runs=[], stopped="", interrupted=False)
    so_far = comparison._so_far(question, rounds)  # type: ignore[arg-type]
    assert so_far == ("rate +0.0 %, ", False)


@pytest.mark.parametrize("cause", [SHOWS_A_FLAW, BEHIND_A_PROXY])
def test_a_comparison_repeats_the_warnings_that_concern_its_figures(cause: str) -> None:
    plan: Any = SimpleNamespace(sides=[SimpleNamespace(label="old")])
    run = SimpleNamespace(warnings=(f"this run: {cause}; stop", "something else"))
    rounds: Any = SimpleNamespace(repeated=0, runs=[], results={0: run})
    assert [*comparison._warnings(plan, rounds)] == [f"old: this run: {cause}; stop"]
