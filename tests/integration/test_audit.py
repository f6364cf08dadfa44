"""`lockbench audit` on real processes: each planted fault is found by its schedule, and lockcore
holds."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.experiments.audit.experiment import AuditPlan, _Playing, asked, chosen
from bench.experiments.audit.installed import ours
from bench.experiments.audit.result import AuditConditions
from bench.experiments.judge.library import Library, LibraryDriver, LibraryWords
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import PATIENCE_S, CutError
from bench.experiments.judge.playing import Plays, judged
from bench.experiments.judge.result import JudgedRow
from bench.experiments.judge.row import RowFinding
from bench.experiments.judge.schedules import SCHEDULES
from bench.topology.server import find_server
from tests.conftest import Ended
from tests.integration.locust_runs import started, until

pytestmark = pytest.mark.integration
QUICK = (
    "exception-in-body",
    "extend-by-minority",
    "release-after-expiry",
    "paused-in-release",
    "script-flush",
    "one-killed",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found_and_its_absence_too(name: str) -> None:
    for fault, word in ((name, "does not"), ("none", "holds")):
        with Stage(ours(f"control: {fault}"), 3) as stage:
            cell = judged(stage, SCHEDULES[name], asked, Plays(), threading.Event())
            assert cell.verdict in (word, "not known"), cell


def test_whoever_kills_a_client_or_a_server_accuses_no_library() -> None:
    def kills_a_client(stage: Stage) -> RowFinding:
        client = stage.party()
        client.process.kill()
        return RowFinding("" if client.acquire().ok else "nobody gets the lock")

    def kills_a_server(stage: Stage) -> RowFinding:
        stage.fleet.kill(0)
        return RowFinding("something went wrong")

    with Stage(ours("control: none"), 3) as stage:
        for wicked in (kills_a_client, kills_a_server):
            row = replace(SCHEDULES["one-stopped"], play=wicked)
            cell = judged(stage, row, asked, Plays(), threading.Event())
            assert cell.verdict == "not known", cell


@pytest.mark.slow
def test_every_planted_fault_is_found_and_lockcore_holds(
    lockbench: Callable[..., Ended], tmp_path: Path
) -> None:
    done = lockbench(
        "audit",
        "--quick",
        "--library",
        "control",
        "--library",
        "lockcore",
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    words = ("audit", "--quick", "--library", "control", "--out", tmp_path / "out")
    with started(tmp_path, *words) as process:
        until(lambda: _children(process.pid) > 0, "a first server", 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    if (tmp_path / "out" / "result.json").exists():
        assert json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))["interrupted"]


def test_sigint_to_our_process_alone_ends_the_wait_for_clients_that_say_nothing(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    program = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    silent = LibraryDriver(
        Library("silent", "lockcore"), LibraryWords(), (sys.executable, "-c", program)
    )
    interrupted_s: list[float] = []

    def interrupt() -> None:
        until(begun.exists, "a client that says nothing", 30)
        interrupted_s.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    cells: list[JudgedRow] = []
    plan = AuditPlan((), chosen(["one-stopped", "forked"]), AuditConditions(repeats=1), seed=1)
    with pytest.raises(KeyboardInterrupt):
        _Playing(plan, find_server(), print).run([silent], cells)
    assert time.monotonic() - interrupted_s[0] < 5.0
    assert cells == [], "a schedule that was cut says nothing"


def test_a_wait_for_keys_ends_when_the_audit_is_cut() -> None:
    cut = threading.Event()
    with Stage(ours("control: none"), 1, cut=cut) as stage:
        assert stage.party().acquire().ok
        cut.set()
        begun_s = time.monotonic()
        with pytest.raises(CutError):
            stage.until_free()
        assert time.monotonic() - begun_s < PATIENCE_S / 2


def test_a_wrong_name_ends_before_the_work(lockbench: Callable[..., Ended]) -> None:
    done = lockbench("audit", "--schedule", "one-stoped")
    assert (done.returncode, done.stdout) == (2, "")
    assert "one-stopped" in done.stderr


def _children(pid: int) -> int:
    """Of all its threads."""
    texts = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sum(len(text.split()) for text in texts)
