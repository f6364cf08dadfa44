"""Starts Prometheus for a run of `lockbench observe`. If this machine has an OpenTelemetry
Collector, this module also starts the collector.

The programs listen on free loopback ports and write to a private folder. A guard process ends both
programs, even if the process of lockbench is killed. Ctrl-C does not reach the two programs. If
there is a collector, Prometheus scrapes the collector. Otherwise Prometheus scrapes the metrics
page of `lockbench`. If Prometheus scraped both the collector and the metrics page, it would count
the same series twice.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from bench.errors import EnvironmentNotReadyError
from bench.topology.fleet import HOST, KeptPort
from bench.topology.servants import Guard

PREFIX = "lockbench-observe-"
# The rules in dashboards/prometheus/rules.yml record these series.
GRAPHS = (
    "redlock:acquires:rate30s",
    "redlock:acquire_duration_seconds:p99_30s",
    "redlock:instance_reply_seconds:p50_30s",
    "redlock:instances_spare",
)
SCRAPE_S = 1.0
READY_S = 60.0
_COLLECTORS = ("lockbench-collector", "otelcol-contrib", "otelcol")
# The guard knows the processes by these numbers.
_PROMETHEUS = 0
_COLLECTOR = 1
NAMES = {_PROMETHEUS: "Prometheus", _COLLECTOR: "the collector"}
_ENDPOINTS = [f"OTEL_EXPORTER_OTLP_{what}ENDPOINT" for what in ("", "METRICS_", "TRACES_")]


class Watch(NamedTuple):
    """The programs that `open_watch` has started.

    `url` is the address of Prometheus. `collector` is the path of the collector's program, or None
    if there is no collector. `guard` is the process that started both programs and will end them.
    """

    url: str
    collector: str | None
    guard: Guard


def graphs(url: str) -> str:
    """Return the address of a page of Prometheus with graphs of the recorded series.

    `url` is the address of Prometheus.
    """
    each = (
        f"g{n}.expr={quote(query)}&g{n}.tab=0&g{n}.range_input=5m" for n, query in enumerate(GRAPHS)
    )
    return f"{url}/graph?{'&'.join(each)}"


@contextlib.contextmanager
def open_watch(prometheus: str | None = None, collector: str | None = None) -> Iterator[Watch]:
    """Start Prometheus. Also start a collector if this machine has one. Both programs end when the
    context ends.

    In the context, environment variables of this process direct telemetry to these programs,
    because OpenTelemetry's exporters read only environment variables. `prometheus` and `collector`
    are paths or names of programs. If an argument is None, the function searches for the program.
    If `collector` is "none", the function starts no collector. Raises EnvironmentNotReadyError.
    """
    program = shutil.which(prometheus or "prometheus")
    collector_path = find_collector(collector)
    if program is None:
        raise EnvironmentNotReadyError(
            f"the program {prometheus or 'Prometheus'} was not found; install "
            "Prometheus (Debian: apt-get install prometheus)"
        )
    with (
        contextlib.closing(Guard(Path(tempfile.gettempdir()), PREFIX)) as guard,
        contextlib.ExitStack() as stack,
    ):
        kept_ports = [KeptPort() for _ in range(5)]
        for port in kept_ports:
            stack.callback(port.release)
        ports = [port.number for port in kept_ports]
        if collector_path:
            _start_collector(guard, collector_path, ports)
        _start_prometheus(guard, program, ports[0], ports[1])
        url = f"http://{HOST}:{ports[0]}"
        _await(guard, _PROMETHEUS, f"{url}/api/v1/query?query=up", saying=b'"metric"')
        before = dict(os.environ)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.clear)
        os.environ |= wanted_variables(ports, collector=bool(collector_path))
        yield Watch(url, collector_path, guard)


def find_collector(named: str | None) -> str | None:
    """Return the path of the OpenTelemetry Collector to start. Return None if the user has turned
    the collector off, if the user has a collector already, or if this machine has no collector.

    Raises EnvironmentNotReadyError if `named` is not the name or the path of a program.
    """
    if named == "none" or (not named and any(map(os.environ.get, _ENDPOINTS))):
        # The user's own collector gets the telemetry. Prometheus scrapes the metrics page instead.
        return None
    path = next(filter(None, map(shutil.which, [named] if named else _COLLECTORS)), None)
    if named and not path:
        raise EnvironmentNotReadyError(
            f"the collector {named} is not a program; name another one, or use --collector none"
        )
    return path


def shipped(*names: str) -> Path:
    """Return the path of a file or folder in the package `dashboards`."""
    return Path(str(resources.files("dashboards").joinpath(*names)))


def _start_collector(guard: Guard, program: str, ports: list[int]) -> None:
    ways = zip(("PAGE", "GRPC", "HTTP", "HEALTH"), ports[1:], strict=True)
    variables = {f"LOCKBENCH_COLLECTOR_{way}": f"{HOST}:{port}" for way, port in ways}
    words = [program, f"--config={shipped('collector', 'config.yaml')}"]
    guard.start(_COLLECTOR, words, guard.folder, guard.folder / f"{_COLLECTOR}.log", variables)
    _await(guard, _COLLECTOR, f"http://{HOST}:{ports[4]}/")


def _start_prometheus(guard: Guard, program: str, port: int, page: int) -> None:
    config = {
        "global": dict.fromkeys(
            ("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{SCRAPE_S:g}s"
        ),
        "rule_files": [str(shipped("prometheus", "rules.yml"))],
        "scrape_configs": [
            {
                "job_name": "lockbench",
                "honor_labels": True,
                "static_configs": [{"targets": [f"{HOST}:{page}"]}],
            }
        ],
    }
    path = guard.folder / "prometheus.yml"
    # Every JSON text is also YAML.
    path.write_text(json.dumps(config), encoding="utf-8")
    words = [
        program,
        f"--config.file={path}",
        f"--storage.tsdb.path={guard.folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    guard.start(_PROMETHEUS, words, guard.folder, guard.folder / f"{_PROMETHEUS}.log", {})


def _await(guard: Guard, index: int, url: str, *, saying: bytes = b"") -> None:
    """Wait until the HTTP reply of `url` contains the bytes `saying`.

    If the program is Prometheus, the function waits for the result of the first scrape. Prometheus
    already reports that it is ready about 5 s before its first scrape. The warm-up of a run may be
    shorter than 5 s, so it is not enough to wait for this report. Raises EnvironmentNotReadyError
    with the end of the program's log.
    """
    deadline_s = time.monotonic() + READY_S
    trouble = f"is not ready after {READY_S:.0f} s"
    while time.monotonic() < deadline_s:
        # The URL is on loopback.
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(url, timeout=2.0) as answer,  # noqa: S310
        ):
            if saying in answer.read():
                return
        if guard.states()[index].exit_code is not None:
            trouble = "did not start"
            break
        time.sleep(0.05)
    raise EnvironmentNotReadyError(f"{NAMES[index]} {trouble}: {last_words(guard, index)}")


def last_words(guard: Guard, index: int) -> str:
    """Return the last lines of the log of process `index`."""
    log = guard.folder / f"{index}.log"
    last = (
        log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        if log.exists()
        else []
    )
    return " | ".join(last) or "it said nothing"


def wanted_variables(ports: list[int], *, collector: bool) -> dict[str, str]:
    """Return the environment variables that make a run export its telemetry.

    If there is a collector, the run exports its telemetry to the collector. Otherwise the run
    serves a metrics page for Prometheus.
    """
    if collector:
        return {
            "OTEL_SDK_DISABLED": "false",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{ports[3]}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
    return {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus"
        if any(map(os.environ.get, _ENDPOINTS))
        else "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": HOST,
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(ports[1]),
    }
