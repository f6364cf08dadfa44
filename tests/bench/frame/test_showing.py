"""What was measured is shown whole, whatever becomes of its page, and only then is a wish to end
granted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.frame import showing
from bench.frame.outputs import Outputs
from bench.frame.showing import report_beside
from bench.measure.section import builtins_of
from bench.program import execute
from bench.report.run_answer import RUN
from bench.run.experiment import Done
from bench.run.interrupt import Interrupts, until_shown
from bench.run.run import Order
from tests.bench.whole_run import run_of
from tests.conftest import Ended

RESULT = run_of()


def interrupted(*_: object) -> Path:
    signal.raise_signal(signal.SIGINT)
    return Path("one/report.html")


@pytest.mark.parametrize(("stored", "quiet"), [(Path("one/result.json"), False), (None, True)])
def test_an_experiment_is_shown_before_it_is_interrupted(
    stored: Path | None,
    quiet: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also one that nobody wants to see, if it is stored nowhere."""
    monkeypatch.setattr(showing, "report_beside", interrupted)
    outputs = Outputs(quiet=quiet)
    with pytest.raises(KeyboardInterrupt):
        showing.show(Done(RESULT, stored, 0), RUN, outputs)
    assert "leases/s" in capsys.readouterr().out


def test_the_files_are_written_though_nobody_reads_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("bench.report.sheet.print_sheet", closed)
    outputs = Outputs(markdown=tmp_path / "run.md", junit=tmp_path / "run.xml")
    with pytest.raises(BrokenPipeError):
        showing.show(Done(RESULT, None, 0), RUN, outputs)
    assert all((tmp_path / name).read_text(encoding="utf-8") for name in ("run.md", "run.xml"))


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


def test_a_run_is_shown_whole_before_it_is_interrupted(
    lockbench: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders: list[Order] = []

    def run_scenario(order: Order, interrupts: Interrupts, _show: object) -> Done:
        orders.append(order)
        interrupts.raising = False
        return Done(RESULT, Path("one/result.json"), 0)

    monkeypatch.setattr("bench.run.run.run_scenario", run_scenario)
    with monkeypatch.context() as patch:
        patch.setattr(showing, "report_beside", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lockbench("run", "--out", "new", "--server", "valkey", "--allow-skipped")
    stdout = capsys.readouterr().out
    assert "leases/s" in stdout
    assert "result     one/result.json, report.html" in stdout
    assert (str(orders[0].folder), orders[0].server, orders[0].allow_skipped) == (
        "new",
        "valkey",
        True,
    )
    assert json.loads(lockbench("run", "--out", "other", "--json").stdout) == builtins_of(RESULT)


def test_a_result_that_was_not_stored_has_no_report() -> None:
    assert report_beside(RESULT, RUN, None) is None


@pytest.mark.parametrize(
    ("place", "fault", "said"),
    [
        ("gone/result.json", None, "cannot write"),
        ("result.json", lambda *_: {}["absent"], "the report code has a fault (KeyError"),
    ],
)
def test_a_report_that_cannot_be_written_takes_nothing_from_its_result(
    place: str,
    fault: object,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault:
        monkeypatch.setattr("bench.report.html.page.write_report", fault)
    assert report_beside(RESULT, RUN, tmp_path / place) is None
    assert capsys.readouterr().err.startswith(f"lockbench: report.html was not written: {said}")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_page_leaves_no_half_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report_beside(RESULT, RUN, tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_a_stored_figure_beyond_all_bounds_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads(
        (Path(__file__).parents[2] / "histories" / "results" / "run.json").read_text("utf-8")
    )
    stored["over_time"]["acquire"]["p90_s"] = [
        float("inf") for _ in stored["over_time"]["acquire"]["p90_s"]
    ]
    (tmp_path / "result.json").write_text(json.dumps(stored), "utf-8")
    assert execute(["report", str(tmp_path)]) == 2
    assert "is not a result: Infinity is not a number" in capsys.readouterr().err
