"""Another version of the lock library: *a git revision or a folder of installed packages → folders to import from*.

Rules: the load generator stays the one that is running; only the packages under test come from elsewhere, so that what
is compared is the lock and not the bench. What is imported in the end is asked of a fresh interpreter and must be the
version meant. A checkout lies in a private folder that a guard removes, however this process ends.
Source: git-archive(1); Python's PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.scenario.quantity import nearest
from bench.topology.guard import Guard

PREFIX = "lockbench-revision-"
_THE_BENCH = ("bench", "dashboards", "tests")  # stay as they are here
_ASK = "import importlib.util,sys; s=importlib.util.find_spec(sys.argv[1]); print(s.origin if s and s.origin else '')"


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
