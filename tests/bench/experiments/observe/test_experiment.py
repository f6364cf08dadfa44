"""Boards without Grafana: what stands for a variable, what is left out, what is refused before anything starts."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.observe.experiment import _missed, observe, write_panels
from bench.experiments.observe.panels import Watched, read_boards, resolve, runs_of
from bench.experiments.observe.query import Prometheus
from bench.experiments.observe.result import Answer, Panels, Series
from bench.experiments.observe.watch import Watch, _variables, _wanted, find_collector, find_prometheus
from bench.measure.section import typed
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.run.verdict import INTERRUPTED, Done
from bench.scenario import load
from tests.bench.whole_run import SAMPLE, run_of

BOARDS = {board.uid: board for board in read_boards()}


def panels_of(*boards: dict[str, object]) -> Panels:
    about = {"id": "x", "command": [], "start_s": 0, "end_s": 1, "step_s": 1, "prometheus": "2", "by_collector": False}
    return typed({**about, "boards": list(boards)}, Panels)


SPAN = Watched("7f3a90c1", 1000.0, 1030.4, 1.0)


def test_a_query_gets_the_runs_id_and_times_as_grafana_would_put_them_in() -> None:
    board = BOARDS["lockbench-run-overview"]
    text = 'rate(x{run=~"$run", r=~"$recipe", port=~"$port", le="$slo"}[$__rate_interval]) + y[$__range]'
    told = 'rate(x{run=~"7f3a90c1", r=~".*", port=~".*", le="0.01"}[4s]) + y[31s]'
    assert resolve(text, board, SPAN) == told
    generator = BOARDS["lockbench-generator"]
    assert resolve("$baseline", generator, SPAN) == "", "a run against itself is no comparison"
    assert resolve("$baseline", generator, Watched("a", 0, 1, 1.0, "b")) == "b"


def test_a_variable_that_the_board_lacks_is_no_empty_string() -> None:
    with pytest.raises(KeyError, match="nobody"):
        resolve("$nobody", BOARDS["lockbench-fsync"], SPAN)


def test_a_long_run_is_asked_in_wider_steps_and_rates_look_back_as_far() -> None:
    hour = Watched("a", 0.0, 3600.0, 1.0)
    assert hour.step_s == 15.0
    assert resolve("$__rate_interval", BOARDS["lockbench-fsync"], hour) == "16s"


def test_points_that_follow_each_other_are_one_annotation() -> None:
    assert list(runs_of([1, 2, 3, 7, 8], 1.0)) == [(1, 3), (7, 8)]
    assert list(runs_of([], 1.0)) == []


def test_nan_is_no_data() -> None:
    empty = {"expr": "", "query": "", "series": [{"labels": {}, "points": [[0, None]]}], "warnings": ["w"]}
    full = {"expr": "", "query": "", "series": [{"labels": {}, "points": [[0, 0.0], [2, None]]}], "error": "e"}
    board = {"uid": "", "title": "", "description": "", "annotations": []}
    panel = {"id": 1, "row": "", "title": "", "type": "stat", "unit": "s", "description": ""}
    both = [{**panel, "targets": [empty]}, {**panel, "targets": [empty, full]}]
    panels = panels_of({**board, "panels": both})
    assert (panels.full, len(panels.panels), list(panels.complaints())) == (1, 2, ["w", "w", "e"])


def test_without_prometheus_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentNotReadyError, match="apt-get install prometheus"):
        find_prometheus(None)
    with pytest.raises(EnvironmentNotReadyError, match="/no/such is no program"):
        find_prometheus("/no/such")
    assert find_collector(None, {}) is None
    with pytest.raises(EnvironmentNotReadyError, match="no program"):
        find_collector("/no/such", {})


def test_a_users_own_collector_is_left_alone_and_prometheus_scrapes_the_page(tmp_path: Path) -> None:
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318"}
    assert find_collector(None, own) is None
    wanted = _wanted(own, [1, 2, 3, 4, 5], collector=False)
    assert wanted["OTEL_METRICS_EXPORTER"] == "otlp,prometheus"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in wanted


def test_the_variables_are_those_of_before_when_the_watch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with _variables(_wanted(os.environ, [1, 2, 3, 4, 5], collector=True)):
        assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:4"
        assert "OTEL_METRICS_EXPORTER" not in os.environ
    assert os.environ["OTEL_METRICS_EXPORTER"] == "console"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ


def test_a_prometheus_that_is_gone_is_a_sentence() -> None:
    with pytest.raises(EnvironmentNotReadyError, match="does not answer"):
        Prometheus("http://127.0.0.1:1").at("up", 0.0)


class Nobody:
    """A Prometheus that the user does not want to wait for."""

    url = ""

    def at(self, _query: str, _time_s: float) -> Answer:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_panels_are_asked_leaves_only_them_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finished = Done({"id": "x"}, tmp_path / "result.json", 0)
    monkeypatch.setattr(
        "bench.experiments.observe.experiment.run_scenario", lambda _order, _interrupts, _show: finished
    )
    order = Order(load(None, {}), "x", ["lockbench", "observe"], tmp_path)
    observed = observe(order, lambda _: None, Watch(Nobody(), None))  # type: ignore[arg-type]
    assert (observed.finished.result, observed.finished.path) == (finished.result, finished.path)
    assert observed.finished.exit_code == INTERRUPTED
    assert observed.panels is None
    assert "interrupted" in observed.why


class Told:
    """A Prometheus that has seen so many acquires; `None`: it knows of none."""

    def __init__(self, acquires: float | None) -> None:
        self.acquires = acquires

    def at(self, _query: str, time_s: float) -> Answer:
        return Answer(series=() if self.acquires is None else (Series(labels={}, points=((time_s, self.acquires),)),))


def test_boards_that_show_less_than_the_run_say_so() -> None:
    finished = Done(run_of(totals={**SAMPLE["totals"], "acquired": 1200, "contended": 34, "split_vote": 0}), None, 0)
    assert _missed(Told(1234.0), finished, "x", 0.0, 9.0) == ""  # type: ignore[arg-type]
    assert "show 1,000 of its 1,234 acquires" in _missed(Told(1000.0), finished, "x", 0.0, 9.0)  # type: ignore[arg-type]
    assert "show 0 of its 1,234" in _missed(Told(None), finished, "x", 0.0, 9.0)  # type: ignore[arg-type]


def test_ctrl_c_while_a_run_is_put_away_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_on(_servers: object, _order: Order, interrupts: Interrupts, _show: object) -> Done:
        interrupts.raising = False
        interrupts.note()
        return Done({}, None, 0)

    monkeypatch.setattr("bench.run.run.open_servers", lambda *_, **__: nullcontext())
    monkeypatch.setattr("bench.run.run.run_on", run_on)
    order = Order(load(None, {}), "x", ["lockbench", "run"], tmp_path)
    with Interrupts() as interrupts:
        assert run_scenario(order, interrupts, lambda _: None).exit_code == INTERRUPTED


def test_panels_that_cannot_be_written_leave_nothing_half(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="cannot be written"):
        write_panels(panels_of(), tmp_path / "gone")
    path = write_panels(panels_of(), tmp_path)
    assert typed(json.loads(path.read_text()), Panels) == panels_of()
    assert [one.name for one in tmp_path.iterdir()] == ["panels.json"]
