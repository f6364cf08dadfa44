"""The house rules, checked: sizes, names, imports, and nothing of a particular machine or registry."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("lockcore", "bench", "dashboards", "tests")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAME = lambda path: str(path.relative_to(ROOT))  # noqa: E731 - an id of parametrize
MOST_LINES = 600
MOST_FUNCTION_LINES = 60
SAYS_NOTHING = re.compile(r"(utils?|helpers?|common|misc|managers?)")
# Spelled in pieces, so that this file does not find itself.
REGISTRY = re.compile(
    r"py" r"pi\.org|python" r"hosted|registry\." r"npmjs|deb" r"ian\.org|crates\." r"io|repo1?\." r"maven"
)


def tracked_files() -> list[Path]:
    """What git knows; without git (a source archive) every file that is not built."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def long_functions(tree: ast.AST) -> list[tuple[str, int]]:
    """Functions over the limit and how many lines they have, docstring included."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [(name, lines) for name, lines in sizes if lines > MOST_FUNCTION_LINES]


@pytest.mark.parametrize("path", SOURCES, ids=NAME)
def test_a_file_is_short_and_its_functions_too(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert long_functions(ast.parse(text)) == []


def test_the_limit_on_functions_would_notice() -> None:
    body = "\n".join(f"    x = {number}" for number in range(MOST_FUNCTION_LINES))
    assert long_functions(ast.parse(f"def f():\n{body}")) == [("f", MOST_FUNCTION_LINES + 1)]


def test_no_name_says_nothing() -> None:
    assert [str(path) for path in SOURCES if SAYS_NOTHING.fullmatch(path.stem)] == []
    assert [
        str(path)
        for path in SOURCES
        if any(SAYS_NOTHING.fullmatch(part) for part in path.relative_to(ROOT).parent.parts)
    ] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts], ids=NAME)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_registry_is_named() -> None:
    named = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        named += [f"{path.relative_to(ROOT)}: {match[0]}" for match in REGISTRY.finditer(text)]
    assert named == []


def imported_by(statement: str) -> set[str]:
    """The modules a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


PROCESSES = ("_process", ".waitaof_lock", ".loops")  # a question's load processes, and what only they import


@pytest.mark.parametrize("package", ["bench.cli", "bench.experiments", "bench.report", "bench.run"])
def test_cli_experiments_and_report_never_reach_locust_or_gevent(package: str) -> None:
    folder = ROOT.joinpath(*package.split("."))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(folder.rglob("*.py"))]
    modules = [module.removesuffix(".__init__") for module in modules if not module.endswith(PROCESSES)]
    loaded = imported_by("\n".join(f"import {module}" for module in modules))
    assert package in loaded
    assert loaded & {"locust", "gevent"} == set()


def test_lockcore_imports_no_event_loop_and_nothing_of_the_bench() -> None:
    loaded = imported_by("import lockcore")
    assert "lockcore" in loaded
    assert loaded & {"gevent", "asyncio", "locust", "opentelemetry", "numpy", "bench"} == set()
