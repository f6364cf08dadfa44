"""The pytest plugin: a project's own lock is judged and timed in ten lines."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = (
    "-p",
    "bench.pytest_plugin",
    "-p",
    "no:locust",
    "-p",
    "no:valkey",
    "-p",
    "no:cacheprovider",
)
pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs/own-lock.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _find_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def example() -> str:
    """The complete example of the page, below its marker."""
    return PAGE.partition("<!-- own lock -->\n```python\n")[2].partition("```\n")[0]


def test_the_example_of_the_page_says_which_rows_of_redis_py_do_not_hold(
    pytester: pytest.Pytester,
) -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 12
    pytester.makepyfile(example())
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*VIOLATED: paused-in-acquire: the client gets a grant*", "test_my_lock: HOLDS*"]
    )


OWN = """
    import contextlib, threading
    import pytest, redis

    @pytest.mark.lock_fleet(instances=2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_other_servers_that_start_empty(lock_fleet, number):
        assert len(lock_fleet.urls) == 2
        for url in lock_fleet.urls:
            with redis.Redis.from_url(url) as client:
                assert client.dbsize() == 0
                client.set("left", "behind")
        lock_fleet.stop(0)
        lock_fleet.kill(1)

    class Locks:
        @staticmethod
        def in_memory(urls):
            inner = threading.Lock()
            return lambda name: inner

    def test_a_mutex_of_one_process(lock_judge):
        lock_judge(Locks.in_memory, rows=["paused-holder"])

    def test_a_function_in_a_function(lock_judge):
        lock_judge(lambda urls: redis.Redis.from_url(urls[0]).lock)

    def test_a_wrong_row(lock_judge):
        lock_judge(Locks.in_memory, rows=["paused-holdr"])

    def broken(urls):
        raise RuntimeError("no lock today")

    def test_a_lock_that_cannot_be_made(lock_judge):
        lock_judge(broken)
"""


def test_what_does_not_hold_or_cannot_be_asked_fails_with_a_sentence(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(OWN)
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        [
            "VIOLATED: contention: * processes held the lock at once, but only one may*",
            "*<lambda> of test_* cannot be imported by the client processes*at the top of a module",
            "there is no row 'paused-holdr'; did you mean paused-holder?",
            "*RuntimeError: no lock today (*",
        ]
    )


def test_loading_it_costs_nothing() -> None:
    heavy = {"locust", "gevent", "numpy", "scipy", "redis", "lockcore", "asyncio"}
    code = (
        "import pytest, sys; before = set(sys.modules); import bench.pytest_plugin; "
        f"print(sorted((set(sys.modules) - before) & {heavy}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
