"""This module injects the faults of a machine. A process can die or stop. A disk can be slow,
broken or full, or it can lose power. A clock can be wrong.

Rules: a killed instance stays dead until the fault ends, so that lockbench can count the leaked
keys. A killed worker stays dead. Each stopped worker has a leash (leash.py), so the worker
continues even if lockbench is killed. If lockbench is killed, the guard kills stopped instances.

A power cut loses all data that was written after the last successful fsync *began*. A real power
cut may lose less data. lockbench assumes that file names survive a power cut, because Redis syncs
the folder of its manifest. If a clock jumped, it jumps back when the fault ends. If a clock ran at
a wrong rate, it runs at the right rate again when the fault ends. However, the clock keeps the time
that it gained or lost.

Source: signal(7); fdatasync(2); Redis 7.0's aof.c, bio.c and mstime.
"""

import contextlib
import errno
import os
import random
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.topology.faults.injection import Injection
from bench.topology.fleet import LOG_FILE, SETTLE_S, Fleet, Instance, wait_until
from bench.topology.leash import Leash
from bench.topology.shim import CONTROL_FILE, LIBRARY_FILE, Control
from lockcore.clock import NS_PER_MS

_STOP = 'kill -STOP "$1" && echo stopped; read -r _; kill -CONT "$1"'
_ENDED = "ZX"


def kill_instance(fault: Injection) -> None:
    """Kill the instance with `kill -9`. The instance is started again when the fault ends."""
    fault.undo.callback(fault.fleet.restart, fault.index)
    fault.fleet.kill(fault.index)


def stop_instance(fault: Injection) -> None:
    """Stop the instance with SIGSTOP. The instance continues (SIGCONT) when the fault ends.

    Connections stay open. Commands that arrive during the stop wait, and the instance executes them
    afterwards.
    """
    fault.undo.callback(fault.fleet.cont, fault.index)
    fault.fleet.stop(fault.index)


def kill_worker(fault: Injection) -> None:
    """Kill a load process with `kill -9`. The process is not started again."""
    pid = _running(fault)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _state(pid) in _ENDED, SETTLE_S, f"worker {fault.index} did not die")


def stop_worker(fault: Injection) -> None:
    """Stop a load process with SIGSTOP. The process continues (SIGCONT) when the fault ends.

    The callers of a stopped process do not run, so they do not notice when their leases end.
    """
    pid = _running(fault)
    fault.undo.callback(Leash(["sh", "-c", _STOP, "sh", str(pid)], ready="stopped").release)
    wait_until(lambda: _state(pid) in "Tt", SETTLE_S, f"worker {fault.index} did not stop")


def _running(fault: Injection) -> int:
    """Return the worker's process id, and store the id in the record of the fault.

    Raises EnvironmentNotReadyError if the worker does not run.
    """
    pid = fault.workers().get(fault.index)
    if pid is None:
        raise EnvironmentNotReadyError(f"worker {fault.index} does not run")
    # A zombie still accepts signals.
    if _state(pid) in _ENDED:
        raise EnvironmentNotReadyError(f"worker {fault.index} had ended before")
    fault.detail["pid"] = pid
    return pid


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def slow_fsync(fault: Injection) -> None:
    """Make every fsync take longer. The parameter `delay` gives the extra time (ms). The server
    then behaves as on a slow disk."""
    control = fault.fleet.control(fault.index)
    fault.undo.callback(setattr, control.words, "sync_delay_ns", 0)
    control.words.sync_delay_ns = round(fault.params["delay"] * NS_PER_MS)


def fail_fsync(fault: Injection) -> None:
    """Make every fsync fail.

    If the fsync policy is "everysec", the server refuses writes (-MISCONF). If the fsync policy is
    "always", the server exits. When this fault ends, lockbench restarts the server. The restart is
    necessary if the server has exited. Without a restart, a server that still runs might refuse
    writes until its next successful sync.
    """
    control = fault.fleet.control(fault.index)
    fault.undo.callback(fault.fleet.restart, fault.index)
    fault.undo.callback(setattr, control.words, "sync_error", 0)
    control.words.sync_error = errno.EIO


def require_writes(fleet: Fleet) -> None:
    """Raise UsageError if the servers write no append-only file, because disk faults need this
    file."""
    if fleet.fsync == "none":
        raise UsageError(
            "the servers have no append-only file (fsync = none), so nothing is synced"
        )


def require_syncs(fleet: Fleet) -> None:
    """Raise UsageError if no server waits for fsync, because fsync faults would have no effect."""
    require_writes(fleet)
    if fleet.fsync == "no":
        raise UsageError(
            "with fsync = no, the kernel decides when to sync, so the servers never wait for a sync"
        )


def fill_disk(fault: Injection) -> None:
    """Make the disk of the instance full.

    This function also sends a command that makes the server append to its file. The function
    returns when the server has noticed the full disk. If the fsync policy is "everysec", the server
    refuses writes (-MISCONF). If the fsync policy is "always", the server exits, and lockbench
    restarts the server when the fault ends.
    """
    fleet = fault.fleet
    index = fault.index
    control = fault.fleet.control(fault.index)

    def exit_code() -> int | None:
        return fleet.exit_codes()[index]

    def revive() -> None:
        with fleet.locks[index]:
            if exit_code() is not None:
                fleet.restart(index)

    fault.undo.callback(revive)
    fault.undo.callback(setattr, control.words, "disk_full", 0)
    control.words.disk_full = 1
    # The server refuses the command, or ends.
    with contextlib.suppress(BenchError):
        fleet.command(index, "SET", "lockbench-disk-full", "x", "PX", 1)
    if fleet.fsync == "always":
        wait_until(lambda: exit_code() is not None, SETTLE_S, f"instance {index} did not end")
    else:
        fleet.until(
            index, lambda info: info["aof_last_write_status"] != "ok", "notice the full disk"
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of a power cut for one file.

    `in_flight`: the number of syncs that had begun but not ended when the server died. If the fsync
    policy is "everysec", a server postpones its writes while a sync runs. If the server is then
    killed with `kill -9`, the postponed writes may be lost.
    """

    name: str
    size_bytes: int
    durable_bytes: int
    kept_bytes: int
    in_flight: int


def cut_power(
    instance: Instance, control: Control, torn: random.Random | None = None
) -> tuple[Cut, ...]:
    """Truncate every file of a *dead* instance to the durable part of the file.

    If `torn` is None, only the durable part remains. Otherwise a random number of bytes after the
    durable part also remains. `torn`: the generator of this random number. Raises
    EnvironmentNotReadyError if the server synced more files than the ledger can hold. Raises
    OSError if a file cannot be truncated.
    """
    if control.words.overflow:
        raise EnvironmentNotReadyError(
            f"instance {instance.index} synced more files than the fault shim can record"
        )
    ours = {instance.folder / name for name in (LOG_FILE, CONTROL_FILE, LIBRARY_FILE)}
    cuts = []
    for path in sorted(
        path for path in instance.folder.rglob("*") if path.is_file() and path not in ours
    ):
        state = control.synced(path)
        size = path.stat().st_size
        durable = length = min(state.durable_bytes, size)
        if torn is not None:
            length = torn.randint(durable, size)
        if length < size:
            os.truncate(path, length)
        cuts.append(
            Cut(str(path.relative_to(instance.folder)), size, durable, length, state.in_flight)
        )
    return tuple(cuts)


def cut_instance(fault: Injection) -> None:
    """Kill the instance with `kill -9`, and remove its unsynced data.

    The instance is started again after the time that the parameter `delay` gives.
    """
    fleet = fault.fleet
    index = fault.index
    fault.undo.callback(fleet.restart, index)
    with fleet.locks[index]:
        fleet.kill(index)
        cuts = cut_power(fleet.instances[index], fleet.control(index))
    fault.detail["lost_bytes"] = sum(cut.size_bytes - cut.kept_bytes for cut in cuts)
    fault.detail["files"] = [asdict(cut) for cut in cuts]


def jump_clock(fault: Injection) -> None:
    """Make the server's wall clock jump. The parameter `by` gives the size of the jump (ms).

    After a jump forward, keys expire too early. After a jump back, keys expire too late.
    """

    def jump(sign: int) -> None:
        fault.fleet.control(fault.index).shift_clock(sign * int(fault.params["by"] * NS_PER_MS))
        # The server reads its clock once per pass of its event loop. So this command makes the
        # server read its clock. If the server does not run, the command fails, which is fine.
        with contextlib.suppress(BenchError):
            fault.fleet.command(fault.index, "TIME")

    fault.undo.callback(jump, -1)
    jump(1)


def bend_clock(fault: Injection) -> None:
    """Make the server's wall clock run at the speed that the parameter `rate` gives (1 is the
    correct speed)."""
    control = fault.fleet.control(fault.index)
    fault.undo.callback(control.set_clock_rate, 1.0)
    control.set_clock_rate(fault.params["rate"])
