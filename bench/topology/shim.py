"""The fault shim: *a C library preloaded into a server, one mapped file → its disk and its wall clock, as Python says*.

Rules: the library is written into each server's own folder, to be preloaded as `./…`: LD_PRELOAD cannot hold a path
with a space. The mapped file is laid out as `fault_shim.c` says, 64-bit integers, each stored whole; it outlives the
server: after a restart the clock is still wrong and the ledger still knows what was durable. The clock has eight slots
and a turn that names the valid one, so a server never reads half a setting. Source: ld.so(8); statx(2), whose layout
is fixed.
"""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from lockcore.clock import NS_PER_S

SOURCE = Path(__file__).with_name("fault_shim.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11")
_COMPILE_S = 60.0
LIBRARY_FILE, CONTROL_FILE = "fault-shim.so", "fault-shim.map"
IGNORED = "the server ignores LD_PRELOAD (it is linked statically, or setuid)"


@cache
def shim_library() -> bytes:
    """Return the shim's library, compiled once per process. Raises EnvironmentNotReadyError when it cannot be made."""
    compiler = find_compiler()
    if compiler is None:
        raise EnvironmentNotReadyError(
            "the fault shim needs a C compiler, and there is none: install gcc and libc6-dev"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="lockbench-cc-") as folder:
            library = Path(folder) / LIBRARY_FILE
            done = subprocess.run(
                [compiler, *_FLAGS, "-o", str(library), str(SOURCE), "-ldl"], check=False, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_COMPILE_S, text=True, errors="replace",
            )  # fmt: skip
            if not done.returncode:
                return library.read_bytes()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentNotReadyError(f"{compiler} cannot compile the fault shim: {error}") from error
    said = done.stdout.strip().partition("\n")[0] or "it said nothing"
    raise EnvironmentNotReadyError(f"{compiler} cannot compile the fault shim: {said}; install libc headers")


def find_compiler() -> str | None:
    """The C compiler that makes the shim."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


LAYOUT, ENTRIES = 4, 1024
_CLOCKS, _CLOCK_WORDS, _ENTRY_WORDS = 8, 3, 10
_LAYOUT, _LOADED, _PROGRAM, _SYNC_DELAY, _SYNC_ERROR, _TURN, _USED, _OVERFLOW, _NOTE_WRITES, _FULL = range(10)
_CLOCK, _LEDGER = 40, 64
_READY, _INODE, _BORN, _DURABLE, _IN_FLIGHT, _SYNCS, _FAILURES, _TRUNCATIONS, _WRITTEN, _SYNCED = range(10)
_BYTES = (_LEDGER + _ENTRY_WORDS * ENTRIES) * 8
_AT_FDCWD, _FOLLOW = -100, 0
_WANTED = 0x100 | 0x800  # STATX_INO, STATX_BTIME
_STATX_BYTES = 256
_STATX_INODE, _STATX_BORN = 32, 80  # offsets of stx_ino, stx_btime (s64 seconds, u32 nanoseconds)


def identity(path: Path) -> tuple[int, int]:
    """Inode and birth time (ns, 0 where there is none): no other file ever has both. Raises OSError."""
    statx = ctypes.CDLL(None, use_errno=True).statx
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), _FOLLOW, _WANTED, answer):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    (inode,) = struct.unpack_from("=Q", answer, _STATX_INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BORN)
    return inode, seconds * NS_PER_S + nanoseconds


@dataclass(frozen=True, slots=True)
class SyncedFile:
    """What the ledger knows of one file. `in_flight`: syncs that had begun and not returned; `written_ns`,
    `synced_ns`: when the last append (0 unless noted) and the last sync ended, CLOCK_MONOTONIC."""

    durable_bytes: int = 0
    in_flight: int = 0
    written_ns: int = 0
    synced_ns: int = 0


class Control:
    """The shared words of one server's shim. Make it before the server starts, `close` it after its end."""

    def __init__(self, path: Path) -> None:
        """Make the file `path`, all true and empty. Raises OSError when it exists or the disk is full."""
        self.path = path
        self._lock = threading.Lock()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, _BYTES)  # a page that a full disk cannot give would kill the server
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)
        self._words = memoryview(self._map).cast("q")
        self._words[_LAYOUT] = LAYOUT

    def close(self) -> None:
        """Let go of the mapping; more than once is fine."""
        self._words.release()
        self._map.close()

    # -- the disk -----------------------------------------------------------------------------------------------------

    def set_sync_delay(self, delay_ns: int) -> None:
        """Every fsync and fdatasync takes `delay_ns` (>= 0) longer, in whichever thread it is called."""
        self._words[_SYNC_DELAY] = delay_ns

    def set_sync_error(self, error: int) -> None:
        """Every fsync and fdatasync fails with this errno and makes nothing durable; 0 = no longer."""
        self._words[_SYNC_ERROR] = error

    def set_full(self, full: int) -> None:
        """1: every append to a file fails, as on a disk without one free page; 0: there is room."""
        self._words[_FULL] = full

    def note_writes(self) -> None:
        """Note the time of every append to a file from now on: two system calls more per append."""
        self._words[_NOTE_WRITES] = 1

    def synced(self, path: Path) -> SyncedFile:
        """What is known of the file at `path`; all zero when it was never synced. Raises OSError when there is none."""
        known = identity(path)
        rows = [row for row in self._rows() if (row[_INODE], row[_BORN]) == known]
        if not rows:
            return SyncedFile()
        return SyncedFile(
            max(row[_DURABLE] for row in rows),
            sum(row[_IN_FLIGHT] for row in rows),
            max(row[_WRITTEN] for row in rows),
            max(row[_SYNCED] for row in rows),
        )

    @property
    def syncs(self) -> int:
        """How many fsyncs and fdatasyncs have returned so far, of all files."""
        return sum(row[_SYNCS] for row in self._rows())

    @property
    def overflow(self) -> bool:
        """Whether more files were synced than the ledger holds: what is durable is no longer known then."""
        return self._words[_OVERFLOW] > 0

    def _rows(self) -> list[list[int]]:
        used = min(self._words[_USED], ENTRIES)
        starts = range(_LEDGER, _LEDGER + used * _ENTRY_WORDS, _ENTRY_WORDS)
        rows = [self._words[start : start + _ENTRY_WORDS].tolist() for start in starts]
        return [row for row in rows if row[_READY]]

    # -- the wall clock -----------------------------------------------------------------------------------------------

    def shift_clock(self, by_ns: int) -> None:
        """Let the server's wall clock jump by `by_ns`, forward or (< 0) back."""
        with self._lock:
            offset, since, ppb = self._clock()
            self._set_clock(offset + by_ns, since, ppb)

    def set_clock_rate(self, rate: float) -> None:
        """Let the server's wall clock run at `rate` (0.1-10) times true speed from now on, without a jump."""
        with self._lock:
            offset, since, ppb = self._clock()
            now = time.time_ns()
            self._set_clock(offset + (now - since) * ppb // NS_PER_S, now, round((rate - 1) * NS_PER_S))

    def clock_offset_ns(self) -> int:
        """How far the server's wall clock is ahead now."""
        offset, since, ppb = self._clock()
        return offset + (time.time_ns() - since) * ppb // NS_PER_S

    def _clock(self) -> tuple[int, int, int]:
        at = _CLOCK + self._words[_TURN] % _CLOCKS * _CLOCK_WORDS
        offset, since, ppb = self._words[at : at + _CLOCK_WORDS].tolist()
        return offset, since, ppb

    def _set_clock(self, *setting: int) -> None:
        turn = self._words[_TURN] + 1
        at = _CLOCK + turn % _CLOCKS * _CLOCK_WORDS
        for word, value in enumerate(setting):
            self._words[at + word] = value
        self._words[_TURN] = turn

    # -- is it there at all? ------------------------------------------------------------------------------------------

    def loaded_in(self, process_id: int) -> bool:
        """Whether the program that process `process_id` runs now has the shim in it."""
        try:
            program = Path(f"/proc/{process_id}/exe").stat().st_ino
        except OSError:
            return False
        return self._words[_LOADED] == process_id and self._words[_PROGRAM] == program


class Preload:
    """Hands `environment` to `start_fleet`; afterwards `controls[index]` is instance `index`'s shim."""

    def __init__(self) -> None:
        """Have the library ready. Raises EnvironmentNotReadyError when it cannot be compiled."""
        self._library = shim_library()
        self.controls: dict[int, Control] = {}

    def environment(self, index: int, folder: Path) -> Mapping[str, str]:
        """What instance `index` in `folder` gets; called at every start of it, also after a kill."""
        if index not in self.controls:
            (folder / LIBRARY_FILE).write_bytes(self._library)
            self.controls[index] = Control(folder / CONTROL_FILE)
        before = os.environ.get("LD_PRELOAD")
        preload = f"./{LIBRARY_FILE}" + (f":{before}" if before else "")
        return {"LD_PRELOAD": preload, "LOCKBENCH_SHIM": f"./{CONTROL_FILE}"}

    def close(self) -> None:
        """Let go of all mappings; the servers must have ended, or go on as they were set."""
        for control in self.controls.values():
            control.close()
        self.controls.clear()
