"""Compiling the shim once, and never loading what is not it."""

import subprocess
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.shim import build


def test_the_source_has_no_warning(tmp_path: Path) -> None:
    strict = ["cc", *build._FLAGS, "-Wall", "-Wextra", "-Werror", "-o", str(tmp_path / "x.so"), str(build.SOURCE)]
    done = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_compiled_on_first_use_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "a b" / "cache"
    first = build.shim_library(cache)
    monkeypatch.setattr(build, "_compiled", None)
    assert build.shim_library(cache) == first
    assert list(cache.iterdir()) == [first]


def test_a_library_that_is_not_what_its_name_says_is_replaced(tmp_path: Path) -> None:
    first = build.shim_library(tmp_path)
    content = first.read_bytes()
    first.write_bytes(b"evil" + content[4:])
    assert build.shim_library(tmp_path).read_bytes()[:4] == content[:4]


def test_another_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.shim_library(tmp_path)
    changed = tmp_path / "changed.c"
    changed.write_text(build.SOURCE.read_text() + "\nint something_new;\n")
    monkeypatch.setattr(build, "SOURCE", changed)
    assert build.shim_library(tmp_path) != first


def test_no_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ("no-such-compiler",))
    with pytest.raises(EnvironmentNotReadyError, match="needs a C compiler, and there is none: install gcc"):
        build.shim_library(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", ("--no-such-flag",))
    with pytest.raises(EnvironmentNotReadyError, match="cannot compile the fault shim: .*no-such-flag"):
        build.shim_library(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(EnvironmentNotReadyError, match="only this user can write; set XDG_CACHE_HOME"):
        build.shim_library(tmp_path)


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.shim_library().parent == tmp_path / "lockbench"
