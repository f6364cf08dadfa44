"""Thresholds of a real run: they decide its exit code and stand in everything it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ended

pytestmark = pytest.mark.integration


def test_a_limit_that_does_not_hold_fails_the_run_everywhere_it_is_told(
    lockbench: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(
        'duration = "1s"\nwarmup = "200ms"\ninstances = 3\nusers = 7\nthink = "fixed:5ms"\n'
        'thresholds = ["acquire.p50 < 9s"]\n',
        encoding="utf-8",
    )
    own = ["--threshold", "acquire.p50 < 9s", "--threshold", "rate > 9000000/s"]  # an option takes the key's place
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    done = lockbench("run", "mine.toml", "--out", "result", *own, "--junit", "junit.xml", "--markdown", "mine.md")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("FAIL")
    assert "FAIL  rate > 9000000/s  measured" in done.stdout
    result = json.loads((tmp_path / "result" / "result.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in result["thresholds"]] == ["pass", "fail"]
    assert (result["verdict"]["status"], result["verdict"]["reasons"]) == ("fail", ["rate > 9000000/s does not hold"])
    assert 'failures="1" errors="0"' in (tmp_path / "junit.xml").read_text(encoding="utf-8")
    assert (tmp_path / "step.md").read_text(encoding="utf-8").strip() == (
        (tmp_path / "mine.md").read_text(encoding="utf-8").strip()
    )
