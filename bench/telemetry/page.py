"""The metrics page that a scraper reads: *the newest snapshot → text in Prometheus's format at
/metrics*.

Rules
- The page is on loopback unless the user sets another host. The names and the buckets of the
  metrics are the same as in OTLP. Every series has the run id as a label. The series `target_info`
  has the other attributes of the resource.
- If a snapshot is older than two intervals, the page does not show the gauges of the snapshot,
  because the gauges may no longer be true.
- If there were at least two scrapes, the page stays up until a scraper has read the last snapshot.
  The wait takes at most 1.5 times the longest pause between two scrapes, plus 0.5 s. The wait never
  takes longer than `LINGER_S`, unless the caller of `close` passes another limit.

Source: prometheus_client; OpenTelemetry's specification, "Prometheus compatibility".
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from bench.errors import EnvironmentNotReadyError
from bench.telemetry.points import Buckets, Snapshot, by_name
from bench.telemetry.table import BOUNDS, InstrumentKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LINGER_S = 20.0
_BOUNDS = (*(f"{bound:g}" if bound < 1e-4 else repr(bound) for bound in BOUNDS), "+Inf")


class MetricsPage:
    """The metrics page and its server."""

    def __init__(
        self, place: tuple[str, int], resource: Mapping[str, str], fresh_s: float = math.inf
    ) -> None:
        """Serve the page at `place`, which is a host and a port. Port 0 means any free port.

        `fresh_s`: the time (s) for which the gauges of a snapshot are shown. After `close` is
        called, the page keeps the gauges of the last snapshot. Raises EnvironmentNotReadyError if
        the page cannot be served.
        """
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise EnvironmentNotReadyError(
                f"the metrics page needs {error.name}; pip install 'lockbench[telemetry]', "
                "or take prometheus out of OTEL_METRICS_EXPORTER"
            ) from None
        self._resource = resource
        self._snapshot: Snapshot | None = None
        self._offered_s = 0.0
        self._fresh_s = fresh_s
        self._closing = False
        self._scraped = threading.Condition()
        self._scrapes_s: list[float] = []
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
        """Replace the snapshot that the page shows. This method never waits and never raises an
        error."""
        self._offered_s = time.monotonic()
        self._snapshot = snapshot

    def close(self, within_s: float = LINGER_S) -> None:
        """End the page.

        If there were at least two scrapes, first wait until the last snapshot has been scraped.
        """
        self._closing = True
        with self._scraped:
            if len(self._scrapes_s) > 1:
                away_s = max(after_s - before_s for before_s, after_s in pairwise(self._scrapes_s))
                self._scraped.wait_for(
                    lambda: self._read is self._snapshot, min(1.5 * away_s + 0.5, within_s)
                )
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The library prometheus_client calls this method at each scrape."""
        snapshot = self._snapshot
        if snapshot is not None:
            yield from self._families(snapshot)
        with self._scraped:
            # A newer snapshot may have arrived in the meantime.
            self._read = snapshot
            self._scrapes_s.append(time.monotonic())
            self._scraped.notify_all()

    def _families(self, snapshot: Snapshot) -> Iterator[Metric]:
        from prometheus_client.metrics_core import InfoMetricFamily, Metric

        yield InfoMetricFamily("target", "who exports", _labels(self._resource.items()))
        common = (*snapshot.common, ("redlock.run.id", self._resource["redlock.run.id"]))
        is_fresh = self._closing or time.monotonic() - self._offered_s <= self._fresh_s
        for instrument, points in by_name(snapshot.points).items():
            if instrument.kind is InstrumentKind.GAUGE and not is_fresh:
                continue
            name = instrument.prometheus
            family = Metric(name.removesuffix("_total"), instrument.meaning, instrument.kind.value)
            for point in points:
                labels = _labels((*common, *point.attributes))
                if not isinstance(point.value, Buckets):
                    family.add_sample(name, labels, point.value)
                    continue
                for text, total in zip(_BOUNDS, accumulate(point.value.explicit), strict=True):
                    family.add_sample(f"{name}_bucket", {**labels, "le": text}, total)
                family.add_sample(f"{name}_count", labels, point.value.count)
                family.add_sample(f"{name}_sum", labels, point.value.sum)
            yield family


def _labels(attributes: Iterable[tuple[str, str | int]]) -> dict[str, str]:
    return {name.replace(".", "_"): str(value) for name, value in attributes}
