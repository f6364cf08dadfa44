"""What `compare` and `gate` are given: *words of a command line → sides to run, or series of stored results*.

    results/a             a stored result, or a folder of several
    mine.toml             a scenario, run now
    git:main · main       the lock library of a git revision, run now
    lib:DIR               the packages in DIR (a virtual environment, or pip install --target), run now

Rules
- What exists as a path is a path; what was named and is not there is a mistake, said with the nearest name there.
- Runs made only to be compared are short: 1 s each unless a duration was asked for; a scenario whose faults come later
  keeps its own.
- The load generator stays the one that is running; only the packages under test come from elsewhere, so that what is
  compared is the lock and not the bench. What is imported in the end is asked of a fresh interpreter and must be the
  version meant. A checkout lies in a private folder that a guard removes, however this process ends.

Source: README, "Gate your CI"; git-archive(1); Python's PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.compare.pairs import Side
from bench.scenario import Scenario
from bench.scenario.quantity import nearest
from bench.topology.guard import Guard

PREFIX = "lockbench-revision-"
_THE_BENCH = ("bench", "dashboards", "tests")  # stay as they are here
_ASK = "import importlib.util,sys; s=importlib.util.find_spec(sys.argv[1]); print(s.origin if s and s.origin else '')"
WINDOW_MS, WARMUP_MS = 1000.0, 300.0
Load = Callable[[Path | None], Scenario]


@dataclass(frozen=True, slots=True)
class Named:
    """One side as it was named. `kind`: stored, scenario, revision, library, or here."""

    text: str
    kind: str
    where: Path = Path()
    commit: str = ""

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return f"{self.text} ({self.commit[:9]})" if self.kind == "revision" else self.text


def read_named(text: str, repository: Path) -> Named:
    """Return what `text` names. Raises UsageError when there is no such thing, EnvironmentNotReadyError without git."""
    prefix, _, rest = text.partition(":")
    if prefix == "lib":
        if not rest or not Path(rest).exists():
            raise UsageError(f"{text}: there is no such folder{_hint(rest)}")
        return Named(text, "library", Path(rest))
    if prefix == "git":
        return Named(text, "revision", repository, commit_of(rest, repository))
    path = Path(text)
    if text and path.exists():
        return Named(text, "scenario" if path.suffix == ".toml" else "stored", path)
    wrong = f"{text or 'an empty name'}: there is no such result or scenario{_hint(text)}"
    if not text or path.suffix == ".toml":
        raise UsageError(wrong)
    try:
        return Named(text, "revision", repository, commit_of(text, repository))
    except UsageError as error:
        raise UsageError(f"{wrong}; and {error}") from None


def _hint(name: str) -> str:
    """The path most like `name` beside where it should be."""
    folder = Path(name).parent
    return nearest(name, [str(other) for other in folder.glob("*")]) if name and folder.is_dir() else ""


def is_stored(given: list[Named]) -> bool:
    """Return whether all are stored results. Raises UsageError for a mixture: only runs made in turn compare well."""
    stored = [one for one in given if one.kind == "stored"]
    if stored and len(stored) < len(given):
        other = next(one for one in given if one.kind != "stored")
        raise UsageError(
            f"{stored[0].text} was stored and {other.text} would be run now: a run of another hour is no fair "
            "comparison. Give two results, or let both be run (two scenarios, or two revisions)"
        )
    return bool(stored)


@contextlib.contextmanager
def opened(given: list[Named], load: Load, options: Mapping[str, object]) -> Iterator[list[Side]]:
    """Yield the sides to run; checkouts last as long as the context. `load`: a scenario file, or None, → Scenario.

    Raises BenchError.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_opened(one, load, options)) for one in given]


@contextlib.contextmanager
def _opened(given: Named, load: Load, options: Mapping[str, object]) -> Iterator[Side]:
    scenario = shortened(load(given.where if given.kind == "scenario" else None), options)
    if given.kind == "revision":
        with checked_out(given.commit, given.where) as folders:
            yield Side(given.label, scenario, folders)
    else:
        yield Side(given.label, scenario, installed(given.where) if given.kind == "library" else ())


def shortened(scenario: Scenario, options: Mapping[str, object]) -> Scenario:
    """Return the scenario with a short window, unless `options` give a duration or its faults come after it."""
    latest_ms = max((fault.at_ms for fault in scenario.faults), default=0.0)
    if "duration" not in options and latest_ms < WINDOW_MS:
        scenario = replace(scenario, duration_ms=min(scenario.duration_ms, WINDOW_MS))
    if "warmup" not in options:
        scenario = replace(scenario, warmup_ms=min(scenario.warmup_ms, WARMUP_MS))
    return scenario


def commit_of(revision: str, repository: Path) -> str:
    """Return the commit that `revision` names in `repository`.

    Raises UsageError when there is no such repository or revision, EnvironmentNotReadyError when there is no git.
    """
    place = "this folder" if repository == Path() else str(repository)
    if (complaint := _git(repository, "rev-parse", "--git-dir").stderr.decode(errors="replace")).strip():
        said = complaint.splitlines()[0].removeprefix("fatal: ")
        raise UsageError(
            f"{place} cannot be asked for the revision {revision}: git says {said!r} (--repo names another)"
        )
    done = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if done.returncode:
        names = _lines(repository, "for-each-ref", "--format=%(refname:short)")
        hint = nearest(revision, names) or nearest(revision.rpartition("/")[2], names)
        if _lines(repository, "rev-parse", "--is-shallow-repository") == ["true"]:
            hint = f"{hint or ';'} this clone is shallow: fetch what is missing (in CI: the whole history)"
        raise UsageError(f"the git repository of {place} has no revision {revision or '(no name)'}{hint}")
    return done.stdout.decode().strip()


@contextlib.contextmanager
def checked_out(commit: str, repository: Path) -> Iterator[tuple[str, ...]]:
    """Yield the folders to import from of a commit of `repository`, without the bench itself.

    Raises UsageError when it holds no package, EnvironmentNotReadyError when git cannot give it, or the library in it
    is not what is imported then.
    """
    archive = _git(repository, "archive", "--format=tar", commit)
    if archive.returncode:
        raise EnvironmentNotReadyError(f"git cannot read {commit[:12]} of {repository}; fetch it (a shallow clone?)")
    with contextlib.closing(Guard(Path(tempfile.gettempdir()), PREFIX)) as guard:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            wanted = [member for member in tar if member.name.partition("/")[0] not in _THE_BENCH]
            tar.extractall(guard.folder, wanted, filter="data")
        folders = tuple(str(path) for path in (guard.folder, guard.folder / "src") if path.is_dir())
        packages = [path.parent.name for folder in folders for path in Path(folder).glob("*/__init__.py")]
        if not packages:
            raise UsageError(f"{commit[:12]} of {repository} holds no Python package to compare")
        for package in packages:
            _require_from(package, folders)
        yield folders


def installed(folder: Path) -> tuple[str, ...]:
    """Return where to import from: `folder` itself, or the site-packages of the virtual environment that it is.

    Raises UsageError when it holds no package.
    """
    places = [*sorted(folder.glob("lib/python*/site-packages")), folder] if folder.is_dir() else []
    for place in places:
        if any(place.glob("*/__init__.py")):
            return (str(place.resolve()),)
    raise UsageError(
        f"{folder} holds no Python package; give a virtual environment or a folder of pip install --target"
    )


def _require_from(package: str, folders: Sequence[str]) -> None:
    """Refuse a checkout that would not be used: a comparison of a version with itself says nothing."""
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _ASK, package],
        env={**os.environ, "PYTHONPATH": path},
        cwd=os.sep,
        capture_output=True,
        text=True,
        check=False,
    )
    origin = done.stdout.strip()
    if not any(Path(origin).is_relative_to(folder) for folder in folders):
        raise EnvironmentNotReadyError(
            f"the package {package} would be imported from {origin or 'nowhere'}, not from git"
        )


def _lines(repository: Path, *arguments: str) -> list[str]:
    return _git(repository, *arguments).stdout.decode(errors="replace").split()


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """What git answered, well or badly. Raises EnvironmentNotReadyError when it did not."""
    command = ["git", "-C", str(repository), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise EnvironmentNotReadyError(f"a revision was named, and git cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentNotReadyError(f"git did not answer within a minute about {repository}") from None
