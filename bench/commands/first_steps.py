"""Contains the commands that a new user runs first. The commands list the locks, check the machine,
write a first scenario, and print the lines for shell completion.

These commands never overwrite an existing file. A command imports a heavy module only when it needs
the module. The source for the shell completion is the page "Shell Completion" of click's
documentation.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from bench.errors import EnvironmentNotReadyError, UsageError, writing
from bench.experiments import judge
from bench.frame.execute import VARIABLE
from bench.frame.options import Grouped, ending, environment_targets
from bench.scenario import KEYS, ScenarioKey
from bench.screen import clean, console_on, fit, note, say, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from bench.recipes.registry import RecipeEntry

PROGRAM = "lockbench"
_SAFE = """
safe: never two valid leases at once, within its assumptions. Those that are not are here to show
it: do not copy them. How each locks, and its pause points: lockbench recipes --json"""
json_option = click.option("--json", "as_json", is_flag=True, help="print as JSON")


@click.command(cls=Grouped, epilog=ending("lockbench recipes"))
@json_option
def recipes(as_json: bool) -> int:
    """List the locks that lockbench can load, each with its known flaw."""
    from bench.recipes.registry import WITHDRAWN, all_recipes

    listed = [_recipe_facts(entry) for entry in all_recipes().values()]
    if as_json:
        say_json(listed, indent=2)
        return 0
    table = _table("recipe", "instances", "safe", "what it gets wrong")
    for facts in listed:
        safe = {True: "yes", False: "NO"}.get(facts["safe"], "?")
        origin = f" (from {facts['package']})" if facts["package"] else ""
        table.add_row(*_cells(facts["name"], facts["instances"], safe, facts["flaw"] + origin))
    for name, why in WITHDRAWN.items():
        table.add_row(*_cells(name, "–", "NO", why))
    console_on().print(table)
    say(*_SAFE.split("\n"))
    return 0


def _recipe_facts(entry: RecipeEntry) -> dict[str, Any]:
    facts = {"name": entry.name, "package": entry.package}
    try:
        about = entry.about
    except UsageError as error:
        # The recipe comes from another package and cannot be loaded.
        return {**facts, "instances": "–", "safe": None, "flaw": str(error)}
    return {
        **facts,
        **asdict(about),
        "instances": about.instances,
        "pause_points": about.all_points,
    }


@click.command(
    cls=Grouped, epilog=ending("lockbench doctor", "lockbench doctor --target redis://10.0.0.1")
)
@click.option(
    "--target", "targets", multiple=True, metavar="URL", help="check this instance (repeatable)"
)
@json_option
def doctor(targets: tuple[str, ...], as_json: bool) -> int:
    """Check what this machine can do (servers, compiler, faults, cores, disk), or what each
    --target can do."""
    from rich.text import Text

    from bench.topology.doctor import Status, examine, examine_targets

    styles = {Status.OK: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
    facts = () if targets else examine()
    facts += examine_targets(targets or environment_targets(quiet=as_json))
    if as_json:
        say_json([asdict(fact) for fact in facts], indent=2)
    else:
        table = _table("status", "fact", "value")
        table.show_header = False
        for fact in facts:
            status = Text(fact.status.value, style=styles[fact.status])
            table.add_row(
                status,
                *_cells(fact.name, f"{fact.value}: {fact.advice}" if fact.advice else fact.value),
            )
        console_on().print(table)
    return 3 if any(fact.status is Status.MISSING for fact in facts) else 0


def _cells(*texts: str) -> list[str]:
    """Return the texts of a table row in a form that cannot control the terminal. Some of the texts
    come from servers or from other packages, so they may contain control characters."""
    return [fit(clean(text), sys.stdout.encoding) for text in texts]


def _table(*heads: str) -> Table:
    """Return an empty table without border lines. The text in the table's last column wraps at the
    right edge of the terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head != heads[-1])
    return table


_HEAD = """\
# A scenario of lockbench: run it with `lockbench run {name}`. Each key is also an option of the
# same name, `retry.window` → `--retry-window`, and the option wins. Keys left out have the values
# shown here.

"""
# Examples for keys that have no default.
_EXAMPLES = {
    "rate": "2000",
    "retry.attempts": "1000",
    "targets": '["redis://127.0.0.1:6379"]',
    "thresholds": '["acquire.p99 < 10ms", "safety.violations == 0"]',
    "pause": '["before-release:100ms:0.03"]',
    "faults": '[{ at = "5s", for = "2s", kind = "stop", target = ["instance:0"] }]',
}


@click.command(
    cls=Grouped, epilog=ending("lockbench init mine.toml", "lockbench init --lock mine.py")
)
@click.argument("file", default=None, required=False, type=click.Path(path_type=Path))
@click.option("--lock", is_flag=True, help="write a commented lock for `lockbench judge`")
def init(file: Path | None, *, lock: bool) -> int:
    """Write a first scenario to a file. The file shows the default and the meaning of each key.

    FILE is scenario.toml by default. With --lock the command writes an example of a lock, and FILE
    is mine.py by default.
    """
    file = file or Path("mine.py" if lock else "scenario.toml")
    if lock and file.suffix != ".py":
        raise UsageError(
            f"{file} does not end in .py, and lockbench judge reads only Python "
            "files; choose a name that ends in .py"
        )
    if file.exists():
        raise EnvironmentNotReadyError(
            f"the file {file} already exists, and lockbench did not change it; choose another name"
        )
    with writing(file, "name another file"), file.open("x", encoding="utf-8") as opened:
        opened.write(lock_template(file.name) if lock else scenario_template(file.name))
    following = "judge" if lock else "run"
    note(f"wrote {file}; as the next step, run: lockbench {following} {shlex.quote(str(file))}")
    return 0


def lock_template(name: str) -> str:
    """Return the text of a Python file called `name` with an example of a lock. lockbench can judge
    this lock without changes to the file."""
    text = resources.files(judge).joinpath("example.py").read_text("utf-8")
    return text.replace("THIS_FILE", name)


def scenario_template(name: str) -> str:
    """Return the text of a scenario file called `name`. All keys in this file have their default
    values."""
    return _HEAD.format(name=name) + "".join(map(_line, KEYS))


def _line(key: ScenarioKey) -> str:
    absent = key.default is None or key.default == ()
    setting = f"{key.name} = {_EXAMPLES.get(key.name, '') if absent else json.dumps(key.default)}"
    # Three kinds of keys are commented out: keys without a default, a key that needs another absent
    # key, and a key whose default depends on the recipe.
    mark = "# " if absent or key.name in ("arrivals", "processes") else ""
    return f"{mark}{setting:<{38 - len(mark)}} # {key.help}\n"


@click.command(
    cls=Grouped,
    epilog=ending(
        'eval "$(lockbench completion bash)"',
        "lockbench completion fish > lockbench.fish",
        note="For completion in every new shell, add the first line to ~/.bashrc (bash) "
        "or ~/.zshrc (zsh).",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the lines that make bash, zsh or fish complete lockbench's commands and options."""
    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click knows the three"
    # click's own method also runs bash to check its version. The script itself does not depend on
    # the version.
    completer = shell_class(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    say(*(completer.source_template % completer.source_vars()).split("\n"))
    return 0
