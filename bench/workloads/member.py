"""This module runs the users inside Locust: *Locust's events in a local runner or worker → the
start and the end of one Worker*.

Rules
- The task of a user is a loop over all of its operations, so Locust does nothing between two
  operations.
- The process connects the lock when a test starts, before Locust spawns the users.
- A worker finishes its counts before its last report, so Locust's table at the master has the same
  counts as our result. A worker finishes when the conductor's message, Ctrl-C or SIGTERM arrives.

Source: locust.runners (WorkerRunner), locust.main (shutdown).
"""

import os
import socket
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import gevent
from gevent.event import Event
from locust import User, constant, task
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import STATE_CLEANUP, STATE_STOPPED, LocalRunner, WorkerRunner
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from bench.errors import BenchError, UsageError
from bench.hosts.away import Away
from bench.hosts.joining import own_address
from bench.measure.environment import clock_name, versions
from bench.workloads.demand import ALONE, Seat
from bench.workloads.ends import end_when_stuck, end_within
from bench.workloads.launch import note_of
from bench.workloads.operation import Caller
from bench.workloads.plan import Plan, plan_of, planned
from bench.workloads.worker import Worker

HERE, THERE, BEGIN, FINISH, FINISHED, FAILED = (
    f"lockbench-{word}" for word in ("here", "there", "begin", "finish", "finished", "failed")
)
THERE_LOOK_S = 0.01
_AFTER_GRACE_S = 15.0


class LockUser(User):
    """One user of Locust, which is one caller of the lock."""

    # Locust's web page needs a host. Nothing else uses this value.
    host = "redis://targets"
    # A user rests this long (s) after an unexpected exception, and while it has nothing to do.
    wait_time = constant(1)
    worker: ClassVar[Worker | None] = None
    _caller: Caller | None = None
    _is_asked_to_stop = False

    @task
    def cycles(self) -> None:
        """Run operations until Locust asks this user to stop, or until the schedule ends.

        If this process has no worker, return at once.
        """
        worker = self.worker
        if worker is None:
            return
        try:
            if self._caller is None:
                self._caller = worker.caller()
            self._caller.run(self, LOCUST_STATE_RUNNING)
        except BenchError as error:
            worker.broke(error)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if self._is_asked_to_stop:
                raise
            # Some exceptions end a user of Locust, for example its own StopUser and gevent's
            # Timeout. If a user ended, the run would have fewer callers than it claims. So after
            # any exception of the recipe, this user rests and continues.
            worker.raised.note(error)
            raise RuntimeError("the recipe raised an exception") from error

    def stop(self, force: bool = False) -> bool:
        """Stop in the same way as any user of Locust. If the user is resting or is waiting for an
        arrival, this method ends the wait.

        Only the first call has an effect.
        """
        self._is_asked_to_stop = True
        if self._state == LOCUST_STATE_STOPPING and not force:
            return False
        killed: bool = super().stop(force)
        if not killed and self.worker is not None:
            self.worker.waits.wake(self.greenlet)
        return killed

    def on_stop(self) -> None:
        """Free the number of this caller, so that a later caller can use the number."""
        if self._caller is not None and self.worker is not None:
            self.worker.leave(self._caller)


class Member:
    """The object that listens to the events and messages of one local runner or worker."""

    def __init__(
        self,
        environment: Environment,
        runner: LocalRunner | WorkerRunner,
        end: Callable[[], None] | None = None,
    ) -> None:
        """`end` is a function that is called at the end of a run with shared time slices. If `end`
        is None, Locust quits when a run with shared time slices ends."""
        self._environment = environment
        self._runner = runner
        self._end = runner.quit if end is None else end
        self._worker: Worker | None = None
        # The worker, while it waits for the run to begin.
        self._waiting: Worker | None = None
        self._quitting = False
        self._finished = Event()
        self._finished.set()
        runner.register_message(BEGIN, self._begin)
        events = environment.events
        events.test_start.add_listener(self._open)
        events.test_stop.add_listener(self._close)
        events.quitting.add_listener(self._quit)
        self._away = Away(runner) if isinstance(runner, WorkerRunner) else None
        if isinstance(runner, WorkerRunner):
            runner.register_message(FINISH, self._finish, concurrent=True)
            # A worker that joins in the middle of a run may never get a user. So it reports its
            # presence now.
            self._say_here()

    def _say_here(self) -> None:
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "clock": clock_name(),
            "about": versions(),
        }
        if isinstance(self._runner, WorkerRunner):
            about["address"] = own_address(self._runner.master_host, self._runner.master_port)
        self._runner.send_message(HERE, about)

    def _open(self, **_: object) -> None:
        environment = self._environment
        self._worker = None
        self._finished.clear()
        self._say_here()
        try:
            plan = plan_of(environment.parsed_options or Namespace())
            if plan.bind is not None and self._away is not None:
                plan = replace(plan, workdir=self._away.open(plan.scenario, more=plan.more))
            environment.stop_timeout = environment.stop_timeout or plan.grace_s
            index = max(self._runner.worker_index, 0)
            worker = Worker.open(plan, index, environment, self._failed, self._seat(plan))
        except BenchError as error:
            self._failed(error)
            return
        # If Ctrl-C came while the recipe was connecting, Locust has already stopped. It spawns
        # users nevertheless.
        if self._quitting:
            worker.finish()
        else:
            self._worker = LockUser.worker = self._waiting = worker
            gevent.spawn(self._say_there, worker)
            forked = planned(os.environ) and isinstance(self._runner, WorkerRunner)
            end_when_stuck(worker, os.getppid() if forked else None)

    def _seat(self, plan: Plan) -> Seat:
        """Return the place of this worker in the fleet.

        Raises UsageError if the skew is `own` and the fleet does not contain this worker.
        """
        runner = self._runner
        fleet = plan.fleet
        if not isinstance(runner, WorkerRunner):
            return ALONE
        if runner.client_id in fleet:
            return fleet.index(runner.client_id), len(fleet)
        if plan.scenario.skew.kind == "own":
            raise UsageError(
                "a worker joined after the start of the run, so callers would share a resource, "
                "although skew is own; start the run again"
            )
        return ALONE

    def _failed(self, error: BenchError) -> None:
        self._runner.send_message(FAILED, note_of(error))

    def _say_there(self, worker: Worker) -> None:
        """Until the run begins, report again and again how many callers run in this process.

        Locust itself also reports the number of users. However, this report can be a second late,
        and it does not show whether the users have really started.
        """
        reported = 0
        while self._waiting is worker and not worker.is_ending:
            if worker.callers != reported:
                reported = worker.callers
                self._runner.send_message(THERE, {"callers": reported})
            gevent.sleep(THERE_LOOK_S)

    def _begin(self, msg: Message, **_: object) -> None:
        self._waiting = None
        if self._worker is not None:
            self._worker.begin(self._end, **msg.data)

    def _close(self, **_: object) -> None:
        """Close the worker, because all users have ended. If Locust still spawns a user after this
        call, this user does nothing."""
        LockUser.worker = None
        try:
            if self._worker is not None:
                self._worker.finish()
        finally:
            # Other code waits for this event before it ends the process. So the event is set even
            # after an error.
            self._finished.set()
        if isinstance(self._runner, WorkerRunner):
            # Locust's worker would sleep for this time after it has stopped.
            self._environment.stop_timeout = 0.0
        else:
            self._runner.send_message(FINISHED)

    def _quit(self, **_: object) -> None:
        """Finish the work of this process before the process ends. Locust drops unsent reports when
        it ends a worker itself."""
        self._quitting = True
        end_within(self._environment.stop_timeout + _AFTER_GRACE_S)
        if isinstance(self._runner, WorkerRunner):
            self._finish()
            if self._away is not None:
                self._away.leave()

    def _finish(self, **_: object) -> None:
        runner = self._runner
        if not self._finished.is_set():
            if runner.state in (STATE_CLEANUP, STATE_STOPPED):
                # Another greenlet is already stopping the runner.
                self._finished.wait(self._environment.stop_timeout + _AFTER_GRACE_S)
            else:
                runner.stop()
        if isinstance(runner, WorkerRunner):
            runner._send_stats()
        runner.send_message(FINISHED)
