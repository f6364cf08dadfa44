"""docker-compose.yml: valid for Docker Compose itself, and closed to everybody but this machine."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from dashboards.alerts import Receiver
from tests.dashboards.test_kubernetes import WORKER_PROBE

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
STACK = yaml.safe_load(TEXT)
SERVICES = STACK["services"]
INSTANCES = [f"redis-{index}" for index in range(5)]
ONCE = {"secrets", "lockbench"}
COMPOSE = os.environ.get("LOCKBENCH_DOCKER_COMPOSE") or shutil.which("docker-compose")


def _composed(**variables: str) -> dict:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    words = [
        COMPOSE,
        "-f",
        str(ROOT / "docker-compose.yml"),
        "--profile",
        "run",
        "config",
        "--format",
        "json",
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


needs_compose = pytest.mark.skipif(
    COMPOSE is None, reason="no docker-compose 2 here (.ci/docker-compose fetches one)"
)


@needs_compose
def test_docker_compose_itself_accepts_the_file() -> None:
    assert set(_composed()["services"]) == set(SERVICES)


@needs_compose
def test_the_fsync_policy_is_a_variable_of_all_five_instances() -> None:
    for policy in ("always", "everysec"):
        services = _composed(**({"LOCKBENCH_FSYNC": policy} if policy == "always" else {}))[
            "services"
        ]
        for name in INSTANCES:
            words = services[name]["command"]
            assert words[words.index("--appendfsync") + 1] == policy


@pytest.mark.parametrize(
    "schema, file",
    [
        ("vendor.compose-spec", "docker-compose.yml"),
        ("vendor.github-workflows", ".github/workflows/stack.yml"),
    ],
)
def test_the_published_schema_accepts_the_file_where_no_docker_can(schema: str, file: str) -> None:
    pytest.importorskip("check_jsonschema")
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_service_refers_to_is_there() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert set(service.get("networks", [])) <= set(STACK["networks"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (
                (ROOT / source).exists() if source.startswith("./") else source in STACK["volumes"]
            ), volume
    assert "--appendfsync" in TEXT
    assert "${LOCKBENCH_FSYNC:-everysec}" in TEXT


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_guarded(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    limits = service["deploy"]["resources"]["limits"]
    assert limits["memory"]
    assert limits["cpus"]
    assert limits["pids"]
    pinned = r".+:v?\d+\.\d+\.\d+" + ("" if "build" in service else r"(-\w+)?@sha256:[0-9a-f]{64}")
    assert re.fullmatch(pinned, service["image"]), f"{service['image']} is not pinned"


@pytest.mark.parametrize("name", SERVICES)
def test_a_port_is_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_passwords_come_from_files_and_grafana_knows_no_anonymous_admin() -> None:
    grafana = SERVICES["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD__FILE"].startswith("/run/secrets/")
    assert grafana["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in grafana
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            assert "PASS" not in key or key.endswith("FILE"), f"{name}: {key}={value}"
    assert "requirepass" not in TEXT, "the servers' password stands in a file"


def test_locusts_page_asks_for_a_password() -> None:
    master = SERVICES["locust-master"]
    assert "--web-login" in master["command"]
    assert any("dashboards/locust_login.py" in word for word in master["command"])
    assert master["environment"]["LOCKBENCH_LOCUST_PASSWORD_FILE"] == "/run/locust/password"


def test_everything_that_stays_is_asked_for_its_health_and_waited_for() -> None:
    """Collector and Tempo have no shell; `ready` asks them, and whoever needs them waits for
    `ready`."""
    asked = {name for name, service in SERVICES.items() if "healthcheck" in service}
    assert set(SERVICES) - ONCE - asked == {"collector", "tempo"}
    question = " ".join(SERVICES["ready"]["healthcheck"]["test"])
    assert "collector:13133" in question
    assert "tempo:3200" in question
    for name in ("locust-master", "lockbench"):
        waits = SERVICES[name]["depends_on"]
        assert all(waits[one]["condition"] == "service_healthy" for one in (*INSTANCES, "ready"))
    assert SERVICES["grafana"]["depends_on"]["prometheus"]["condition"] == "service_healthy"


def test_a_locust_worker_is_well_while_it_is_connected_to_the_master() -> None:
    """The question itself is tried in test_kubernetes.py."""
    assert SERVICES["locust-worker"]["healthcheck"]["test"] == ["CMD", *WORKER_PROBE]
    if COMPOSE:
        assert _composed()["services"]["locust-worker"]["healthcheck"]["test"] == [
            "CMD",
            *WORKER_PROBE,
        ]


def test_the_base_image_is_pinned_by_its_digest_and_named_by_one_variable() -> None:
    lines = (ROOT / "dashboards" / "Dockerfile").read_text("utf-8").splitlines()
    (base,) = (line.removeprefix("ARG BASE=") for line in lines if line.startswith("ARG"))
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE}"]


def test_nothing_asks_its_maker_for_updates_or_tells_of_its_use() -> None:
    grafana = SERVICES["grafana"]["environment"]
    for name in ("REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES"):
        assert grafana[f"GF_ANALYTICS_{name}"] == "false"
    assert grafana["GF_NEWS_NEWS_FEED_ENABLED"] == "false"
    assert grafana["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"
    tempo = yaml.safe_load((ROOT / "dashboards" / "tempo" / "tempo.yaml").read_text("utf-8"))
    assert tempo["usage_report"]["reporting_enabled"] is False


def test_the_secrets_are_drawn_once_for_those_who_need_them(tmp_path: Path) -> None:
    script = (
        (ROOT / "dashboards" / "secrets.sh").read_text("utf-8").replace("/secrets/", f"{tmp_path}/")
    )
    for folder in ("redis", "grafana", "locust"):
        (tmp_path / folder).mkdir()
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert not done.stdout
    assert not done.stderr
    password = (tmp_path / "redis" / "password").read_text()
    admin = (tmp_path / "grafana" / "admin-password").read_text()
    assert len(password) == len(admin) == 48
    assert password != admin
    assert len((tmp_path / "locust" / "password").read_text()) == 48
    assert (tmp_path / "redis" / "redis.conf").read_text() == f"requirepass {password}\n"
    targets = (tmp_path / "redis" / "targets").read_text().split()
    assert targets == [f"redis://:{password}@{name}:6379" for name in INSTANCES]
    subprocess.run(["sh", "-c", script], capture_output=True, timeout=30, check=True)
    assert (tmp_path / "redis" / "password").read_text() == password, "a second start keeps them"


def test_the_load_learns_its_targets_from_a_file_and_no_password_stands_on_a_command_line() -> None:
    for name in ("locust-master", "locust-worker", "lockbench"):
        path = SERVICES[name]["environment"]["LOCKBENCH_TARGETS_FILE"]
        assert path == "/run/secrets/targets", "where secrets.sh writes it"
        mounts = [volume.split(":")[1] for volume in SERVICES[name]["volumes"]]
        assert str(Path(path).parent) in mounts


def test_no_network_leads_out_but_the_door_of_published_ports() -> None:
    assert {name for name, network in STACK["networks"].items() if not network.get("internal")} == {
        "door"
    }
    for name, service in SERVICES.items():
        assert ("door" in service.get("networks", [])) == bool(service.get("ports")), name


def test_prometheus_sends_its_alerts_to_a_contact_point_of_the_stack() -> None:
    folder = ROOT / "dashboards" / "prometheus"
    route = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))["alerting"][
        "alertmanagers"
    ]
    assert route == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    (receiver,) = yaml.safe_load((folder / "alertmanager.yml").read_text("utf-8"))["receivers"]
    assert receiver["webhook_configs"][0]["url"] == "http://alerts:9095/"
    assert SERVICES["alerts"]["command"][-1].endswith(":9095")


def test_the_contact_point_writes_every_alert_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    alerts = [{"status": "firing", "labels": {"alertname": name}} for name in ("A\n", "B")]
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        body = json.dumps({"alerts": alerts}).encode()
        for data in (None, body):
            with urllib.request.urlopen(url, data, timeout=30) as answer:
                assert answer.status == 200
        for data in (b"", b"no alert", b'{"alerts": 7}', b"[]"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(url, data, timeout=30)
        server.shutdown()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == alerts
