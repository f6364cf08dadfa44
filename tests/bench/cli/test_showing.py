"""Ctrl-C while what was measured is written as a page: the words come first, then the wish to end is granted."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cli import run as run_module
from bench.cli import showing
from bench.cli.outputs import Outputs
from bench.cli.report import place_of
from bench.cli.run import RunOutput, run_and_print
from bench.run.interrupt import Interrupts, until_shown
from bench.run.verdict import Done
from bench.scenario import load

SAMPLE = Path(__file__).parents[1] / "report" / "sample.json"
NO_FILES = Outputs(None, None, None)


def interrupted(*_: object) -> Path:
    signal.raise_signal(signal.SIGINT)
    return Path("one/report.html")


PASSED = {"kind": "x", "started_at": "", "duration_s": 0.0, "verdict": {"status": "pass", "reasons": []}}


def test_an_experiment_is_shown_before_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "report_beside", interrupted)
    with pytest.raises(KeyboardInterrupt):
        showing.show(Done(PASSED, Path("one/result.json"), 0), NO_FILES, {"as_json": False, "quiet": False})
    assert "result     one/result.json, report.html\n" in capsys.readouterr().out


def test_a_second_wish_is_granted_at_once() -> None:
    heard = 0

    @until_shown()
    def show() -> None:
        nonlocal heard
        for heard in range(1, 4):  # noqa: B007 - read outside
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        show()
    assert heard == 2


def test_a_run_is_shown_whole_and_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_result: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))

    def run_scenario(_order: object, interrupts: Interrupts, _show: object) -> Done:
        interrupts.raising = False
        return Done(run_result, Path("one/result.json"), 0)

    monkeypatch.setattr(run_module, "run_scenario", run_scenario)
    monkeypatch.setattr(showing, "report_beside", interrupted)
    output = RunOutput(tmp_path / "new", NO_FILES, as_json=False, quiet=False)
    assert run_and_print(load(), output, server=None, allow_missing=False, keep_history=False) == 130
    shown = capsys.readouterr().out
    assert "leases/s" in shown
    assert "result.json" in shown
    run_and_print(load(), replace(output, folder=tmp_path / "other", as_json=True), server=None, allow_missing=False,
                  keep_history=False)  # fmt: skip
    assert json.loads(capsys.readouterr().out) == run_result


def test_a_place_names_the_page_if_there_is_one() -> None:
    stored = Path("one/result.json")
    assert place_of(stored, stored.with_name("report.html")) == "one/result.json, report.html"
    assert (place_of(stored, None), place_of(None, None)) == ("one/result.json", "")
