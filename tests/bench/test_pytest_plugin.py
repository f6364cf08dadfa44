"""The pytest plugin: a project's own lock is benchmarked and gated against a throw-away fleet in ten lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "bench.pytest_plugin", "-p", "no:locust", "-p", "no:valkey", "-p", "no:cacheprovider")
pytest_plugins = ["pytester"]

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _find_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def example() -> str:
    """The complete example of README, between its markers."""
    return README.partition("<!-- own lock -->\n```python\n")[2].partition("```\n")[0]


OWN = """
    import contextlib, threading, time
    import pytest, redis

    def test_a_threshold_that_does_not_hold(lock_fleet, lock_benchmark):
        client = redis.Redis.from_url(lock_fleet.urls[0])
        lock_benchmark(lambda name: client.lock(name, timeout=10), seconds=0.3, thresholds=["acquire.p50 < 1us"])

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

    def slower_by(seconds):
        inner = threading.Lock()

        @contextlib.contextmanager
        def lock(name):
            end = time.perf_counter() + 0.0005 + seconds
            while time.perf_counter() < end:
                pass
            yield
        return lock

    def gate(lock_benchmark, planted, pairs):
        lock_benchmark.gate(
            slower_by(0), slower_by(planted), pairs=pairs, tolerance=0.5, callers=1, seconds=0.1, warmup_s=0.0,
            metrics=["acquire.p50"], allow_violations=True,
        )

    def test_a_slower_lock(lock_benchmark):
        gate(lock_benchmark, 0.001, 8)

    def test_too_few_pairs(lock_benchmark):
        gate(lock_benchmark, 0, 2)
"""


def test_the_example_of_the_readme_passes(pytester: pytest.Pytester) -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 10
    pytester.makepyfile(example())
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*leases/s, acquire p50 * ms*0 violations*"])


FAKES = """
    import contextlib, itertools
    import pytest

    count = itertools.count()

    @contextlib.contextmanager
    def every_second(name):
        if next(count) % 2:
            raise BlockingIOError
        yield

    def noop(name):
        return contextlib.nullcontext()
"""


def test_a_lock_that_locks_nothing_fails_without_being_asked(pytester: pytest.Pytester) -> None:
    """Also where each caller has a name of its own, so that the load itself shows nothing."""
    pytester.makepyfile(
        FAKES
        + """
    @pytest.mark.parametrize("fake, resources", [(noop, 0), (every_second, 1)])
    class TestLocks:
        def test_lock(self, lock_benchmark, fake, resources):
            load = {"seconds": 0.1, "warmup_s": 0.0, "refused": (BlockingIOError,), "resources": resources}
            lock_benchmark(fake, **load)

        def test_gate(self, lock_benchmark, fake, resources):
            load = {"seconds": 0.05, "refused": (BlockingIOError,), "resources": resources}
            lock_benchmark.gate(fake, fake, pairs=1, **load)

        def test_that_opts_out(self, lock_benchmark, fake, resources):
            load = {"seconds": 0.1, "warmup_s": 0.0, "refused": (BlockingIOError,), "resources": resources}
            lock_benchmark(fake, allow_violations=True, **load)
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(failed=4, passed=2)
    said = "\n".join(result.outlines)
    assert said.count("\nthe lock was violated: ") == said.count("\nthe baseline does not lock: ") == 2


def test_a_lock_that_locks_half_of_the_names_fails_though_no_caller_of_the_load_met_another(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import contextlib, threading

        inner = threading.Lock()

        def half(name):
            return contextlib.nullcontext() if int(name[-1]) % 2 else inner

        def test_lock(lock_benchmark):
            lock_benchmark(half, seconds=0.2)
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    assert "the lock was violated: " in "\n".join(result.outlines)


def test_what_was_never_got_and_a_gate_that_compares_nothing_do_not_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def never(name):
            raise RuntimeError

        def test_lock(lock_benchmark):
            lock_benchmark(never, seconds=0.1, allow_violations=True)

        @pytest.mark.parametrize(
            "asked", [{"pairs": 0}, {"metrics": ()}, {"metrics": ("acquire.p51",)}, {"tolerance": float("inf")}]
        )
        def test_gate(lock_benchmark, asked):
            lock_benchmark.gate(never, never, **{"pairs": 1, **asked})
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(failed=5)
    said = "\n".join(result.outlines)
    assert "no lease was granted in the measured time, errors {'RuntimeError': " in said
    assert "there is no metric acquire.p51" in said


def test_what_hardly_met_says_so_and_passes_for_no_safe_lock(pytester: pytest.Pytester) -> None:
    """A lock whose callers never meet in the probe either: it is not violated, and no word looks as if it were safe."""
    pytester.makepyfile(
        """
        import contextlib, threading, time

        inner = threading.Lock()

        @contextlib.contextmanager
        def slow(name):
            with inner:
                time.sleep(0.1)
                yield

        def test_lock(lock_benchmark):
            run = lock_benchmark(slow, callers=2, seconds=0.2, warmup_s=0.0)
            assert (run.safety, run.violations) == ("NOT TESTED", None)
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["*leases/s*safety NOT TESTED*"])
    result.assert_outcomes(passed=1)


def test_a_lock_that_only_locks_inside_its_process_is_not_called_safe(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        inner = threading.Lock()

        def test_lock(lock_benchmark):
            run = lock_benchmark(lambda name: inner, seconds=0.3, resources=1, hold_s=0.0005)
            assert (run.safety, run.violations) == ("NOT TESTED", None)

        def test_gate(lock_benchmark):
            lock_benchmark.gate(lambda name: inner, lambda name: inner, pairs=1)

        def test_limit(lock_benchmark):
            lock_benchmark(lambda name: inner, seconds=0.3, thresholds=["safety.violations == 0"])
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    said = "\n".join(result.outlines)
    assert said.count("safety NOT TESTED (the servers took fewer commands than leases were granted") == 4


def test_a_threshold_fails_a_planted_slowdown_fails_its_gate_and_too_few_pairs_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OWN)
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs")
    said = "\n".join(result.outlines)
    assert "acquire.p50 < 1us: fail (measured " in said
    assert "the gate cannot tell: acquire.p50 inconclusive" in said
    if unknown := re.search("test_a_slower_lock: acquire.p50 inconclusive.*", said):
        result.assert_outcomes(passed=2, failed=1, skipped=2)
        pytest.skip(f"not known here: {unknown[0]}")
    assert re.search("acquire.p50 fail: .*against the baseline, [678] pairs", said), said
    result.assert_outcomes(passed=2, failed=2, skipped=1)


def test_loading_it_costs_nothing() -> None:
    heavy = {"locust", "gevent", "numpy", "scipy", "redis", "lockcore", "asyncio"}
    code = (
        "import pytest, sys; before = set(sys.modules); import bench.pytest_plugin; "
        f"print(sorted((set(sys.modules) - before) & {heavy}))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
