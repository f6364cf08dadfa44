"""Options made from the table of scenario keys: *KEYS → click options → texts for `scenario.load`*.

Rules: an option is a key of the same name; its value is kept as text and judged by the scenario alone, so that a file
and an option are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from bench.scenario import KEYS, ScenarioKey

Command = TypeVar("Command", bound=Callable[..., Any])


def scenario_options(command: Command) -> Command:
    """Give a click command one option per scenario key."""
    return scenario_options_without()(command)


def scenario_options_without(*names: str) -> Callable[[Command], Command]:
    """Give a click command one option per scenario key, but for these keys, which it takes in a way of its own."""

    def decorate(command: Command) -> Command:
        for key in reversed(KEYS):
            if key.name not in names:
                command = _option(key)(command)
        return command

    return decorate


def given_options(values: Mapping[str, Any]) -> dict[str, object]:
    """Return what of `values` (click's parameters) was written on the command line, by key name."""
    given: dict[str, object] = {}
    for key in KEYS:
        value = values.get(_parameter(key))
        if value is not None and value != ():
            given[key.name] = value
    return given


def _option(key: ScenarioKey) -> Callable[[Command], Command]:
    text = key.help + (f"  [{_default_text(key)}]" if key.default not in (None, (), False) else "")
    if key.kind.flag:
        negation = key.option.replace("--", "--no-", 1)
        names = (f"{key.option}/{negation}", _parameter(key))
        return click.option(*names, default=None, help=text)
    return click.option(
        key.option,
        _parameter(key),
        metavar=key.kind.metavar,
        multiple=key.kind.many,
        default=None,
        help=text,
        shell_complete=_recipe_names if key.name == "recipe" else None,
    )


def _recipe_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from bench.recipes.registry import all_recipes

    return [name for name in all_recipes() if name.startswith(begun)]


def _parameter(key: ScenarioKey) -> str:
    return key.name.replace(".", "_")


def _default_text(key: ScenarioKey) -> str:
    return str(key.default)
