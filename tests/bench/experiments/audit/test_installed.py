"""Libraries are installed each in an environment of its own, and what cannot be had is named."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from bench.experiments.audit import installed
from bench.experiments.audit.clients.driver import LIBRARIES
from bench.experiments.audit.installed import install
from bench.experiments.audit.libraries import HERE, LibraryEntry, read_libraries
from bench.experiments.audit.result import MissingLibrary
from bench.experiments.judge.clients.lock import PUSH
from bench.experiments.judge.library import Library, LibraryDriver, LibraryWords

ROOT = Path(__file__).parents[4]


def test_what_cannot_be_installed_is_a_reason_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        LibraryEntry(library, LibraryWords(), tmp_path)
        for library in (
            Library("nowhere", "node", "nowhere", ("nothing 1",)),
            Library("lockcore threads", "lockcore"),
        )
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    absent, there = install(entries, tmp_path / "cache", lambda _text: None)
    assert absent == MissingLibrary(name="nowhere", reason="node is not installed")
    assert isinstance(there, LibraryDriver)


def test_an_installation_that_is_cut_ends_with_all_that_it_started(tmp_path: Path) -> None:
    cut = threading.Event()
    child = tmp_path / "child"
    script = f"sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait"
    ended: list[str] = []
    call = installed._call
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


def test_an_installation_that_is_cut_leaves_no_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    cut = threading.Event()
    threading.Timer(0.5, cut.set).start()
    script = f"mktemp -d; touch {tmp_path}/made; sleep 60"
    reason = installed._call(["sh", "-c", script], tmp_path, cut)
    assert reason == "sh was cut short"
    assert (tmp_path / "made").exists()
    assert list(temporary.iterdir()) == []


def test_a_cut_installation_does_not_wait_for_a_daemon_in_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    daemon = tmp_path / "daemon"
    child = f"echo $$ > {daemon}.new; mv {daemon}.new {daemon}; exec sleep 12"
    command = ["sh", "-c", f"setsid sh -c '{child}' & sleep 12"]
    cut = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(installed._call, command, tmp_path, cut)
        while not daemon.exists() and not call.done():
            time.sleep(0.01)
        cut.set()
        pid = int(daemon.read_text("ascii"))
        try:
            assert call.result(timeout=8) == "sh was cut short"
            # The daemon still has the pipe.
            assert _runs(pid)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
    assert installed._call(["sh", "-c", script], tmp_path, threading.Event()) == reason


def test_every_python_library_has_a_driver() -> None:
    names = {entry.library.name.removesuffix(PUSH) for entry in read_libraries()}
    assert names == set(LIBRARIES) - {"control"}


def test_the_path_of_a_librarys_environment_holds_bench_and_no_package_of_ours(
    tmp_path: Path,
) -> None:
    """An installed bench has redis-py beside it, which would stand in for the audited version."""
    for _ in range(2):
        driver = installed._driver(
            LibraryEntry(Library("x", "python", "x"), LibraryWords(), HERE), tmp_path
        )
    path = Path(driver.environment["PYTHONPATH"])
    assert [entry.name for entry in path.iterdir()] == ["bench"]
    code = f"import {installed.DRIVER}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=driver.environment, check=True)


def test_a_driver_needs_nothing_but_the_standard_library() -> None:
    code = (
        f"import sys; before = set(sys.modules); import {installed.DRIVER}; "
        "print(*set(sys.modules) - before)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"bench"}
