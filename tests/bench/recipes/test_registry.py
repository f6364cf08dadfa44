"""Recipes by name: found, described, refused with one sentence, and imported only when used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.errors import BenchError, UsageError
from bench.recipes.about import About
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import RECIPES, WITHDRAWN, find_recipe

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "bench" / "recipes"
DESCRIBED = (
    "get-set setnx setnx-expire timestamp-getset timestamp-set company-2013 multi-write multi-write-unique-index "
    "set-nx-fixed set-nx-get-del set-nx-lua majority-release watchdog watchdog-naive backoff redlock-sequential "
    "redlock-random-order redlock replica-failover replica-delayed-promotion"
)


def test_every_described_recipe_is_there() -> None:
    assert set(RECIPES) == set(DESCRIBED.split())
    assert list(WITHDRAWN) == ["read-write"]


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_says_what_it_is_and_what_it_gets_wrong_in_one_line(name: str) -> None:
    entry = find_recipe(name)
    about = entry.about
    assert entry.name == name
    assert len(about.how) > 15
    assert 10 < len(about.flaw) < 100
    assert "\n" not in about.how + about.flaw
    assert about.safe or not about.flaw.startswith("none")
    assert about.safe or about.shown_by
    assert about.least <= about.usual <= (about.most or about.usual)


@pytest.mark.parametrize("name", [name for name in RECIPES if not RECIPES[name].about.safe])
def test_a_flawed_recipe_is_labelled_in_its_file_so_that_nobody_copies_it(name: str) -> None:
    text = (FOLDER / f"{find_recipe(name).module}.py").read_text(encoding="utf-8")
    assert "Flawed, on purpose: do not copy it." in text


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_pause_points_a_recipe_lists_are_those_in_its_code(name: str) -> None:
    entry = find_recipe(name)
    sources = [sys.modules[base.__module__] for base in entry.recipe.__mro__ if base.__module__.startswith("bench.")]
    text = "".join(Path(source.__file__ or "").read_text(encoding="utf-8") for source in sources)
    passed = set(re.findall(r'(?:self\.pause|reach)\("([a-z-]+)"\)', text))
    assert passed == set(entry.about.all_points)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no recipe 'redlok'; did you mean redlock\?"):
        find_recipe("redlok")
    with pytest.raises(UsageError, match="no recipe 'nope'; the recipes are redlock, redlock-sequential, "):
        find_recipe("nope")


def test_a_withdrawn_recipe_says_so() -> None:
    with pytest.raises(UsageError, match="read-write was withdrawn by its author as wrong; not reproduced"):
        find_recipe("read-write")


@pytest.mark.parametrize(
    "name, targets, sentence",
    [
        ("set-nx-lua", 2, "locks on 1 instance, and 2 were given; use --instances 1, or one --target"),
        ("multi-write", 1, "locks on 2 or more instances, and 1 was given; use --instances 3, or one --target"),
    ],
)
def test_a_number_of_targets_that_the_recipe_cannot_use_is_refused(name: str, targets: int, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        find_recipe(name).connect([f"redis://host{number}" for number in range(targets)], RecipeSettings())


@pytest.mark.parametrize(
    "least, most, words", [(1, 1, "1"), (2, None, "2 or more"), (1, None, "any number"), (2, 3, "2 to 3")]
)
def test_instances_in_words(least: int, most: int | None, words: str) -> None:
    assert About("how", "flaw", safe=True, least=least, most=most).instances == words


def test_listing_recipes_imports_neither_gevent_nor_locust() -> None:
    code = (
        "import sys\nfrom bench.recipes.registry import RECIPES\n"
        "assert all(entry.about for entry in RECIPES.values())\n"
        "sys.exit(bool({'locust', 'gevent'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize(
    "url, sentence",
    [("redis://:sesame@127.0.0.1:1", "127.0.0.1:1|no instance"), ("redis://:sesame@h/x", "must be a number")],
)
def test_a_target_that_cannot_be_used_is_one_sentence_without_its_password(name: str, url: str, sentence: str) -> None:
    with pytest.raises(BenchError, match=sentence) as raised:
        RECIPES[name].connect([url] * RECIPES[name].about.least, RecipeSettings())
    assert "sesame" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_setting_that_the_lock_refuses_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="max_ttl_ms"):
        RECIPES["redlock"].connect(["redis://127.0.0.1:1"], RecipeSettings(max_ttl_ms=0))
