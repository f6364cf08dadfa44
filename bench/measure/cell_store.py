"""A matrix that may be cut: *plan, cell by cell → files that a second start goes on from*.

Rules
- Everything lies in `unfinished/` of the result folder: `plan.json`, and one file per cell, written whole (temporary
  file, fsync, rename) or not at all. A cell that is there was measured to its end.
- Going on under another plan is refused with the names of what differs: cells of two plans must not be mixed.
- Once the result is written the folder is cleared.

Source: the rules of `result.py` beside this file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.result import RESULT_NAME

FOLDER = "unfinished"
_PLAN = "plan.json"
_KEY = re.compile(r"[a-z0-9._-]+")

Cell = dict[str, Any]


def is_unfinished(folder: Path) -> bool:
    """Whether `folder` holds a matrix that was cut and has no result yet."""
    return (folder / FOLDER / _PLAN).is_file() and not (folder / RESULT_NAME).exists()


class CellStore:
    """The cells of one matrix in the result folder `folder`, made for `plan` (whatever JSON must not change)."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        """Begin, or go on. Raises UsageError when what lies there has another plan, EnvironmentNotReadyError."""
        self._folder = folder / FOLDER
        plan = json.loads(json.dumps(plan))
        if not is_unfinished(folder):
            self._make()
            self._write(_PLAN, plan)
        elif differing := differences(self._read(_PLAN), plan):
            raise UsageError(
                f"{folder} holds an unfinished matrix of another plan ({', '.join(differing)}); go on with the same "
                "options, or name another --out"
            )

    def cells(self) -> dict[str, Cell]:
        """What is there, by key. A file that cannot be read is no cell: it will be measured again."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            if path.name != _PLAN:
                with contextlib.suppress(ValueError, OSError):
                    found[path.stem] = self._read(path.name)
        return found

    def keep(self, key: str, cell: Cell) -> None:
        """Store `cell` under `key` ([a-z0-9._-]+), for good. Raises EnvironmentNotReadyError on a full disk."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of a cell")
        self._write(f"{key}.json", cell)

    def clear(self) -> None:
        """The result is written: the cells are not needed any more."""
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritten(error) from error

    def _read(self, name: str) -> Any:
        return json.loads((self._folder / name).read_text("utf-8"))

    def _write(self, name: str, value: object) -> None:
        partial = self._folder / f".{name}.{os.getpid()}"
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(value, file, ensure_ascii=False, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self._folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError(
            f"cannot write to {self._folder}: {error.strerror}; what was stored before is kept: free the disk and go on"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of top-level fields that differ, each with both values, shortened."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name}: {_short(old.get(name))} then, {_short(new.get(name))} now" for name in names]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
