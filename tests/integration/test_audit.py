"""`lockbench audit` on real processes: each planted fault is found by its schedule, and lockcore
holds."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from bench.experiments.audit.experiment import AuditPlan, _Playing, asked, chosen
from bench.experiments.audit.installed import ours
from bench.experiments.audit.result import AuditConditions
from bench.experiments.judge.library import Library, LibraryDriver, LibraryWords
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import LONG_MS, PATIENCE_S, RESOURCE, CutError, Said
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


def test_a_key_that_locks_nothing_keeps_nobody_waiting() -> None:
    with Stage(ours("control: none"), 1) as stage:
        server = Redis.from_url(stage.urls[0])
        for note in ("redisson_unlock_latch:{audit-r}:1", "lock-signal:audit-r"):
            server.set(note, 1)
        assert stage.keys() == [None]
        server.set("{audit-r}", 1)
        assert stage.keys() != [None]


def test_a_set_that_is_under_way_at_the_grant_is_no_extension_by_a_minority() -> None:
    """A lock may grant at a quorum. Its last SET arrives a moment later, here at server 2."""
    with Stage(ours("control: none"), 3) as stage:
        client = stage.party()
        server = Redis.from_url(stage.urls[1])
        grant = client.acquire
        forget = stage.forget
        under_way: list[threading.Timer] = []

        def grants_early(*_: object) -> Said:
            reply = grant()
            late_set = partial(server.restore, RESOURCE, LONG_MS, server.dump(RESOURCE) or b"")
            server.delete(RESOURCE)
            under_way.append(threading.Timer(0.2, late_set))
            under_way[0].start()
            return reply

        def forgets(which: Sequence[int]) -> None:
            forget(which)
            if under_way[0].is_alive():
                under_way[0].cancel()
                under_way[0].function()

        client.acquire = grants_early  # type: ignore[assignment,method-assign]
        stage.forget = forgets  # type: ignore[method-assign]
        stage.party = lambda: client  # type: ignore[method-assign]
        assert asked(stage, SCHEDULES["extend-by-minority"]).wrong == ""


def test_a_wrong_name_ends_before_the_work(lockbench: Callable[..., Ended]) -> None:
    done = lockbench("audit", "--schedule", "one-stoped")
    assert (done.returncode, done.stdout) == (2, "")
    assert "one-stopped" in done.stderr


def _children(pid: int) -> int:
    """Of all its threads."""
    texts = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sum(len(text.split()) for text in texts)
