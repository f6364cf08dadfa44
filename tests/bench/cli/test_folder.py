"""The result folder: refused before the run when the disk has no room for a result."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cli.showing import LEAST_FREE_BYTES, result_folder
from bench.errors import EnvironmentNotReadyError


def with_disk(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    usage = SimpleNamespace(total=total, used=total - free, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)


def test_a_disk_that_is_all_but_full_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_disk(monkeypatch, 1 << 30, LEAST_FREE_BYTES - 1)
    with pytest.raises(EnvironmentNotReadyError, match=r"x/y has 8\.4 MB of free space.*--out"):
        result_folder(tmp_path / "x" / "y", "run", "7f3a90c1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("total", "free"), [(1 << 30, LEAST_FREE_BYTES), (0, 0)])
def test_room_enough_or_a_disk_without_a_size_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, free: int
) -> None:
    with_disk(monkeypatch, total, free)
    assert result_folder(tmp_path / "x" / "y", "run", "7f3a90c1").path == tmp_path / "x" / "y"
    assert list(tmp_path.iterdir()) == [], "it is made when there is something to write"
