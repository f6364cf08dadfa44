"""The stack's Alertmanager with our configuration: whom it tells of an alert, and which alert
silences which.

LOCKBENCH_PROMETHEUS names the folder that has Alertmanager beside Prometheus (`.ci/prometheus3`).
"""

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.topology.fleet import HOST, KeptPort
from dashboards.alerts import Receiver
from tests.dashboards.prometheus3 import FOLDER
from tests.integration.locust_runs import until

PROGRAM, TOOL = (
    shutil.which(name, path=FOLDER) if FOLDER else None
    for name in ("prometheus-alertmanager", "amtool")
)
CONFIG = Path(__file__).parents[2] / "dashboards" / "prometheus" / "alertmanager.yml"
# where Debian's looks for its own
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
pytestmark = pytest.mark.skipif(
    PROGRAM is None or not TEMPLATES.exists(),
    reason="no Alertmanager here (.ci/prometheus3 fetches one)",
)
Labels = Mapping[str, str]


class RunningAlertmanager:
    """A running Alertmanager, and what its contact point has written so far."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[str]) -> None:
        self._url = f"{url}/api/v2"
        self._capture = capture
        self._lines: list[str] = []

    def ready(self) -> bool:
        """It answers."""
        try:
            self._ask("/status")
        except OSError:
            return False
        return True

    def fire(self, *alerts: Labels) -> None:
        """Tell it as Prometheus does."""
        body = json.dumps([{"labels": labels} for labels in alerts]).encode()
        header = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"{self._url}/alerts", body, header), timeout=30
        ).close()

    def silenced(self) -> set[tuple[str, str]]:
        """Name and run or service of each alert that another one silences."""
        alerts = self._ask("/alerts?inhibited=true")
        return {_of(one["labels"]) for one in alerts if one["status"]["inhibitedBy"]}

    def told(self) -> set[tuple[str, str]]:
        """The same of those that the contact point was sent."""
        self._lines += self._capture.readouterr().out.splitlines()
        return {_of(json.loads(line)["labels"]) for line in self._lines}

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return json.load(answer)


def _of(labels: Labels) -> tuple[str, str]:
    return labels["alertname"], labels.get("redlock_run_id") or labels["job"]


@pytest.fixture
def manager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[RunningAlertmanager]:
    port = KeptPort()
    with ThreadingHTTPServer((HOST, 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = CONFIG.read_text("utf-8")
        assert "http://alerts:9095/" in text
        text = text.replace("http://alerts:9095/", f"http://{HOST}:{server.server_port}/")
        (tmp_path / "alertmanager.yml").write_text(
            text.replace("group_wait: 1s", "group_wait: 100ms")
        )
        words = [
            str(PROGRAM),
            f"--config.file={tmp_path / 'alertmanager.yml'}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address={HOST}:{port.number}",
            "--cluster.listen-address=",
            "--log.level=error",
        ]
        with subprocess.Popen(words) as process:
            running = RunningAlertmanager(f"http://{HOST}:{port.number}", capsys)
            until(running.ready, "Alertmanager, which answers")
            yield running
            process.kill()
        server.shutdown()


def test_a_lost_quorum_silences_what_follows_of_its_own_run_or_service_and_is_told(
    manager: RunningAlertmanager,
) -> None:
    manager.fire(
        {"alertname": "LockQuorumLost", "redlock_run_id": "r1"},
        {"alertname": "LocksQuorumLost", "job": "orders"},
    )
    manager.fire(
        {"alertname": "LockInstanceSlow", "redlock_run_id": "r1"},
        {"alertname": "LockInstanceSlow", "redlock_run_id": "r2"},
        {"alertname": "LocksFailing", "job": "orders"},
        {"alertname": "LocksFailing", "job": "stock"},
    )
    silenced = {("LockInstanceSlow", "r1"), ("LocksFailing", "orders")}
    loud = {
        ("LockQuorumLost", "r1"),
        ("LocksQuorumLost", "orders"),
        ("LockInstanceSlow", "r2"),
        ("LocksFailing", "stock"),
    }
    until(lambda: manager.told() >= loud, "all alerts that nobody silences")
    assert manager.told() == loud
    assert manager.silenced() == silenced


def test_alertmanagers_own_tool_accepts_the_configuration_and_no_misspelt_one(
    tmp_path: Path,
) -> None:
    wrong = tmp_path / "alertmanager.yml"
    wrong.write_text(CONFIG.read_text("utf-8").replace("group_by", "groups_by"))
    for path, code in ((CONFIG, 0), (wrong, 1)):
        done = subprocess.run(
            [str(TOOL), "check-config", str(path)], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr
