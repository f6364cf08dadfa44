"""Results that lie about: the newest of a kind, and never one of another kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.measure.result import newest_result, result_of_kind


def store(folder: Path, name: str, **result: object) -> None:
    (folder / name).mkdir()
    (folder / name / "result.json").write_text(json.dumps({"schema_version": 1, **result}), encoding="utf-8")


def test_the_newest_of_its_kind_is_found(tmp_path: Path) -> None:
    store(tmp_path, "a", kind="crash", started_at="2026-11-21T02:00:00Z", id="old")
    store(tmp_path, "b", kind="crash", started_at="2026-11-21T03:00:00Z", id="new")
    store(tmp_path, "c", kind="fsync", started_at="2026-11-21T04:00:00Z", id="other")
    store(tmp_path, "d", started_at="2026-11-21T05:00:00Z", id="a run")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "result.json").write_text("{", encoding="utf-8")
    found = newest_result(tmp_path, "crash", dict[str, object])
    assert found is not None
    assert found["id"] == "new"


def test_where_there_is_none_nothing_is_found(tmp_path: Path) -> None:
    assert newest_result(tmp_path / "nowhere", "crash", dict[str, object]) is None


def test_a_named_result_of_another_kind_is_refused(tmp_path: Path) -> None:
    store(tmp_path, "c", kind="fsync")
    with pytest.raises(UsageError, match="no result of lockbench crash"):
        result_of_kind(tmp_path / "c", "crash", dict[str, object])
