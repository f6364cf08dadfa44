"""An application with `lockcore.otel` in a real Prometheus: every panel of its board answers, and rightly."""

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")
from bench.topology.fleet import HOST, KeptPort, start_fleet
from tests.dashboards.asked import Board, Prometheus, Watched, panels_of, read_boards
from tests.dashboards.prometheus3 import EXPONENTIAL, WAYS, program_of
from tests.integration.locust_runs import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is missing (Debian: prometheus)"),
]
ROOT = Path(__file__).parents[2]
APP = ROOT / "tests" / "plugins" / "production-app" / "app.py"
(BOARD,) = [board for board in read_boards() if board["uid"] == "lockbench-production"]
TARGETS = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for panel in panels_of(BOARD)
    for target in panel["targets"]
]
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: orders, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


@dataclass(frozen=True)
class Seen:
    """What the application counted itself, and Prometheus, over what time."""

    acquired: int
    denied: int
    prometheus: Prometheus
    span: Watched

    def value(self, query: str) -> float:
        (number,) = self.prometheus.at(query, self.span.end_s).numbers
        return number


@pytest.fixture(scope="module", params=[way for way in WAYS if way != EXPONENTIAL])  # it has a page, and no OTLP
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder, ports = tmp_path_factory.mktemp("production"), [KeptPort() for _ in range(2)]
    page, web = (port.number for port in ports)
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=ROOT / "dashboards/prometheus/rules.yml", port=page))
    watching = [
        program_of(request.param, folder), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{web}", "--log.level=error",
    ]  # fmt: skip
    with start_fleet(3, "no") as fleet, subprocess.Popen(watching) as prometheus:
        words = [sys.executable, str(APP), str(page), *fleet.urls]
        app = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            yield _watched(app, Prometheus(f"http://{HOST}:{web}"), fleet, page)
        finally:
            for process in (app, prometheus):
                process.terminate()
            app.communicate()
            for port in ports:
                port.release()


def _watched(app: subprocess.Popen[str], prometheus: Prometheus, fleet, page: int) -> Seen:
    until(lambda: _answers(prometheus), "Prometheus")
    start_s = time.time()
    acquired = 'redlock_acquire_outcomes_total{redlock_outcome="acquired"}'
    until(lambda: sum(prometheus.at(f"count_over_time({acquired}[1m])", time.time()).numbers) >= 5, "five scrapes")
    fleet.stop(0)  # with commands on their way, which are errors when it is killed
    voting = "sum(redlock_instance_voting)"
    until(lambda: prometheus.at(voting, time.time()).numbers == [2.0], "the loss of an instance")
    fleet.kill(0)
    errors = "sum(count_over_time(redlock_instance_errors_total[1m]))"
    until(lambda: sum(prometheus.at(errors, time.time()).numbers) >= 3, "errors, scraped often enough for a rate")
    assert app.stdin
    assert app.stdout
    app.stdin.write("enough\n")
    app.stdin.flush()
    counted = [int(word) for word in app.stdout.readline().split()]
    total = "sum(redlock_acquire_outcomes_total)"
    until(lambda: prometheus.at(total, time.time()).numbers == [float(sum(counted))], "the last scrape")
    return Seen(*counted, prometheus, Watched("", start_s, time.time(), 1.0))


def _answers(prometheus: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("target", TARGETS)
def test_a_panel_has_data_and_no_warning(seen: Seen, target: Board) -> None:
    answer = seen.prometheus.panel(BOARD, target, seen.span)
    assert answer.complaints == []
    assert answer.numbers


def test_prometheus_counts_what_the_application_counted_itself(seen: Seen) -> None:
    total = "redlock_acquire_outcomes_total"
    assert seen.value(f'sum({total}{{redlock_outcome="acquired"}})') == seen.acquired
    assert seen.value(f'sum({total}{{redlock_outcome!="acquired"}})') == seen.denied
    assert seen.value("sum(redlock_leases_held)") == seen.value("sum(redlock_callers_waiting)") == 0
    assert seen.value("sum(redlock_leases_gone_total)") == 0
    assert seen.value("redlock_quorum_size") == 2
    duration = 'redlock_acquire_duration_seconds{redlock_outcome="acquired"}'  # a native one, where it was converted
    classic = f"sum({duration.replace('seconds', 'seconds_count')})"
    sampled = seen.value(f"{classic} or histogram_count(sum({duration}))")
    assert 0 < sampled <= seen.acquired
    classes = seen.prometheus.at("count by (redlock_resource_class) (redlock_leases_held)", seen.span.end_s).series
    assert {labels["redlock_resource_class"] for labels, _ in classes} == {"order", "stock"}


def test_the_killed_instance_is_the_one_that_votes_for_nobody(seen: Seen) -> None:
    out = seen.prometheus.at("redlock_instance_voting == 0", seen.span.end_s).series
    assert len(out) == 1
    assert out[0][0]["server_address"] == HOST
    assert seen.prometheus.at("sum(redlock_instance_errors_total) > 0", seen.span.end_s).numbers
