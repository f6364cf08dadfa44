"""Recipes under `lockbench run`: a stretched gap is found by the oracle, a lock without one only overstays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
LOAD = (
    "--resources=1",
    "--users=7",  # Little's ratio judges eight and more: a slow machine would make the run INVALID
    "--ttl=60ms",
    "--hold=fixed:20ms",
    "--fsync=none",
    "--warmup=0",
    "--duration=1500ms",
)


def lockbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`lockbench run` to its end."""
    command = [sys.executable, "-m", "bench", "run", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the result of one run."""
    done = lockbench(folder, *LOAD, "--quiet", "--out", str(folder / "run"), *words)
    result = folder / "run" / "result.json"
    assert result.exists(), done.stderr
    return done.returncode, json.loads(result.read_text(encoding="utf-8"))


def test_a_stretched_gap_between_get_and_del_violates_the_lock(tmp_path: Path) -> None:
    code, result = run(tmp_path, "--recipe", "set-nx-get-del", "--pause", "after-get:100ms:0.2")
    safety = result["safety"]
    assert (code, safety["verdict"]) == (5, "VIOLATED")
    assert safety["service_faults"] > 0
    assert safety["unexplained"] == 0, "the recipe is to blame"
    assert {example["blame"] for example in safety["examples"] if example["blame"]} == {"unsafe recipe"}
    assert any("set-nx-get-del is here to show its flaw, do not use it" in text for text in result["warnings"])
    assert len(result["instances"]) == 1, "as many as the recipe takes"


def test_the_same_pause_at_work_makes_the_safe_lock_overstay_and_nothing_worse(tmp_path: Path) -> None:
    code, result = run(tmp_path, "--recipe", "set-nx-lua", "--pause", "after-grant:100ms:0.2", "--fencing")
    safety = result["safety"]
    assert code == 0, result["verdict"]
    assert (safety["verdict"], safety["service_faults"], safety["foreign_deletes"]) == ("SAFE", 0, 0)
    assert safety["client_overstays"] > 0
    assert [instance["leaked_keys"] for instance in result["instances"]] == [0]
    told = [text for text in result["warnings"] if text.startswith("set-nx-lua counted ")]
    assert any("stale writes rejected" in text for text in told), told
    assert not any("valid writes rejected" in text for text in told), told


def test_a_replicated_recipe_gets_its_replica(tmp_path: Path) -> None:
    _, result = run(tmp_path, "--recipe", "replica-failover", "--duration", "300ms")
    assert result["totals"]["acquired"] > 0
    assert result["safety"]["service_faults"] == 0
    assert [instance["role"] for instance in result["fleet"]["instances"]] == ["primary", "replica"]


def test_an_unknown_pause_point_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    done = lockbench(tmp_path, "--recipe", "set-nx-lua", "--pause", "after-get:1ms:0.5")
    assert done.returncode == 2
    assert done.stderr == (
        "lockbench: the recipe set-nx-lua has no pause point 'after-get'; its points are after-grant, before-release\n"
    )
    assert not list(tmp_path.iterdir())
