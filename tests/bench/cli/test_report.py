"""A report that cannot be written takes nothing from the result it was to show."""

from pathlib import Path

import pytest

from bench.cli.report import report_beside
from bench.report.html import page


def test_a_result_that_was_not_stored_has_no_report() -> None:
    assert report_beside({}, None) is None


def test_a_result_that_is_not_whole_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_beside({"schema_version": 1, "latency_s": {}}, tmp_path / "result.json") is None
    said = capsys.readouterr().err
    assert said.startswith("lockbench: there is no report.html: this result is not a whole RunResult of lockbench (")
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_report_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.html.pages.write_report", lambda *_: {}["absent"])
    assert report_beside({"schema_version": 1}, tmp_path / "result.json") is None
    said = capsys.readouterr().err
    assert said.startswith("lockbench: there is no report.html: a fault of the report itself (KeyError")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_gone_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_beside({"schema_version": 1}, tmp_path / "gone" / "result.json") is None
    assert "cannot write" in capsys.readouterr().err


def test_an_interrupted_page_leaves_no_half_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    made = page.Page("t", "PASS", "good", "h", "c", (), ())
    with pytest.raises(KeyboardInterrupt):
        page.write_page(made, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
