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


def test_a_user_may_be_told_to_stop_twice() -> None:
    """Ctrl-C reaches a worker by itself and through its master: Locust takes the second for a fault."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_TWICE], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "False", "stopping"], done.stderr
