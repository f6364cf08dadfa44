"""A whole result of a run: *the sections that a test cares about → RunResult, the rest from a
sample*."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, typed

SAMPLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "report" / "sample.json").read_text(encoding="utf-8")
)
# replaced, not filled up
_WHOLE = ("margin", "histograms", "errors", "packages", "verdict")


def run_of(*parts: Mapping[str, Any], **sections: Any) -> RunResult:
    """The sample with these parts instead of its own."""
    document = copy.deepcopy(SAMPLE)
    for part in (*parts, sections):
        _put(document, builtins_of(part))
    return typed(document, RunResult)


def _put(document: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict) and key not in _WHOLE:
            _put(document[key], value)
        elif key == "instances" and isinstance(value, list) and document.get(key):
            document[key] = [_over(copy.deepcopy(document[key][0]), row) for row in value]
        else:
            document[key] = value


def _over(document: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    _put(document, part)
    return document
