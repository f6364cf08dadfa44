"""This program receives the alerts of the monitoring stack: *POST requests from Alertmanager → one
line of JSON on stdout for each alert*.

Run this program as `python -m dashboards.alerts HOST:PORT`. `docker compose logs alerts` shows the
lines that the program writes. Source: Prometheus, "Alerting configuration", webhook_config.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    """A handler for HTTP requests. If a POST request contains readable alerts, the handler answers
    200.

    A GET request is the health check.
    """

    def do_GET(self) -> None:
        """Answer the health check."""
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        """Write all alerts of one POST request to stdout."""
        try:
            alerts = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))["alerts"]
            sys.stdout.writelines(f"{json.dumps(alert)}\n" for alert in alerts)
        except (LookupError, TypeError, ValueError):
            self.send_error(400, "the body is not a list of alerts in Alertmanager's format")
            return
        sys.stdout.flush()
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing about requests, because the output must contain only alerts."""


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
