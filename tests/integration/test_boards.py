"""Real runs into a real Prometheus: every panel of every board has data, and what it shows is what
the result says."""

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bench.commands.watch import GRAPHS, SCRAPE_S, open_watch
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of
from bench.run.follower import Show
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.scenario import load
from bench.telemetry.otlp import export_once
from bench.telemetry.page import MetricsPage
from bench.telemetry.points import Buckets, Snapshot, point
from bench.telemetry.run import Run
from tests.dashboards.expected_figures import FiguresOfRun, wholes
from tests.dashboards.prometheus3 import EXPONENTIAL, NATIVE, WAYS, needs_prometheus_3, program_of
from tests.dashboards.prometheus_answers import (
    Answer,
    Board,
    Prometheus,
    WatchedRun,
    panels_of,
    read_boards,
    wrong,
)
from tests.integration.locust_runs import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is missing (Debian: prometheus)"
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, so nobody counts fsyncs"),
]
# of applications
BOARDS = {board["uid"]: board for board in read_boards() if board["uid"] != "lockbench-production"}
TARGETS = [
    pytest.param(board, target, id=f"{uid}: {panel['title']} {target['refId']}")
    for uid, board in BOARDS.items()
    for panel in panels_of(board)
    for target in panel["targets"]
]
# Two processes on an even number of instances split their votes; a killed instance comes back and
# abstains.
SPLIT = {
    "instances": "4",
    "users": "16",
    "processes": "2",
    "resources": "2",
    "wait": "3s",
    "ttl": "2s",
    "max_ttl": "4s",
    "duration": "11s",
    "warmup": "1s",
    "fsync": "everysec",
}
SPLIT_FAULTS = '[[faults]]\nat = "3s"\nfor = "1s"\nkind = "kill"\ntarget = ["instance:0"]\n'
OPEN = {
    "instances": "3",
    "users": "8",
    "rate": "300",
    "resources": "50",
    "hold": "fixed:1ms",
    "duration": "6s",
    "warmup": "0s",
    "fsync": "always",
}
OPEN_FAULTS = """
[[faults]]
at = "0s"
for = "1s"
kind = "fsync-latency"
target = ["instance:0"]

[[faults]]
at = "1500ms"
for = "2500ms"
kind = "stop"
target = ["instance:1"]
"""
# of the scrapes that are due, or a machine is too busy for these tests
SCRAPED = 0.8
# Whole figures that result.json of such a run has not: a crash's (compared below), the shim's count
# of fsyncs, and the p99 of a lag that was sampled some hundred times.
UNKNOWN = {
    ("fsync", "Locks lost in crashes"),
    ("fsync", "Lost window, p99"),
    ("fsync", "Double grants"),
    ("fsync", "Fsyncs per lease"),
    ("generator", "Scheduler lag p99"),
}
# made up, in the form in which `lockbench crash` exports them
LOST = 5_012
DOUBLE = 3
WINDOW_NS = 420_000_000


@dataclass(frozen=True)
class ScrapedRun:
    """One run, and from when until when Prometheus saw it."""

    result: RunResult
    span: WatchedRun

    @property
    def alone(self) -> WatchedRun:
        """This run, compared with itself."""
        return replace(self.span, baseline=self.result.id)


@dataclass(frozen=True)
class Stack:
    """Two runs and a crash in one Prometheus.

    `seen`: the leases it knew of, asked again and again in the first run.
    """

    prometheus: Prometheus
    split: ScrapedRun
    open: ScrapedRun
    crash: str
    span: WatchedRun
    seen: list[float]

    def shown(self, uid: str, title: str, number: int = 0, run: str = "") -> Answer:
        """What a panel shows of `run` (none: of all, against the first as baseline)."""
        panel = next(one for one in panels_of(BOARDS[uid]) if one["title"] == title)
        span = (
            WatchedRun(run, self.span.start_s, self.span.end_s, SCRAPE_S, baseline=run)
            if run
            else self.span
        )
        return self.prometheus.panel(BOARDS[uid], panel["targets"][number], span)

    def value(self, uid: str, title: str, run: str) -> float:
        """The one number that a panel shows of one run."""
        (number,) = self.shown(uid, title, run=run).numbers
        return number

    def total(self, metric: str, run: str) -> float:
        """The last value of all series of a counter; errors that never happened have none."""
        query, whole = (
            f'sum(last_over_time({name}{{redlock_run_id="{run}"}}[1h]))'
            for name in (metric, metric.removesuffix("_count"))
        )
        if metric.endswith("_count"):
            # where Prometheus converts classic histograms
            query = f"{query} or histogram_count({whole})"
        return sum(self.prometheus.at(query, self.span.end_s).numbers)


@pytest.fixture(scope="module", params=WAYS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("boards")
    start_s = time.time()
    with (
        open_watch(program_of(request.param, folder), collector="none") as watch,
        pytest.MonkeyPatch.context() as environ,
    ):
        if request.param == EXPONENTIAL:
            _send_exponential(environ, watch.url)
        prometheus = Prometheus(watch.url)
        seen = list[float]()

        def ask_meanwhile(_progress: object) -> None:
            query = 'sum(redlock_acquire_outcomes_total{redlock_outcome="acquired"})'
            seen.extend(filter(None, prometheus.at(query, time.time()).numbers))

        split = _ran(prometheus, _order(folder / "split", SPLIT, SPLIT_FAULTS), ask_meanwhile)
        crash = _a_crash(prometheus)
        opened = _ran(prometheus, _order(folder / "open", OPEN, OPEN_FAULTS), lambda _: None)
        span = WatchedRun(".*", start_s, opened.span.end_s, SCRAPE_S, split.result.id)
        if request.param in NATIVE:
            assert not prometheus.at(
                "count_over_time(redlock_acquire_duration_seconds_bucket[1h])", time.time()
            ).series
        yield Stack(prometheus, split, opened, crash, span, seen)


def _send_exponential(environ: pytest.MonkeyPatch, url: str) -> None:
    """Runs send their metrics straight to Prometheus, which is not scraped then."""
    aggregation = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    environ.setenv("OTEL_METRICS_EXPORTER", "otlp")
    environ.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{url}/api/v1/otlp/v1/metrics")
    environ.setenv(aggregation, "base2_exponential_bucket_histogram")


def _ran(prometheus: Prometheus, order: Order, show: Show) -> ScrapedRun:
    start_s = time.time()
    with Interrupts() as interrupts:
        result = run_scenario(order, interrupts, show).result
    info = f'redlock_run_info{{redlock_run_id="{result.id}"}}'
    deadline_s = time.time() + 10
    # until it knows that the page is gone
    while prometheus.at(info, time.time()).series and time.time() < deadline_s:
        time.sleep(0.2)
    (end_s,) = prometheus.at(f"max_over_time(timestamp({info})[10m:1s])", time.time()).numbers
    _must_have_come(prometheus, result)
    return ScrapedRun(result, WatchedRun(result.id, start_s, end_s, SCRAPE_S))


def _must_have_come(prometheus: Prometheus, result: RunResult) -> None:
    """Skip where this machine was too busy to scrape what the panels' windows of a few scrapes look
    at."""
    for metric in (
        "redlock_run_info",
        "redlock_scheduler_lag_seconds_count",
        "redlock_scheduler_lag_seconds",
    ):
        query = f'min(count_over_time({metric}{{redlock_run_id="{result.id}"}}[10m]))'
        if metric.startswith("redlock_scheduler") and not prometheus.at(query, time.time()).series:
            # of a histogram, either its count or itself
            continue
        came = sum(prometheus.at(query, time.time()).numbers)
        due = result.duration_s / SCRAPE_S
        if came < SCRAPED * due:
            pytest.skip(
                f"not known here: Prometheus had {metric} {came:.0f} times, {due:.0f} were due"
            )


def _order(folder: Path, options: dict[str, str], faults: str) -> Order:
    folder.mkdir()
    path = folder / "scenario.toml"
    path.write_text(faults)
    return Order(load(path, dict(options)), secrets.token_hex(4), ["lockbench", "observe"], folder)


def _a_crash(prometheus: Prometheus) -> str:
    """Serve what a crash experiment exports where a run would, until Prometheus has taken it."""
    run = secrets.token_hex(4)
    exported = Run(run, "redlock", "everysec")
    port = int(os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"])
    page = MetricsPage(("127.0.0.1", port), exported.resource("lockbench"))
    window = Buckets()
    window.add(np.array([WINDOW_NS]))
    points = [
        point("redlock.crash.lost_locks", LOST),
        point("redlock.crash.double_grants", DOUBLE),
        point("redlock.crash.lost_window", window),
    ]
    page.offer(Snapshot(time.time_ns(), time.time_ns(), exported.common, points))
    # where metrics go out by OTLP
    assert export_once(exported, points, os.environ) == []
    until(
        lambda: bool(prometheus.at("redlock_crash_double_grants_total", time.time()).series),
        "a scrape of the crash",
    )
    page.close(0.0)
    return run


@needs_prometheus_3
def test_prometheus_3_is_asked_too_with_histograms_of_each_kind(tmp_path: Path) -> None:
    said = subprocess.run(
        [program_of("classic", tmp_path), "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("prometheus, version 3.")


@pytest.mark.parametrize("board, target", TARGETS)
def test_a_panels_query_has_data_and_no_warning(
    watched: Stack, board: Board, target: Board
) -> None:
    answer = watched.prometheus.panel(board, target, watched.span)
    assert answer.complaints == []
    met = [
        one.errors
        for ran in (watched.split, watched.open)
        for one in ran.result.instances
        if one.errors
    ]
    if not answer.numbers and "redlock_instance_errors" in target["expr"] and not met:
        pytest.skip("not known here: the killed instance owed no answer, so nobody met an error")
    assert answer.numbers


def test_prometheus_can_be_asked_while_the_run_goes_on(watched: Stack) -> None:
    if len(set(watched.seen)) < 2:
        pytest.skip(
            f"not known here: Prometheus had {len(set(watched.seen))} different values "
            "while the run went on"
        )
    assert watched.seen == sorted(watched.seen)
    assert watched.seen[-1] <= watched.split.result.totals.acquired


@pytest.mark.parametrize("name", ["Faults", "Run start and end"])
def test_faults_and_runs_are_annotations(watched: Stack, name: str) -> None:
    (annotation,) = (one for one in _annotations() if one["name"] == name)
    for ran, kinds in ((watched.split, {"kill"}), (watched.open, {"fsync-latency", "stop"})):
        series = watched.prometheus.panel(next(iter(BOARDS.values())), annotation, ran.span).series
        assert {labels.get("redlock_fault_kind") for labels, _ in series} == (
            kinds if name == "Faults" else {None}
        )
        assert {labels.get("redlock_run_id") for labels, _ in series} == {ran.result.id}


def _annotations() -> list[Board]:
    board: Board = next(iter(BOARDS.values()))
    return list(board["annotations"]["list"])


def test_a_dozen_values_are_those_of_the_result(watched: Stack) -> None:
    for ran in (watched.split, watched.open):
        result = builtins_of(ran.result)
        run = ran.result.id
        overview = "lockbench-run-overview"
        generator = "lockbench-generator"
        assert watched.value(overview, "Leases", run) == result["totals"]["acquired"]
        assert (
            watched.value(overview, "Safety violations", run) == result["safety"]["service_faults"]
        )
        assert watched.value(overview, "Leases judged", run) == result["totals"]["acquired"]
        assert watched.value(generator, "Late starts", run) == result["generator"]["late_starts"]
        assert (
            watched.value(generator, "Queued starts", run) == result["generator"]["queued_starts"]
        )
        # a run against itself
        assert watched.value(generator, "Rate", run) == 1.0
        assert watched.total("redlock_acquire_outcomes_total", run) == sum(
            result["totals"].values()
        )
        assert watched.total("redlock_acquire_duration_seconds_count", run) == sum(
            result["totals"].values()
        )
        assert watched.total("redlock_vote_margin_count", run) == result["totals"]["acquired"]
        for key, metric in (("commands", "commands"), ("reconnects", "reconnects")):
            every = sum(instance[key] for instance in result["instances"])
            assert watched.total(f"redlock_instance_{metric}_total", run) == every
        errors = sum(sum(instance["errors"].values()) for instance in result["instances"])
        assert watched.total("redlock_instance_errors_total", run) == errors
        assert watched.total("redlock_split_votes_total", run) >= result["split_votes"]["count"]


def _wrong(watched: Stack, boards: dict[str, Board]) -> list[str]:
    """The panels of one figure of a whole run that show another one than the run without warm-up
    has, or none."""
    expected = wholes(watched.open.result)
    found = list[str]()
    for uid, board in boards.items():
        for panel in panels_of(board):
            name = uid.removeprefix("lockbench-"), panel["title"]
            if not panel["targets"][0].get("instant") or name in UNKNOWN:
                continue
            right, factor = expected[name]
            shown = watched.prometheus.panel(board, panel["targets"][0], watched.open.alone).numbers
            if len(shown) != 1 or not right / factor <= shown[0] <= right * factor:
                found.append(f"{name}: {shown} for {right}")
    return found


def test_every_figure_of_a_whole_run_is_that_of_the_result(watched: Stack) -> None:
    assert _wrong(watched, BOARDS) == []


def _wrong_over_time(watched: Stack, boards: dict[str, Board]) -> list[str]:
    """The same of the panels that show a run moment by moment."""
    ran = watched.open
    expected = FiguresOfRun(ran.result, ran.alone.whole.rate_s).all()
    found = [
        wrong(watched.prometheus, board, ran.alone, expected[uid]) for uid, board in boards.items()
    ]
    return [one for each in found for one in each]


def test_every_figure_over_time_is_that_of_the_result(watched: Stack) -> None:
    assert _wrong_over_time(watched, BOARDS) == []
    panel = next(
        one
        for one in panels_of(BOARDS["lockbench-run-overview"])
        if one["title"].startswith("Rate offered")
    )
    shown = watched.prometheus.panel(
        BOARDS["lockbench-run-overview"], panel["targets"][0], watched.open.span
    ).numbers
    # a run with two faults
    achieved = [number for number in shown if number > 0]
    assert np.median(achieved) == pytest.approx(watched.open.result.rate.achieved_per_s, rel=0.3)
    assert not watched.open.result.votes.undecided


@pytest.mark.parametrize(
    "title, was, now",
    [
        (
            "Acquire latency, percentiles A",
            "histogram_quantile(0.5, ",
            "histogram_quantile(0.999, ",
        ),
        (
            "Validity left at the grant A",
            "redlock_lease_validity_seconds",
            "redlock_hold_duration_seconds",
        ),
        ("Commands A", "redlock_instance_commands_total", "redlock_instance_reconnects_total"),
    ],
)
def test_a_panel_that_shows_another_moment_would_be_noticed(
    watched: Stack, title: str, was: str, now: str
) -> None:
    text = json.dumps(BOARDS)
    assert was in text
    assert any(
        one.startswith(title)
        for one in _wrong_over_time(watched, json.loads(text.replace(was, now)))
    )


@pytest.mark.parametrize(
    "title, planted",
    [
        (
            "Acquire p99",
            {"histogram_quantile(0.99, ": "histogram_quantile(0.5, ", "> 0.01 * ": "> 0.5 * "},
        ),
        (
            "Rate of the whole run",
            {"redlock_load_time_seconds_total": "redlock_client_cpu_seconds_total"},
        ),
        ("Leases without reserve", {'le=\\"0.1\\"': 'le=\\"1.5\\"', "-Inf, 0.1, ": "-Inf, 1.5, "}),
        (
            "Leases judged",
            {"redlock_safety_judged_leases_total": "redlock_safety_judged_lease_total"},
        ),
        # on each kind of histograms
    ],
)
def test_a_panel_that_shows_another_figure_would_be_noticed(
    watched: Stack, title: str, planted: dict[str, str]
) -> None:
    text = json.dumps(BOARDS)
    for was, now in planted.items():
        assert was in text
        text = text.replace(was, now)
    assert any(title in one for one in _wrong(watched, json.loads(text)))


def test_the_stopped_instance_is_the_one_that_fell_silent(watched: Stack) -> None:
    votes = watched.open.result.votes
    run = watched.open.result.id
    for vote in ("granted", "refused", "errored", "silent", "absent"):
        labels = f'redlock_run_id="{run}",redlock_vote="{vote}"'
        query = f"sum(last_over_time(redlock_votes_total{{{labels}}}[1h]))"
        assert watched.prometheus.at(query, watched.span.end_s).numbers == [getattr(votes, vote)], (
            vote
        )
    assert votes.silent
    assert votes.absent
    assert min(watched.shown("lockbench-quorum", "Voting instances", run=run).numbers) <= 2


def test_the_split_run_shows_its_split_votes_its_restart_and_its_return(watched: Stack) -> None:
    run = watched.split.result.id
    quorum = "lockbench-quorum"
    assert watched.value(quorum, "Split-brain retries per acquire", run) > 0
    assert watched.value(quorum, "Restarts", run) == 1
    assert max(watched.shown(quorum, "Abstaining").numbers) == 1


def test_the_open_run_shows_its_schedule_and_its_fsyncs(watched: Stack) -> None:
    assert set(watched.shown("lockbench-run-overview", "Rate offered and achieved", 1).numbers) == {
        300.0
    }
    assert watched.value("lockbench-fsync", "Fsyncs per lease", watched.open.result.id) > 0


def test_every_graph_that_observe_names_has_data_and_no_alert_fires_for_a_safe_run(
    watched: Stack,
) -> None:
    for rule in GRAPHS:
        assert watched.prometheus.at(f"last_over_time({rule}[10m])", watched.span.end_s).numbers, (
            rule
        )
    fired = watched.prometheus.at(
        'last_over_time(ALERTS{alertname="LockSafetyViolated"}[10m])', watched.span.end_s
    )
    assert not fired.series


def test_the_policies_stand_side_by_side(watched: Stack) -> None:
    for title in ("Rate of the whole run", "Acquire p99"):
        assert {"everysec", "always"} == {
            one["redlock_fsync"] for one, _ in watched.shown("lockbench-fsync", title).series
        }


def test_a_a_crash_is_shown_as_it_was_recorded(watched: Stack) -> None:
    board = "lockbench-fsync"
    assert watched.value(board, "Locks lost in crashes", watched.crash) == LOST
    assert watched.value(board, "Double grants", watched.crash) == DOUBLE
    # the bucket that 0.42 s is in
    assert 0.33 < watched.value(board, "Lost window, p99", watched.crash) <= 0.47


def test_a_metric_that_nobody_exports_would_be_noticed(watched: Stack) -> None:
    uid = "lockbench-run-overview"
    wrong = ("redlock_acquire_outcomes_total", "redlock_acquire_outcome_total")
    board = json.loads(json.dumps(BOARDS[uid]).replace(*wrong))
    empty = {
        panel["title"]
        for panel in panels_of(board)
        for target in panel["targets"]
        if not watched.prometheus.panel(board, target, watched.span).numbers
    }
    assert {"Leases", "Outcomes", "Within the SLO"} <= empty
