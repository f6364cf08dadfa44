"""Another version of the library: what is meant is what is imported, the bench stays, nothing is
left behind."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.compare import sides
from bench.experiments.compare.pairs import Side
from bench.experiments.compare.sides import (
    PREFIX,
    Named,
    checked_out,
    commit_of,
    installed,
    read_named,
)
from bench.measure.environment import describe_environment
from bench.scenario import load


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a library `mylock`, tagged v1 and v2, that also has a folder `bench`."""
    folder = tmp_path / "repository"
    git(tmp_path, "init", "-q", "repository")
    for version in (1, 2):
        for package in ("mylock", "bench"):
            (folder / package).mkdir(exist_ok=True)
            (folder / package / "__init__.py").write_text(
                f"VERSION = {version}\n", encoding="utf-8"
            )
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"version {version}")
        git(folder, "tag", f"v{version}")
    return folder


def imported(side: Side, module: str) -> str:
    code = f"import {module}; print(getattr({module}, 'VERSION', {module}.__file__))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=side.environ(),
        cwd=os.sep,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_each_revision_gives_its_own_library_and_not_its_bench(repository: Path) -> None:
    for version in (1, 2):
        commit = commit_of(f"v{version}", repository)
        with checked_out(commit, repository) as folders:
            side = Side("x", load(None, {}), folders)
            assert imported(side, "mylock") == str(version)
            assert not any(Path(folder, "bench").exists() for folder in folders)


def test_a_compiled_lock_is_not_gated_against_its_source(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in the CI examples: the candidate was what pip had compiled, the baseline a checkout,
    and all passed."""

    def made(name: str) -> Path:
        (repository / name / name).mkdir(parents=True, exist_ok=True)
        (repository / name / name / "__init__.py").touch()
        return repository / name

    monkeypatch.setattr(sides, "_imported_elsewhere", lambda *_: "")
    environment = describe_environment()
    given = [
        Named("git:v2", "revision", repository, commit_of("v2", repository)),
        Named("here", "here"),
    ]
    for folder, compiled, refused in (
        ("lockcore", True, True),
        ("lockcore", False, False),
        ("mylock", True, False),
    ):
        monkeypatch.setattr(
            sides, "checked_out", lambda *_, name=folder: contextlib.nullcontext((str(made(name)),))
        )
        word = "compiled" if compiled else "source"
        monkeypatch.setattr(
            sides, "describe_environment", lambda word=word: replace(environment, lockcore=word)
        )
        expected = (
            pytest.raises(UsageError, match="--candidate git:HEAD")
            if refused
            else contextlib.nullcontext()
        )
        with expected, sides.opened(given, lambda _one: load(None, {}), {}) as found:
            assert len(found) == 2


def test_the_code_here_is_that_of_the_repository_and_not_what_is_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed copy knows of no change in the repository: baseline and candidate would be the
    same, and pass."""
    given = [
        Named("git:v2", "revision", repository, commit_of("v2", repository)),
        Named("here", "here"),
    ]
    shutil.copytree(repository / "mylock", tmp_path / "site-packages" / "mylock")
    for path, refused in ((tmp_path / "site-packages", True), (repository, False)):
        monkeypatch.setenv("PYTHONPATH", str(path))
        expected = (
            pytest.raises(UsageError, match="--candidate git:HEAD")
            if refused
            else contextlib.nullcontext()
        )
        with expected, sides.opened(given, lambda _one: load(None, {}), {}) as found:
            assert len(found) == 2
    monkeypatch.delenv("PYTHONPATH")
    with (
        pytest.raises(UsageError, match="imported from nowhere"),
        sides.opened(given, lambda _: load(None, {}), {}),
    ):
        pass


def test_what_is_alike_by_its_folder_only_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "results").mkdir()
    for name in ("lib:/nope", f"lib:{tmp_path}/nope", f"{tmp_path}/gone", "", "lib:", "x" * 5000):
        with pytest.raises(UsageError, match="there is no such") as refused:
            read_named(name, tmp_path)
        assert "did you mean" not in str(refused.value)
    with pytest.raises(UsageError, match="did you mean .*/results"):
        read_named(f"{tmp_path}/reslts", tmp_path)


def test_a_checkout_is_gone_afterwards(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    commit = commit_of("v1", repository)
    with checked_out(commit, repository):
        assert list(tmp_path.glob(f"{PREFIX}*"))
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_what_is_no_revision_is_a_mistake_and_the_nearest_one_is_said(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    wrong = {
        "origin/mian": "did you mean origin/main",
        "v3": "has no revision v3",
        "--help": "no revision",
        "": "no name",
        "origin/": "no revision",
    }
    for revision, said in wrong.items():
        with pytest.raises(UsageError, match=said):
            commit_of(revision, repository)
    with pytest.raises(UsageError, match="git says 'not a git repository"):
        commit_of("v1", tmp_path)
    with pytest.raises(UsageError, match="cannot change to"):
        commit_of("v1", tmp_path / "nowhere")
    with (
        pytest.raises(EnvironmentNotReadyError, match="git cannot read"),
        checked_out("0" * 40, repository),
    ):
        pass


def test_a_shallow_clone_is_told_as_the_reason(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    with pytest.raises(UsageError, match="this clone is shallow: fetch the missing commits"):
        commit_of("origin/nothing-like-it", tmp_path / "shallow")


def test_without_git_the_machine_is_not_ready(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentNotReadyError, match="git cannot be run"):
        commit_of("v1", repository)


def test_a_revision_without_a_package_is_refused(repository: Path) -> None:
    git(repository, "rm", "-q", "-r", "mylock")
    git(repository, "commit", "-q", "-m", "nothing left")
    commit = commit_of("HEAD", repository)
    with (
        pytest.raises(UsageError, match="contains no Python package"),
        checked_out(commit, repository),
    ):
        pass


def test_a_revision_without_a_file_is_refused(tmp_path: Path) -> None:
    """git's archive of it is a header alone, which no reader of archives takes."""
    git(tmp_path, "init", "--quiet")
    git(
        tmp_path,
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "empty",
    )
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    with (
        pytest.raises(UsageError, match="contains no Python package to compare"),
        checked_out(commit, tmp_path),
    ):
        pass


def test_a_folder_below_a_bare_repository_and_a_worktree_give_the_whole_revision(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "a b ü"), "v1")
    commit = commit_of("v1", repository)
    (repository / "new folder").mkdir()
    for place in (
        repository / "mylock",
        repository / "new folder",
        tmp_path / "bare.git",
        tmp_path / "a b ü",
    ):
        with checked_out(commit, place) as folders:
            assert imported(Side("x", load(None, {}), folders), "mylock") == "1", place


def test_a_bare_repository_has_no_code_here(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    given = [
        Named("git:v1", "revision", tmp_path / "bare.git", commit_of("v1", tmp_path / "bare.git")),
        Named("the code here", "here"),
    ]
    with (
        pytest.raises(
            UsageError,
            match="is a bare repository, so it contains no code to compare with git:v1",
        ),
        sides.opened(given, lambda _: load(None, {}), {}),
    ):
        pass


def test_links_that_lead_out_of_a_revision_are_left_out(repository: Path) -> None:
    (repository / "absolute").symlink_to("/etc/passwd")
    (repository / "relative").symlink_to("../../x")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "links")
    with checked_out(commit_of("HEAD", repository), repository) as folders:
        assert not os.path.lexists(Path(folders[0], "absolute"))
        assert Path(folders[0], "mylock", "__init__.py").exists()


def test_an_archive_that_cannot_be_read_is_not_called_a_revision_without_a_package(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what git gives is no archive."""
    commit = commit_of("v1", repository)
    ask = sides.ask_git

    def garbled(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = ask(folder, *arguments)
        return (
            subprocess.CompletedProcess([], 0, b"x" * 2000, b"")
            if arguments[0] == "archive"
            else done
        )

    monkeypatch.setattr(sides, "ask_git", garbled)
    with (
        pytest.raises(
            EnvironmentNotReadyError, match="the git archive of commit .* cannot be read"
        ),
        checked_out(commit, repository),
    ):
        pass


def test_a_commit_whose_files_are_missing_is_named_with_what_git_says(repository: Path) -> None:
    blob = git(repository, "rev-parse", "v1:mylock/__init__.py")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    commit = commit_of("v1", repository)
    with (
        pytest.raises(
            EnvironmentNotReadyError,
            match=rf"git cannot read commit {commit[:12]} .*\(git says .*{blob}",
        ),
        checked_out(commit, repository),
    ):
        pass


def test_a_library_that_would_not_be_imported_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: something else answers for the package's name, so both sides would be the same
    code."""
    commit = commit_of("v1", repository)
    monkeypatch.setattr(
        "bench.experiments.compare.sides._ASK", "print('/usr/lib/python3/mylock/__init__.py')"
    )
    with (
        pytest.raises(EnvironmentNotReadyError, match="would be imported from"),
        checked_out(commit, repository),
    ):
        pass


def test_installed_packages_are_found_in_a_folder_or_a_virtual_environment(tmp_path: Path) -> None:
    plain = tmp_path / "target"
    environment = tmp_path / "venv"
    packages = environment / "lib" / "python3.12" / "site-packages"
    for place in (plain, packages):
        (place / "mylock").mkdir(parents=True)
        (place / "mylock" / "__init__.py").write_text("VERSION = 7\n", encoding="utf-8")
    assert installed(plain) == (str(plain),)
    assert installed(environment) == (str(packages),)
    assert imported(Side("x", load(None, {}), installed(environment)), "mylock") == "7"
    with pytest.raises(UsageError, match="contains no Python package"):
        installed(tmp_path / "nowhere")
