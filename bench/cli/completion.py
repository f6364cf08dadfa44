"""`lockbench completion`: *a shell's name → the script that completes commands and options in it*.

Rules: only the script goes to stdout; the shell then asks `lockbench` itself, so new options need no new one. Source:
click, "Shell Completion".
"""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "lockbench", "_LOCKBENCH_COMPLETE"


@click.command(epilog="For every new shell: put the first line into ~/.bashrc (bash) or ~/.zshrc (with zsh).")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what makes SHELL complete lockbench's commands and options: bash, zsh or fish."""
    found = get_completion_class(shell)
    assert found is not None, "click knows the three"
    # click asks the installed bash for its version; the script is the same for every version that can run it
    made = found(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    print(made.source_template % made.source_vars())
    return 0


def completion_asked() -> bool:
    """Whether it is a shell that asks for completions."""
    return VARIABLE in os.environ
