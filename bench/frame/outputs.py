"""Where an answer and its progress go: *options that all questions share → Outputs*."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Outputs:
    """The destinations of an answer.

    `out`: the result's folder (None: make one in results/). `markdown`, `junit`: further files to
    write. `as_json`: stdout holds the result and nothing else. `quiet`: no progress and no tables.
    `summary`: the beginning of the line for one of several runs. For a single run it is "".
    """

    out: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    as_json: bool = False
    quiet: bool = False
    summary: str = ""

    @classmethod
    def taken_from(cls, values: MutableMapping[str, Any]) -> Self:
        """Remove these options from a command's `values`, and return them."""
        names = {field.name for field in fields(cls)} & values.keys()
        return cls(**{name: values.pop(name) for name in names})
