"""Over the wire: *snapshots and spans → OpenTelemetry's own exporters, in threads of their own*.

Rules
- The only file that imports OpenTelemetry, and only when telemetry is wanted. Endpoints, headers, certificates,
  time-outs and retries are the exporters' business, by the standard variables; of their log the last line is kept.
- A collector never slows the load: what it does not take in time is dropped, the oldest first, and counted. Metrics are
  cumulative: of several snapshots only the newest waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bench.errors import EnvironmentNotReadyError, UsageError, secrets
from bench.telemetry.points import SCALE, Buckets, DataPoint, Snapshot, by_name
from bench.telemetry.run import Run
from bench.telemetry.settings import GRPC, Environ, TelemetrySettings, settings_of
from bench.telemetry.table import BOUNDS, SCOPE, InstrumentKind
from bench.telemetry.traces import TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

CLOSE_S = 5.0  # how long the end of a run waits for a collector
SPANS_KEPT, SPANS_PER_BATCH = 8192, 512
_CAUSE = re.compile(r"\[Errno -?\d+\] ([^\"')\n]+)")

T = TypeVar("T")


class SendQueue(Generic[T]):
    """A queue to somebody who may be slow, or gone: what is dropped, for want of room or by a failed hand-over, is
    counted.

    `hand_over` takes a batch of up to `batch` items and returns whether it arrived; it may block.
    """

    def __init__(self, name: str, hand_over: Callable[[Sequence[T]], bool], *, room: int, batch: int) -> None:
        self._hand_over, self._room, self._batch = hand_over, room, batch
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.dropped = self.sent = self._under_way = 0
        self._thread = threading.Thread(target=self._work, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    def put(self, items: Sequence[T]) -> None:
        """Queue `items`."""
        with self._changed:
            self._queue.extend(items)
            while len(self._queue) > self._room:
                self._queue.popleft()
                self.dropped += 1
            self._changed.notify()

    def close(self, within_s: float) -> None:
        """Hand over what is queued, for `within_s` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._queue and not self._under_way, within_s)
            self.dropped += len(self._queue) + self._under_way
            self._queue.clear()
            self._room = self._under_way = 0

    def _work(self) -> None:
        while items := self._next():
            arrived = self._hand_over(items)
            with self._changed:
                under_way, self._under_way = self._under_way, 0  # 0 also when `close` has given it up
                self.sent += under_way if arrived else 0
                self.dropped += 0 if arrived else under_way
                self._changed.notify_all()

    def _next(self) -> Sequence[T]:
        """The next batch; an empty one is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            items = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._under_way = len(items)
            return items


class Otlp:
    """The two lines to the collector."""

    def __init__(self, settings: TelemetrySettings, resource: Mapping[str, str], wall_ns: int) -> None:
        """Make the exporters that `settings` ask for.

        Raises EnvironmentNotReadyError when a package is missing, UsageError when a variable cannot be read.
        """
        self._settings, self._wall_ns, self._log = settings, wall_ns, _LOG
        self._log.text = ""
        try:
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource

            metrics, traces = _exporter("metric", settings.metrics), _exporter("trace", settings.traces)
            self._resource = Resource.create(dict(resource)).merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME
        except ImportError as error:
            extra = "telemetry-grpc" if GRPC in (settings.metrics, settings.traces) else "telemetry"
            raise EnvironmentNotReadyError(
                f"telemetry is asked for by OTEL_* variables, and {error.name} is not installed; "
                f"pip install 'lockbench[{extra}]', or set OTEL_SDK_DISABLED=true"
            ) from None
        except Exception as error:  # noqa: BLE001 - exporters check their variables in many ways
            raise UsageError(
                f"an OTEL_* variable cannot be used ({type(error).__name__}); correct or unset it"
            ) from None
        self._before, self._log.text = ([f"telemetry: {self._log.text}"] if self._log.text else []), ""
        self._exporters = [exporter for exporter in (metrics, traces) if exporter is not None]
        self._metrics = self._traces = None
        if metrics is not None:
            self._metrics = SendQueue[Snapshot]("metrics", partial(self._send_metrics, metrics), room=1, batch=1)
        if traces is not None:
            send = partial(self._send_spans, traces)
            self._traces = SendQueue[TraceSpan]("traces", send, room=SPANS_KEPT, batch=SPANS_PER_BATCH)
        lines = {"export": self._metrics, "span": self._traces}
        self._lines = {kind: line for kind, line in lines.items() if line is not None}

    @property
    def dropped(self) -> Mapping[str, int]:
        """What was made and did not arrive, by kind."""
        return {kind: line.dropped for kind, line in self._lines.items()}

    def complaints(self) -> list[str]:
        """What is to be said of the settings, by the exporters too, and one sentence if anything did not arrive."""
        said = [*self._settings.warnings, *self._before]
        if any(self.dropped.values()):
            took = [f"{line.sent} of {line.sent + line.dropped} {kind}s" for kind, line in self._lines.items()]
            reason = f"; it said: {self._log.text}" if self._log.text else ""
            said.append(f"telemetry: {self._settings.endpoint} took {' and '.join(took)}{reason}")
        return said

    def offer(self, snapshot: Snapshot) -> None:
        """Queue what is so now; never waits, never raises."""
        if self._metrics is not None:
            self._metrics.put([snapshot])

    def offer_spans(self, spans: Sequence[TraceSpan]) -> None:
        """Queue spans."""
        if self._traces is not None:
            self._traces.put(spans)

    def close(self, within_s: float) -> None:
        """Send what is queued, for at most `within_s` (s), and give up the rest. A collector that has ever taken
        anything is slow and not down: it has twice as long."""
        deadline_s = time.monotonic() + within_s * (2 if any(line.sent for line in self._lines.values()) else 1)
        for line in self._lines.values():
            line.close(max(deadline_s - time.monotonic(), 0.0))
        said = self._log.text
        for exporter in self._exporters:
            with contextlib.suppress(Exception):  # whatever it is, the run is over
                exporter.shutdown()
        self._log.text = said or self._log.text  # not that we shut it down

    def _send_metrics(self, exporter: export.MetricExporter, snapshots: Sequence[Snapshot]) -> bool:
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = _metrics(snapshots[-1], exponential=self._settings.exponential)
        scope = export.ScopeMetrics(InstrumentationScope(SCOPE), metrics, schema_url="")
        data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], schema_url="")])
        return self._noting(lambda: exporter.export(data))

    def _send_spans(self, exporter: SpanExporter, spans: Sequence[TraceSpan]) -> bool:
        return self._noting(lambda: exporter.export([_readable(span, self._resource, self._wall_ns) for span in spans]))

    def _noting(self, send: Callable[[], Enum]) -> bool:
        try:
            return send().name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - an exporter's failure is never the run's
            self._log.text = f"{type(error).__name__}: {_shown(str(error))}"
            return False


class _LastLine(logging.Handler):
    """Keeps the last warning of OpenTelemetry's loggers, and keeps them off the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line; of headers, which may hold a token, only that they are wrong."""
        text = _shown(record.getMessage().partition("\n")[0])
        self.text = text.partition(":")[0] if "header" in text.lower() else text


_LOG = _LastLine()  # it stays, as an exporter that was given up still logs why, in the middle of the summary


def _shown(text: str) -> str:
    if cause := _CAUSE.search(text):  # below three layers of wrapping
        text = cause[1]
    return secrets()(text)[:200]


def export_once(run: Run, points: Sequence[DataPoint], environ: Environ, within_s: float = CLOSE_S) -> list[str]:
    """Export `points` of a run that has ended, if `environ` asks for it; wait `within_s` (s) at most. Returns warnings.

    Raises BenchError when a variable cannot be read or a package is missing.
    """
    settings = settings_of(environ)
    if settings is None or settings.metrics is None:
        return []
    otlp = Otlp(replace(settings, traces=None), run.resource, wall_ns=0)
    now_ns = time.time_ns()
    otlp.offer(Snapshot(now_ns, now_ns, run.common, points))
    otlp.close(within_s)
    return otlp.complaints()


def _exporter(signal: str, protocol: str | None) -> Any:
    if protocol is None:
        return None
    name = "grpc" if protocol == GRPC else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{name}.{signal}_exporter")
    exporter = getattr(module, "OTLPMetricExporter" if signal == "metric" else "OTLPSpanExporter")
    if protocol == GRPC or any(variable.endswith("_CREDENTIAL_PROVIDER") for variable in os.environ):
        return exporter()  # which brings a session of its own
    session = import_module("requests").Session()
    session.hooks["response"].append(_refuse_moved)
    return exporter(session=session)


def _refuse_moved(response: Any, **_: object) -> None:
    """Exporters take an answer that sends them elsewhere for a success, and do not go there."""
    if 300 <= response.status_code < 400:
        raise ConnectionError(f"it answers {response.status_code}: go to {response.headers.get('Location', 'nowhere')}")


def _metrics(snapshot: Snapshot, *, exponential: bool) -> list[export.Metric]:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    made: list[export.Metric] = []
    for instrument, points in by_name(snapshot.points).items():
        data: export.Histogram | export.ExponentialHistogram | export.Sum | export.Gauge
        if instrument.kind is InstrumentKind.HISTOGRAM:
            pairs = [(point.value, _explicit(point, snapshot)) for point in points if isinstance(point.value, Buckets)]
            data = export.Histogram([explicit for _, explicit in pairs], cumulative)
            if exponential:
                data = export.ExponentialHistogram([_exponential(*pair) for pair in pairs], cumulative)
        else:
            times_ns = snapshot.began_ns, snapshot.taken_ns
            numbers = [
                export.NumberDataPoint(dict((*snapshot.common, *point.attributes)), *times_ns, point.value)
                for point in points
                if not isinstance(point.value, Buckets)
            ]
            is_counter = instrument.kind is InstrumentKind.COUNTER
            data = export.Sum(numbers, cumulative, is_monotonic=True) if is_counter else export.Gauge(numbers)
        made.append(export.Metric(instrument.name, instrument.meaning, instrument.unit, data))
    return made


def _explicit(point: DataPoint, snapshot: Snapshot) -> export.HistogramDataPoint:
    from opentelemetry.sdk.metrics import Exemplar, export

    buckets = point.value
    assert isinstance(buckets, Buckets)
    least, greatest = (end / buckets.unit if buckets.count else 0.0 for end in (buckets.least, buckets.greatest))
    return export.HistogramDataPoint(
        dict((*snapshot.common, *point.attributes)), snapshot.began_ns, snapshot.taken_ns, buckets.count, buckets.sum,
        buckets.explicit, BOUNDS, least, greatest,
        [Exemplar({}, one.value, one.at_ns, one.span_id, one.trace_id) for one in point.exemplars],
    )  # fmt: skip


def _exponential(buckets: Buckets, same: export.HistogramDataPoint) -> export.ExponentialHistogramDataPoint:
    from opentelemetry.sdk.metrics import export

    zeros, first, counts = buckets.exponential
    return export.ExponentialHistogramDataPoint(
        same.attributes, same.start_time_unix_nano, same.time_unix_nano, same.count, same.sum, SCALE, zeros,
        export.Buckets(first, counts), export.Buckets(0, []), 0, same.min, same.max, same.exemplars,
    )  # fmt: skip


def _readable(span: TraceSpan, resource: Resource, wall_ns: int) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(trace_id: int, span_id: int) -> SpanContext:
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.trace_id, span.span_id),
        parent=context(span.trace_id, span.parent) if span.parent else None,
        resource=resource,
        attributes=span.attributes,
        links=[Link(context(*span.holder), {"redlock.link": "holder"})] if span.holder else [],
        kind=SpanKind.CLIENT if "db.system.name" in span.attributes else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET),
        start_time=span.begun_ns + wall_ns,
        end_time=span.ended_ns + wall_ns,
        instrumentation_scope=InstrumentationScope(SCOPE),
    )
