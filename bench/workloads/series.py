"""Several runs in one Locust: *a plan that comes through a socket → the next test of a master or
local runner*.

A test stops before the next plan is read. By then all of its run has ended and all files are
written. The sender of the plans gets a message at each end. Source: locust.runners
(MasterRunner.stop, LocalRunner.start).
"""

import os
import socket
import time
from collections.abc import Mapping

import gevent
from locust.runners import LocalRunner, MasterRunner

from bench.errors import EnvironmentNotReadyError
from bench.workloads.launch import OVER, SERIES_VARIABLE, note_failure
from bench.workloads.plan import PLAN_VARIABLE, in_memory, plan_from

READY_LOOK_S = 0.01
# How long load processes may take to be ready for the next run.
READY_S = 30.0


class Series:
    """The runs that follow the first one of this Locust."""

    def __init__(self, channel: socket.socket, runner: LocalRunner | MasterRunner) -> None:
        self._channel = channel
        self._runner = runner
        self._plans = channel.makefile("rb")
        # The descriptor of a file in memory.
        self._plan_file: int | None = None

    # The order is the protocol. `stop` returns when the test has ended, so all of a run is written
    # when `OVER` is sent. Only then may the sender read the run's folder and send the next plan.
    # Locust starts a test on the workers that have reported ready. So this waits for all of them:
    # else a run would begin with fewer processes than its plan has. One that died between two runs
    # never reports, so the wait has an end.
    def go_on(self) -> None:
        """End the test that runs, report its end, and start the next test when its plan comes.

        If no other plan can come, Locust ends.
        """
        runner = self._runner
        runner.stop()
        self._channel.sendall(OVER)
        text = self._plans.readline()
        if not text:
            runner.quit()
            return
        plan = plan_from(text, "the next plan")
        self._keep(text)
        if isinstance(runner, MasterRunner):
            deadline_s = time.monotonic() + READY_S
            while len(runner.clients.ready) < plan.scenario.processes:
                if time.monotonic() > deadline_s:
                    self._give_up(runner, plan.scenario.processes)
                    return
                gevent.sleep(READY_LOOK_S)
        runner.start(plan.scenario.users, plan.scenario.users)

    def _give_up(self, runner: MasterRunner, processes: int) -> None:
        """End Locust, because a load process of the last run has not come back."""
        error = EnvironmentNotReadyError(
            f"only {len(runner.clients.ready)} of {processes} load processes were ready for the "
            f"next run within {READY_S:.0f} s; see who ends or stops them, and start anew"
        )
        note_failure(error)
        runner.environment.process_exit_code = error.exit_code
        runner.quit()

    def _keep(self, text: bytes) -> None:
        """Store the plan where the plan of the first run was."""
        if self._plan_file is not None:
            os.close(self._plan_file)
        self._plan_file = in_memory(text)
        os.environ[PLAN_VARIABLE] = f"/proc/self/fd/{self._plan_file}"


def series_of(environ: Mapping[str, str], runner: LocalRunner | MasterRunner) -> Series | None:
    """The later runs of this Locust. None: this Locust was started for one run."""
    path = environ.get(SERIES_VARIABLE)
    if path is None:
        return None
    return Series(socket.socket(fileno=int(path.rpartition("/")[2])), runner)
