"""An OTLP receiver: *what an exporter posts → decoded metrics and spans, to be asked for by name*.

Speaks http/protobuf (`Collector`) and gRPC (`GrpcCollector`).
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Attributes = dict[str, Any]


@dataclass(slots=True)
class Received:
    """What has come in. A metric's points are those of the newest request that has it."""

    requests: int = 0
    # name, version, schema URL, of either signal
    scopes: set[tuple[str, str, str]] = field(default_factory=set)
    resource: Attributes = field(default_factory=dict)
    # name -> opentelemetry.proto Metric
    metrics: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)
    # the same by service.instance.id
    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    spans: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_metrics(self, request: Any) -> None:
        with self.lock:
            self.requests += 1
            for of_resource in request.resource_metrics:
                self.resource = attributes_of(of_resource.resource)
                for scope in of_resource.scope_metrics:
                    self.scopes.add((scope.scope.name, scope.scope.version, scope.schema_url))
                    for metric in scope.metrics:
                        self.metrics[metric.name] = metric
                        self.instances.setdefault(self.resource["service.instance.id"], {})[
                            metric.name
                        ] = metric
                        self.history.setdefault(metric.name, []).append(metric)

    def add_spans(self, request: Any) -> None:
        with self.lock:
            for of_resource in request.resource_spans:
                for scope in of_resource.scope_spans:
                    self.scopes.add((scope.scope.name, scope.scope.version, scope.schema_url))
                    self.spans += scope.spans

    def points(self, name: str, **wanted: Any) -> list[Any]:
        """The newest points of a metric with these attributes (`_` for `.`)."""
        metric = self.metrics[name]
        points = getattr(metric, metric.WhichOneof("data")).data_points
        return [
            point
            for point in points
            if wanted.items()
            <= {key.replace(".", "_"): value for key, value in attributes_of(point).items()}.items()
        ]

    def total(self, name: str, **wanted: Any) -> float:
        """The sum of values (of histograms: counts) over points with these attributes."""
        return sum(number_of(point) for point in self.points(name, **wanted))


def number_of(point: Any) -> float:
    if hasattr(point, "bucket_counts"):
        return int(point.count)
    return int(point.as_int) if point.WhichOneof("value") == "as_int" else float(point.as_double)


def attributes_of(thing: Any) -> Attributes:
    """Attributes by name, as Python values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in thing.attributes}


def _partly(answer: Any, field: str, rejects: int, message: str) -> Any:
    """The answer of a receiver that rejects so many things of a request, or has something to
    say."""
    if rejects or message:
        setattr(answer.partial_success, field, rejects)
        answer.partial_success.error_message = message
    return answer


class Collector:
    """The http/protobuf receiver, on a free loopback port. `status`: what it answers, once it is
    `free` to. `rejects`, `message`: its partial success; `page`: the media type and body that it
    answers instead."""

    def __init__(self) -> None:
        self.received = Received()
        self.status = 200
        self.rejects = 0
        self.message = ""
        self.page: tuple[str, bytes] | None = None
        self.free = threading.Event()
        self.free.set()
        self.asked = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Quiet."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                collector.free.wait(60)
                media, answer = collector._answer(self.path, body)
                try:
                    self.send_response(collector.status)
                    if media:
                        self.send_header("Content-Type", media)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    # it has given up waiting
                    pass

        return Handler

    def _answer(self, path: str, body: bytes) -> tuple[str, bytes]:
        if self.page is not None:
            return self.page
        return "application/x-protobuf", self._take(path, body) if self.status == 200 else b""

    def _take(self, path: str, body: bytes) -> bytes:
        if path.endswith("/v1/metrics"):
            self.received.add_metrics(ExportMetricsServiceRequest.FromString(body))
            metrics = ExportMetricsServiceResponse()
            return _partly(
                metrics, "rejected_data_points", self.rejects, self.message
            ).SerializeToString()
        self.received.add_spans(ExportTraceServiceRequest.FromString(body))
        traces = ExportTraceServiceResponse()
        return _partly(traces, "rejected_spans", self.rejects, self.message).SerializeToString()


class GrpcCollector:
    """The gRPC receiver, on a free loopback port. `rejects`, `message`: its partial success."""

    def __init__(self) -> None:
        import grpc
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

        self.received = received = Received()
        self.rejects = 0
        self.message = ""
        collector = self

        class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - generated
                received.add_metrics(request)
                answer = ExportMetricsServiceResponse()
                return _partly(answer, "rejected_data_points", collector.rejects, collector.message)

        class Traces(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - generated
                received.add_spans(request)
                answer = ExportTraceServiceResponse()
                return _partly(answer, "rejected_spans", collector.rejects, collector.message)

        self._server = grpc.server(ThreadPoolExecutor(4))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), self._server)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0)
