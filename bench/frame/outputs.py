"""Defines where a command writes its answer and its progress. All questions share these options."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Outputs:
    """The options that define where a command writes its answer.

    `out` is the folder of the result. If `out` is None, lockbench makes a folder in results/.
    `markdown` and `junit` are further files to write. If `as_json` is true, stdout holds the result
    and nothing else. If `quiet` is true, lockbench shows no progress and no tables. `summary` is
    the beginning of the line that summarizes one of several runs. For a single run, `summary` is
    "".
    """

    out: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    as_json: bool = False
    quiet: bool = False
    summary: str = ""

    @classmethod
    def taken_from(cls, values: MutableMapping[str, Any]) -> Self:
        """Remove the output options from a command's `values`, and return these options."""
        names = {field.name for field in fields(cls)} & values.keys()
        return cls(**{name: values.pop(name) for name in names})
