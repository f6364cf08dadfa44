"""Over the wire: *snapshots and spans → OpenTelemetry's own exporters, in threads of their own*.

Rules
- The only file that imports OpenTelemetry, and only when telemetry is wanted. Endpoints, headers, certificates,
  time-outs and retries are the exporters' business, by the standard variables.
- A collector never slows the load: what it does not take in time is dropped, the oldest first, and counted.
- Metrics are cumulative, so a snapshot that did not arrive is made good by the next; of several only the newest waits.
- Exporters say why they fail in their log: the last line is kept, without secrets, for the warning.

Source: opentelemetry-sdk's data classes; the OTLP specification.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from bench.errors import EnvironmentNotReadyError, UsageError, secrets
from bench.telemetry.points import Buckets, DataPoint, Exemplar, Snapshot, by_name
from bench.telemetry.run import Run
from bench.telemetry.settings import GRPC, Environ, TelemetrySettings, settings_of
from bench.telemetry.table import BOUNDS, SCOPE, Instrument, InstrumentKind
from bench.telemetry.traces import LINK, TraceSpan

CLOSE_S = 5.0  # how long the end of a run waits for a collector
SPANS_KEPT, SPANS_PER_BATCH = 8192, 512
_CAUSE = re.compile(r"\[Errno -?\d+\] ([^\"')\n]+)")
_LOGGER = "opentelemetry"

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
        self._closing = self._handing_over = False
        self.dropped = self.sent = self.failures = 0
        self._under_way = 0
        self._thread = threading.Thread(target=self._work, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being handed over, also one that `close` has given up."""
        with self._changed:
            return self._handing_over

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
        deadline_s = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            self._changed.notify()
            while (self._queue or self._under_way) and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self.dropped += len(self._queue) + self._under_way
            self._queue.clear()
            self._room = self._under_way = 0

    def _work(self) -> None:
        while (items := self._next()) is not None:
            arrived = False
            try:
                arrived = self._hand_over(items)
            finally:
                self._note(arrived)

    def _next(self) -> Sequence[T] | None:
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            items = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._under_way, self._handing_over = len(items), True
            return items

    def _note(self, arrived: bool) -> None:
        with self._changed:
            under_way, self._under_way = self._under_way, 0  # 0 also when `close` has given it up
            self._handing_over = False
            self.failures += not arrived
            if arrived:
                self.sent += under_way
            else:
                self.dropped += under_way
            self._changed.notify_all()


class Otlp:
    """The two lines to the collector. Made by `open_otlp`."""

    def __init__(self, resource: Any, metrics: Any, traces: Any, wall_ns: int, log: _LastLine) -> None:
        self._resource, self._wall_ns, self._log = resource, wall_ns, log
        self._before = f"telemetry: {log.text}" if log.text else ""
        log.text = ""
        self._exporters = [exporter for exporter in (metrics, traces) if exporter is not None]
        self._metrics = self._traces = None
        if metrics is not None:
            self._metrics = SendQueue[Snapshot](
                "metrics", lambda all_: self._send_metrics(metrics, all_), room=1, batch=1
            )
        if traces is not None:
            self._traces = SendQueue[TraceSpan](
                "traces", lambda spans: self._send_spans(traces, spans), room=SPANS_KEPT, batch=SPANS_PER_BATCH
            )

    @property
    def takes_spans(self) -> bool:
        """Whether traces are exported."""
        return self._traces is not None

    @property
    def dropped(self) -> Mapping[str, int]:
        """What was made and did not arrive, by kind."""
        return {
            "export": self._metrics.dropped if self._metrics else 0,
            "span": self._traces.dropped if self._traces else 0,
        }

    @property
    def has_arrived(self) -> bool:
        """Whether anything has ever been taken."""
        return any(line is not None and line.sent for line in (self._metrics, self._traces))

    def complaints(self, endpoint: str) -> list[str]:
        """What the exporters said of their settings, and one sentence if anything did not arrive at `endpoint`."""
        dropped, before = self.dropped, [self._before] if self._before else []
        if not any(dropped.values()):
            return before
        metrics = self._metrics.sent if self._metrics else 0
        spans = self._traces.sent if self._traces else 0
        reason = f"; it said: {self._log.text}" if self._log.text else ""
        return [
            *before,
            f"telemetry: {endpoint} took {metrics} of {metrics + dropped['export']} metric exports and {spans} of "
            f"{spans + dropped['span']} spans{reason}",
        ]

    def offer(self, snapshot: Snapshot) -> None:
        """Queue what is so now; never waits, never raises."""
        if self._metrics is not None:
            self._metrics.put([snapshot])

    def offer_spans(self, spans: Sequence[TraceSpan]) -> None:
        """Queue spans."""
        if self._traces is not None:
            self._traces.put(spans)

    def close(self, within_s: float) -> None:
        """Send what is queued, for at most `within_s` (s), and give up the rest."""
        deadline_s = time.monotonic() + within_s
        for line in (self._metrics, self._traces):
            if line is not None:
                line.close(max(deadline_s - time.monotonic(), 0.0))
        said = self._log.text
        for exporter in self._exporters:
            with contextlib.suppress(Exception):  # whatever it is, the run is over
                exporter.shutdown()
        if not any(line is not None and line.is_busy for line in (self._metrics, self._traces)):
            self._log.close()  # else who was given up would still say so, in the middle of the summary
        self._log.text = said or self._log.text  # not that we shut it down

    def _send_metrics(self, exporter: Any, snapshots: Sequence[Snapshot]) -> bool:
        return self._noting(lambda: exporter.export(_metrics_data(self._resource, snapshots[-1])))

    def _send_spans(self, exporter: Any, spans: Sequence[TraceSpan]) -> bool:
        return self._noting(lambda: exporter.export([_readable(span, self._resource, self._wall_ns) for span in spans]))

    def _noting(self, export: Callable[[], Any]) -> bool:
        try:
            return str(export().name) == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - an exporter's failure is never the run's
            self._log.text = f"{type(error).__name__}: {_shown(str(error))}"
            return False


class _LastLine(logging.Handler):
    """Keeps the last warning of OpenTelemetry's loggers, and keeps them off the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger(_LOGGER)
        self._before = logger.propagate
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line; of headers, which may hold a token, only that they are wrong."""
        text = _shown(record.getMessage().partition("\n")[0])
        self.text = text.partition(":")[0] if "header" in text.lower() else text

    def close(self) -> None:
        """Give the loggers back."""
        logger = logging.getLogger(_LOGGER)
        logger.removeHandler(self)
        logger.propagate = self._before
        super().close()


def _shown(text: str) -> str:
    if cause := _CAUSE.search(text):  # below three layers of wrapping
        text = cause[1]
    return secrets()(text)[:200]


def open_otlp(settings: TelemetrySettings, resource: Mapping[str, str], wall_ns: int) -> Otlp:
    """Make the exporters that `settings` ask for.

    Raises EnvironmentNotReadyError when a package is missing, UsageError when a variable cannot be read.
    """
    log = _LastLine()
    try:
        from opentelemetry.sdk.resources import Resource

        metrics = _exporter("metric", settings.metrics)
        traces = _exporter("trace", settings.traces)
        return Otlp(Resource.create(dict(resource)), metrics, traces, wall_ns, log)
    except ImportError as error:
        log.close()
        extra = "telemetry-grpc" if GRPC in (settings.metrics, settings.traces) else "telemetry"
        raise EnvironmentNotReadyError(
            f"telemetry is asked for by OTEL_* variables, and {error.name} is not installed; "
            f"pip install 'lockbench[{extra}]', or set OTEL_SDK_DISABLED=true"
        ) from None
    except Exception as error:  # noqa: BLE001 - exporters check their variables in many ways
        log.close()
        raise UsageError(f"an OTEL_* variable cannot be used ({type(error).__name__}); correct or unset it") from None


def export_once(run: Run, points: Sequence[DataPoint], environ: Environ, within_s: float = CLOSE_S) -> list[str]:
    """Export `points` of a run that has ended, if `environ` asks for it; wait `within_s` (s) at most. Returns warnings.

    Raises BenchError when a variable cannot be read or a package is missing.
    """
    settings = settings_of(environ)
    if settings is None or settings.metrics is None:
        return []
    otlp = open_otlp(replace(settings, traces=None), run.resource(settings.service_name), wall_ns=0)
    now_ns = time.time_ns()
    otlp.offer(Snapshot(now_ns, now_ns, run.common, points))
    otlp.close(within_s)
    return [*settings.warnings, *otlp.complaints(settings.endpoint)]


def _exporter(signal: str, protocol: str | None) -> Any:
    if protocol is None:
        return None
    from importlib import import_module

    name = "grpc" if protocol == GRPC else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{name}.{signal}_exporter")
    return getattr(module, "OTLPMetricExporter" if signal == "metric" else "OTLPSpanExporter")()


def _metrics_data(resource: Any, snapshot: Snapshot) -> Any:
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    groups = by_name(snapshot.points)
    metrics = [_metric(export, one, points, snapshot) for one, points in groups.items()]
    scope = export.ScopeMetrics(scope=InstrumentationScope(SCOPE), metrics=metrics, schema_url="")
    return export.MetricsData([export.ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(export: Any, instrument: Instrument, points: Sequence[DataPoint], snapshot: Snapshot) -> Any:
    cumulative = export.AggregationTemporality.CUMULATIVE
    if instrument.kind is InstrumentKind.HISTOGRAM:
        data = export.Histogram([_histogram(export, point, snapshot) for point in points], cumulative)
    else:
        numbers = [
            export.NumberDataPoint(_attributes(point, snapshot), snapshot.began_ns, snapshot.taken_ns, point.value)
            for point in points
        ]
        data = (
            export.Sum(numbers, cumulative, True)
            if instrument.kind is InstrumentKind.COUNTER
            else export.Gauge(numbers)
        )
    return export.Metric(instrument.name, instrument.meaning, instrument.unit, data)


def _histogram(export: Any, point: DataPoint, snapshot: Snapshot) -> Any:
    buckets = point.value
    assert isinstance(buckets, Buckets)
    unit = buckets.unit
    return export.HistogramDataPoint(
        attributes=_attributes(point, snapshot),
        start_time_unix_nano=snapshot.began_ns,
        time_unix_nano=snapshot.taken_ns,
        count=buckets.count,
        sum=buckets.sum,
        bucket_counts=buckets.counts.tolist(),
        explicit_bounds=BOUNDS,
        min=(buckets.least or 0) / unit,
        max=(buckets.greatest or 0) / unit,
        exemplars=[_exemplar(one) for one in point.exemplars],
    )


def _exemplar(one: Exemplar) -> Any:
    from opentelemetry.sdk.metrics import Exemplar as SdkExemplar

    return SdkExemplar({}, one.value, one.at_ns, one.span_id, one.trace_id)


def _attributes(point: DataPoint, snapshot: Snapshot) -> dict[str, str | int]:
    return dict((*snapshot.common, *point.attributes))


def _readable(span: TraceSpan, resource: Any, wall_ns: int) -> Any:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(trace_id: int, span_id: int) -> Any:
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.trace_id, span.span_id),
        parent=context(span.trace_id, span.parent) if span.parent else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.at_ns + wall_ns) for event in span.events],
        links=[Link(context(trace_id, span_id), {LINK: meaning}) for trace_id, span_id, meaning in span.links],
        kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET),
        start_time=span.begun_ns + wall_ns,
        end_time=span.ended_ns + wall_ns,
        instrumentation_scope=InstrumentationScope(SCOPE),
    )
