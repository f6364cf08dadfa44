"""`make bench-gate`: a baseline is of one CPU model, names nobody's machine, and its absence is no pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.speed import alarm


def test_a_baseline_is_of_one_cpu_model_and_one_python() -> None:
    paths = {
        alarm.baseline_path({"cpu_model": cpu, "python": python})
        for cpu in ("AMD EPYC", "Intel(R) Xeon(R) @ 2.20GHz", None)
        for python in ("CPython 3.11.7", "CPython 3.12.1")
    }
    assert len(paths) == 6
    assert (
        alarm.baseline_path({"cpu_model": "AMD EPYC", "python": "CPython 3.11.9"}).name == "amd-epyc-cpython-3.11.json"
    )


@pytest.mark.parametrize("path", sorted(alarm.BASELINES.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_baseline_names_no_host_and_no_folder(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["machine_info"].keys() == set(alarm.KEPT_OF_MACHINE)
    assert "/home" not in text
    assert "/work" not in text


def test_without_a_baseline_nothing_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(alarm, "ROOT", tmp_path)
    monkeypatch.setattr(alarm, "baseline_path", lambda _environment: tmp_path / "none.json")
    monkeypatch.setattr(alarm, "renew", lambda _path: 0)
    assert alarm.main([]) == 4
    assert alarm.main(["--renew"]) == 0


@pytest.mark.parametrize(("code", "found"), [(0, 0), (1, 1), (3, 1)])
def test_much_slower_is_exit_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, found: int) -> None:
    (tmp_path / "some.json").touch()
    monkeypatch.setattr(alarm, "ROOT", tmp_path)
    monkeypatch.setattr(alarm, "baseline_path", lambda _environment: tmp_path / "some.json")
    monkeypatch.setattr(alarm, "compare", lambda _path, _limit: code)
    assert alarm.main([]) == found
