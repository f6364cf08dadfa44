"""lockcore as machine code: all of its pure modules or none, and never a build that fails for it."""

import logging
import os
from importlib import import_module
from pathlib import Path

import pytest
from setuptools.dist import Distribution

from lockcore.compiled import MODULES, CompileCore
from tests.lockcore.source import COMPILED, needs_compiler


def test_all_modules_are_compiled_or_none() -> None:
    compiled = [not str(import_module(name).__file__).endswith(".py") for name in MODULES]
    assert set(compiled) == {COMPILED}


@needs_compiler
def test_where_a_compiled_core_was_asked_for_it_is_what_runs() -> None:
    """Else the compiled half of `make test` would show the source a second time."""
    if not os.environ.get("PYTHONPATH", "").endswith(".venv/compiled"):
        pytest.skip("nobody asked for the compiled core here")
    assert COMPILED


@pytest.fixture
def build(tmp_path: Path) -> CompileCore:
    """A build into a folder that holds a module of an earlier one."""
    command = CompileCore(Distribution())
    command.ensure_finalized()
    command.build_lib = str(tmp_path)
    (tmp_path / "lockcore").mkdir()
    (tmp_path / "lockcore/engine.cpython-311.so").touch()
    return command


@pytest.mark.parametrize("error", [SystemExit(1), ImportError("No module named 'mypyc'"), OSError("no cc")])
def test_a_build_that_cannot_compile_says_so_and_leaves_the_source_alone(
    build: CompileCore, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def failing() -> None:
        raise error

    build._compile = failing
    with caplog.at_level(logging.WARNING):
        build.run()
    assert [record.getMessage() for record in caplog.records] == [
        f"lockcore stays pure Python, which is slower: {error}"
    ]
    assert not list(tmp_path.glob("**/*.so"))


def test_who_wants_the_source_gets_it(build: CompileCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKCORE_PURE", "1")
    build.run()
    assert not list(tmp_path.glob("**/*.so"))


def test_an_editable_install_is_not_compiled(build: CompileCore, tmp_path: Path) -> None:
    build.editable_mode = True
    build._compile = pytest.fail
    build.run()
    assert list(tmp_path.glob("**/*.so"))
