"""A load process that is stopped: its run gets no green word, and no lock fails by it.

The planted fault is the stop itself: SIGSTOP to load processes of a run that the test has started.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.test_run import Run

pytestmark = pytest.mark.integration
LOAD = (
    *("--instances", "3", "--fsync", "none", "--users", "8", "--resources", "4", "--hold", "1ms"),
    *("--warmup", "200ms", "--instance-timeout", "2500ms"),
)
LIMIT = ("--threshold", "acquire.p99 < 200ms")


def load_processes(run: Run) -> list[int]:
    """Those of the run that hold users: of Locust's processes the ones without a child of their
    own."""
    found = [one for one in run.family if any("locust" in word for word in one.cmdline())]
    return [one.pid for one in found if not set(one.children()) & set(found)]


def stop(pids: Sequence[int], seconds: float) -> None:
    """Stop the processes for so long."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "limit",
    [pytest.param((), marks=pytest.mark.slow), LIMIT],
    ids=["no limit", "limit"],
)
@pytest.mark.parametrize(
    ("processes", "stopped", "seconds"),
    [("1", 1, 4.0), ("2", 1, 1.5)],
    ids=["the only one", "one of two"],
)
def test_a_load_that_was_stopped_is_invalid(
    tmp_path: Path, processes: str, stopped: int, seconds: float, limit: tuple[str, ...]
) -> None:
    run = Run(tmp_path, *LOAD, "--duration", "4s", "--processes", processes, *limit)
    run.until("measuring")
    stop(load_processes(run)[:stopped], seconds)
    code, stdout = run.end()
    assert (run.result["verdict"]["word"], code) == ("INVALID", 4), stdout
    (gap, *_) = run.result["generator"]["gaps"]
    assert gap["lost_s"] > 0.8 * min(seconds, 3)
    assert "did not run for" in run.result["generator"]["reason"]
    assert [one["status"] for one in run.result["thresholds"]] == ["inconclusive"] * bool(limit)
    run.assert_nothing_left()


def test_a_short_stop_is_left_out_and_no_limit_fails_by_it(tmp_path: Path) -> None:
    run = Run(tmp_path, *LOAD, "--duration", "12s", "--threshold", "acquire.max < 150ms")
    run.until("measuring")
    pids = load_processes(run)
    stop(pids, 0.4)
    code, stdout = run.end()
    generator = run.result["generator"]
    if generator["verdict"] == "INVALID" or generator["gap_s"] > 0.6:
        pytest.skip(f"not known here: {generator['reason']}")
    assert 0.3 < generator["gap_s"] < 0.6
    assert generator["gap_operations"] > 0
    assert any("a load process did not run for" in warning for warning in run.result["warnings"]), (
        stdout
    )
    (limit,) = run.result["thresholds"]
    assert (limit["status"], code) == ("inconclusive", 4), stdout
