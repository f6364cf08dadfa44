"""Processes that die or stand still: kill, stop and restart of instances, kill and stop of load workers.

Rules: a killed instance stays dead until the fault ends and is then started again on its port and files, so that leaks
can be counted; a killed worker stays dead. A stopped worker hangs on a leash: it goes on even if lockbench is killed,
while stopped instances have their guard for that. Source: signal(7).
"""

import os
import signal
import time
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Leash
from bench.topology.faults.injection import Delayed, Injection, Moment
from bench.topology.faults.params import Param, Params, choice, duration

_DAY_MS = 86_400_000.0
_STOP = 'kill -STOP "$1" && echo stopped; read -r _; kill -CONT "$1"'
_STAND_STILL_S = 2.0
_ENDED = "ZX"
RESTART_PARAMS = (Param("delay", duration(0, _DAY_MS), "0", "how long it stays dead"),)


class KillInstance(Injection):
    """`kill -9`; started again when the fault ends."""

    def begin(self) -> None:
        """Kill it and wait until it is dead."""
        with self.site.lock(self.index):
            self.site.fleet.kill(self.index)

    def end(self) -> None:
        """Start it again and wait until it answers."""
        with self.site.lock(self.index):
            self.site.fleet.restart(self.index)


class StopInstance(Injection):
    """SIGSTOP, then SIGCONT: connections stay open, what was sent meanwhile runs late."""

    def begin(self) -> None:
        """Freeze it."""
        self.site.fleet.stop(self.index)

    def end(self) -> None:
        """Let it go on."""
        self.site.fleet.cont(self.index)


class RestartInstance(Delayed):
    """Ended and started again, at once or after `delay`."""

    params = (
        *RESTART_PARAMS,
        Param("how", choice("kill", "shutdown"), "kill", "kill -9, or SIGTERM: a clean end"),
    )

    def begin(self) -> None:
        """End it."""
        number = signal.SIGKILL if self.order.params["how"] == "kill" else signal.SIGTERM
        with self.site.lock(self.index):
            self.site.fleet.kill(self.index, number)

    def end(self) -> None:
        """Start it again and wait until it answers."""
        with self.site.lock(self.index):
            self.site.fleet.restart(self.index)


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


class KillWorker(_WorkerFault):
    """`kill -9` of a load process, for good."""

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """No time at all."""
        return Moment.lasts_ms(for_ms, params)

    def begin(self) -> None:
        """Kill it and wait until it is dead."""
        with self.site.lock(-1 - self.index):
            pid = self.running()
            os.kill(pid, signal.SIGKILL)
            _until(pid, _ENDED, f"worker {self.index} did not die")

    def end(self) -> None:
        """A load process is not started again."""


class StopWorker(_WorkerFault):
    """SIGSTOP of a load process, then SIGCONT: its callers oversleep their leases."""

    _leash: Leash | None = None

    def begin(self) -> None:
        """Freeze it and wait until it stands still."""
        pid = self.running()
        self._leash = Leash(["sh", "-c", _STOP, "sh", str(pid)], ready="stopped")
        _until(pid, "Tt", f"worker {self.index} did not stop")

    def end(self) -> None:
        """Let it go on."""
        if self._leash is not None:
            self._leash.release()


def _until(pid: int, states: str, otherwise: str) -> None:
    deadline_s = time.monotonic() + _STAND_STILL_S
    while (state := _state(pid)) not in states:
        if state in _ENDED or time.monotonic() > deadline_s:
            raise EnvironmentNotReadyError(f"{otherwise} within {_STAND_STILL_S:g} s")
        time.sleep(0.001)  # nobody but /proc tells when all its threads stand still


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
