"""A collector that throws everything away: *OTLP posts → 200*, for measuring what exporting costs.

Rules: on loopback, on a free port, in threads of this process. Source: the OTLP specification, "OTLP/HTTP": an empty
body is a complete success.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Sink:
    """A context manager; `endpoint` is what OTEL_EXPORTER_OTLP_ENDPOINT takes. `taken`: requests so far."""

    def __init__(self) -> None:
        self.taken = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Nothing to say."""

            def do_POST(self) -> None:
                """Read, forget, thank."""
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sink.taken += 1
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler
