"""`lockbench doctor`: *this machine, or an instance → what it can do, a line each*.

Rules: everything that was tried is printed, also what works; exit 3 when something is missing that every run needs.
Source: bench.topology.doctor, bench.topology.doctor.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.topology.doctor import Fact, Status, examine, examine_target

_STYLES = {Status.OK: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}


def print_doctor(targets: tuple[str, ...] = (), *, as_json: bool) -> int:
    """Print every fact of this machine, or of these instances; return 0, or 3 when something needed is missing."""
    facts = tuple(fact for url in targets for fact in examine_target(url)) or examine()
    if as_json:
        print(json.dumps([asdict(fact) for fact in facts], indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(_table(facts))
    return 3 if any(fact.status is Status.MISSING for fact in facts) else 0


def _table(facts: tuple[Fact, ...]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("status", "fact", "value"):
        table.add_column(column, overflow="fold", no_wrap=column != "value")
    for fact in facts:
        status = Text(fact.status.value, style=_STYLES[fact.status])
        table.add_row(status, fact.name, f"{fact.value}: {fact.advice}" if fact.advice else fact.value)
    return table
