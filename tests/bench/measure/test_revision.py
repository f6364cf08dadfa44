"""A checkout of another user, asked by the real git."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.compare.sides import commit_of
from bench.measure import environment
from bench.measure.revision import ask_git, refusal_of
from bench.topology import doctor


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a space in its name, which git takes for another user's."""
    folder = tmp_path / "some where"
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "x")):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        folder.mkdir(exist_ok=True)
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    # git's own tests have it
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    if not ask_git(folder, "rev-parse", "HEAD").returncode:
        pytest.skip("this git reads checkouts of other users")
    return folder


def test_a_gate_on_it_names_the_line_to_type(foreign: Path) -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match=r"git config --global --add safe\.directory"
    ) as refused:
        commit_of("main", foreign)
    assert "another user" in str(refused.value)
    assert "no revision" not in str(refused.value)


def test_the_line_does_help(foreign: Path, tmp_path: Path) -> None:
    refusal = refusal_of(ask_git(foreign, "rev-parse", "HEAD"), foreign)
    subprocess.run(
        ["sh", "-c", refusal.partition("type: ")[2]],
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert len(commit_of("main", foreign)) == 40


def test_a_run_whose_commit_is_not_known_for_that_says_so(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_SOURCE", foreign)
    assert environment.describe_environment().git_commit is None
    (warning,) = environment._commit_warnings()
    assert warning.startswith("the commit of lockbench's source is unknown: ")
    assert "safe.directory" in warning


def test_elsewhere_there_is_nothing_to_warn_of(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    # one's own checkout, and none
    for folder in (foreign, foreign.parent):
        monkeypatch.setattr(environment, "_SOURCE", folder)
        assert environment._commit_warnings() == []
    done = ask_git(foreign, "rev-parse", "nonsense")
    assert done.returncode
    assert refusal_of(done, foreign) == ""


@pytest.mark.parametrize(
    ("core", "is_checkout", "warned"),
    [("source", False, True), ("source", True, False), ("compiled", False, False)],
)
def test_an_installation_that_could_not_be_compiled_says_so_in_every_result_and_in_doctor(
    core: str, is_checkout: bool, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_checkout:
        (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(environment, "_SOURCE", tmp_path)
    monkeypatch.setattr(environment, "_core", lambda: core)
    assert any("slower" in warning for warning in environment.environment_warnings()) is warned
    for name in ("_server", "_compiler", "_cores"):
        monkeypatch.setattr(doctor, name, lambda: doctor._fact("x", "y"))
    monkeypatch.setattr(doctor, "_disk", lambda _folder: doctor._fact("x", "y"))
    monkeypatch.setattr(doctor, "_faults", lambda: iter(()))
    (fact,) = (fact for fact in doctor.examine() if fact.name == "lockcore")
    assert (fact.value, "slower" in fact.advice) == (core, warned)
