"""Where an answer goes, and what is said meanwhile: *options that all questions have → Outputs*."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Outputs:
    """`out`: the result's folder, None = one in results/. `markdown`, `junit`: files to write
    besides. `as_json`: the result on stdout, and nothing else. `quiet`: no progress and no tables.
    `summary`: one of several runs, which is shown in a line behind this text."""

    out: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    as_json: bool = False
    quiet: bool = False
    summary: str = ""

    @classmethod
    def taken_from(cls, values: MutableMapping[str, Any]) -> Self:
        """Take these options out of a command's `values`."""
        names = {field.name for field in fields(cls)} & values.keys()
        return cls(**{name: values.pop(name) for name in names})
