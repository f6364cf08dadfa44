"""The shim's hooks, each with the case in which it must do nothing, in a process of our own:
nothing else goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.topology.fleet import wait_until
from bench.topology.shim import ENTRIES, Control, shim_library


class Preloaded:
    """Runs Python code with the shim in it; `control` is the other end."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.control = Control(folder / "control.map")
        self.folder = folder
        shim = {"LD_PRELOAD": str(library), "LOCKBENCH_SHIM": str(self.control.path)}
        self._environment = {**os.environ, **shim}

    def start(self, code: str) -> "subprocess.Popen[str]":
        """Run `code` in the folder, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import os, time\n{code}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> str:
        """Run `code` to its end; what it printed."""
        with self.start(code) as process:
            said, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return said.strip()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "fault-shim.so"
    path.write_bytes(shim_library())
    return path


@pytest.fixture
def preloaded(tmp_path: Path, library: Path) -> Preloaded:
    return Preloaded(tmp_path, library)


APPEND = """
file = os.open("aof", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""


def until_in_flight(control: Control, path: Path) -> None:
    wait_until(
        lambda: path.exists() and control.synced(path).in_flight > 0, 30, "no sync is in flight"
    )


def test_only_what_was_there_before_a_sync_is_durable_after_it(preloaded) -> None:
    preloaded.run(APPEND + 'os.write(file, b"x" * 100); os.fsync(file); os.write(file, b"y" * 50)')
    synced = preloaded.control.synced(preloaded.folder / "aof")
    assert (synced.durable_bytes, preloaded.control.syncs, synced.in_flight) == (100, 1, 0)


def test_fdatasync_counts_like_fsync_and_writing_alone_makes_nothing_durable(preloaded) -> None:
    preloaded.run(APPEND + 'os.write(file, b"x" * 100)')
    assert preloaded.control.synced(preloaded.folder / "aof").durable_bytes == 0
    preloaded.run(APPEND + 'os.write(file, b"x"); os.fdatasync(file)')
    assert preloaded.control.synced(preloaded.folder / "aof").durable_bytes == 101


def test_what_is_written_while_a_sync_runs_is_not_durable_by_it(preloaded) -> None:
    """The delay comes between looking at the size and the sync, so the sync may really have saved
    more."""
    preloaded.control.words.sync_delay_ns = 1_000_000_000
    code = """
import threading
os.write(file, b"x" * 100)
syncing = threading.Thread(target=os.fsync, args=(file,)); syncing.start()
input()
os.write(file, b"y" * 50)
print(syncing.is_alive())
syncing.join()
"""
    with preloaded.start(APPEND + code) as process:
        until_in_flight(preloaded.control, preloaded.folder / "aof")
        assert preloaded.control.synced(preloaded.folder / "aof").durable_bytes == 0
        assert process.communicate("\n")[0].strip() == "True"
    assert (preloaded.folder / "aof").stat().st_size == 150
    assert preloaded.control.synced(preloaded.folder / "aof").durable_bytes == 100


def test_the_times_of_appends_are_noted_when_asked_and_tell_what_came_last(preloaded) -> None:
    path = preloaded.folder / "aof"
    code = APPEND + 'os.write(file, b"x"); os.fsync(file)'
    preloaded.run(code)
    assert preloaded.control.synced(path).written_ns == 0
    before_ns = time.monotonic_ns()
    preloaded.control.words.note_writes = 1
    preloaded.run(code)
    synced = preloaded.control.synced(path)
    assert before_ns < synced.written_ns < synced.synced_ns < time.monotonic_ns()
    preloaded.run(APPEND + 'os.write(file, b"y")')
    synced = preloaded.control.synced(path)
    assert synced.written_ns > synced.synced_ns


def test_a_full_disk_refuses_what_is_appended_to_files_and_nothing_else(preloaded) -> None:
    preloaded.control.words.disk_full = 1
    code = """
try:
    os.write(file, b"x" * 100)
except OSError as error:
    print(error.errno)
ends = os.pipe()
print(os.write(ends[1], b"y"))
"""
    assert preloaded.run(APPEND + code) == "28\n1"
    assert (preloaded.folder / "aof").stat().st_size == 0
    preloaded.control.words.disk_full = 0
    assert preloaded.run(APPEND + 'print(os.write(file, b"x"))') == "1"


def test_a_failing_sync_says_so_and_makes_nothing_durable(preloaded) -> None:
    preloaded.control.words.sync_error = 28
    code = """
os.write(file, b"x" * 100)
try:
    os.fsync(file)
except OSError as error:
    print(error.errno)
"""
    assert preloaded.run(APPEND + code) == "28"
    synced = preloaded.control.synced(preloaded.folder / "aof")
    assert (synced.durable_bytes, preloaded.control.syncs) == (0, 0)
    preloaded.control.words.sync_error = 0
    assert preloaded.run(APPEND + "print(os.fsync(file))") == "None"


@pytest.mark.parametrize("shorten", ["os.ftruncate(file, 30)", "os.truncate('aof', 30)"])
def test_a_truncation_lowers_what_is_durable(preloaded, shorten: str) -> None:
    """Else a file that grew again would seem to be synced."""
    grown = f'os.write(file, b"x" * 100); os.fsync(file); {shorten}; os.write(file, b"y" * 70)'
    preloaded.run(APPEND + grown)
    assert (preloaded.folder / "aof").stat().st_size == 100
    assert preloaded.control.synced(preloaded.folder / "aof").durable_bytes == 30


def test_a_process_killed_in_its_sync_leaves_it_in_flight_until_the_next_one_starts(
    preloaded,
) -> None:
    path = preloaded.folder / "aof"
    preloaded.control.words.sync_delay_ns = 60_000_000_000
    with preloaded.start(APPEND + 'os.write(file, b"x"); os.fsync(file)') as process:
        until_in_flight(preloaded.control, path)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert preloaded.control.synced(path).in_flight == 1
    assert preloaded.control.synced(path).durable_bytes == 0
    preloaded.run("")
    assert preloaded.control.synced(path).in_flight == 0


def test_more_files_than_the_ledger_holds_is_noticed(preloaded) -> None:
    code = """
for number in range({}):
    file = os.open(f"f{{number}}", os.O_WRONLY | os.O_CREAT)
    os.fsync(file)
    os.close(file)
"""
    preloaded.run(code.format(ENTRIES))
    assert (len(preloaded.control.files()), preloaded.control.words.overflow) == (ENTRIES, 0)
    preloaded.run(APPEND + "os.fsync(file)")
    assert preloaded.control.words.overflow


CLOCKS = """
before = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME), time.time_ns()
print("ready", flush=True)
input()
after = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME), time.time_ns()
print(*(b - a for a, b in zip(before, after)))
"""


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(preloaded, by_s: int) -> None:
    with preloaded.start(CLOCKS) as process:
        assert process.stdout.readline() == "ready\n"
        preloaded.control.shift_clock(by_s * 1_000_000_000)
        steady, *wall = map(int, process.communicate("\n")[0].split())
    assert 0 < steady < 60e9
    assert all(abs(passed - steady - by_s * 1e9) < 1e9 for passed in wall)
    preloaded.control.shift_clock(-by_s * 1_000_000_000)
    assert abs(int(preloaded.run("print(time.time_ns())")) - time.time_ns()) < 60e9


def test_the_wall_clock_runs_at_another_rate_without_a_jump(preloaded) -> None:
    preloaded.control.set_clock_rate(2.0)
    code = """
began = time.monotonic_ns(), time.time_ns()
while time.monotonic_ns() - began[0] < 100_000_000: pass
print((time.time_ns() - began[1]) / (time.monotonic_ns() - began[0]))
"""
    assert float(preloaded.run(code)) == pytest.approx(2.0, abs=0.1)
    preloaded.control.set_clock_rate(1.0)
    ahead_ns = preloaded.control.ahead_ns(time.time_ns())
    assert ahead_ns > 100_000_000
    assert float(preloaded.run(code)) == pytest.approx(1.0, abs=0.1)
    assert preloaded.control.ahead_ns(time.time_ns()) == ahead_ns


@pytest.mark.parametrize("takes_it", [True, False])
def test_who_has_the_shim_is_known_by_process_and_program(preloaded, takes_it: bool) -> None:
    """A process that becomes another program has the shim only if that program took it, too."""
    forget = "" if takes_it else "os.environ.pop('LD_PRELOAD')"
    become = (
        "print(os.getpid(), flush=True); input(); os.execv('/bin/sh', ['sh', '-c', 'echo on; "
        "read x'])"
    )
    with preloaded.start(f"{forget}\n{become}") as it:
        pid = int(it.stdout.readline())
        assert preloaded.control.loaded_in(pid)
        assert not preloaded.control.loaded_in(os.getpid())
        it.stdin.write("\n")
        it.stdin.flush()
        assert it.stdout.readline() == "on\n"
        assert preloaded.control.loaded_in(pid) is takes_it
        it.communicate("\n")
    assert not preloaded.control.loaded_in(pid)


def test_without_its_file_the_shim_changes_nothing(preloaded, library: Path) -> None:
    preloaded._environment.pop("LOCKBENCH_SHIM")
    preloaded.control.words.sync_error = 5
    preloaded.control.shift_clock(3_600_000_000_000)
    assert (
        abs(float(preloaded.run(APPEND + "os.fsync(file); print(time.time())")) - time.time()) < 60
    )
    assert preloaded.control.files() == []
