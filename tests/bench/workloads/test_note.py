"""Notes: whole at any moment, plain JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.measure.section import builtins_of
from bench.workloads.note import instance_report, note_failure, note_path, write_note
from lockcore import InstanceStatus


def test_a_note_replaces_the_one_before_and_leaves_no_draft(tmp_path: Path) -> None:
    path = note_path(tmp_path, 3)
    write_note(path, {"phase": "running"})
    write_note(path, {"phase": "stopped"})
    assert json.loads(path.read_text()) == {"phase": "stopped"}
    assert [entry.name for entry in tmp_path.iterdir()] == [f"worker-3-{os.getpid()}.json"]


def test_every_field_of_a_status_is_told() -> None:
    status = InstanceStatus(1, "127.0.0.1:7001", "down", "no answer", errors={"TIMEOUT": 3})
    told = builtins_of(instance_report(status))
    assert told.items() >= {**asdict(replace(status, errors={})), "errors": {"TIMEOUT": 3}}.items()


def test_the_first_fault_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKBENCH_PLAN", str(tmp_path / "plan.json"))
    note_failure("the first", 3)
    note_failure("the second", 2)
    assert json.loads((tmp_path / "failure.json").read_text()) == {"sentence": "the first", "exit_code": 3}


def test_without_a_plan_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note_failure("a fault", 3)
    assert list(tmp_path.iterdir()) == []
