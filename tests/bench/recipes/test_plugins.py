"""Recipes of other packages: found without being imported, refused with a sentence, and never in place of ours."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from bench.cli.recipes import print_recipes
from bench.errors import UsageError
from bench.recipes import plugins
from bench.recipes.about import About
from bench.recipes.plain import PlainRecipe
from bench.recipes.registry import RECIPES, all_recipes, find_recipe


class Good(PlainRecipe):
    about = About(how="like the others, only elsewhere", flaw="none that is known of it", safe=True)


@pytest.fixture
def offered(monkeypatch):
    """Installs entry points: name → value; the module `elsewhere` holds Good and a class that is no recipe."""
    module = ModuleType("elsewhere")
    module.Good, module.Bare = Good, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere", module)

    def install(**points: str) -> None:
        made = [EntryPoint(name.replace("_", "-"), value, plugins.GROUP) for name, value in points.items()]
        monkeypatch.setattr(plugins, "entry_points", lambda group: made if group == plugins.GROUP else [])

    return install


def test_an_offered_recipe_is_one_among_ours(offered, capsys):
    offered(elsewhere="elsewhere:Good")
    assert list(all_recipes()) == [*RECIPES, "elsewhere"]
    assert find_recipe("elsewhere").recipe is Good
    print_recipes(as_json=True)
    assert json.loads(capsys.readouterr().out)[-1]["how"] == "like the others, only elsewhere"


def test_nothing_of_it_is_imported_before_it_is_asked_for(offered):
    offered(later="not_there_yet:Recipe")
    assert "later" in all_recipes()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("not_there:Recipe", "cannot be loaded .ModuleNotFoundError: No module named 'not_there'.; repair it"),
        ("elsewhere:Missing", "cannot be loaded .AttributeError"),
        ("elsewhere:Bare", "lacks connect, acquire, release"),
    ],
)
def test_a_broken_one_is_refused_with_a_sentence_and_hides_no_other(offered, capsys, value, says):
    offered(broken=value, elsewhere="elsewhere:Good")
    with pytest.raises(UsageError, match=f"the recipe broken of an unknown package {says}"):
        _ = find_recipe("broken").about
    assert print_recipes(as_json=False) == 0
    assert "elsewhere" in capsys.readouterr().out


def test_our_names_cannot_be_taken(offered):
    offered(redlock="elsewhere:Good")
    assert find_recipe("redlock") is RECIPES["redlock"]
    assert list(all_recipes()) == list(RECIPES)


def test_a_name_that_no_option_could_carry_is_left_out(offered):
    offered(**{"../up": "elsewhere:Good", "Big": "elsewhere:Good", "no_class": "elsewhere"})
    assert plugins.plugin_recipes() == {}


def test_an_unknown_name_is_answered_with_theirs_too(offered):
    offered(elsewhere="elsewhere:Good")
    with pytest.raises(UsageError, match="did you mean elsewhere?"):
        find_recipe("elswhere")
    with pytest.raises(UsageError, match="replica-delayed-promotion, elsewhere$"):
        find_recipe("nope")
