"""What a machine does: processes die or stand still, a disk is slow, broken, full or loses its power, a clock is wrong.

Rules
- A killed instance stays dead until the fault ends, so that leaks can be counted; a killed worker stays dead. A
  stopped worker hangs on a leash: it goes on even if lockbench is killed, while stopped instances have their guard
  for that.
- Latency and errors strike every fsync of the server and its children, through the shim.
- Everything behind what the last successful fsync *began* with is lost in a power cut, as in the worst case. File
  names are taken as durable: Redis syncs the folder of its manifest.
- A jump of the clock is undone by a jump back; a rate without a jump, so what it gained stays gained.

Source: signal(7); fdatasync(2); Redis 7.0's aof.c, bio.c and mstime; the ledger in fault_shim.c.
"""

import contextlib
import errno
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.scenario.keys import FLAG, KeyKind, choice, duration
from bench.scenario.quantity import parse_duration
from bench.topology.child import Leash
from bench.topology.faults.injection import Delayed, Injection, Moment, Need, Param
from bench.topology.fleet import Instance, wait_until
from bench.topology.shim import CONTROL_FILE, LIBRARY_FILE, Control
from lockcore.clock import NS_PER_MS

_DAY_MS = 86_400_000.0
_STOP = 'kill -STOP "$1" && echo stopped; read -r _; kill -CONT "$1"'
_STAND_STILL_S = 2.0
_ENDED = "ZX"
RESTART_PARAMS = (Param("delay", duration(0, _DAY_MS), "0", "how long it stays dead"),)


class KillInstance(Injection):
    """`kill -9`; started again when the fault ends."""

    def begin(self) -> None:
        """Kill it and wait until it is dead."""
        self._end_it()

    def _end_it(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.undo.callback(self.site.restart, self.index)
        self.site.kill(self.index, number)


class StopInstance(Injection):
    """SIGSTOP, then SIGCONT: connections stay open, what was sent meanwhile runs late."""

    def begin(self) -> None:
        """Freeze it."""
        self.undo.callback(self.site.fleet.cont, self.index)
        self.site.fleet.stop(self.index)


class RestartInstance(KillInstance, Delayed):
    """Ended and started again, at once or after `delay`."""

    params = (
        *RESTART_PARAMS,
        Param("how", choice("kill", "shutdown"), "kill", "kill -9, or SIGTERM: a clean end"),
    )

    def begin(self) -> None:
        """End it."""
        self._end_it(signal.SIGKILL if self.order.params["how"] == "kill" else signal.SIGTERM)


class _WorkerFault(Injection):
    """A fault of a load worker, which is a process of the run itself."""

    def why_not(self) -> str | None:
        """Nothing is in the way; whether the worker runs is seen when the fault begins."""
        return None

    def running(self) -> int:
        """The worker's process, which goes into the record. Raises EnvironmentNotReadyError when it does not run."""
        pid = self.site.worker_pid(self.index)
        if _state(pid) in _ENDED:  # one that nobody has waited for yet still takes signals
            raise EnvironmentNotReadyError(f"worker {self.index} had ended before")
        self.detail["pid"] = pid
        return pid


class KillWorker(_WorkerFault, Moment):
    """`kill -9` of a load process, which is not started again."""

    def begin(self) -> None:
        """Kill it and wait until it is dead."""
        with self.site.lock(-1 - self.index):
            pid = self.running()
            os.kill(pid, signal.SIGKILL)
            _until(pid, _ENDED, f"worker {self.index} did not die")


class StopWorker(_WorkerFault):
    """SIGSTOP of a load process, then SIGCONT: its callers oversleep their leases."""

    def begin(self) -> None:
        """Freeze it and wait until it stands still."""
        pid = self.running()
        self.undo.callback(Leash(["sh", "-c", _STOP, "sh", str(pid)], ready="stopped").release)
        _until(pid, "Tt", f"worker {self.index} did not stop")


def _until(pid: int, states: str, complaint: str) -> None:
    wait_until(lambda: _state(pid) in states, _STAND_STILL_S, complaint)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


NOTHING_IS_SYNCED = {
    "none": "the servers have no append-only file (fsync = none), so nothing is synced",
    "no": "fsync = no leaves syncing to the kernel, so the servers never wait for it",
}


class _SyncFault(Injection):
    """A fault of fsync."""

    needs = frozenset({Need.SHIM})

    def why_not(self) -> str | None:
        """It needs a server that syncs."""
        if wrong := NOTHING_IS_SYNCED.get(self.site.fleet.fsync):
            raise UsageError(wrong)
        return super().why_not()

    def _revive(self) -> None:
        """Start the instance again if the fault has ended it."""
        with self.site.lock(self.index):
            exit_code = self.site.fleet.exit_codes()[self.index]
            if exit_code is not None:
                self.detail["ended_with"] = exit_code
                self.site.restart(self.index)


class FsyncLatency(_SyncFault):
    """Every fsync takes `delay` longer, as on a real volume."""

    params = (Param("delay", duration(0.001, 60_000), "2ms", "how much longer each takes"),)

    def begin(self) -> None:
        """Be slow."""
        control = self.site.control(self.index)
        self.undo.callback(control.set_sync_delay, 0)
        control.set_sync_delay(round(self.order.params["delay"] * NS_PER_MS))


class FsyncError(_SyncFault):
    """Every fsync fails: under everysec writes are refused (-MISCONF), under always the server ends."""

    params = (Param("error", choice("EIO", "ENOSPC", "EDQUOT"), "EIO", "what fsync says"),)

    def begin(self) -> None:
        """Fail; in the end it is started again: it has ended of it, or refuses writes until something is synced."""
        control = self.site.control(self.index)
        self.undo.callback(self.site.restart, self.index)
        self.undo.callback(control.set_sync_error, 0)
        control.set_sync_error(getattr(errno, self.order.params["error"]))


class DiskFull(_SyncFault):
    """Not one free page: under everysec writes are refused (-MISCONF), under always the server ends."""

    def why_not(self) -> str | None:
        """It needs a server that writes."""
        if self.site.fleet.fsync == "none":
            raise UsageError(NOTHING_IS_SYNCED["none"])
        return Injection.why_not(self)

    def begin(self) -> None:
        """Be full, and return when the server has noticed by an append of our own."""
        control = self.site.control(self.index)
        self.undo.callback(self._revive)
        self.undo.callback(control.set_full, 0)
        control.set_full(1)
        with contextlib.suppress(BenchError):  # its own refusal, or its end
            self.site.command(self.index, "SET", "lockbench-disk-full", "x", "PX", 1)
        if self.site.fleet.fsync == "always":
            self.site.until_dead(self.index)
        else:
            self.site.until(self.index, lambda info: info["aof_last_write_status"] != "ok", "notice the full disk")


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of one file; `in_flight`: syncs that were running when the server died: with one, even `kill -9` may
    lose writes (everysec postpones them)."""

    name: str
    size_bytes: int
    durable_bytes: int
    kept_bytes: int
    in_flight: int


def cut_power(instance: Instance, control: Control, torn: random.Random | None = None) -> tuple[Cut, ...]:
    """Cut every file of a *dead* instance to what was durable; `torn` draws how much of the rest stays. Raises
    EnvironmentNotReadyError when the ledger does not know all files, OSError when one cannot be cut."""
    if control.overflow:
        raise EnvironmentNotReadyError(f"instance {instance.index} synced more files than the shim's ledger holds")
    return tuple(_cut(path, instance.folder, control, torn) for path in _files(instance))


def _cut(path: Path, folder: Path, control: Control, torn: random.Random | None) -> Cut:
    known, size = control.synced(path), path.stat().st_size
    durable = kept = min(known.durable_bytes, size)
    if torn is not None:
        kept = torn.randint(durable, size)
    if kept < size:
        os.truncate(path, kept)
    return Cut(str(path.relative_to(folder)), size, durable, kept, known.in_flight)


def _files(instance: Instance) -> Iterator[Path]:
    ours = {instance.log_path.name, CONTROL_FILE, LIBRARY_FILE}
    for path in sorted(instance.folder.rglob("*")):
        if path.is_file() and not (path.parent == instance.folder and path.name in ours):
            yield path


class PowerCut(RestartInstance):
    """`kill -9` and the loss of what was not synced; started again after `delay`."""

    params = (
        *RESTART_PARAMS,
        Param("torn", FLAG, False, "keep a random part of the tail that was not synced"),
    )

    needs = frozenset({Need.SHIM})

    def begin(self) -> None:
        """Cut."""
        self.undo.callback(self.site.restart, self.index)
        torn = random.Random(self.order.seed) if self.order.params["torn"] else None
        with self.site.lock(self.index):
            self.site.kill(self.index)
            cuts = cut_power(self.site.fleet.instances[self.index], self.site.control(self.index), torn)
        self.detail["lost_bytes"] = sum(cut.size_bytes - cut.kept_bytes for cut in cuts)
        self.detail["files"] = [asdict(cut) for cut in cuts]


_DAY_MS = 86_400_000.0
_SLOWEST, _FASTEST = 0.1, 10


def _jump_ms(raw: object) -> float:
    """A time with a direction such as "5s" or "-5s", not zero."""
    text = raw.strip() if isinstance(raw, str) else ""
    ms = parse_duration(text.lstrip("+-") or raw)
    if not 0 < ms <= _DAY_MS:
        raise ValueError(f"{raw!r} is not a time up to 24h, forward or back (5s or -5s)")
    return -ms if text.startswith("-") else ms


def _rate(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not _SLOWEST <= raw <= _FASTEST:
        raise ValueError(f"{raw!r} is not a number from {_SLOWEST:g} to {_FASTEST:g}")
    return float(raw)


class ClockJump(Injection):
    """The clock jumps `by` a time: forward, keys vanish early; back, they block longer."""

    needs = frozenset({Need.SHIM})
    params = (Param("by", KeyKind("", _jump_ms), None, "how far, such as 5s or -5s"),)

    def begin(self) -> None:
        """Jump."""
        self.undo.callback(self._jump, -1)
        self._jump(1)

    def _jump(self, sign: int) -> None:
        self.site.control(self.index).shift_clock(sign * int(self.order.params["by"] * NS_PER_MS))
        with contextlib.suppress(BenchError):  # one turn, as it looks at its clock once per turn; if it runs at all
            self.site.command(self.index, "TIME")


class ClockRate(Injection):
    """The clock runs at `rate` times true speed."""

    needs = frozenset({Need.SHIM})
    params = (Param("rate", KeyKind("", _rate), None, "1.1 = ten percent fast"),)

    def begin(self) -> None:
        """Run wrong."""
        self.undo.callback(self._run_true)
        self.site.control(self.index).set_clock_rate(self.order.params["rate"])

    def _run_true(self) -> None:
        control = self.site.control(self.index)
        control.set_clock_rate(1.0)
        self.detail["ahead_ms"] = control.clock_offset_ns() / NS_PER_MS
