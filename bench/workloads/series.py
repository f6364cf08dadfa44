"""This module makes several runs in one Locust: *a plan from a socket → the next test of a master
or local runner*.

Each test stops before the next plan is read. So when the next plan is read, the previous run has
ended completely and has written all its files. At the end of each run, this module sends a message
to the sender of the plans. Source: locust.runners (MasterRunner.stop, LocalRunner.start).
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
# Load processes must be ready for the next run within this time.
READY_S = 30.0


class Series:
    """An object that starts all runs of this Locust after the first run."""

    def __init__(self, channel: socket.socket, runner: LocalRunner | MasterRunner) -> None:
        self._channel = channel
        self._runner = runner
        self._plans = channel.makefile("rb")
        # The descriptor of the file in memory that holds the plan.
        self._plan_file: int | None = None

    # These steps must stay in this order. `stop` returns when the test has ended, so all files of a
    # run are written before `OVER` is sent. After `OVER`, the sender may read the run's folder and
    # send the next plan. Locust starts a test on all workers that have reported ready. If this
    # method did not wait for all workers, a run could begin with fewer processes than its plan has.
    # The wait has a time limit, because a worker that died between two runs never reports.
    def go_on(self) -> None:
        """End the running test, report its end, and start the next test when its plan arrives.

        If the sender has closed the socket, end Locust.
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
        """End Locust, because a load process of the last run is missing."""
        error = EnvironmentNotReadyError(
            f"only {len(runner.clients.ready)} of {processes} load processes were ready for the "
            f"next run within {READY_S:.0f} s; check what ends or stops them, and start again"
        )
        note_failure(error)
        runner.environment.process_exit_code = error.exit_code
        runner.quit()

    def _keep(self, text: bytes) -> None:
        """Store the plan in a memory file, and let the environment variable of the plan name this
        file."""
        if self._plan_file is not None:
            os.close(self._plan_file)
        self._plan_file = in_memory(text)
        os.environ[PLAN_VARIABLE] = f"/proc/self/fd/{self._plan_file}"


def series_of(environ: Mapping[str, str], runner: LocalRunner | MasterRunner) -> Series | None:
    """Return the object that starts the later runs of this Locust.

    If Locust was started for only one run, this function returns None.
    """
    path = environ.get(SERIES_VARIABLE)
    if path is None:
        return None
    return Series(socket.socket(fileno=int(path.rpartition("/")[2])), runner)
