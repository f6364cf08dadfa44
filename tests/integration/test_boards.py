"""Real runs into a real Prometheus: every panel of every board has data, and what it shows is what the result says."""

import json
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from bench.experiments.observe.experiment import PANELS_NAME, Observed, observe
from bench.experiments.observe.panels import Board, ask_boards, read_boards, resolve
from bench.experiments.observe.panels import Watched as Span
from bench.experiments.observe.query import Prometheus
from bench.experiments.observe.result import Panels
from bench.experiments.observe.watch import SCRAPE_S, open_watch
from bench.measure.section import builtins_of, schema_of
from bench.run.run import Order
from bench.scenario import load
from bench.telemetry.page import MetricsPage, open_page
from bench.telemetry.points import Buckets, Snapshot, point

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is missing (Debian: prometheus)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, so nobody counts fsyncs"),
]
BOARDS = read_boards()
TARGETS = [
    pytest.param(board.uid, panel.title, number, id=f"{board.uid}: {panel.title} {number}")
    for board in BOARDS
    for panel in board.panels
    for number in range(len(panel.targets))
]
# Two processes on an even number of instances split their votes; a killed instance comes back and abstains.
SPLIT = {
    "instances": "4", "users": "16", "processes": "2", "resources": "2", "wait": "3s", "ttl": "2s", "max_ttl": "4s",
    "duration": "9s", "warmup": "1s", "fsync": "everysec",
}  # fmt: skip
SPLIT_FAULTS = '[[faults]]\nat = "4s"\nfor = "1s"\nkind = "kill"\ntarget = ["instance:0"]\n'
OPEN = {
    "instances": "3", "users": "8", "rate": "100", "resources": "50", "hold": "fixed:1ms", "duration": "2s",
    "warmup": "1s", "fsync": "always",
}  # fmt: skip
OPEN_FAULTS = '[[faults]]\nat = "0s"\nfor = "1s"\nkind = "fsync-latency"\ntarget = ["instance:0"]\n'
LOST, DOUBLE, WINDOW_NS = 5_012, 3, 420_000_000  # made up, in the form in which `lockbench crash` exports them


@dataclass(frozen=True)
class Watched:
    """Two runs and a crash in one Prometheus; `panels` by board and title, over all of it.

    `seen`: the count of leases whenever it was asked during the first run.
    """

    prometheus: Prometheus
    split: Observed
    open: Observed
    crash: str
    panels: dict
    span: Span
    seen: list[float]

    def value(self, uid: str, title: str, run: str, number: int = 0) -> float:
        """What a panel shows of one run at its end."""
        board = next(one for one in BOARDS if one.uid == uid)
        panel = next(one for one in board.panels if one.title == title)
        span = Span(run, self.span.start_s, self.span.end_s, SCRAPE_S, baseline=run)
        answer = self.prometheus.at(resolve(panel.targets[number].expr, board, span), self.span.end_s)
        assert len(answer.series) == 1, answer
        assert answer.series[0].last is not None
        return answer.series[0].last

    def total(self, metric: str, run: str) -> float:
        """The last value of all series of a counter; errors that never happened have none."""
        query = f'sum(last_over_time({metric}{{redlock_run_id="{run}"}}[1h]))'
        series = self.prometheus.at(query, self.span.end_s).series
        return (series[0].last or 0.0) if series else 0.0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("boards")
    start_s = time.time()
    with open_watch(collector="none") as watch:
        seen: list[float] = []

        def ask_meanwhile(_progress: object) -> None:
            answer = watch.prometheus.at('sum(redlock_acquire_outcomes_total{redlock_outcome="acquired"})', time.time())
            seen.extend(one.last for one in answer.series if one.last)

        split = observe(_order(folder / "split", SPLIT, SPLIT_FAULTS), ask_meanwhile, watch)
        crash = _a_crash(watch.prometheus)
        opened = observe(_order(folder / "open", OPEN, OPEN_FAULTS), lambda _: None, watch)
        assert opened.panels is not None, opened.why
        span = Span(".*", start_s, opened.panels.end_s, SCRAPE_S, split.finished.result.id)
        asked = ask_boards(watch.prometheus, BOARDS, span)
        panels = {(board.uid, panel.title): panel for board in asked for panel in board.panels}
        yield Watched(watch.prometheus, split, opened, crash, panels, span, seen)


def _order(folder: Path, options: dict[str, str], faults: str) -> Order:
    folder.mkdir()
    path = folder / "scenario.toml"
    path.write_text(faults)
    return Order(load(path, dict(options)), secrets.token_hex(4), ["lockbench", "observe"], folder)


def _a_crash(prometheus: Prometheus) -> str:
    """Serve what a crash experiment exports where a run would, until Prometheus has taken it."""
    import os

    run = secrets.token_hex(4)
    port = int(os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"])
    page: MetricsPage = open_page(("127.0.0.1", port), {"redlock.run.id": run})
    window = Buckets()
    window.add(np.array([WINDOW_NS]))
    points = [
        point("redlock.crash.lost_locks", LOST),
        point("redlock.crash.double_grants", DOUBLE),
        point("redlock.crash.lost_window", window),
    ]
    common = (("redlock.recipe", "redlock"), ("redlock.fsync", "everysec"))
    page.offer(Snapshot(time.time_ns(), time.time_ns(), common, points))
    deadline_s = time.monotonic() + 30
    while not prometheus.at("redlock_crash_double_grants_total", time.time()).series:
        assert time.monotonic() < deadline_s, "nobody came for the crash"
        time.sleep(0.1)
    page.close(0.0)
    return run


@pytest.mark.parametrize("uid, title, number", TARGETS)
def test_a_panels_query_has_data_and_no_warning(watched: Watched, uid: str, title: str, number: int) -> None:
    target = watched.panels[uid, title].targets[number]
    assert target.error == ""
    assert target.warnings == ()
    assert target.has_data, target.query


def test_prometheus_can_be_asked_while_the_run_goes_on(watched: Watched) -> None:
    if len(set(watched.seen)) < 2:
        pytest.skip(f"not known here: Prometheus had {len(set(watched.seen))} different values while the run went on")
    assert watched.seen == sorted(watched.seen)
    assert watched.seen[-1] <= watched.split.finished.result.totals.acquired


def test_faults_and_runs_are_annotations(watched: Watched) -> None:
    for observed, kind in ((watched.split, "kill"), (watched.open, "fsync-latency")):
        assert observed.panels is not None
        told = {one.name: one for one in observed.panels.boards[0].annotations}
        assert told["Faults"].title == f"{kind} on instance:0"
        assert observed.finished.result.id in told["Run start and end"].title
        assert told["Run start and end"].end_s >= told["Run start and end"].start_s
        assert "Measured time" in told


def test_a_dozen_values_are_those_of_the_result(watched: Watched) -> None:
    for observed in (watched.split, watched.open):
        result, run = builtins_of(observed.finished.result), observed.finished.result.id
        overview, generator = "lockbench-run-overview", "lockbench-generator"
        assert watched.value(overview, "Leases", run) == result["totals"]["acquired"]
        assert watched.value(overview, "Safety violations", run) == result["safety"]["service_faults"]
        assert watched.value(overview, "Leases judged", run) == result["totals"]["acquired"]
        assert watched.value(generator, "Late starts", run) == result["generator"]["late_starts"]
        assert watched.value(generator, "Queued starts", run) == result["generator"]["queued_starts"]
        assert watched.value(generator, "Rate", run) == 1.0  # a run against itself
        assert watched.total("redlock_acquire_outcomes_total", run) == sum(result["totals"].values())
        assert watched.total("redlock_acquire_duration_seconds_count", run) == sum(result["totals"].values())
        assert watched.total("redlock_vote_margin_count", run) == result["totals"]["acquired"]
        for key, metric in (("commands", "commands"), ("reconnects", "reconnects")):
            every = sum(instance[key] for instance in result["instances"])
            assert watched.total(f"redlock_instance_{metric}_total", run) == every
        errors = sum(sum(instance["errors"].values()) for instance in result["instances"])
        assert watched.total("redlock_instance_errors_total", run) == errors
        assert watched.total("redlock_split_votes_total", run) >= result["split_votes"]["count"]
        assert _near(watched.value(overview, "Acquire p99", run), result["latency_s"]["acquire"]["p99"], 3.0)


def _near(value: float, other: float | None, factor: float) -> bool:
    """The page's buckets are wide, and it counts the warm-up, too; a percentile of few samples is not told."""
    return other is None or other / factor < value < other * factor


def test_the_split_run_shows_its_split_votes_its_restart_and_its_return(watched: Watched) -> None:
    run = watched.split.finished.result.id
    quorum = "lockbench-quorum"
    assert watched.value(quorum, "Split-brain retries per acquire", run) > 0
    assert watched.value(quorum, "Restarts", run) == 1
    abstained = watched.panels[quorum, "Abstaining"].targets[0].series
    assert max(value for one in abstained for _, value in one.points if value is not None) == 1


def test_the_open_run_shows_its_schedule_and_its_fsyncs(watched: Watched) -> None:
    offered = watched.panels["lockbench-run-overview", "Rate offered and achieved"].targets[1].series
    assert {value for one in offered for _, value in one.points} == {100.0}
    assert watched.value("lockbench-fsync", "Fsyncs", watched.open.finished.result.id) > 0


def test_every_recorded_rule_has_data_and_no_alert_fires_for_a_safe_run(watched: Watched) -> None:
    for rule in (
        "redlock:acquires:rate30s",
        "redlock:acquire_duration_seconds:p99_30s",
        "redlock:instance_reply_seconds:p50_30s",
        "redlock:instances_spare",
    ):
        assert watched.prometheus.at(f"last_over_time({rule}[10m])", watched.span.end_s).has_data, rule
    fired = watched.prometheus.at('last_over_time(ALERTS{alertname="LockSafetyViolated"}[10m])', watched.span.end_s)
    assert not fired.series


def test_the_policies_stand_side_by_side(watched: Watched) -> None:
    for title in ("Typical rate", "Acquire p99"):
        series = watched.panels["lockbench-fsync", title].targets[0].series
        assert {"everysec", "always"} == {one.labels["redlock_fsync"] for one in series}


def test_a_a_crash_is_shown_as_it_was_recorded(watched: Watched) -> None:
    board = "lockbench-fsync"
    assert watched.value(board, "Locks lost in crashes", watched.crash) == LOST
    assert watched.value(board, "Double grants", watched.crash) == DOUBLE
    assert 0.33 < watched.value(board, "Lost window, p99", watched.crash) <= 0.47  # the bucket that 0.42 s is in


def test_panels_json_is_as_its_schema_says_and_holds_every_panel(watched: Watched) -> None:
    for observed in (watched.split, watched.open):
        assert observed.path is not None
        assert observed.path.name == PANELS_NAME
        stored = observed.path.read_text("utf-8")
        jsonschema.validate(json.loads(stored), schema_of(Panels, "urn:x"))
        held = {
            (board.uid, panel.title)
            for board in msgspec.json.decode(stored, type=Panels).boards
            for panel in board.panels
        }
        assert held == {(board.uid, panel.title) for board in BOARDS for panel in board.panels if panel.type != "row"}


def test_a_metric_that_nobody_exports_would_be_noticed(watched: Watched) -> None:
    text = msgspec.json.encode(BOARDS[0]).replace(b"redlock_acquire_outcomes_total", b"redlock_acquire_outcome_total")
    (asked,) = ask_boards(watched.prometheus, [msgspec.json.decode(text, type=Board)], watched.span)
    empty = {panel.title for panel in asked.panels if not all(target.has_data for target in panel.targets)}
    assert {"Leases", "Outcomes", "Within the SLO"} <= empty
