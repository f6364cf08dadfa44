"""How an application's metrics leave it: by OTLP where OTEL_EXPORTER_OTLP_METRICS_ENDPOINT says so,
else a page.

The page's reader does what `opentelemetry-exporter-prometheus` does. That package is not used here:
where it is installed, Locust's workers sometimes start no users (seen 2026-11-23).
"""

import os
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    Histogram,
    InMemoryMetricReader,
    MetricReader,
    PeriodicExportingMetricReader,
    Sum,
)
from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)


def reader_of(port: int) -> MetricReader:
    if os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        return PeriodicExportingMetricReader(OTLPMetricExporter())
    start_http_server(port, "127.0.0.1")
    return PageReader()


class PageReader(InMemoryMetricReader):
    """Registers itself with prometheus_client."""

    def __init__(self) -> None:
        super().__init__()
        REGISTRY.register(self)  # type: ignore[arg-type]

    def collect(self, timeout_millis: float = 10_000) -> Iterator[Metric]:  # type: ignore[override]
        """Return every metric, as prometheus_client wants it."""
        super().collect(timeout_millis)
        data = self.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            yield family_of(metric)


def family_of(metric) -> Metric:
    name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
    labels = sorted({key for point in metric.data.data_points for key in point.attributes})
    kind = {Histogram: HistogramMetricFamily, Sum: CounterMetricFamily}.get(
        type(metric.data), GaugeMetricFamily
    )
    family = kind(name, metric.description, labels=[label.replace(".", "_") for label in labels])
    for point in metric.data.data_points:
        values = [str(point.attributes.get(label, "")) for label in labels]
        if kind is HistogramMetricFamily:
            sums = [
                sum(point.bucket_counts[: index + 1]) for index in range(len(point.bucket_counts))
            ]
            bounds = [*map(str, point.explicit_bounds), "+Inf"]
            family.add_metric(
                values, buckets=list(zip(bounds, sums, strict=True)), sum_value=point.sum
            )
        else:
            family.add_metric(values, point.value)
    return family
