"""Recipes by name: our own, and those that installed packages offer."""

import inspect
import json
import re
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from bench.commands.first_steps import recipes
from bench.errors import BenchError, UsageError
from bench.frame.options import scenario_of
from bench.recipes import registry
from bench.recipes.plain import PlainRecipe
from bench.recipes.protocol import About, RecipeSettings
from bench.recipes.registry import RECIPES, WITHDRAWN, all_recipes, find_recipe

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "bench" / "recipes"
DESCRIBED = (
    "get-set setnx setnx-expire timestamp-getset timestamp-set company-2013 multi-write "
    "multi-write-unique-index "
    "set-nx-fixed set-nx-get-del set-nx-lua set-nx-blpop set-nx-pubsub majority-release "
    "semaphore semaphore-off-by-one reader-writer reader-writer-late "
    "watchdog watchdog-naive "
    "backoff redlock-sequential redlock-random-order redlock replica-failover "
    "replica-delayed-promotion"
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
    assert about.least <= about.usual <= (about.most or about.usual)


@pytest.mark.parametrize("name", [name for name in RECIPES if not RECIPES[name].about.safe])
def test_a_flawed_recipe_is_labelled_where_it_stands_so_that_nobody_copies_it(name: str) -> None:
    label = "This lock is flawed on purpose. Do not copy it."
    assert label in (find_recipe(name).recipe.__doc__ or "")


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_pause_points_a_recipe_lists_are_those_in_its_code(name: str) -> None:
    entry = find_recipe(name)
    classes = [base for base in entry.recipe.__mro__ if base.__module__.startswith("bench.")]
    beside = [part for base in classes for part in vars(sys.modules[base.__module__]).values()]
    wrappers = [part for part in beside if inspect.isroutine(part) or isinstance(part, type)]
    wrappers = [part for part in wrappers if not hasattr(part, "about")]
    text = "".join(
        inspect.getsource(part)
        for part in (*classes, *wrappers)
        if (part.__module__ or "").startswith("bench.")
    )
    passed = set(re.findall(r'(?:self\.pause|reach)\("([a-z-]+)"\)', text))
    assert passed == set(entry.about.all_points)


def test_a_withdrawn_recipe_says_so() -> None:
    with pytest.raises(
        UsageError,
        match="read-write was withdrawn by its author as wrong, so lockbench does not implement it",
    ):
        find_recipe("read-write")


@pytest.mark.parametrize(
    "name, targets, sentence",
    [
        (
            "set-nx-lua",
            2,
            "locks on 1 instance, but 2 were given; use --instances 1, or name each instance",
        ),
        (
            "multi-write",
            1,
            "locks on 2 or more instances, but 1 was given; use --instances 3, or name",
        ),
    ],
)
def test_a_number_of_targets_that_the_recipe_cannot_use_is_refused(
    name: str, targets: int, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        find_recipe(name).connect(
            [f"redis://host{number}" for number in range(targets)], RecipeSettings()
        )


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize(
    "url, sentence",
    [
        ("redis://:sesame@127.0.0.1:1", "127.0.0.1:1|no instance"),
        ("redis://:sesame@h/x", "must be a number"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_sentence_without_its_password(
    name: str, url: str, sentence: str
) -> None:
    with pytest.raises(BenchError, match=sentence) as raised:
        RECIPES[name].connect([url] * RECIPES[name].about.least, RecipeSettings())
    assert "sesame" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_setting_that_the_lock_refuses_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="max_ttl_ms"):
        RECIPES["redlock"].connect(["redis://127.0.0.1:1"], RecipeSettings(max_ttl_ms=0))


class Good(PlainRecipe):
    about = About(how="like the others, only elsewhere", flaw="none that is known of it", safe=True)


class OneSided(PlainRecipe):
    """It says that it has two sides, and has one."""

    about = replace(Good.about, shares=True)


class Bare:
    """No recipe: it has none of the methods."""


@pytest.fixture
def offered(monkeypatch):
    """Installs entry points: name → value; the module `elsewhere` holds Good and a class that is no
    recipe."""
    module = ModuleType("elsewhere")
    module.Good = Good
    module.Bare = Bare  # type: ignore[attr-defined]
    module.OneSided = OneSided  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere", module)

    def install(**points: str) -> None:
        made = [
            EntryPoint(name.replace("_", "-"), value, registry.GROUP)
            for name, value in points.items()
        ]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: made if group == registry.GROUP else []
        )

    return install


def test_an_offered_recipe_is_one_among_ours(offered, capsys):
    offered(elsewhere="elsewhere:Good")
    assert list(all_recipes()) == [*RECIPES, "elsewhere"]
    assert find_recipe("elsewhere").recipe is Good
    recipes.callback(as_json=True)
    assert json.loads(capsys.readouterr().out)[-1]["how"] == "like the others, only elsewhere"


def test_nothing_of_it_is_imported_before_it_is_asked_for(offered):
    offered(later="not_there_yet:Recipe")
    assert "later" in all_recipes()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "not_there:Recipe",
            "cannot be loaded .ModuleNotFoundError: No module named 'not_there'.; repair it",
        ),
        ("elsewhere:Missing", "cannot be loaded .AttributeError"),
        ("elsewhere:Bare", "lacks connect, acquire, release"),
        ("elsewhere:OneSided", "lacks acquire_shared; derive it"),
    ],
)
def test_a_broken_one_is_refused_with_a_sentence_and_hides_no_other(offered, capsys, value, says):
    offered(broken=value, elsewhere="elsewhere:Good")
    with pytest.raises(UsageError, match=f"the recipe broken of an unknown package {says}"):
        _ = find_recipe("broken").about
    assert recipes.callback(as_json=False) == 0
    assert "elsewhere" in capsys.readouterr().out


def test_a_run_of_it_has_two_processes_unless_workers_of_other_hosts_load_it(offered):
    offered(theirs="nowhere:Theirs")
    assert scenario_of(None, {"recipe": "theirs", "instances": "1"}).processes == 2
    assert (
        scenario_of(None, {"recipe": "theirs", "instances": "1", "processes": "1"}).processes == 1
    )
    assert (
        scenario_of(None, {"recipe": "theirs", "instances": "1", "expect_workers": 3}).processes
        == 1
    )
    assert scenario_of(None, {"recipe": "redlock"}).processes == 1


def test_our_names_cannot_be_taken(offered):
    offered(redlock="elsewhere:Good")
    assert find_recipe("redlock") is RECIPES["redlock"]
    assert list(all_recipes()) == list(RECIPES)


def test_a_name_that_no_option_could_carry_is_left_out(offered):
    offered(**{"../up": "elsewhere:Good", "Big": "elsewhere:Good", "no_class": "elsewhere"})
    assert all_recipes() == RECIPES


def test_an_unknown_name_is_answered_with_theirs_too(offered):
    offered(elsewhere="elsewhere:Good")
    with pytest.raises(UsageError, match="did you mean elsewhere?"):
        find_recipe("elswhere")
    with pytest.raises(
        UsageError,
        match="there is no recipe 'nope'; the recipes are redlock, .*-promotion, elsewhere$",
    ):
        find_recipe("nope")


def test_a_recipe_for_one_holder_is_refused_more_holders() -> None:
    find_recipe("semaphore").require(1, (), 3, shared=False)
    with pytest.raises(UsageError, match="lets one caller hold a resource, but --capacity is 3"):
        find_recipe("set-nx-lua").require(1, (), 3, shared=False)


def test_readers_need_a_recipe_with_sides_and_such_a_recipe_needs_readers() -> None:
    find_recipe("reader-writer").require(1, (), 1, shared=True)
    with pytest.raises(UsageError, match="set-nx-lua has no readers, .* use --recipe reader-wr"):
        find_recipe("set-nx-lua").require(1, (), 1, shared=True)
    with pytest.raises(UsageError, match="reader-writer is for readers and writers; add --shared"):
        find_recipe("reader-writer").require(1, (), 1, shared=False)
