"""A user of the load, as Locust starts and stops it: in a process of its own, for importing Locust patches it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STOPPED_TWICE = """
from locust.env import Environment
from locust.user.task import LOCUST_STATE_RUNNING
from bench.workloads.user import LockUser

user = LockUser(Environment(user_classes=[LockUser]))
user._state = LOCUST_STATE_RUNNING
print(user.stop(), user.stop(), user._state)
"""


DEALT_OUT = """
from locust.dispatch import UsersDispatcher
from locust.runners import WorkerNode
from bench.workloads.conductor import in_order_of_users
from bench.workloads.user import LockUser

ids = ["beta_2_x", "alpha_9", "beta_1", "alpha_3", "gamma_1", "beta_0"]
for users in range(1, 14):
    dealt = UsersDispatcher([WorkerNode(worker) for worker in ids], [LockUser])
    dealt.new_dispatch(users, users)
    counts = {worker: sum(classes.values()) for worker, classes in list(dealt)[-1].items()}
    print(*[counts[worker] for worker in in_order_of_users(ids)])
"""


def test_workers_take_their_places_in_the_order_in_which_locust_deals_out_users() -> None:
    """Else the extra users of the first would have resources beyond those of a full row."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", DEALT_OUT], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert [sum(row) for row in rows] == list(range(1, 14)), done.stderr
    assert all(row == sorted(row, reverse=True) and max(row) - min(row) <= 1 for row in rows), rows


def test_a_user_may_be_told_to_stop_twice() -> None:
    """Ctrl-C reaches a worker by itself and through its master: Locust takes the second for a fault."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_TWICE], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "False", "stopping"], done.stderr
