"""A user of the load, as Locust starts and stops it."""

from __future__ import annotations

from locust.env import Environment
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from bench.workloads.user import LockUser


def test_a_user_may_be_told_to_stop_twice() -> None:
    """Ctrl-C reaches a worker by itself and through its master: Locust takes the second for a fault."""
    user = LockUser(Environment(user_classes=[LockUser]))
    user._state = LOCUST_STATE_RUNNING
    assert [user.stop(), user.stop()] == [False, False]
    assert user._state == LOCUST_STATE_STOPPING
