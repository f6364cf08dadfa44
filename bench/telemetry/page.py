"""A page for those who scrape: *the newest snapshot → Prometheus's text at /metrics*.

Rules
- On loopback unless somebody asks for more. Names and buckets are those that OTLP leads to, with the run id as a label
  of every series.
- The last snapshot stays up until whoever has come again and again comes once more, for `LINGER_S` at most.

Source: prometheus_client; OpenTelemetry's specification, "Prometheus compatibility".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from bench.errors import EnvironmentNotReadyError
from bench.telemetry.points import Buckets, DataPoint, Exemplar, Snapshot, bucket_of, by_name
from bench.telemetry.table import BOUNDS, Instrument

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LINGER_S = 20.0
_BOUNDS = (*(f"{bound:g}" if bound < 1e-4 else repr(bound) for bound in BOUNDS), "+Inf")


class MetricsPage:
    """The served page."""

    def __init__(self, place: tuple[str, int], resource: Mapping[str, str]) -> None:
        """Serve at `place` (host, port; 0 = any). Raises EnvironmentNotReadyError when it cannot be served."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise EnvironmentNotReadyError(
                f"the metrics page needs {error.name}; pip install 'lockbench[telemetry]', "
                "or take prometheus out of OTEL_METRICS_EXPORTER"
            ) from None
        self._resource = resource
        self._snapshot: Snapshot | None = None
        self._scraped = threading.Condition()
        self._scrapes = 0
        self._read: Snapshot | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        host, port = place
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"the metrics page cannot be served at {host}:{port}: {error.strerror}; "
                "choose another OTEL_EXPORTER_PROMETHEUS_PORT"
            ) from None
        self.address = f"http://{host}:{self._server.server_port}/metrics"

    def offer(self, snapshot: Snapshot) -> None:
        """Show what is so now; never waits, never raises."""
        self._snapshot = snapshot

    def close(self, within_s: float = LINGER_S) -> None:
        """Wait until the last snapshot has been scraped, if any was, and end."""
        with self._scraped:
            if self._scrapes > 1:
                self._scraped.wait_for(lambda: self._read is self._snapshot, within_s)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for at each scrape."""
        from prometheus_client.metrics_core import InfoMetricFamily

        snapshot = self._snapshot
        yield InfoMetricFamily("target", "who exports", _labels(self._resource))
        if snapshot is not None:
            for instrument, points in by_name(snapshot.points).items():
                yield self._family(instrument, points, snapshot)
        with self._scraped:
            self._read = snapshot  # which may be no longer the last
            self._scrapes += 1
            self._scraped.notify_all()

    def _family(self, instrument: Instrument, points: list[DataPoint], snapshot: Snapshot) -> Metric:
        from prometheus_client.metrics_core import Metric

        name = instrument.prometheus
        family = Metric(name.removesuffix("_total"), instrument.meaning, instrument.kind.value)
        common = {"redlock.run.id": self._resource["redlock.run.id"], **dict(snapshot.common)}
        for point in points:
            labels = _labels({**common, **dict(point.attributes)})
            if isinstance(point.value, Buckets):
                _add_histogram(family, name, labels, point.value, point.exemplars)
            else:
                family.add_sample(name, labels, point.value)
        return family


def _labels(attributes: Mapping[str, str | int]) -> dict[str, str]:
    return {name.replace(".", "_"): str(value) for name, value in attributes.items()}


def _add_histogram(
    family: Metric, name: str, labels: dict[str, str], buckets: Buckets, exemplars: Sequence[Exemplar]
) -> None:
    from prometheus_client import samples

    shown: dict[int, samples.Exemplar] = {}
    for one in exemplars:
        ids = {"trace_id": f"{one.trace_id:032x}", "span_id": f"{one.span_id:016x}"}
        shown[bucket_of(one.value)] = samples.Exemplar(ids, one.value, one.at_ns / 1e9)
    for index, (text, total) in enumerate(zip(_BOUNDS, accumulate(buckets.explicit), strict=True)):
        family.add_sample(f"{name}_bucket", {**labels, "le": text}, total, exemplar=shown.get(index))
    family.add_sample(f"{name}_count", labels, buckets.count)
    family.add_sample(f"{name}_sum", labels, buckets.sum)
