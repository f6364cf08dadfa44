"""The table of `make bench`: *its JSON → one screen*. No arithmetic here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.report.figures import decimals

_COLUMNS = 108  # what the table needs: a narrower screen, or none, wraps it rather than losing figures


def print_speed(result: Mapping[str, Any], path: str, console: Console | None = None) -> None:
    """Print the rows of `make bench`, its conditions, and where the JSON is."""
    console = console or Console(highlight=False)
    console.width = max(console.width, _COLUMNS)
    conditions = result["conditions"]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column(f"N={conditions['instances']}, acquire + release", no_wrap=True)
    for name in ("cycles/s", "client", "server", "p50 µs", "CPU ratio", "range", "bar", "wall"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        table.add_row(*_cells(row))
    servers = " · ".join(f"{kind}: {server}" for kind, server in conditions["servers"].items())
    console.print(table)
    console.print(
        f"\n200 callers where nothing else is said; {conditions['rounds']} rounds of {conditions['seconds']:g} s, "
        f"medians; {conditions['cores']} cores shared\nwith the servers; in memory, no AOF; {servers}\n"
        "client, server: CPU µs per cycle; p50: of acquire; wall: cycles/s ÷ those of the replay\n"
        "CPU ratio: (client + server of the replay) ÷ (of the row)\n"
        f"{_telemetry(result.get('telemetry_us'))}"
        f"{path}"
    )


def _telemetry(added: Mapping[str, float] | None) -> str:
    if added is None:
        return ""
    verdict = "reached" if added["median"] <= added["bar"] else "missed"
    return (
        f"telemetry adds {added['median']:+.2f} µs to the client ({added['low']:+.2f} … {added['high']:+.2f} over the "
        f"rounds); at most {added['bar']:g}: {verdict}\n"
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    ratio, bar = row["ratio"], row["bar"]
    return [
        row["label"],
        f"{row['cycles_per_s']:,.0f}",
        f"{row['client_us']:.2f}",
        f"{row['server_us']:.2f}",
        decimals(row["p50_us"], 0),
        f"{ratio['median']:.3f}",
        f"{ratio['low']:.2f}–{ratio['high']:.2f}",
        "" if bar is None else f"{bar:.2f} {'reached' if ratio['median'] >= bar else 'missed'}",
        f"{row['wall_ratio']['median']:.2f}",
    ]
