"""The connection to a collector: *snapshots and spans → OpenTelemetry's own exporters, which run in
separate threads*.

Rules
- This is the only file that imports OpenTelemetry. The import takes place only if telemetry is
  requested. OpenTelemetry's exporters read the standard variables for endpoints, headers,
  certificates, time-outs and retries. This file keeps the last line of the exporters' log.
- Status 200 does not prove that items have arrived. If the receiver's answer rejects an item, the
  item has not arrived. If the answer is not OTLP, no item has arrived. Source: OTLP specification,
  "Partial Success".
- A collector never slows the load. If the collector does not accept items in time, these items are
  dropped and counted. The oldest items are dropped first. Metrics are cumulative, so only the
  newest snapshot waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from bench.errors import EnvironmentNotReadyError, UsageError, secrets
from bench.measure.environment import version_of
from bench.telemetry.points import SCALE, Buckets, DataPoint, Snapshot, by_name
from bench.telemetry.run import Run
from bench.telemetry.settings import GRPC, Environ, TelemetrySettings, settings_of
from bench.telemetry.table import BOUNDS, SCHEMA_URL, SCOPE, InstrumentKind
from bench.telemetry.traces import TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

# At the end of a run, lockbench waits at most this long (s) for a collector.
CLOSE_S = 5.0
SPANS_KEPT = 8192
SPANS_PER_BATCH = 512
_CAUSE = re.compile(r"\[Errno -?\d+\] ([^\"')\n]+)")


class Otlp:
    """The connection to a collector that may be slow or down.

    One thread sends metrics, and one thread sends traces. `dropped`: for each kind of item, the
    number of items that did not arrive. An `export` is one message with metrics. An `export` or a
    `span` does not arrive if the queue is full, if the time limit at the end passes, or if the
    transfer fails. A `point` or a `span` does not arrive if the receiver rejects it.
    """

    def __init__(
        self, settings: TelemetrySettings, resource: Mapping[str, str], wall_ns: int
    ) -> None:
        """Create the exporters that `settings` request.

        Raises EnvironmentNotReadyError if a package is missing. Raises UsageError if a variable
        cannot be read.
        """
        self._settings = settings
        self._wall_ns = wall_ns
        self._log = _LOG
        self._log.text = ""
        self._answers = {
            "export": CollectorAnswers("rejected_data_points"),
            "span": CollectorAnswers("rejected_spans"),
        }
        try:
            from opentelemetry.sdk.resources import Resource

            exporters = {
                "export": _exporter("metric", settings.metrics, self._answers["export"]),
                "span": _exporter("trace", settings.traces, self._answers["span"]),
            }
            # OTEL_* variables can add attributes, but they cannot replace these attributes.
            self._resource = Resource.create(dict(resource))
        except ImportError as error:
            extra = "telemetry-grpc" if GRPC in (settings.metrics, settings.traces) else "telemetry"
            raise EnvironmentNotReadyError(
                f"OTEL_* variables request telemetry, but {error.name} is not installed; pip "
                f"install 'lockbench[{extra}]', or set OTEL_SDK_DISABLED=true"
            ) from None
        except Exception as error:  # noqa: BLE001 - exporters check their variables in many ways
            raise UsageError(
                f"an OTEL_* variable cannot be used ({type(error).__name__}); correct or unset it"
            ) from None
        self._before = [f"telemetry: {self._log.text}"] if self._log.text else []
        self._log.text = ""
        self._exporters = {
            kind: exporter for kind, exporter in exporters.items() if exporter is not None
        }
        self._queues = {kind: deque[Snapshot | TraceSpan]() for kind in self._exporters}
        self.dropped, self._sent = (dict.fromkeys(self._exporters, 0) for _ in range(2))
        self._under_way = dict.fromkeys(self._exporters, 0)
        if "export" in self.dropped:
            self.dropped["point"] = 0
        self._changed = threading.Condition()
        self._closing = False
        for kind in self._exporters:
            threading.Thread(
                target=self._work, args=(kind,), name=f"telemetry-{kind}", daemon=True
            ).start()

    def complaints(self) -> list[str]:
        """Return the warnings about the settings.

        The warnings come from lockbench and from the exporters. If any items did not arrive, the
        list also has a sentence about the lost items. If the receiver sent a message and no items
        were lost, the list also has a sentence about the message.
        """
        sentences = [*self._settings.warnings, *self._before]
        messages = [answers.message for answers in self._answers.values()]
        reasons = "; ".join(filter(None, dict.fromkeys([*messages, self._log.text])))
        if any(self.dropped.values()):
            took = [
                f"{sent} of {sent + self.dropped[kind]} {kind}s"
                for kind, sent in self._sent.items()
            ]
            points = self.dropped.get("point", 0)
            rejected = f", and it rejected {points} points in these exports" if points else ""
            reason = f"; its reasons: {reasons}" if reasons else ""
            sentences.append(
                f"telemetry: {self._settings.endpoint} accepted "
                f"{' and '.join(took)}{rejected}{reason}"
            )
        elif any(messages):
            sentences.append(
                f"telemetry: {self._settings.endpoint} accepted everything, but its answer "
                f"contains a warning: {reasons}"
            )
        return sentences

    def offer(self, snapshot: Snapshot) -> None:
        """Queue the present snapshot. This method never waits and never raises an error."""
        self._put("export", [snapshot], 1)

    def offer_spans(self, spans: Sequence[TraceSpan]) -> None:
        """Queue spans. This method never waits and never raises an error."""
        self._put("span", spans, SPANS_KEPT)

    def _put(self, kind: str, items: Sequence[Snapshot | TraceSpan], room: int) -> None:
        if kind not in self._queues:
            return
        with self._changed:
            queue = self._queues[kind]
            queue.extend(items)
            while len(queue) > room:
                queue.popleft()
                self.dropped[kind] += 1
            self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Send queued items for at most `within_s` (s). Then drop the rest.

        If the collector has already accepted an item, the collector is probably only slow. In this
        case, the time limit is 2 × `within_s`.
        """
        within_s *= 2 if any(self._sent.values()) else 1
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any((*self._queues.values(), *self._under_way.values())), within_s
            )
            for kind, queue in self._queues.items():
                self.dropped[kind] += len(queue) + self._under_way[kind]
                self._under_way[kind] = 0
                queue.clear()
        complaint = self._log.text
        for exporter in self._exporters.values():
            # An error no longer matters, because the run is over.
            with contextlib.suppress(Exception):
                exporter.shutdown()
        # The shutdown itself writes a message, which must not hide an earlier complaint.
        self._log.text = complaint or self._log.text

    def _work(self, kind: str) -> None:
        while items := self._next(kind):
            self._answers[kind].rejected = 0
            arrived = self._arrives(kind, items)
            rejected = self._answers[kind].rejected if arrived else 0
            with self._changed:
                # If `close` has dropped these items, the number is 0.
                number = self._under_way[kind]
                self._under_way[kind] = 0
                if kind == "export":
                    self.dropped["point"] += min(rejected, _points_in(items)) if number else 0
                    rejected = 0
                rejected = min(rejected, number)
                self._sent[kind] += number - rejected if arrived else 0
                self.dropped[kind] += rejected if arrived else number
                self._changed.notify_all()

    def _next(self, kind: str) -> Sequence[Snapshot | TraceSpan]:
        """Return the next batch. An empty batch means that no more items will follow."""
        queue = self._queues[kind]
        with self._changed:
            self._changed.wait_for(lambda: queue or self._closing)
            items = [queue.popleft() for _ in range(min(SPANS_PER_BATCH, len(queue)))]
            self._under_way[kind] = len(items)
            return items

    def _arrives(self, kind: str, items: Sequence[Snapshot | TraceSpan]) -> bool:
        try:
            spans = [
                _readable(one, self._resource, self._wall_ns)
                for one in items
                if isinstance(one, TraceSpan)
            ]
            metrics = [self._metrics_of(one) for one in items if isinstance(one, Snapshot)]
            return bool(
                self._exporters[kind].export(metrics[0] if metrics else spans).name == "SUCCESS"
            )
        except Exception as error:  # noqa: BLE001 - an exporter's failure is never the run's
            self._log.text = f"{type(error).__name__}: {_shown(str(error))}"
            return False

    def _metrics_of(self, snapshot: Snapshot) -> export.MetricsData:
        from opentelemetry.sdk.metrics import export

        metrics = _metrics(snapshot, exponential=self._settings.exponential)
        scope = export.ScopeMetrics(_scope(), metrics, schema_url=SCHEMA_URL)
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], schema_url="")])


class _LastLine(logging.Handler):
    """A log handler that keeps the last warning of OpenTelemetry's loggers.

    The handler also prevents these warnings from appearing on the screen.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a message.

        A line about headers is cut at its first colon, because headers may hold a token.
        """
        text = _shown(record.getMessage().partition("\n")[0])
        self.text = text.partition(":")[0] if "header" in text.lower() else text


# This handler is never removed, because an exporter may still log an error after `close` has
# dropped its items. Without the handler, this error would appear in the middle of the summary.
_LOG = _LastLine()


def _shown(text: str) -> str:
    # OpenTelemetry wraps the system's error in three layers of text.
    if cause := _CAUSE.search(text):
        text = cause[1]
    return secrets()(text)[:200]


def export_once(
    run: Run, points: Sequence[DataPoint], environ: Environ, within_s: float = CLOSE_S
) -> list[str]:
    """Export `points` of a run that has ended, if `environ` requests an export.

    Wait at most `within_s` (s) and return warnings. Raises BenchError if a variable cannot be read
    or a package is missing.
    """
    settings = settings_of(environ)
    if settings is None or settings.metrics is None:
        return []
    otlp = Otlp(replace(settings, traces=None), run.resource(settings.service_name), wall_ns=0)
    now_ns = time.time_ns()
    otlp.offer(Snapshot(now_ns, now_ns, run.common, points))
    otlp.close(within_s)
    return otlp.complaints()


def _points_in(items: Sequence[Snapshot | TraceSpan]) -> int:
    return sum(len(one.points) for one in items if isinstance(one, Snapshot))


class HttpAnswer(Protocol):
    """The HTTP answer of a receiver.

    The answer has the attributes of a Response object of the library `requests`.
    """

    status_code: int
    content: bytes
    headers: Mapping[str, str]


class CollectorAnswers:
    """The answers of a receiver to all exports of one signal.

    `rejected`: how many items of the present export were rejected. `message`: the last message of
    the receiver. `field`: the name of the field in an answer that has the number of rejected items.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self.rejected = 0
        self.message = ""

    def note(self, answer: Any) -> None:
        """Store two facts from an OTLP answer: the number of rejected items and the message.

        A receiver may send any number, so a negative number counts as 0.
        """
        partial = answer.partial_success
        self.rejected += max(getattr(partial, self._field), 0)
        if partial.error_message:
            self.message = _shown(partial.error_message.partition("\n")[0])

    def read(self, response: HttpAnswer, **_: object) -> None:
        """Store two facts from an HTTP answer: the number of rejected items and the message.

        This method reads the answer before the exporter reads the answer.

        Raises ConnectionError if the answer shows that no item arrived.
        """
        _refuse_moved(response)
        if 200 <= response.status_code < 300 and response.content:
            self.note(self._parsed(response))

    def _parsed(self, response: HttpAnswer) -> Any:
        """Decode the OTLP answer in a response.

        Some receivers always answer in JSON, even if the request had another format.
        """
        from google.protobuf import json_format  # type: ignore[import-untyped]
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        answer = _answer_with(self._field)
        try:
            if media == "application/json":
                return json_format.Parse(response.content, answer, ignore_unknown_fields=True)
            if not media.startswith("text/"):
                answer.ParseFromString(response.content)
                return answer
        except (ValueError, DecodeError, json_format.ParseError):
            pass
        raise ConnectionError(
            f"the answer has the status {response.status_code} and the content "
            f"{media or 'bytes'}, so it is not an OTLP answer"
        )

    def listen(self, exporter: Any) -> None:
        """Record the answers that a gRPC exporter gets.

        A gRPC exporter does not keep the answers that it gets. The exporter may also create a new
        stub at any time. So this method replaces the function that creates the stubs of the
        exporter.
        """
        make = exporter._stub

        def listening(channel: object) -> object:
            stub = make(channel)
            send = stub.Export

            def export(**request: object) -> object:
                answer = send(**request)
                self.note(answer)
                return answer

            stub.Export = export
            return stub

        exporter._stub = listening
        exporter._client = listening(exporter._channel)


def _answer_with(field: str) -> Any:
    """Return an empty OTLP answer for one signal, which is metrics or traces.

    `field`: the field of the answer that counts the signal's rejected items.
    """
    name = "metrics" if field == "rejected_data_points" else "trace"
    module = import_module(f"opentelemetry.proto.collector.{name}.v1.{name}_service_pb2")
    return getattr(
        module,
        "ExportMetricsServiceResponse" if name == "metrics" else "ExportTraceServiceResponse",
    )()


def _exporter(signal: str, protocol: str | None, answers: CollectorAnswers) -> Any:
    if protocol is None:
        return None
    name = "grpc" if protocol == GRPC else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{name}.{signal}_exporter")
    exporter = getattr(module, "OTLPMetricExporter" if signal == "metric" else "OTLPSpanExporter")
    if protocol == GRPC:
        grpc_exporter = exporter()
        answers.listen(grpc_exporter)
        return grpc_exporter
    if any(variable.endswith("_CREDENTIAL_PROVIDER") for variable in os.environ):
        # The credential provider makes a session itself.
        return exporter()
    session = import_module("requests").Session()
    session.hooks["response"].append(answers.read)
    return exporter(session=session)


def _refuse_moved(response: HttpAnswer, **_: object) -> None:
    """Raise ConnectionError for a redirect, because exporters would count the redirect as a
    success.

    Exporters do not follow redirects.
    """
    if 300 <= response.status_code < 400:
        raise ConnectionError(
            f"the answer has the status {response.status_code} and redirects to "
            f"{response.headers.get('Location', 'nowhere')}"
        )


@cache
def _scope() -> InstrumentationScope:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope(SCOPE, version_of("lockbench"), SCHEMA_URL)


def _metrics(snapshot: Snapshot, *, exponential: bool) -> list[export.Metric]:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    metrics: list[export.Metric] = []
    for instrument, points in by_name(snapshot.points).items():
        data: export.Histogram | export.ExponentialHistogram | export.Sum | export.Gauge
        if instrument.kind is InstrumentKind.HISTOGRAM:
            pairs = [
                (point.value, _explicit(point, snapshot))
                for point in points
                if isinstance(point.value, Buckets)
            ]
            data = export.Histogram([explicit for _, explicit in pairs], cumulative)
            if exponential:
                data = export.ExponentialHistogram(
                    [_exponential(*pair) for pair in pairs], cumulative
                )
        else:
            times_ns = snapshot.began_ns, snapshot.taken_ns
            numbers = [
                export.NumberDataPoint(
                    dict((*snapshot.common, *point.attributes)), *times_ns, point.value
                )
                for point in points
                if not isinstance(point.value, Buckets)
            ]
            is_counter = instrument.kind is InstrumentKind.COUNTER
            data = (
                export.Sum(numbers, cumulative, is_monotonic=True)
                if is_counter
                else export.Gauge(numbers)
            )
        metrics.append(export.Metric(instrument.name, instrument.meaning, instrument.unit, data))
    return metrics


def _explicit(point: DataPoint, snapshot: Snapshot) -> export.HistogramDataPoint:
    from opentelemetry.sdk.metrics import Exemplar, export

    buckets = point.value
    assert isinstance(buckets, Buckets)
    # An empty histogram has no smallest value. OTLP allows us to omit the value, but the SDK's type
    # does not.
    least: Any = None
    greatest: Any = None
    if buckets.count:
        least = buckets.least / buckets.unit
        greatest = buckets.greatest / buckets.unit
    return export.HistogramDataPoint(
        dict((*snapshot.common, *point.attributes)),
        snapshot.began_ns,
        snapshot.taken_ns,
        buckets.count,
        buckets.sum,
        buckets.explicit,
        BOUNDS,
        least,
        greatest,
        [Exemplar({}, one.value, one.at_ns, one.span_id, one.trace_id) for one in point.exemplars],
    )


def _exponential(
    buckets: Buckets, same: export.HistogramDataPoint
) -> export.ExponentialHistogramDataPoint:
    from opentelemetry.sdk.metrics import export

    zeros, first, counts = buckets.exponential
    return export.ExponentialHistogramDataPoint(
        same.attributes,
        same.start_time_unix_nano,
        same.time_unix_nano,
        same.count,
        same.sum,
        SCALE,
        zeros,
        export.Buckets(first, counts),
        export.Buckets(0, []),
        0,
        same.min,
        same.max,
        same.exemplars,
    )


def _readable(span: TraceSpan, resource: Resource, wall_ns: int) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(trace_id: int, span_id: int) -> SpanContext:
        return SpanContext(
            trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    parent = context(span.trace_id, span.parent) if span.parent else None
    links = [Link(context(*span.holder), {"redlock.link": "holder"})] if span.holder else []
    is_command = "db.system.name" in span.attributes
    kind = SpanKind.CLIENT if is_command else SpanKind.INTERNAL
    status = Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET)
    return ReadableSpan(
        name=span.name,
        context=context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        links=links,
        kind=kind,
        status=status,
        start_time=span.begun_ns + wall_ns,
        end_time=span.ended_ns + wall_ns,
        instrumentation_scope=_scope(),
    )
