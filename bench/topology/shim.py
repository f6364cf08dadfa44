"""This module controls the fault shim, a C library that is preloaded into a server: *settings in a
mapped file → the server's disk and wall clock*.

Rules: lockbench writes the library into each server's own folder and preloads it as `./…`. A
relative path is necessary, because a path in LD_PRELOAD cannot contain a space. `fault_shim.c`
defines the layout of the mapped file. The file contains 64-bit integers, and each integer is
written with a single store instruction. The mapped file still exists after the server has ended. So
a restarted server still has a wrong clock, and the ledger still contains the durable lengths of its
files. The file has eight slots for the settings of the clock, and the integer `turn` selects the
valid slot. So a server never reads a half-written setting of the clock. Source: ld.so(8); statx(2),
whose layout is fixed.
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
from functools import cache
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from lockcore.clock import NS_PER_S

SOURCE = Path(__file__).with_name("fault_shim.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11")
_COMPILE_S = 60.0
LIBRARY_FILE = "fault-shim.so"
CONTROL_FILE = "fault-shim.map"
IGNORED = "the server ignores LD_PRELOAD, because it is linked statically or setuid"


@cache
def shim_library() -> bytes:
    """Return the library of the shim. Each process compiles this library only once.

    Raises EnvironmentNotReadyError if the library cannot be made.
    """
    compiler = find_compiler()
    if compiler is None:
        raise EnvironmentNotReadyError(
            "the fault shim needs a C compiler, but none was found; install gcc and libc6-dev"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="lockbench-cc-") as folder:
            library = Path(folder) / LIBRARY_FILE
            done = subprocess.run(
                [compiler, *_FLAGS, "-o", str(library), str(SOURCE), "-ldl"],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMPILE_S,
                text=True,
                errors="replace",
            )
            if not done.returncode:
                return library.read_bytes()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentNotReadyError(
            f"{compiler} cannot compile the fault shim: {error}"
        ) from error
    complaint = done.stdout.strip().partition("\n")[0] or "it said nothing"
    raise EnvironmentNotReadyError(
        f"{compiler} cannot compile the fault shim: {complaint}; install the libc headers"
    )


def find_compiler() -> str | None:
    """Return the path of the C compiler for the shim, or None if there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


LAYOUT = 4
ENTRIES = 1024
CLOCKS = 8
_AT_FDCWD = -100
_FOLLOW = 0
# STATX_INO and STATX_BTIME
_WANTED = 0x100 | 0x800
_STATX_BYTES = 256
# The offsets of stx_ino and stx_btime (s64 seconds, u32 nanoseconds).
_STATX_INODE = 32
_STATX_BORN = 80


def _words(*names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    return [(name, ctypes.c_int64) for name in names]


class ClockWords(ctypes.Structure):
    """One setting of the wall clock. If the correct time is `t` (ns), the server reads the time t +
    offset_ns + (t - since_ns) * ppb / 10^9."""

    # With slots, assigning to a misspelt name is an error.
    __slots__ = ()
    _fields_ = _words("offset_ns", "since_ns", "ppb")


class FileWords(ctypes.Structure):
    """One file of the ledger.

    `in_flight`: the number of syncs that have begun but not returned. `written_ns`: the time when
    the last append ended, or 0 if the shim does not note appends. `synced_ns`: the time when the
    last sync ended. Both times are on CLOCK_MONOTONIC.
    """

    __slots__ = ()
    _fields_ = [
        *_words(
            "ready",
            "inode",
            "born_ns",
            "durable_bytes",
            "in_flight",
            "syncs",
            "failures",
            "truncations",
        ),
        *_words("written_ns", "synced_ns"),
    ]


class ControlWords(ctypes.Structure):
    """The memory that a server and Python share.

    `sync_delay_ns`: the extra time of every fsync and fdatasync. `sync_error`: if this is not 0,
    every sync fails with this errno, and nothing becomes durable. `note_writes`: if this is 1, the
    shim notes the time of every append, which costs two more system calls per append. `disk_full`:
    if this is 1, every append to a file fails.
    """

    __slots__ = ()
    _fields_ = [
        *_words(
            "layout", "loaded", "program", "sync_delay_ns", "sync_error", "turn", "used", "overflow"
        ),
        *_words("note_writes", "disk_full"),
        ("spare", ctypes.c_int64 * 30),
        ("clocks", ClockWords * CLOCKS),
        ("ledger", FileWords * ENTRIES),
    ]


def identity(path: Path) -> tuple[int, int]:
    """Return the inode and the birth time of a file. Two different files never have both values in
    common.

    The birth time is in ns. If the file system has no birth times, the birth time is 0.

    Raises OSError.
    """
    statx = ctypes.CDLL(None, use_errno=True).statx
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), _FOLLOW, _WANTED, answer):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    (inode,) = struct.unpack_from("=Q", answer, _STATX_INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BORN)
    return inode, seconds * NS_PER_S + nanoseconds


class Control:
    """The memory shared with one server's shim. Make the object before the server starts."""

    def __init__(self, path: Path) -> None:
        """Create the file `path`. At first, the clock is correct, the disk is healthy and the
        ledger is empty.

        Raises OSError if the file exists or the disk is full.
        """
        self.path = path
        self._lock = threading.Lock()
        size = ctypes.sizeof(ControlWords)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # All pages are allocated now. If the disk were full when a page is first used, the
            # kernel would kill the server.
            os.posix_fallocate(file, 0, size)
            self.words = ControlWords.from_buffer(mmap.mmap(file, size))
        finally:
            os.close(file)
        self.words.layout = LAYOUT

    def synced(self, path: Path) -> FileWords:
        """Return the ledger's entry for the file at `path`.

        If the file was never synced, all values are zero.

        Raises OSError if the file does not exist.
        """
        file_identity = identity(path)
        rows = [row for row in self.files() if (row.inode, row.born_ns) == file_identity]
        if not rows:
            return FileWords()
        return FileWords(
            durable_bytes=max(row.durable_bytes for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            written_ns=max(row.written_ns for row in rows),
            synced_ns=max(row.synced_ns for row in rows),
        )

    @property
    def syncs(self) -> int:
        """The number of fsync and fdatasync calls that have returned so far, summed over all
        files."""
        return sum(row.syncs for row in self.files())

    def files(self) -> list[FileWords]:
        """Return all entries of the ledger.

        If `words.overflow` is not 0, the server synced more files than the ledger can hold, so the
        result is incomplete.
        """
        return [row for row in self.words.ledger[: self.words.used] if row.ready]

    def shift_clock(self, by_ns: int) -> None:
        """Make the server's wall clock jump by `by_ns`. A negative `by_ns` is a jump back."""
        with self._lock:
            clock = self._clock()
            self._set_clock(clock.offset_ns + by_ns, clock.since_ns, clock.ppb)

    def set_clock_rate(self, rate: float) -> None:
        """Make the server's wall clock run faster or slower, without a jump. The clock runs at the
        correct speed times `rate`, which is from 0.1 to 10."""
        with self._lock:
            now_ns = time.time_ns()
            self._set_clock(self.ahead_ns(now_ns), now_ns, round((rate - 1) * NS_PER_S))

    def ahead_ns(self, now_ns: int) -> int:
        """Return the difference (ns) between the server's wall clock and the correct wall clock.
        `now_ns` is the time on the correct wall clock. The result is positive if the server's clock
        is ahead."""
        clock = self._clock()
        return int(clock.offset_ns + (now_ns - clock.since_ns) * clock.ppb // NS_PER_S)

    def _clock(self) -> ClockWords:
        clock: ClockWords = self.words.clocks[self.words.turn % CLOCKS]
        return clock

    def _set_clock(self, *setting: int) -> None:
        turn = self.words.turn + 1
        self.words.clocks[turn % CLOCKS] = setting
        self.words.turn = turn

    def loaded_in(self, process_id: int) -> bool:
        """Return whether the current program of process `process_id` has loaded the shim."""
        try:
            program = Path(f"/proc/{process_id}/exe").stat().st_ino
        except OSError:
            return False
        return (self.words.loaded, self.words.program) == (process_id, program)


class Preload:
    """The shims of a fleet. Pass `environment` to `start_fleet`.

    After the start of instance `index`, its shim is `controls[index]`.
    """

    def __init__(self) -> None:
        """Compile the library. Raises EnvironmentNotReadyError if the library cannot be
        compiled."""
        self._library = shim_library()
        self.controls: dict[int, Control] = {}

    def environment(self, index: int, folder: Path) -> Mapping[str, str]:
        """Return the environment of instance `index` in `folder`.

        The fleet calls this method at every start of the instance, and also at a start after a
        kill.
        """
        if index not in self.controls:
            (folder / LIBRARY_FILE).write_bytes(self._library)
            self.controls[index] = Control(folder / CONTROL_FILE)
        before = os.environ.get("LD_PRELOAD")
        preload = f"./{LIBRARY_FILE}" + (f":{before}" if before else "")
        return {"LD_PRELOAD": preload, "LOCKBENCH_SHIM": f"./{CONTROL_FILE}"}
