"""The table of `make bench`: *its JSON → one screen*. No arithmetic here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_speed(result: Mapping[str, Any], path: str, console: Console | None = None) -> None:
    """Print the rows of `make bench`, its conditions, and where the JSON is."""
    console = console or Console(highlight=False)
    conditions = result["conditions"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"N={conditions['instances']}, acquire + release")
    for name in ("callers", "cycles/s", "client µs", "server µs", "acquire p50 µs", "CPU ratio", "range", "wall ratio"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(*_cells(row))
    servers = " · ".join(f"{kind}: {server}" for kind, server in conditions["servers"].items())
    console.print(table)
    console.print(
        f"\n{conditions['rounds']} rounds of {conditions['seconds']:g} s, medians; {conditions['cores']} cores "
        f"shared with the servers; in memory, no AOF; {servers}\n"
        "µs are CPU per cycle; CPU ratio = (client + server CPU per cycle of the replay) ÷ (the same of the row)\n"
        f"{path}"
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    ratio, bar = row["ratio"], row["bar"]
    mark = "" if bar is None else f" (bar {bar:.2f}{'' if ratio['median'] >= bar else ', missed'})"
    return [
        row["label"],
        f"{row['callers']}",
        f"{row['cycles_per_s']:,.0f}",
        f"{row['client_us']:.2f}",
        f"{row['server_us']:.2f}",
        "–" if row["p50_us"] is None else f"{row['p50_us']:,.0f}",
        f"{ratio['median']:.2f}{mark}",
        f"{ratio['low']:.2f}–{ratio['high']:.2f}",
        f"{row['wall_ratio']['median']:.2f}",
    ]
