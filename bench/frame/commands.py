"""The command line's grammar: *arguments → the command that does it → an exit code*.

Rules: a command is imported when it is asked for, and its object is named as the command, with `_`
for `-`. Every command's help ends with its examples: a test parses them all. Whatever goes wrong on
purpose is a BenchError or a click exception, and becomes one line on stderr here. Source: click,
"Lazily Loading Subcommands".
"""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click

from bench.errors import BenchError, UsageError, secrets
from bench.frame.first_steps import VARIABLE
from bench.scenario.quantity import nearest
from bench.screen import fit, lines_of, note

JOBS: Mapping[str, tuple[str, ...]] = {
    "Load a lock": ("run", "worker", "observe", "recipes", "init"),
    "Plan capacity": ("capacity",),
    "Choose an fsync policy": ("fsync", "crash", "planner"),
    "Compare, and gate in CI": ("compare", "gate"),
    "Judge safety": ("safety", "explore", "split-votes", "audit"),
    "Around it": ("report", "doctor", "fleet", "completion"),
}
_MODULES: Mapping[str, tuple[str, ...]] = {
    "bench.frame.run": ("run", "fleet"),
    "bench.frame.hosts": ("worker",),
    "bench.frame.observe": ("observe",),
    "bench.frame.first_steps": ("recipes", "init", "doctor", "completion"),
    "bench.frame.showing": ("report",),
    "bench.experiments.capacity.command": ("capacity",),
    "bench.experiments.durability.command": ("fsync", "crash", "planner"),
    "bench.experiments.compare.command": ("compare", "gate"),
    "bench.experiments.safety_matrix.command": ("safety",),
    "bench.experiments.explore.command": ("explore",),
    "bench.experiments.split_votes.command": ("split-votes",),
    "bench.experiments.audit.command": ("audit",),
}
PLACES = {name: module for module, names in _MODULES.items() for name in names}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "lockbench run hot-key --duration 10s",
        "lockbench run mine.toml --threshold 'acquire.p99 < 10ms'",
    ),
    "worker": (
        "lockbench worker --master 10.0.0.9",
        "lockbench worker --master 10.0.0.9:6000 --processes 4",
    ),
    "fleet": ("lockbench fleet --instances 3 --fsync always",),
    "recipes": ("lockbench recipes",),
    "doctor": ("lockbench doctor", "lockbench doctor --target redis://10.0.0.1"),
    "init": ("lockbench init mine.toml",),
    "observe": ("lockbench observe hot-key", "lockbench observe hot-key --duration 60s --stay"),
    "completion": (
        'eval "$(lockbench completion bash)"',
        "lockbench completion fish > lockbench.fish",
    ),
    "audit": (
        "lockbench audit --quick",
        "lockbench audit --library redis-py --schedule body-without-lock",
    ),
    "safety": (
        "lockbench safety --quick",
        "lockbench safety --recipe set-nx-get-del --claim votes",
    ),
    "explore": (
        "lockbench explore --recipe set-nx-get-del",
        "lockbench explore --recipe redlock --budget 60s",
    ),
    "split-votes": (
        "lockbench split-votes --quick",
        "lockbench split-votes --instances 5 --contenders 3,5,10",
    ),
    "fsync": ("lockbench fsync --quick", "lockbench fsync mine.toml --disk /mnt/data"),
    "planner": (
        "lockbench planner",
        "lockbench planner --costs results/fsync --crash results/crash",
    ),
    "crash": ("lockbench crash --quick",),
    "capacity": ("lockbench capacity --slo 'acquire.p99 < 10ms' --quick",),
    "compare": (
        "lockbench compare --recipe redlock --recipe redlock-sequential",
        "lockbench compare before after",
    ),
    "gate": ("lockbench gate --baseline git:main --candidate git:HEAD --tolerance 10%",),
    "report": ("lockbench report results/before results/after --html side-by-side.html",),
}
# one idea has one name in all commands
CALLED_NOW: Mapping[tuple[str, str], str] = {
    ("fsync", "--policy"): "--fsync",
    ("crash", "--policy"): "--fsync",
    ("fsync", "--seconds"): "--duration",
    ("fsync", "--resume"): "--out",
    ("crash", "--resume"): "--out",
    ("split-votes", "--rounds"): "--repeats",
    ("split-votes", "--retry"): "--retry-policy",
    ("planner", "--fsync"): "--costs",
}
# This is how click words a wrong choice.
_CHOICE = re.compile(r"(?P<wrong>.*'(?P<value>.*)') is not one of (?P<names>'.*')\.")

_NUMBER = re.compile(r"is not a valid (integer range|integer|float range|float)")
_KINDS = {
    "integer": "whole number",
    "integer range": "whole number",
    "float": "number",
    "float range": "number",
}


class HelpPage(click.HelpFormatter):
    """A page of help, in letters that the screen has: click itself writes UTF-8 on an ASCII
    screen."""

    def getvalue(self) -> str:
        """The page."""
        return fit(super().getvalue(), sys.stdout.encoding)


click.Context.formatter_class = HelpPage


class LazyGroup(click.Group):
    """A click group whose commands stand in the modules of `PLACES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, job by job."""
        return [name for names in JOBS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list per job."""
        for job, names in JOBS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            with formatter.section(job):
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(200))
                        for name, command in commands
                        if command
                    ],
                    col_max=len(max(PLACES, key=len)),
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and what is left; an option's old name says what it is called
        now."""
        for word in (option.partition("=")[0] for option in args[1:]):
            if now := CALLED_NOW.get((args[0], word)):
                raise UsageError(f"option {word} of lockbench {args[0]} is called {now} now")
        if args[0] not in PLACES and not args[0].startswith("-"):
            raise UsageError(f"no such command '{args[0]}'{nearest(args[0], PLACES)}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, its examples at the end of its help; None if there is
        none."""
        if cmd_name in PLACES and cmd_name not in self.commands:
            command: click.Command = getattr(
                import_module(PLACES[cmd_name]), cmd_name.replace("-", "_")
            )
            if lines := EXAMPLES.get(cmd_name):
                shown = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
                command.epilog = "\n\n".join(filter(None, (shown, command.epilog)))
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="lockbench", message="lockbench %(version)s")
def lockbench() -> None:
    """Take locks on N independent Redis instances under load, and judge what happened.

    \b
    Exit codes: 0 pass · 1 gate or threshold failed
                2 usage or scenario error · 3 environment not ready
                4 inconclusive or invalid · 5 safety violated · 130 interrupted
    """


def execute(arguments: Sequence[str], group: click.Group | None = None) -> int:
    """Run one command line of `group` (default: lockbench) and return its exit code. Lets
    KeyboardInterrupt and unexpected exceptions through."""
    group = group or lockbench
    variables = [
        text for name, text in os.environ.items() if name.startswith(("LOCKBENCH_", "OTEL_"))
    ]
    for word in (*arguments, *variables):
        # The secrets of a URL are learned before any message can show it, even if the URL is
        # malformed.
        if "://" in word:
            secrets().learn(word.partition("=")[2] if word.startswith("-") else word)
    try:
        code = group.main(args=list(arguments), prog_name=group.name, standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as end:
        # Click ends the process itself when a shell asks for completions.
        if VARIABLE not in os.environ:
            raise
        return int(end.code or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        note(*error.format_message().split("\n"))
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = (
            f" (see {context.command_path} --help)"
            if context is not None and context.parent
            else ""
        )
        sentence = error.format_message()
        if isinstance(error, click.NoSuchOption) and context is not None:
            names = [name for param in context.command.params for name in param.opts]
            sentence = f"No such option '{error.option_name}'{nearest(error.option_name, names)}"
        sentence = _NUMBER.sub(
            lambda match: f"is not a {_KINDS[match[1]]} (write it in digits)", sentence
        )
        if choice := _CHOICE.fullmatch(sentence):
            near = nearest(
                choice["value"], [name.strip("'") for name in choice["names"].split(", ")]
            )
            sentence = (
                f"{choice['wrong']} is no choice{near} ({choice['names']})" if near else sentence
            )
        return _refuse(sentence[:1].lower() + sentence[1:].rstrip(".") + hint, 2, arguments)
    except BenchError as error:
        return _refuse(str(error), error.exit_code, arguments)
    return int(code or 0)


def _refuse(sentence: str, code: int, arguments: Sequence[str]) -> int:
    """Say so, and in the JUnit file of a CI job, too, if it can be written."""
    masked_sentence = secrets().sentence(sentence)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    note(*lines_of(f"lockbench: {masked_sentence}"))
    words = [part for word in arguments for part in word.split("=", 1)]
    if "--junit" in words[:-1]:
        from bench.frame.identity import identity_of
        from bench.frame.showing import write_text
        from bench.report.junit import Case, Suite, junit_xml

        name, mark = identity_of(_parameters(arguments))
        suite = Suite(
            arguments[0], now, 0.0, [Case(arguments[0], "refused", masked_sentence)], {}, name, mark
        )
        with suppress(BenchError):
            write_text(Path(words[words.index("--junit") + 1]), junit_xml(suite))
    return code


def _parameters(arguments: Sequence[str]) -> Mapping[str, object]:
    """What was typed, as far as it can be read."""
    context = click.Context(lockbench, resilient_parsing=True)
    with suppress(click.ClickException, BenchError):
        command = lockbench.get_command(context, arguments[0])
        if command is not None:
            words = list(arguments[1:])
            return command.make_context(
                arguments[0], words, parent=context, resilient_parsing=True
            ).params
    return {}
