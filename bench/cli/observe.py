"""`lockbench observe`: *scenario and options → `lockbench run`, with Prometheus, and a collector if found, around it*.

    lockbench ─/metrics page─▶ Prometheus                      without a collector
    lockbench ─OTLP─▶ collector ─page─▶ Prometheus             with one

Rules
- All of `lockbench run` holds, exit codes too. Where to look goes to stderr as soon as Prometheus scrapes.
- On loopback, on free ports, in a private folder; a guard process ends both however we end. Ctrl-C does not reach them.
- One way in, never both: the same series twice would be counted twice.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from bench.cli.options import Grouped, ScenarioPlace, run_options, scenario_of, scenario_options
from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError
from bench.topology.child import Guard
from bench.topology.fleet import HOST, KeptPort

PREFIX = "lockbench-observe-"
GRAPHS = (  # recorded by dashboards/prometheus/rules.yml
    "redlock:acquires:rate30s",
    "redlock:acquire_duration_seconds:p99_30s",
    "redlock:instance_reply_seconds:p50_30s",
    "redlock:instances_spare",
)
SCRAPE_S = 1.0
READY_S = 60.0
COLLECTOR_VARIABLE = "LOCKBENCH_COLLECTOR"
_COLLECTORS = ("lockbench-collector", "otelcol-contrib", "otelcol")
_PROMETHEUS, _COLLECTOR = 0, 1  # the guard's numbers
_NAMES = {_PROMETHEUS: "Prometheus", _COLLECTOR: "the collector"}
_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


@click.command(cls=Grouped, epilog="Needs Prometheus (Debian: apt-get install prometheus).")
@click.argument("scenario", required=False, type=ScenarioPlace())
@scenario_options()
@click.option("--prometheus", metavar="PATH", help="the Prometheus to start  [prometheus on PATH]")
@click.option(
    "--collector", metavar="PATH", help="an OpenTelemetry Collector between them; none = without  [one on PATH]"
)
@click.option("--stay", is_flag=True, help="keep Prometheus after the run, until Ctrl-C")
@run_options("observe")
def observe(scenario: Path | None, **values: Any) -> int:
    """One run with Prometheus around it: look at it while it runs, or afterwards with --stay.

    SCENARIO.toml and the options are those of `lockbench run`.
    """
    wanted = scenario_of(scenario, values)
    from bench.cli.run import run_and_show
    from bench.cli.showing import Outputs

    Outputs(values)  # refused before anything starts
    with open_watch(values["prometheus"], values["collector"]) as watch:
        way = f", fed by the collector {watch.collector}" if watch.collector else ""
        _say(f"Prometheus  {watch.url}  as long as this runs{way}")
        _say(f"graphs      {watch.graphs}")
        _say(f"boards      {shipped('boards')}  for a Grafana with this Prometheus")
        code = run_and_show("observe", wanted, values)
        troubles = watch.troubles()
        for trouble in troubles:
            _say(trouble)
        if values["stay"] and not troubles and code != EXIT_INTERRUPTED:
            _say(f"Prometheus  {watch.url}  stays until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Watch:
    """What runs around a run. `url`: of Prometheus; `collector`: its path, or None; `guard`: owns both."""

    url: str
    collector: str | None
    guard: Guard

    def troubles(self) -> list[str]:
        """Of each that has ended before the run had, a sentence."""
        return [
            f"{_NAMES[index]} ended before the run had, so what it shows is not all ({_last_words(self.guard, index)})"
            for index, state in self.guard.states().items()
            if state.exit_code is not None
        ]

    @property
    def graphs(self) -> str:
        """Prometheus's own page of what its rules record."""
        each = (f"g{n}.expr={quote(query)}&g{n}.tab=0&g{n}.range_input=5m" for n, query in enumerate(GRAPHS))
        return f"{self.url}/graph?{'&'.join(each)}"


@contextlib.contextmanager
def open_watch(prometheus: str | None = None, collector: str | None = None) -> Iterator[Watch]:
    """Start Prometheus, and a collector if one is found; end both on leaving.

    Until then this process's variables ask for telemetry that goes there: OpenTelemetry's exporters read only those.
    `prometheus`, `collector`: paths or names, None = look for one, collector "none" = do without.
    Raises EnvironmentNotReadyError.
    """
    program, found = find_prometheus(prometheus), find_collector(collector, os.environ)
    with contextlib.closing(Guard(Path(tempfile.gettempdir()), PREFIX)) as guard, contextlib.ExitStack() as stack:
        kept = [KeptPort() for _ in range(5)]
        for port in kept:
            stack.callback(port.release)
        ports = [port.number for port in kept]
        if found:
            _start_collector(guard, found, ports)
        _start_prometheus(guard, program, ports[0], ports[1])
        url = f"http://{HOST}:{ports[0]}"
        _await(guard, _PROMETHEUS, f"{url}/api/v1/query?query=up", saying=b'"metric"')
        stack.enter_context(_variables(_wanted(os.environ, ports, collector=bool(found))))
        yield Watch(url, found, guard)


def find_prometheus(named: str | None) -> str:
    """The path of Prometheus. Raises EnvironmentNotReadyError when there is none."""
    found = shutil.which(named or "prometheus")
    if found is None:
        raise EnvironmentNotReadyError(
            f"{named} is no program" if named else "Prometheus is not installed (Debian: apt-get install prometheus)"
        )
    return found


def find_collector(named: str | None, environ: Mapping[str, str]) -> str | None:
    """The path of an OpenTelemetry Collector, None when there is none. Raises EnvironmentNotReadyError."""
    if named == "none" or (not named and any(environ.get(name) for name in _ENDPOINTS)):
        return None  # the user's own collector gets what it is sent; Prometheus scrapes the page
    if named := named or environ.get(COLLECTOR_VARIABLE):
        if found := shutil.which(named):
            return found
        raise EnvironmentNotReadyError(f"the collector {named} is no program; name another, or --collector none")
    return next(filter(None, map(shutil.which, _COLLECTORS)), None)


def shipped(*names: str) -> Path:
    """Return a file or folder of the package `dashboards`."""
    return Path(str(resources.files("dashboards").joinpath(*names)))


def _start_collector(guard: Guard, program: str, ports: list[int]) -> None:
    _, page, grpc, http, health = ports
    variables = {
        "LOCKBENCH_COLLECTOR_PAGE": f"{HOST}:{page}",
        "LOCKBENCH_COLLECTOR_GRPC": f"{HOST}:{grpc}",
        "LOCKBENCH_COLLECTOR_HTTP": f"{HOST}:{http}",
        "LOCKBENCH_COLLECTOR_HEALTH": f"{HOST}:{health}",
    }
    words = [program, f"--config={shipped('collector', 'config.yaml')}"]
    guard.start(_COLLECTOR, words, guard.folder, guard.folder / f"{_COLLECTOR}.log", variables)
    _await(guard, _COLLECTOR, f"http://{HOST}:{health}/")


def _start_prometheus(guard: Guard, program: str, port: int, page: int) -> None:
    config = {
        "global": {
            "scrape_interval": f"{SCRAPE_S:g}s",
            "scrape_timeout": f"{SCRAPE_S:g}s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(shipped("prometheus", "rules.yml"))],
        "scrape_configs": [
            {"job_name": "lockbench", "honor_labels": True, "static_configs": [{"targets": [f"{HOST}:{page}"]}]}
        ],
    }
    path = guard.folder / "prometheus.yml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
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
    """Wait until `url` answers with `saying` in it. Raises EnvironmentNotReadyError with the end of the program's log.

    Prometheus takes up its targets only some 5 s after it is ready, and a warm-up may be shorter: it is asked for them.
    """
    deadline_s, trouble = time.monotonic() + READY_S, f"is not ready after {READY_S:.0f} s"
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2.0) as answer:  # noqa: S310 - on loopback
            if saying in answer.read():
                return
        if guard.states()[index].exit_code is not None:
            trouble = "did not start"
            break
        time.sleep(0.05)
    raise EnvironmentNotReadyError(f"{_NAMES[index]} {trouble}: {_last_words(guard, index)}")


def _last_words(guard: Guard, index: int) -> str:
    log = guard.folder / f"{index}.log"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:] if log.exists() else []
    return " | ".join(last) or "it said nothing"


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of this process; put back what was there."""
    before = dict(os.environ)
    os.environ |= wanted
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _wanted(environ: Mapping[str, str], ports: list[int], *, collector: bool) -> dict[str, str]:
    """What makes a run export to the collector, or serve the page that Prometheus scrapes."""
    if collector:
        return {
            "OTEL_SDK_DISABLED": "false",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{ports[3]}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
    own = any(environ.get(name) for name in _ENDPOINTS)
    return {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus" if own else "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": HOST,
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(ports[1]),
    }
