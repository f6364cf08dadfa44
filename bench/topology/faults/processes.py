"""Processes that die or stand still: kill, stop and restart of instances, kill and stop of load workers.

Rules: a killed instance stays dead until the fault ends and is then started again on its port and files, so that leaks
can be counted; a killed worker stays dead. A stopped worker hangs on a leash: it goes on even if lockbench is killed,
while stopped instances have their guard for that. Source: signal(7).
"""

import os
import signal
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.scenario.keys import choice, duration
from bench.topology.child import Leash
from bench.topology.faults.injection import Delayed, Injection, Moment, Param
from bench.topology.fleet import wait_until

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
