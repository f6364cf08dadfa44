"""Recipes by name: found, described, refused with one sentence, and imported only when used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import RECIPES, find_recipe

ROOT = Path(__file__).parents[3]


def test_both_recipes_are_there_with_their_one_line_flaw() -> None:
    assert list(RECIPES) == ["redlock", "set-nx-lua"]
    for name, entry in RECIPES.items():
        assert find_recipe(name) is entry
        assert entry.name == name
        assert "\n" not in entry.flaw
        assert len(entry.how) > 20


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no recipe 'redlok'; the recipes are redlock, set-nx-lua"):
        find_recipe("redlok")


def test_a_number_of_targets_that_the_recipe_cannot_use_is_refused() -> None:
    with pytest.raises(UsageError, match="locks on 1 instance, and 2 were given"):
        find_recipe("set-nx-lua").connect(["redis://a", "redis://b"], RecipeSettings())


def test_listing_recipes_imports_neither_gevent_nor_redis() -> None:
    code = "import sys, bench.recipes.registry; sys.exit(bool({'locust', 'gevent'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize(
    "url, sentence", [("redis://:sesame@127.0.0.1:1", "127.0.0.1:1"), ("redis://:sesame@h/x", "h/x")]
)
def test_a_target_that_cannot_be_used_is_one_sentence_without_its_password(name: str, url: str, sentence: str) -> None:
    from bench.errors import BenchError

    with pytest.raises(BenchError, match=sentence) as raised:
        RECIPES[name].connect([url], RecipeSettings())
    assert "sesame" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_setting_that_the_lock_refuses_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="max_ttl_ms"):
        RECIPES["redlock"].connect(["redis://127.0.0.1:1"], RecipeSettings(max_ttl_ms=0))
