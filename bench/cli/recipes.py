"""`lockbench recipes`: *the registry → one line per lock that can be loaded*. Source: bench.recipes.registry."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from bench.recipes.registry import RECIPES


def print_recipes(*, as_json: bool) -> int:
    """Print every recipe: its name, how it locks, the fault it is known for."""
    if as_json:
        rows = [{"name": e.name, "how": e.how, "flaw": e.flaw, "instances": e.instances} for e in RECIPES.values()]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("recipe", "how it locks", "known fault"):
        table.add_column(head, overflow="fold", no_wrap=head == "recipe")
    for entry in RECIPES.values():
        table.add_row(entry.name, entry.how, entry.flaw)
    Console(highlight=False).print(table)
    return 0
