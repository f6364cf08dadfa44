"""The option --metrics-port: *a port → the standard variables that ask for a metrics page there*.

Rules: an option is only another way to say what OTEL_METRICS_EXPORTER and OTEL_EXPORTER_PROMETHEUS_PORT say, so that
the load's processes hear of it, too. Source: OpenTelemetry's specification, "Environment variables".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def metrics_port_option(command: Command) -> Command:
    """Give a click command --metrics-port; its function does not see it."""
    option = click.option(
        "--metrics-port",
        metavar="PORT",
        type=click.IntRange(1, 65_535),
        expose_value=False,
        callback=_ask_for_page,
        help="serve Prometheus metrics at http://127.0.0.1:PORT/metrics during the run (OTLP: set OTEL_* variables)",
    )
    return option(command)


def _ask_for_page(_context: click.Context, _option: click.Parameter, port: int | None) -> None:
    if port is None:
        return
    named = os.environ.get("OTEL_METRICS_EXPORTER", "").strip()
    if not named and any(
        os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    ):
        named = "otlp"
    exporters = [word for word in named.split(",") if word.strip() not in ("", "none", "prometheus")]
    os.environ["OTEL_METRICS_EXPORTER"] = ",".join([*exporters, "prometheus"])
    os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"] = str(port)
