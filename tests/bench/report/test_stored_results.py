"""Results that earlier releases stored are told as they were, whatever keys have been added since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measure.result import read_result
from bench.measure.section import builtins_of
from bench.report.html.page import page_of
from bench.report.kinds import KINDS, cases_of, of_its_kind, told
from bench.report.sheet import sheet_markdown

RESULTS = Path(__file__).parents[2] / "histories" / "results"
STORED = {kind: json.loads((RESULTS / f"{kind}.json").read_text("utf-8")) for kind in ("capacity", "compare", "gate")}
YOUNGER = {"evidence", "exit_code", "generator", "held", "noisy", "only_noise", "probed", "tested_leases", "word"}


def without(node: Any, keys: set[str]) -> Any:
    """`node` as it was before there were these keys; a probe's `generator` is older than a compared run's."""
    if isinstance(node, list):
        return [without(one, keys) for one in node]
    if not isinstance(node, dict):
        return node
    gone = keys - {"generator"} if isinstance(node.get("generator"), dict) else keys
    return {key: without(value, keys) for key, value in node.items() if key not in gone}


def missing(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where `new` has lost or changed something of `old`."""
    if isinstance(old, dict):
        for key, value in old.items():
            yield from missing(value, new[key], f"{path}.{key}") if key in new else [f"{path}.{key}"]
    elif isinstance(old, list):
        for one, other in zip(old, new, strict=True):
            yield from missing(one, other, f"{path}[]")
    elif old != new:
        yield f"{path}: {old} → {new}"


@pytest.mark.parametrize("kind", STORED)
def test_a_stored_result_keeps_every_value_and_is_told(kind: str) -> None:
    result = STORED[kind]
    assert kind in KINDS
    assert list(missing(result, builtins_of(of_its_kind(result)))) == []
    assert result["verdict"]["word"] in sheet_markdown(told(result))
    assert cases_of(result).cases
    assert page_of(result).chapters


@pytest.mark.parametrize("kind", STORED)
def test_one_from_before_the_younger_keys_is_told_too(kind: str) -> None:
    assert "INCONCLUSIVE" in sheet_markdown(told(without(STORED[kind], YOUNGER)))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_in_hand_is_told_as_its_file_is(path: Path) -> None:
    stored = read_result(path)
    in_hand = of_its_kind(stored)
    assert page_of(in_hand) == page_of(stored)
    assert (told(in_hand), cases_of(in_hand)) == (told(stored), cases_of(stored))
