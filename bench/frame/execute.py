"""Runs one command line, and returns its exit code.

Every expected failure raises a BenchError or a click exception. This module reports such a failure
as one line on stderr, and as a case in the JUnit file of a CI job.
"""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click
import cloup

from bench.errors import BenchError, secrets
from bench.frame.identity import identity_of
from bench.screen import fit, lines_of, note

# A shell sets this variable when it asks for completions.
VARIABLE = "_LOCKBENCH_COMPLETE"
_NUMBER = re.compile(r"is not a valid (integer range|integer|float range|float)")
_KINDS = {
    "integer": "whole number",
    "integer range": "whole number",
    "float": "number",
    "float range": "number",
}


class HelpPage(cloup.HelpFormatter):
    """A page of help. The page contains only characters that the screen can show.

    Without this class, click would write UTF-8 even on an ASCII screen.
    """

    def getvalue(self) -> str:
        """Return the text of the page."""
        return fit(super().getvalue(), sys.stdout.encoding)


cloup.Context.formatter_class = HelpPage


def execute(group: click.Group, arguments: Sequence[str]) -> int:
    """Run one command line of `group`, and return its exit code.

    KeyboardInterrupt and unexpected exceptions pass through.
    """
    variables = [
        text for name, text in os.environ.items() if name.startswith(("LOCKBENCH_", "OTEL_"))
    ]
    for word in (*arguments, *variables):
        # The secrets of a URL must be known before any message can show the URL, even a malformed
        # one.
        if "://" in word:
            secrets().learn(word.partition("=")[2] if word.startswith("-") else word)
    try:
        code = group.main(args=list(arguments), prog_name=group.name, standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as end:
        # When a shell asks for completions, click ends the process itself.
        if VARIABLE not in os.environ:
            raise
        return int(end.code or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        note(*error.format_message().split("\n"))
        return 2
    except click.ClickException as error:
        return _refuse(_sentence(error), 2, group, arguments)
    except BenchError as error:
        return _refuse(str(error), error.exit_code, group, arguments)
    return int(code or 0)


def _sentence(error: click.ClickException) -> str:
    """Return a message of click in the same form as lockbench's own messages."""
    text = _NUMBER.sub(
        lambda match: f"is not a {_KINDS[match[1]]} (write it in digits)", error.format_message()
    )
    text = text.replace(". Did you", "; did you").replace(". (Did you", " (did you")
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" (see {context.command_path} --help)" if context and context.parent else ""
    return text[:1].lower() + text[1:].rstrip(".") + hint


def _refuse(sentence: str, code: int, group: click.Group, arguments: Sequence[str]) -> int:
    """Print the sentence on stderr, and return `code`. If possible, also write the sentence into
    the --junit file.
    """
    masked_sentence = secrets().sentence(sentence)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    note(*lines_of(f"lockbench: {masked_sentence}"))
    words = [part for word in arguments for part in word.split("=", 1)]
    if "--junit" in words[:-1]:
        from bench.frame.showing import write_text
        from bench.report.junit import Case, Suite, junit_xml

        name, mark = identity_of(_parameters(group, arguments))
        suite = Suite(
            arguments[0], now, 0.0, [Case(arguments[0], "refused", masked_sentence)], {}, name, mark
        )
        with suppress(BenchError):
            write_text(Path(words[words.index("--junit") + 1]), junit_xml(suite))
    return code


def _parameters(group: click.Group, arguments: Sequence[str]) -> Mapping[str, object]:
    """Return all parameters of the typed command that click can read."""
    context = click.Context(group, resilient_parsing=True)
    with suppress(click.ClickException, BenchError):
        command = group.get_command(context, arguments[0])
        if command is not None:
            words = list(arguments[1:])
            return command.make_context(
                arguments[0], words, parent=context, resilient_parsing=True
            ).params
    return {}
