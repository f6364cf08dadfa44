"""A load process refuses an instance that cannot be used, and says what it sees of the others."""

import subprocess
import sys

import pytest

from tests.test_house import ROOT

# The module loads Locust, which patches every module of its process. So a process of its own asks.
CODE = """
import sys
from types import SimpleNamespace

from bench.errors import EnvironmentNotReadyError
from bench.workloads import worker

state, reason = sys.argv[1:]
seen = dict.fromkeys(worker._SEEN, 0) | {
    "address": "10.0.0.1:6379", "state": state, "reason": reason, "errors": {"OOM": 2},
}
status = SimpleNamespace(**seen)
try:
    worker._require_all(SimpleNamespace(instances=[status]))
except EnvironmentNotReadyError as error:
    print(error)
else:
    report = worker.instance_report(status)
    print("usable", report.errors)
"""


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("down", "Connection refused", "10.0.0.1:6379 cannot be used (Connection refused); "),
        ("refused", "", "10.0.0.1:6379 cannot be used (refused); correct"),
        ("voting", "", "usable {'OOM': 2}"),
    ],
)
def test_an_instance_that_cannot_be_used_is_named(state: str, reason: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, state, reason],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(text), done.stdout + done.stderr
