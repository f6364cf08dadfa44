"""Negative controls of the whole chain: a fault planted in a lock that is safe turns its row of the safety matrix red,
an oracle that is blind turns the row of a flawed lock red, and a lock that does not lock is never SAFE, whatever the
hold and however many processes."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.experiments.safety_matrix import claims as restarts
from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.row import SKIPPED, PlannedRow, RowSetup, judge_rows
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from bench.recipes.plain import PlainInstance
from bench.recipes.registry import find_recipe
from bench.run.experiment import exit_code
from bench.safety import judge as judge_module
from bench.safety import rules
from bench.topology.fleet import Fleet, start_fleet
from lockcore import claims, engine
from lockcore.errors import LockcoreError
from tests.conftest import Ended as Typed
from tests.integration.locust_runs import ROOT
from tests.schedules.stage import Stage
from tests.schedules.table import SCHEDULES, look_at

pytestmark = pytest.mark.integration
NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def ground(fleet: Fleet, tmp_path: Path) -> RowSetup:
    return RowSetup(fleet, seed=1, quick=True, server=None, scratch=tmp_path, run_id="57041")


def row(schedule: str, recipe: str, ground: RowSetup) -> tuple[str, int]:
    """The verdict of a row of the matrix, and what the command would end with if it were the only one."""
    entry = SCHEDULES[schedule]
    finding = look_at(entry, recipe, recipe in entry.shown_by, ground)
    planned = PlannedRow("schedule", recipe, schedule, "", "", finding)
    return finding.verdict, exit_code(judge_rows([planned.row(finding)]), interrupted=False)


# -- a lock that is safe, made unsafe ----------------------------------------------------------------------------------


def two_sides(fleet: Fleet) -> int:
    """Service faults when one client reaches the first instance only, the other the rest."""
    first, *rest = fleet.urls
    with Stage(find_recipe("redlock"), fleet) as stage:
        for urls in ([first, NOBODY, "redis://127.0.0.1:2"], [NOBODY, *rest]):
            stage.client(urls=urls).acquire()
        return stage.report().service_faults


def test_a_quorum_off_by_one_is_found_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "quorum_of", lambda instances: instances // 2)
    assert two_sides(fleet) == 1


def test_with_the_right_quorum_one_of_them_does_not_even_connect(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="quorum"):
        two_sides(fleet)


def test_a_release_without_owner_check_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("overslept-holder", "set-nx-lua", ground) == (AS_EXPECTED, 0)
    monkeypatch.setattr(PlainInstance, "delete_own", lambda self, key, _token: self.ask("DEL", key))
    assert row("overslept-holder", "set-nx-lua", ground) == (VIOLATED, 5)


def test_an_ignored_drift_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "WITHIN", (1.009,))
    monkeypatch.setattr(claims, "drift_ns", lambda _ttl_ms, _factor: 0)
    finding = leases.validity_drift(replace(ground, quick=False))  # a TTL of 2 s: 18 ms of overlap
    if finding.verdict in (SKIPPED, NOT_KNOWN):
        pytest.skip(f"not known here: {finding.reason}")
    assert finding.verdict == VIOLATED, finding.figures


def test_a_shutdown_that_forgets_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "start_fleet", lambda instances, _fsync: start_fleet(instances, "none"))
    finding = restarts.clean_shutdown(ground)
    assert finding.verdict in (VIOLATED, NOT_KNOWN), finding.figures
    if finding.verdict == NOT_KNOWN:
        pytest.skip(f"not known here: {finding.preconditions}")


def test_restarted_servers_that_vote_at_once_are_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "connect", lambda urls, **told: leases.connect(urls, **{**told, "rejoin": "trust"}))
    finding = restarts.delayed_restart(ground)
    assert finding.verdict == VIOLATED, finding.figures


def test_what_was_seen_before_a_server_failed_to_answer_stays_seen(
    ground: RowSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_restart(_fleet: object, restarted: tuple[int, ...], rejoin: str) -> tuple[bool, float, float]:
        if len(restarted) == 3:
            raise LockcoreError("nobody answered")
        return rejoin == "trust-first", 0.1, 0.1

    monkeypatch.setattr(restarts, "start_fleet", lambda *_: nullcontext())
    monkeypatch.setattr(restarts, "_after_restart", after_restart)
    assert restarts.delayed_restart(ground).verdict == VIOLATED


# -- an oracle that is blind -------------------------------------------------------------------------------------------


def nobody(*_arguments: object) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def test_an_oracle_that_sees_no_overlap_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("both-read-first", "get-set", ground) == (AS_EXPECTED, 0)
    monkeypatch.setattr(rules, "service_faults", nobody)
    assert row("both-read-first", "get-set", ground) == (NOT_SHOWN, 4)


def test_an_oracle_that_crashes_shows_nothing(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module.rules, "order_leases", lambda *_: 1 / 0)
    assert row("both-read-first", "get-set", ground) == (NOT_SHOWN, 4)


@pytest.mark.parametrize("rule, figure", [("foreign_deletes", "foreign_deletes"), ("client_overstays", "overstays")])
def test_a_figure_comes_from_its_rule(
    rule: str, figure: str, ground: RowSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = SCHEDULES["overslept-holder"]
    assert look_at(schedule, "set-nx-fixed", True, ground).figures[figure] == 1
    monkeypatch.setattr(rules, rule, nobody)
    assert look_at(schedule, "set-nx-fixed", True, ground).figures[figure] == 0


# -- locks that do not lock, through the whole command: never SAFE ----------------------------------------------------


FAKES = ROOT / "tests" / "plugins" / "fake-locks"
POINTS = {
    "always-yes": "AlwaysYes",
    "yes-to-every-second": "YesToEverySecond",
    "late-release": "LateRelease",
    "foreign-delete": "ForeignDelete",
    "silent": "Silent",
    "never-releases": "NeverReleases",
    "yes-after-the-end": "YesAfterTheEnd",
    "never-yes": "NeverYes",
    "honest": "Honest",
}
HOLDS = ("0", "50us", "1ms")
CASES = [(recipe, hold, processes) for recipe in list(POINTS)[:4] for hold in HOLDS for processes in (1, 2)]
OFTEN = (  # each recipe, hold and number of processes; the others are of test-long
    ("always-yes", "0", 2),
    ("yes-to-every-second", "1ms", 1),
    ("late-release", "50us", 1),
    ("foreign-delete", "1ms", 2),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that offers the fakes."""
    site = tmp_path_factory.mktemp("site")
    about = site / "fake_locks-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-locks\nVersion: 1\n", "utf-8")
    lines = [f"{name} = fake_locks:{class_name}" for name, class_name in POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[lockbench.recipes]", *lines, ""]), "utf-8")
    return site


@pytest.fixture(scope="module")
def alone() -> Iterator[Fleet]:
    """One server for all."""
    with start_fleet(1, "none") as started:
        yield started


class Ended:
    """A `lockbench run` of a fake, with a threshold on safety."""

    def __init__(self, done: Typed, folder: Path) -> None:
        assert done.returncode in (0, 4, 5), done.stderr
        self.code, self.word = done.returncode, done.stdout.partition("   ")[0]
        self.result: dict[str, Any] = json.loads((folder / "result" / "result.json").read_text("utf-8"))
        self.safety = self.result["safety"]

    @property
    def said(self) -> tuple[Any, ...]:
        safety, verdict = self.safety, self.result["verdict"]
        return (
            self.word,
            self.code,
            safety["verdict"],
            safety["tested_leases"],
            safety["violations"],
            verdict["reasons"],
        )


@pytest.fixture
def served(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes are installed."""
    for place in (FAKES, site):
        monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{FAKES}:{ROOT}")


@pytest.fixture
def run(lockbench: Callable[..., Typed], served: None, alone: Fleet, tmp_path: Path) -> Callable[..., Ended]:
    """`lockbench run` of a recipe."""
    load = ("--warmup", "0", "--users", "16", "--resources", "1", "--threshold", "safety.violations == 0")

    def once(recipe: str, *options: str) -> Ended:
        words = ("--recipe", recipe, "--target", alone.urls[0], *options, *load, "--out", "result")
        return Ended(lockbench("run", *words), tmp_path)

    return once


@pytest.mark.parametrize(
    ("recipe", "hold", "processes"),
    [
        pytest.param(*case, marks=() if case in OFTEN else pytest.mark.slow, id="-".join(map(str, case)))
        for case in CASES
    ],
)
def test_a_lock_that_does_not_lock_is_never_safe(
    run: Callable[..., Ended], recipe: str, hold: str, processes: int
) -> None:
    load = ("--duration", "300ms", "--hold", hold, "--processes", str(processes))
    ended = run(recipe, *load)
    assert ended.safety["verdict"] in ("VIOLATED", "NOT TESTED"), ended.said
    assert ended.code == (5 if ended.safety["verdict"] == "VIOLATED" else 4), ended.said
    assert ended.word != "SAFE"
    assert ended.word == ended.result["verdict"]["word"]
    assert ended.code == ended.result["verdict"]["exit_code"]
    if hold == "0":
        assert ended.safety["tested_leases"] == 0, ended.said


@pytest.mark.parametrize(
    ("recipe", "verdict"),
    [
        ("silent", "NOT TESTED"),
        pytest.param("never-releases", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("never-yes", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("yes-after-the-end", "VIOLATED", marks=pytest.mark.slow),
    ],
)
def test_a_lock_that_only_seems_to_work_is_never_safe(run: Callable[..., Ended], recipe: str, verdict: str) -> None:
    ended = run(recipe, "--duration", "400ms", "--hold", "1ms")
    assert ended.safety["verdict"] == verdict, ended.said
    assert ended.code == (5 if verdict == "VIOLATED" else 4), ended.said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_lock_that_never_yields_is_ended_with_a_sentence(
    lockbench: Callable[..., Typed], served: None, alone: Fleet, processes: str
) -> None:
    """`silent` asks nobody, so without a hold its caller would keep the process for itself, and the run, for ever."""
    words = ("--recipe", "silent", "--target", alone.urls[0], "--users", "4", "--processes", processes)
    began = time.monotonic()
    done = lockbench("run", *words, "--duration", "2s", "--out", "result")
    assert done.returncode in (3, 4), done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "the recipe silent has let no other caller run for 2 s; now it is in " in said
    assert time.monotonic() - began < 60  # on a busy machine; else 7


def test_the_same_lock_without_the_fault_is_safe_where_it_was_tested(run: Callable[..., Ended]) -> None:
    """Else the fakes would prove nothing: it is their fault that is found, not their make."""
    ended = run("honest", "--duration", "1s", "--hold", "1ms")
    assert ended.safety["violations"] == ended.safety["foreign_deletes"] == 0, ended.said
    assert ended.safety["tested_leases"] > 0, ended.said
    if ended.safety["tested_leases"] >= 100 and ended.result["generator"]["verdict"] == "VALID":
        assert (ended.word, ended.code) == ("SAFE", 0), ended.said
