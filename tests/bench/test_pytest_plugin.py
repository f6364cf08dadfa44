"""The pytest plugin: a project's own lock is benchmarked and gated against a throw-away fleet in
ten lines."""

import re
import subprocess
import sys
import time
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


OWN = """
    import contextlib, threading, time
    import pytest, redis

    def test_a_threshold_that_does_not_hold(lock_fleet, lock_benchmark):
        client = redis.Redis.from_url(lock_fleet.urls[0])
        limits = ["acquire.p50 < 1us"]
        lock_benchmark(lambda name: client.lock(name, timeout=10), seconds=0.3, thresholds=limits)

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
            slower_by(0), slower_by(planted), pairs=pairs, tolerance=0.5, callers=1,
            seconds=0.2, warmup_s=0.0, metrics=["acquire.p50"], allow_violations=True,
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
            load = {"seconds": 0.1, "warmup_s": 0.0, "resources": resources}
            lock_benchmark(fake, refused=(BlockingIOError,), **load)

        def test_gate(self, lock_benchmark, fake, resources):
            load = {"seconds": 0.05, "refused": (BlockingIOError,), "resources": resources}
            lock_benchmark.gate(fake, fake, pairs=1, **load)

        def test_that_opts_out(self, lock_benchmark, fake, resources):
            load = {"seconds": 0.1, "warmup_s": 0.0, "resources": resources}
            lock_benchmark(fake, allow_violations=True, refused=(BlockingIOError,), **load)
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(failed=4, passed=2)
    said = "\n".join(result.outlines)
    assert said.count("\nthe lock was violated: ") == 2
    assert said.count("\nthe baseline is not shown to lock: the lock was violated: ") == 2


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


def test_what_was_never_got_and_a_gate_that_compares_nothing_do_not_pass(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        def never(name):
            raise RuntimeError

        def test_lock(lock_benchmark):
            lock_benchmark(never, seconds=0.1, allow_violations=True)

        @pytest.mark.parametrize(
            "asked",
            [
                {"pairs": 0}, {"metrics": ()}, {"metrics": ("acquire.p51",)},
                {"tolerance": float("inf")},
            ],
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


NOT_SHOWN = """
    import contextlib, fcntl, itertools, os, tempfile, threading
    import pytest, redis

    QUICK = {"callers": 4, "resources": 1, "hold_s": 0.001, "seconds": 0.2, "warmup_s": 0.0}

    @pytest.fixture
    def client(lock_fleet):
        return redis.Redis.from_url(lock_fleet.urls[0])

    @pytest.fixture
    def good(client):
        return lambda name: client.lock(name, timeout=10, sleep=0.001)

    def test_a_mutex_of_this_process(lock_benchmark):
        inner = threading.Lock()
        lock_benchmark(lambda name: inner, **QUICK)

    def test_a_mutex_of_this_process_with_a_ping(lock_benchmark, client):
        inner = threading.Lock()
        @contextlib.contextmanager
        def lock(name):
            with inner:
                client.ping()
                yield
        lock_benchmark(lock, **QUICK)

    def test_a_key_with_the_process_in_it(lock_benchmark, client):
        own_key = lambda name: client.lock(f"{name}:{os.getpid()}", timeout=10, sleep=0.001)
        lock_benchmark(own_key, **QUICK)

    @contextlib.contextmanager
    def of_this_host(asks):
        with tempfile.NamedTemporaryFile() as file:
            @contextlib.contextmanager
            def lock(name):
                with open(file.name) as own:
                    while True:
                        asks(name)
                        try:
                            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            break
                        except BlockingIOError:
                            pass
                    yield
            yield lock

    @pytest.fixture
    def quick_second(monkeypatch):
        monkeypatch.setattr("bench.run.own_checks.SECOND_S", 0.5)

    def test_a_mutex_of_this_host_with_pings(lock_benchmark, client, quick_second):
        with of_this_host(lambda name: client.ping()) as lock:
            lock_benchmark(lock, **QUICK)

    def test_a_mutex_of_this_host_that_asks_for_a_key(lock_benchmark, client, quick_second):
        with of_this_host(lambda name: client.get(name)) as lock:
            lock_benchmark(lock, **QUICK)

    def test_most_acquires_raise(lock_benchmark, good):
        count = itertools.count()
        @contextlib.contextmanager
        def lock(name):
            if next(count) % 5 < 3:
                raise RuntimeError("the pool is empty")
            with good(name):
                yield
        lock_benchmark(lock, **QUICK)

    def test_every_exit_raises(lock_benchmark, good):
        @contextlib.contextmanager
        def lock(name):
            with good(name):
                yield
            raise RuntimeError("not given back")
        lock_benchmark(lock, **QUICK)

    def test_a_late_release_deletes_a_strangers_lock(lock_benchmark, client):
        @contextlib.contextmanager
        def lock(name):
            while not client.set(name, "1", nx=True, px=60_000):
                pass
            yield
            client.delete(name)
        lock_benchmark(lock, **QUICK)

    def test_callers_that_hardly_meet(lock_benchmark, good):
        @contextlib.contextmanager
        def lock(name):
            with good("all"):
                time.sleep(0.03)
                yield
        lock_benchmark(lock, **QUICK)

    def test_the_good_lock(lock_benchmark, good):
        run = lock_benchmark(good, **QUICK)
        assert (run.safety, run.violations, run.processes) == ("SAFE", 0, 2)
        assert run.owner_check == "held"

    def test_within_one_process(lock_benchmark, good):
        lock_benchmark(good, processes=1, **QUICK)
""".replace("import contextlib, fcntl", "import contextlib, time, fcntl")
WHY = {
    "a_mutex_of_this_process": "the lock was violated: .*the lock holds only within one process",
    "a_mutex_of_this_process_with_a_ping": "the lock was violated: .*the lock holds only "
    "within one process",
    "a_key_with_the_process_in_it": "the lock was violated: .*the lock holds only "
    "within one process",
    "a_mutex_of_this_host_with_pings": "safety NOT TESTED: the servers took fewer commands "
    "than leases were granted",
    "a_mutex_of_this_host_that_asks_for_a_key": "owner check: not tested because a second "
    "caller did not get in",
    "most_acquires_raise": r"[56]\d\.\d%.*RuntimeError: the pool is empty \(entering, "
    r"test_\w+\.py:\d+ in lock\)",
    "every_exit_raises": r"100\.0%.*RuntimeError: not given back \(leaving, "
    r"test_\w+\.py:\d+ in lock\)",
    "a_late_release_deletes_a_strangers_lock": "owner check: deleted a stranger's lock: "
    ".*a third caller in",
    "callers_that_hardly_meet": r"safety NOT TESTED: \d+ leases were held while a caller "
    r"of another process asked",
}


def test_a_lock_that_is_not_shown_to_hold_fails_and_the_sentence_says_why(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(NOT_SHOWN)
    result = pytester.runpytest_subprocess(*PLUGIN)
    said = "\n".join(result.outlines)
    result.assert_outcomes(passed=2, failed=len(WHY))
    for name, why in WHY.items():
        assert re.search(rf"_ test_{name} _+\n.*{why}", said), (name, said)
    assert re.search(
        "test_the_good_lock: .* 0 violations in [0-9,]+ tested leases over 2 processes", said
    )
    assert re.search(
        "test_within_one_process: .* tested leases within one process, owner check: held", said
    )


SIX_IN_A_HUNDRED = """
    import contextlib, itertools
    import redis

    def test_gate(lock_fleet, lock_benchmark):
        client = redis.Redis.from_url(lock_fleet.urls[0])
        good = lambda name: client.lock(name, timeout=10, sleep=0.001)
        count = itertools.count()

        @contextlib.contextmanager
        def lock(name):
            if next(count) % 16 == 7:
                raise BlockingIOError
            with good(name):
                yield

        load = {"tolerance": 9.0, "pairs": 9, "callers": 2}
        lock_benchmark.gate(good, lock, refused=(BlockingIOError,), **load)
"""


def test_a_candidate_that_says_no_to_six_in_a_hundred_fails_its_gate(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SIX_IN_A_HUNDRED)
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs")
    said = "\n".join(result.outlines)
    if unknown := re.search("acquire.success inconclusive.*", said):
        result.assert_outcomes(skipped=1)
        pytest.skip(f"not known here: {unknown[0]}")
    result.assert_outcomes(failed=1)
    assert "acquire.success fail: -6." in said


def test_what_was_not_tested_passes_only_if_the_test_allows_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading
        import bench.run.own_checks

        bench.run.own_checks.SECOND_S = 0.5
        inner = threading.Lock()

        def test_lock(lock_benchmark):
            lock_benchmark(lambda name: inner, seconds=0.1, processes=1)

        def test_gate(lock_benchmark):
            lock_benchmark.gate(lambda name: inner, lambda name: inner, pairs=1, processes=1)

        def test_lock_that_is_allowed(lock_benchmark):
            load = {"seconds": 0.1, "processes": 1}
            run = lock_benchmark(lambda name: inner, allow_not_tested=True, **load)
            assert (run.safety, run.violations, run.processes) == ("NOT TESTED", None, 1)

        def test_gate_that_is_allowed(lock_benchmark):
            load = {"pairs": 1, "processes": 1}
            lock = lambda name: inner
            lock_benchmark.gate(lock, lock, allow_not_tested=True, **load)

        def test_limit(lock_benchmark):
            lock_benchmark(
                lambda name: inner, seconds=0.1, processes=1, thresholds=["safety.violations == 0"],
                allow_not_tested=True,
            )
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1, skipped=1, failed=3)
    said = "\n".join(result.outlines)
    assert said.count("(the servers took fewer commands than leases were granted") == 6
    assert said.count("owner check: not tested because a second caller did not get in") > 2
    assert "the baseline is not shown to lock: safety NOT TESTED" in said


REFUSED = """
    import asyncio, contextlib, functools, threading
    import pytest, redis, redis.asyncio

    class OnlyAsync:
        def __init__(self, name): pass
        async def __aenter__(self): pass
        async def __aexit__(self, *_): pass

    class AsyncEnter:
        def __init__(self, name): pass
        async def __enter__(self): pass
        async def __exit__(self, *_): pass

    class Plain:
        def __init__(self, name): pass

    async def coroutine(name): pass

    async def async_generator(name): yield

    def generator(name): yield

    class Called:
        async def __call__(self, name): pass

    four = threading.BoundedSemaphore(4)
    LOCKS = {
        "a text": "redis-lock", "one lock": threading.Lock(), "asynchronous class": OnlyAsync,
        "coroutine of enter": AsyncEnter, "no manager": Plain, "coroutine": coroutine,
        "asynchronous generator": async_generator,
        "asynchronous manager": contextlib.asynccontextmanager(async_generator),
        "generator": generator, "partial": functools.partial(coroutine), "called": Called(),
        "redis": lambda name: redis.asyncio.Redis().lock(name),
        "returns a coroutine": lambda name: coroutine(name),
        "semaphore": lambda name: four, "nothing": lambda name: None,
    }

    @pytest.mark.parametrize("key", LOCKS)
    def test_lock(lock_benchmark, key):
        lock_benchmark(LOCKS[key], seconds=60)

    @pytest.mark.parametrize("key", ["coroutine", "semaphore"])
    def test_gate(lock_benchmark, key):
        lock_benchmark.gate(threading.Lock, LOCKS[key], seconds=60)
"""


def test_what_cannot_be_driven_is_refused_with_one_sentence_before_any_load(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(REFUSED)
    began_s = time.monotonic()
    result = pytester.runpytest_subprocess(*PLUGIN)
    assert time.monotonic() - began_s < 60
    result.assert_outcomes(failed=17)
    said = "\n".join(result.outlines)
    said = said.partition("short test summary")[0]
    assert (
        said.count("\nan asynchronous lock cannot be driven, because the callers are threads: ")
        == 10
    )
    assert said.count("\nlock_benchmark takes a callable from a name to a context manager") == 5
    assert (
        said.count(
            "\nlock_benchmark judges a mutex, which lets one caller in, and this one let "
            "4 in at once"
        )
        == 2
    )
    assert "never awaited" not in said


def test_a_threshold_fails_a_planted_slowdown_fails_its_gate_and_too_few_pairs_skip(
    pytester: pytest.Pytester,
) -> None:
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
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
