"""A Locust user: *the choices of one caller → operations, again and again inside one task*.

Rules: the loop is the task, so Locust chooses no task, waits for nothing and fires no event between two operations. A
user asked to stop finishes its operation; one that rests or waits for a far arrival is woken to stop. Source: the
trial's loop.
"""

from __future__ import annotations

from typing import ClassVar

from locust import User, constant, task
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from bench.errors import BenchError
from bench.workloads.operation import Gear, Operate, operation
from bench.workloads.worker import Worker
from lockcore.clock import monotonic_ns


class LockUser(User):
    """One caller."""

    wait_time = constant(1)  # the rest after an unexpected exception, and while there is nothing to do
    worker: ClassVar[Worker | None] = None
    _gear: Gear | None = None

    @task
    def cycles(self) -> None:
        """Run operations until Locust asks this user to stop, the schedule ends, or there is no worker to run on."""
        worker = self.worker
        if worker is None:
            return
        try:
            if self._gear is None:
                self._gear = worker.gear()
            self._cycle(self._gear, operation(self._gear))
        except BenchError as error:
            worker.broke(error)
        except Exception as error:
            worker.errors[f"{type(error).__name__}: {error}"] += 1
            raise

    def stop(self, force: bool = False) -> bool:
        """Stop as Locust does, and do not wait for a far arrival or the end of a rest. Once is enough."""
        if self._state == LOCUST_STATE_STOPPING and not force:
            return False
        killed: bool = super().stop(force)
        if not killed and self.worker is not None:
            self.worker.wake(self.greenlet)
        return killed

    def on_stop(self) -> None:
        """Nobody uses this caller's number any more."""
        if self._gear is not None and self.worker is not None:
            self.worker.leave(self._gear)

    def _cycle(self, gear: Gear, operate: Operate) -> None:
        now, take, thinks_ns, rest_until = monotonic_ns, gear.take, gear.thinks_ns, gear.rest_until
        for resource in gear.resources:
            if self._state != LOCUST_STATE_RUNNING:
                return
            if take is None:
                start_ns = now()
                operate(resource, start_ns, start_ns)
            elif intended_ns := take():
                operate(resource, intended_ns, now())
            else:
                return
            if thinks_ns is not None:
                rest_until(now() + next(thinks_ns))
