"""A group whose commands stand elsewhere: *a command's name → its module, imported when it is asked for*.

Rules: the frame knows where a question's command is, never what it does; a command's object is named as the command,
with `_` for `-`. Every command's help ends with its examples. Source: click, "Lazily Loading Subcommands".
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from bench.cli.examples import with_examples


class LazyGroup(click.Group):
    """A click group that also finds the commands in `places`: a command's name → the module it stands in."""

    def __init__(self, *args: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, sorted."""
        return sorted({*self.commands, *self.places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None if there is none."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in self.places:
            command = getattr(import_module(self.places[cmd_name]), cmd_name.replace("-", "_"))
            self.add_command(command)
        return command

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, its examples at the end of its help."""
        super().add_command(with_examples(cmd), name)
