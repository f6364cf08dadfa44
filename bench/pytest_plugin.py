"""Pytest fixtures for projects that test their own locks. The fixtures start temporary servers,
judge a lock, and measure how fast a lock is.

If lockbench is installed in a Python environment, every run of pytest in this environment imports
this module. Therefore the import must be cheap. Modules that take long to import are imported only
when a test uses a fixture.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from bench.experiments.judge.result import JudgeResult
    from bench.topology.fleet import Fleet

OwnLock = Callable[[str], AbstractContextManager[object]]
"""A function from a name to a context manager. The context manager holds the lock of that name from
its entry to its exit."""


@dataclass(slots=True)
class _Session:
    """The state of a pytest session.

    `fleets` maps (instances, fsync) to a running fleet. `lines` has one line for each verdict.
    """

    stack: ExitStack = field(default_factory=ExitStack)
    fleets: dict[tuple[int, str], Fleet] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


_SESSION: pytest.StashKey[_Session] = pytest.StashKey()


class LockJudge:
    """A function that judges a lock in the same way as the command `lockbench judge`.

    Each client is a process. Each call starts new servers and uses these servers only for its own
    verdict.
    """

    def __init__(self, name: str, lines: list[str], folder: Path) -> None:
        self._name = name
        self._lines = lines
        self._folder = folder

    def __call__(
        self,
        make_lock: Callable[..., object],
        *,
        rows: Sequence[str] = (),
        quick: bool = True,
        **terms: Any,
    ) -> JudgeResult:
        """Judge the lock from `make_lock(urls)`. The test fails unless the verdict is HOLDS.

        `make_lock` must be defined at the top level of a module, because each client is a process
        that imports it. `make_lock` may return one of two kinds of locks (docs/judge.md). A lock of
        the first kind is a function that takes a name and returns a context manager. A lock of the
        second kind is an object with the methods acquire(name) and release(name). A lock of either
        kind may be asynchronous.

        `rows` has the names of the rows to judge. lockbench always judges the row for contention,
        because the verdict HOLDS requires this row. If a name is wrong, the error message lists all
        rows. If `quick` is true, each row is judged only once, with a short load. `terms` are
        options of the command `lockbench judge`, for example instances=3, capacity=5, shared=True.
        """
        from bench.experiments.judge.experiment import run_judge
        from bench.experiments.judge.plan import plan_of
        from bench.experiments.judge.subject import subject_of
        from bench.run.experiment import ExperimentOrder

        __tracebackhide__ = True
        with _failing():
            subject = subject_of(make_lock)
            plan = plan_of(subject, rows, quick=quick, with_costs=False, **terms)
            run_id = secrets.token_hex(4)
            folder = self._folder / run_id
            done = run_judge(
                ExperimentOrder(plan, run_id, ("pytest", self._name), folder), lambda _line: None
            )
        if done.result.interrupted:
            raise KeyboardInterrupt
        verdict = done.result.verdict
        self._lines.append(f"{self._name}: {verdict.word} (lockbench report {folder})")
        if verdict.exit_code:
            reasons = "; ".join(verdict.reasons)
            pytest.fail(_shown(f"{verdict.word}: {reasons} (lockbench report {folder})"), False)
        return done.result


@contextmanager
def _failing() -> Iterator[None]:
    """If lockbench raises one of its errors, fail the test and show only the error message."""
    from bench.errors import BenchError

    __tracebackhide__ = True
    try:
        yield
    except BenchError as error:
        raise pytest.fail.Exception(_shown(str(error)), pytrace=False) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker lock_fleet. Also register a function that stops all fleets when pytest
    ends."""
    config.addinivalue_line(
        "markers",
        "lock_fleet(instances=3, fsync='none'): the number and the fsync policy of the servers "
        "that the fixture lock_fleet starts",
    )
    config.stash[_SESSION] = session = _Session()
    # This stops every fleet at the end of pytest.
    config.add_cleanup(session.stack.close)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show one line for each lock that was judged."""
    if lines := config.stash[_SESSION].lines:
        terminalreporter.section("locks")
        terminalreporter.write_line("\n".join(map(_shown, lines)))


@pytest.fixture
def lock_fleet(request: pytest.FixtureRequest) -> Fleet:
    """The servers for one test, as a fleet with `urls`, `instances`, `stop`, …

    The fixture starts 3 servers that keep their data only in memory. The marker lock_fleet can
    request another number or another fsync policy. The servers are empty when the test starts, and
    later tests use the same servers again. The servers stop when pytest ends, even if pytest fails.
    """
    from redis import RedisError

    from bench.errors import BenchError
    from bench.screen import lines_of
    from bench.topology.fleet import start_fleet
    from bench.topology.target import emptied

    marker = request.node.get_closest_marker("lock_fleet")
    options = {"instances": 3, "fsync": "none", **(marker.kwargs if marker else {})}
    session = request.config.stash[_SESSION]
    key = (options["instances"], options["fsync"])
    if key not in session.fleets:
        try:
            session.fleets[key] = session.stack.enter_context(start_fleet(*key))
        except BenchError as error:
            pytest.fail("\n".join(map(_shown, lines_of(str(error)))), pytrace=False)
    fleet = session.fleets[key]
    try:
        emptied(fleet.urls)
    except RedisError:
        # An earlier test left an instance stopped or dead.
        fleet.restart(*range(len(fleet.urls)))
        emptied(fleet.urls)
    return fleet


@pytest.fixture
def lock_judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LockJudge:
    """A function that judges a lock. The test fails unless the verdict is HOLDS.

    LockJudge describes its arguments.
    """
    return LockJudge(
        request.node.name, request.config.stash[_SESSION].lines, tmp_path_factory.mktemp("judge")
    )


@pytest.fixture
def lock_benchmark(benchmark: Callable[..., object]) -> Callable[[OwnLock], None]:
    """A function that times leases of a lock without contention.

    pytest-benchmark measures the times. It also stores, shows and compares the results.
    """

    def time_leases(lock: OwnLock) -> None:
        def lease() -> None:
            with lock("lockbench:own"):
                pass

        benchmark(lease)

    return time_leases


def _shown(line: str) -> str:
    """Return the line in characters that the screen can show.

    pytest replaces `sys.stdout`, but it prints its own output to the original stdout. Therefore
    this function replaces all characters that the encoding of the original stdout does not have.
    """
    from bench.screen import clean, fit

    return fit(clean(line), getattr(sys.__stdout__, "encoding", None))
