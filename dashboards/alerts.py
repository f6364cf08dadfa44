"""The stack's contact point: *what Alertmanager posts → a line per alert on stdout*.

Run as `python -m dashboards.alerts HOST:PORT`; `docker compose logs alerts` shows the lines. Source: Prometheus,
"Alerting configuration", webhook_config.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_BYTES = 1 << 20


def lines_of(body: bytes) -> list[str]:
    """The alerts of a post, a line each; of one that cannot be read, a line that says so."""
    try:
        return [_line(alert) for alert in json.loads(body)["alerts"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return [f"unreadable: {error!r}"]


def _line(alert: dict[str, dict[str, str]]) -> str:
    labels, notes = alert["labels"], alert["annotations"]
    name = labels["alertname"] if labels["alertname"].isidentifier() else repr(labels["alertname"])
    said = f"{labels.get('severity', 'none')} {name}: {notes.get('summary', '')!s} ({notes.get('runbook_url', '')})"
    return f"{alert['startsAt']} {alert['status']} {said}"


class Receiver(BaseHTTPRequestHandler):
    """Answers 200 to everything; GET is for the health check."""

    def do_GET(self) -> None:
        """It is there."""
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        """Write the alerts of one post."""
        body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MOST_BYTES))
        sys.stdout.writelines(f"{line}\n" for line in lines_of(body))
        sys.stdout.flush()
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Requests are not told, alerts are."""


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
