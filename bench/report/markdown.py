"""The summary as Markdown: *Summary → text for a pull request or a wiki*.

Rules: the same words as on the terminal; a cell never breaks its table. Source: GitHub's Markdown tables.
"""

from __future__ import annotations

from bench.report.summary import TABLE_HEAD, Summary


def summary_markdown(summary: Summary) -> str:
    """Return `summary` as a Markdown document."""
    head = ["ms", *TABLE_HEAD, ""]
    rule = ["---", *("---:" for _ in TABLE_HEAD), "---"]
    table = [head, rule, *([row.name.strip(), *row.cells, row.note] for row in summary.rows)]
    facts = [
        ["", ""],
        ["---", "---"],
        *([f"**{line.label}**" if line.label else "", line.text] for line in summary.lines),
    ]
    parts = [f"## {summary.verdict}: {summary.headline}", summary.conditions, _table(table), _table(facts)]
    return "\n\n".join(parts) + "\n"


def _table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
