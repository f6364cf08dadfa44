"""`lockbench recipes`: *the registry → one line per lock that can be loaded*. Source: bench.recipes.registry."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.errors import UsageError
from bench.recipes.registry import WITHDRAWN, RecipeEntry, all_recipes


def print_recipes(*, as_json: bool) -> int:
    """Print every recipe: its name, on how many instances it locks, whether it excludes, what it gets wrong."""
    if as_json:
        print(json.dumps([_facts(entry) for entry in all_recipes().values()], indent=2, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("recipe", "instances", "safe", "what it gets wrong"):
        table.add_column(head, overflow="fold", no_wrap=head != "what it gets wrong")
    for entry in all_recipes().values():
        table.add_row(*_row(entry))
    for name, why in WITHDRAWN.items():
        table.add_row(name, "–", "NO", why)
    Console(highlight=False).print(table)
    print(
        "\nsafe: never two valid leases at once, within its assumptions. Those that are not are here to show it: do not"
    )
    print("copy them. How each locks, its pause points and what shows its flaw: lockbench recipes --json")
    return 0


def _row(entry: RecipeEntry) -> tuple[str, str, str, str]:
    try:
        about = entry.about
    except UsageError as error:  # of another package, and broken
        return (entry.name, "–", "?", str(error))
    origin = f" (from {entry.package})" if entry.package else ""
    return (entry.name, about.instances, "yes" if about.safe else "NO", about.flaw + origin)


def _facts(entry: RecipeEntry) -> dict[str, Any]:
    package = entry.package or None
    try:
        about = entry.about
    except UsageError as error:
        return {"name": entry.name, "package": package, "broken": str(error)}
    return {
        "name": entry.name,
        "package": package,
        "how": about.how,
        "flaw": about.flaw,
        "safe": about.safe,
        "shown_by": about.shown_by,
        "instances": {"least": about.least, "most": about.most, "usual": about.usual},
        "pause_points": about.all_points,
    }
