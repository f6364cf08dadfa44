"""Recipes under `lockbench run`: a stretched gap is found by the oracle, a lock without one only overstays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended

pytestmark = pytest.mark.integration
Run = Callable[..., tuple[int, dict[str, Any]]]
LOAD = (
    "--resources=1",
    "--users=7",  # Little's ratio judges eight and more: a slow machine would make the run INVALID
    "--ttl=60ms",
    "--hold=fixed:20ms",
    "--fsync=none",
    "--warmup=0",
    "--duration=1500ms",
)


@pytest.fixture
def run(lockbench: Callable[..., Ended], tmp_path: Path) -> Run:
    """`lockbench run` with LOAD and these words: the exit code and the result."""

    def once(*words: str) -> tuple[int, dict[str, Any]]:
        done = lockbench("run", *LOAD, "--quiet", "--out", "run", *words)
        result = tmp_path / "run" / "result.json"
        assert result.exists(), done.stderr
        return done.returncode, json.loads(result.read_text(encoding="utf-8"))

    return once


def test_a_stretched_gap_between_get_and_del_violates_the_lock(run: Run) -> None:
    code, result = run("--recipe", "set-nx-get-del", "--pause", "after-get:100ms:0.2")
    safety = result["safety"]
    assert (code, safety["verdict"]) == (5, "VIOLATED")
    assert safety["service_faults"] > 0
    assert safety["unexplained"] == 0, "the recipe is to blame"
    assert {example["blame"] for example in safety["examples"] if example["blame"]} == {"unsafe recipe"}
    assert any("set-nx-get-del is here to show its flaw, do not use it" in text for text in result["warnings"])
    assert len(result["instances"]) == 1, "as many as the recipe takes"


def test_the_same_pause_at_work_makes_the_safe_lock_overstay_and_nothing_worse(run: Run) -> None:
    code, result = run("--recipe", "set-nx-lua", "--pause", "after-grant:100ms:0.1", "--fencing", "--duration=4s")
    safety = result["safety"]
    assert code == 0, result["verdict"]
    assert (safety["service_faults"], safety["foreign_deletes"]) == (0, 0)
    if safety["verdict"] == "NOT TESTED":
        pytest.skip(f"not known here: {safety['tested_leases']} tested leases")
    assert safety["verdict"] == "SAFE"
    assert safety["client_overstays"] > 0
    assert [instance["leaked_keys"] for instance in result["instances"]] == [0]
    told = [text for text in result["warnings"] if text.startswith("set-nx-lua counted ")]
    assert any("stale writes rejected" in text for text in told), told
    assert not any("valid writes rejected" in text for text in told), told


def test_a_replicated_recipe_gets_its_replica(run: Run) -> None:
    _, result = run("--recipe", "replica-failover", "--duration", "300ms")
    assert result["totals"]["acquired"] > 0
    assert result["safety"]["service_faults"] == 0
    assert [instance["role"] for instance in result["fleet"]["instances"]] == ["primary", "replica"]
