"""lockcore as machine code: all of its pure modules or none, and never a build that fails for
it."""

import ast
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from setuptools.dist import Distribution

from lockcore import compiled
from lockcore.compiled import MODULES, CompileCore
from tests.lockcore.source import COMPILED, needs_compiler


def docstring_of(name: str) -> str:
    source = Path(compiled.__file__).parents[1] / f"{name.replace('.', '/')}.py"
    return ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""


def test_what_is_compiled_is_three_folders_and_the_files_called_fast() -> None:
    folders = {name.split(".")[1] for name in MODULES if not name.endswith(".fast")}
    assert folders == {"facts", "rounds", "engine"}
    assert {name for name in MODULES if name.endswith(".fast")} >= {
        "lockcore.shells.greenlets.fast",
        "lockcore.shells.tasks.fast",
        "lockcore.telemetry.fast",
    }
    assert len(MODULES) == len(set(MODULES)) > 20


@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_file_says_so_and_names_a_rule_on_its_first_lines(name: str) -> None:
    _, _, after = docstring_of(name).partition("This file is compiled, so it follows the rules of ")
    place, _, rule = after.partition("\n\n")[0].partition(".md")
    assert place.split() == ["docs/lockcore/compiled"]
    assert len(rule.split()) > 3


@pytest.mark.parametrize("name", ["lockcore.redlock", "lockcore.settings", "lockcore.otel"])
def test_a_file_that_is_not_compiled_does_not_say_that_it_is(name: str) -> None:
    assert name not in MODULES
    assert "is compiled" not in docstring_of(name)


def test_all_modules_are_compiled_or_none() -> None:
    forms = [not str(import_module(name).__file__).endswith(".py") for name in MODULES]
    assert set(forms) == {COMPILED}


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


def message_of(
    build: CompileCore, caplog: pytest.LogCaptureFixture, compile_: Callable[[], object]
) -> str:
    """The only warning of a build that cannot compile."""
    build._compile = compile_
    with caplog.at_level(logging.WARNING):
        build.run()
    (record,) = caplog.records
    head, _, why = record.getMessage().partition(": ")
    assert head == "lockcore stays pure Python, which is slower"
    return why


@pytest.mark.parametrize(
    "program, error, why",
    [
        (
            "print('lockcore/x.py:3: error: Name is not defined'); print('Found 1 error "
            "in 1 file')",
            SystemExit(1),
            "mypyc ended with exit status 1: lockcore/x.py:3: error: Name is not defined",
        ),
        (
            "sys.stderr.write('x.c:9: fatal error: Python.h: No such file or "
            "directory\\ncompilation terminated.\\n')",
            CalledProcessError(4, ["/usr/bin/cc", "-O3"]),
            "/usr/bin/cc ended with exit status 4: x.c:9: fatal error: Python.h: No such "
            "file or directory",
        ),
        ("print('Killed')", CalledProcessError(-9, ["cc"]), "cc ended with exit status -9: Killed"),
        (
            "print('x.py:3: warning: slow')",
            FileNotFoundError(2, "No such file or directory", "/no/cc"),
            "the C compiler /no/cc was not found; install gcc or clang, or name a compiler in "
            "CC, and build again",
        ),
        (
            "pass",
            ImportError("No module named 'mypyc'"),
            "mypyc cannot be imported (No module named 'mypyc'); install mypy and build again",
        ),
        ("pass", OSError("no space"), "no space"),
        ("pass", ValueError(), "ValueError"),
    ],
)
def test_a_build_that_cannot_compile_says_why_and_leaves_the_source_alone(
    build: CompileCore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    program: str,
    error: BaseException,
    why: str,
) -> None:
    def failing() -> None:
        # as a compiler's child does
        subprocess.run([sys.executable, "-c", f"import sys; {program}"], check=True)
        raise error

    assert message_of(build, caplog, failing) == why
    assert not list(tmp_path.glob("**/*.so"))
    printed = capfd.readouterr()
    assert (program != "pass") == bool(printed.err), "what a compiler prints is still printed"


def test_what_is_said_of_a_failed_build_is_one_line_of_bounded_length(
    build: CompileCore, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> None:
        raise RuntimeError("long\n" * 1_000)

    why = message_of(build, caplog, failing)
    assert "\n" not in why
    assert len(why) == 300


@pytest.mark.skipif(COMPILED, reason="the source is enough")
def test_a_compiler_that_is_not_there_is_named(
    build: CompileCore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/no/such/cc")

    def compiles() -> None:
        subprocess.run([os.environ["CC"], "-c", "x.c"], check=True)

    assert message_of(build, caplog, compiles).startswith(
        "the C compiler /no/such/cc was not found; install gcc or clang"
    )


def test_who_wants_the_source_gets_it(
    build: CompileCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKCORE_PURE", "1")
    build.run()
    assert not list(tmp_path.glob("**/*.so"))


def test_an_editable_install_is_not_compiled(build: CompileCore, tmp_path: Path) -> None:
    build.editable_mode = True
    build._compile = pytest.fail
    build.run()
    assert list(tmp_path.glob("**/*.so"))
