"""The page on threats stays honest: its tests and files exist, and every private part we lean on
has a line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.keyspace import NIL, OK
from tests.lockcore.scripted import ScriptedFleet, name_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "lockcore" / "THREATS.md").read_text("utf-8")
MOST_LINES = 80
# of named tuples: it begins with an underscore, and the manual lists it
DOCUMENTED = {"_asdict"}
PRIVATE = re.compile(r"_[a-z]\w*")


def modules() -> Iterator[ast.Module]:
    """The source of lockcore."""
    for path in sorted((ROOT / "lockcore").rglob("*.py")):
        yield ast.parse(path.read_text("utf-8"))


def names_of_ours() -> set[str]:
    """Every name that lockcore itself gives to a function, a class, a variable or an attribute."""
    ours: set[str] = set()
    for node in (node for module in modules() for node in ast.walk(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            ours.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            ours.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                ours.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            ours |= set(ast.literal_eval(node.value))
    return ours


def private_parts() -> set[str]:
    """Every private attribute that lockcore reads or sets and does not name itself, and every
    private import."""
    used: set[str] = set()
    for node in (node for module in modules() for node in ast.walk(module)):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            used.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            used |= {alias.name for alias in node.names if PRIVATE.fullmatch(alias.name)}
    return used - names_of_ours() - DOCUMENTED


def names_of_tests() -> set[str]:
    """The names of all tests of lockcore."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    return {
        name
        for text in texts
        for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)
    }


def missing_tests(page: str) -> set[str]:
    """The tests that a page names and that do not exist."""
    return set(re.findall(r"`(test_\w+)`", page)) - names_of_tests()


def missing_files(page: str) -> set[str]:
    """The files that a page names and that do not exist, below lockcore or tests."""
    named = set(re.findall(r"`([\w/.-]+\.(?:py|md|lua))`", page)) | set(
        re.findall(r"\]\(([\w/.-]+)\)", page)
    )
    folders = (ROOT / "lockcore", ROOT / "tests")
    there = {str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*.*")}
    known = there | {Path(path).name for path in there}
    return {name for name in named if name not in known and not (ROOT / name).exists()}


def test_one_liar_among_three_can_let_two_callers_in() -> None:
    """It grants to everybody. Each of the honest instances has granted to one of the two."""
    here = ScriptedFleet(3)
    there = ScriptedFleet(3)
    liar = 2
    first = here.ask()
    second = there.ask()
    here.reply(0, OK)
    there.reply(0, NIL)
    here.reply(1, NIL)
    there.reply(1, OK)
    here.reply(liar, OK)
    there.reply(liar, OK)
    assert name_of(first) == name_of(second) == "acquired"


def test_the_page_can_be_read_in_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_every_test_that_the_page_names_exists() -> None:
    assert len(re.findall(r"`(test_\w+)`", PAGE)) > 20
    assert missing_tests(PAGE) == set()


def test_every_file_that_the_page_names_exists() -> None:
    assert len(re.findall(r"`([\w/]+\.py)`", PAGE)) > 5
    assert missing_files(PAGE) == set()


def unlisted_parts(page: str) -> set[str]:
    """The private parts of other libraries that have no row on a page."""
    rows = [line for line in page.splitlines() if line.startswith("|")]
    return {
        part
        for part in private_parts()
        if not any(f"`{part}`" in row or f".{part}`" in row for row in rows)
    }


def test_every_private_part_of_another_library_has_a_row() -> None:
    assert unlisted_parts(PAGE) == set()
    assert {"_callbacks", "_sock", "_socket"} <= unlisted_parts("a page without rows")


def test_each_row_on_private_parts_names_a_file_and_a_test() -> None:
    rows = PAGE.partition("## Private parts")[2].splitlines()
    cells = [row.strip("|").split("|") for row in rows if row.startswith("| `")]
    assert len(cells) > 4
    for part, where, gone, test in cells:
        assert ".py`" in where, part
        assert len(gone.split()) > 2, part
        assert "`test_" in test, part


@pytest.mark.parametrize("name", ["`test_that_was_renamed`", "`gone.py`", "[there](gone.md)"])
def test_a_name_that_leads_nowhere_is_noticed(name: str) -> None:
    assert missing_tests(name) | missing_files(name)
