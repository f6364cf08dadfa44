"""What needs Locust's classes: the checks live in beside_locust.py and run in one child process."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("beside_locust.py")
NAMES = [
    node.name
    for node in ast.parse(CHECKS.read_text()).body
    if isinstance(node, ast.FunctionDef) and any(getattr(mark, "id", "") == "check" for mark in node.decorator_list)
]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    child = subprocess.run(
        [sys.executable, str(CHECKS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_beside_locust(results: dict[str, str], name: str) -> None:
    assert results[name] == ""


def test_every_check_has_run(results: dict[str, str]) -> None:
    assert sorted(results) == sorted(NAMES)
    assert len(NAMES) >= 8
