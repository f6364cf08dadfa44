"""What every test may use: a terminal that does not change between machines.

Benchmarks run alone, after the rest.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pytest

from bench.errors import secrets

# A shell's background job ignores Ctrl-C, nohup a hang-up, and whatever is started here would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering must not depend on who runs the tests: no colours, no width from the
    environment."""
    ours = ("LOCKBENCH_TARGETS", "LOCKBENCH_TARGETS_FILE", "LOCKBENCH_PLAN")
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", *ours):
        monkeypatch.delenv(name, raising=False)
    # a machine's own collector is not meant
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    # of other tests: not this one's
    secrets.cache_clear()


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code and what it said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def lockbench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """`lockbench …` as typed in the test's own folder, in this process: a second Python would show
    nothing more."""

    def typed(*words: object, cwd: Path = tmp_path) -> Ended:
        from bench.program import execute

        with monkeypatch.context() as within:
            within.chdir(cwd)
            within.setenv("TMPDIR", str(tmp_path))
            within.setattr(tempfile, "tempdir", None)
            code = execute([str(word) for word in words])
        return Ended(code, *capsys.readouterr())

    return typed


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the pass of those alone, files without any need not be read: that takes longer than the
    pass itself."""
    if config.option.markexpr.startswith("alone") and collection_path.suffix == ".py":
        text = collection_path.read_text(encoding="utf-8")
        return True if "mark.alone" not in text and "benchmark" not in text else None
    return None


# before -m selects
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A benchmark beside other tests measures those: whatever takes the fixture is marked for the
    second pass.

    Whole files are put into the order in which workers that run many at once take them up."""
    for item in items:
        if "benchmark" in getattr(item, "fixturenames", ()):
            item.add_marker("alone")
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for path in _in_turns(files) for item in files[path]]


# of the integration tests, in whole; one that began last would go on alone
LONGEST = (
    "test_hosts.py",
    "test_safety_whole.py",
    "test_compare_and_gate.py",
    "test_explore_command.py",
    "test_boards.py",
    "test_locust.py",
    "test_planted_faults.py",
    "test_recipes.py",
    "test_run.py",
    "test_hosts_share.py",
    "test_fsync.py",
    "test_telemetry.py",
    "test_faults_in_a_run.py",
    "test_safety_command.py",
    "test_split_votes.py",
    "test_storm_of_waiters.py",
    "test_audit.py",
    "test_crash.py",
    "test_locust_plan.py",
)


def _in_turns(files: Iterable[Path]) -> Iterator[Path]:
    """What waits for processes (the longest first) and what computes, by turns until both are at
    their ends."""
    computes = list[Path]()
    waits = list[Path]()
    for path in files:
        (waits if "integration" in path.parts else computes).append(path)
    # those start processes, too; lockcore's are short
    computes.sort(key=lambda path: path.parent.name != "tests")
    waits.sort(key=lambda path: LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST))
    placed = [
        (place / len(group), path)
        for group in (waits, computes)
        for place, path in enumerate(group)
    ]
    yield from (path for _, path in sorted(placed, key=itemgetter(0)))
