"""Ask a running Grafana for every panel: *its URL, user, password file → a line per panel, exit 1
if one is empty*.

Rules: the boards are those that Grafana itself has, by uid; a query goes through Grafana's own data
source, as a browser's would. What a healthy run on named targets cannot have is listed in
MAY_BE_EMPTY; it may be empty, not wrong. Source: Grafana, "HTTP API": /api/dashboards/uid/:uid,
/api/ds/query. Not yet run by us: there is no Grafana here.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.dashboards.asked import Watched, read_boards, resolve

SOURCE = "lockbench-prometheus"
SCRAPE_S = 5.0
RANGE_S = 900
MAY_BE_EMPTY = {
    "Faults",
    "Dead time of split votes",
    "Errors",
    "Fsyncs",
    "Locks lost in crashes",
    "Lost window, p99",
    "Double grants",
}
# the schedule's rate: in open loop only
MAY_BE_EMPTY_TARGETS = {("Rate offered and achieved", "B")}


class Grafana:
    """Grafana's API at `url`, with a user's name and password."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """GET `path`, or POST `body` to it."""
        request = urllib.request.Request(  # noqa: S310 - the stack's own port on loopback
            f"{self._url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self._login, "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def values(self, target: Mapping[str, Any], expr: str, now_s: float) -> list[float]:
        """All numbers that a panel's query yields.

        Raises ValueError with what Grafana says is wrong.
        """
        instant = bool(target.get("instant"))
        query = {
            "refId": "A",
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "expr": expr,
            "instant": instant,
            "range": not instant,
            "intervalMs": int(SCRAPE_S * 1000),
            "maxDataPoints": 240,
        }
        times = {"from": str(int((now_s - RANGE_S) * 1000)), "to": str(int(now_s * 1000))}
        result = self.ask("/api/ds/query", {"queries": [query], **times})["results"]["A"]
        if result.get("error"):
            raise ValueError(result["error"])
        notices = [
            n["text"]
            for frame in result["frames"]
            for n in frame["schema"].get("meta", {}).get("notices", [])
        ]
        if notices:
            raise ValueError(notices[0])
        columns = [column for frame in result["frames"] for column in frame["data"]["values"][1:]]
        return [value for column in columns for value in column if isinstance(value, int | float)]


def check(grafana: Grafana) -> list[str]:
    """What is wrong, one sentence each; prints a line per query."""
    wrong = []
    now_s = time.time()
    span = Watched(".*", now_s - RANGE_S, now_s, SCRAPE_S)
    for mine in read_boards():
        board = grafana.ask(f"/api/dashboards/uid/{mine['uid']}")["dashboard"]
        if [panel["title"] for panel in board["panels"]] != [
            panel["title"] for panel in mine["panels"]
        ]:
            wrong.append(f"{mine['uid']}: Grafana shows other panels than the committed board")
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                name = f"{board['title']}: {panel['title']} {target['refId']}"
                try:
                    count = len(grafana.values(target, resolve(target["expr"], mine, span), now_s))
                except ValueError as error:
                    wrong.append(f"{name}: {error}")
                    continue
                sys.stdout.write(f"{count:6} values  {name}\n")
                excused = (
                    panel["title"] in MAY_BE_EMPTY
                    or (panel["title"], target["refId"]) in MAY_BE_EMPTY_TARGETS
                )
                if not count and not excused:
                    wrong.append(f"{name}: no data")
    return wrong


def main() -> int:
    """`PYTHONPATH=. python .github/ask_grafana.py URL USER PASSWORD_FILE`."""
    url, user, file = sys.argv[1:4]
    wrong = check(Grafana(url, user, Path(file).read_text(encoding="utf-8").strip()))
    for sentence in wrong:
        sys.stdout.write(f"WRONG  {sentence}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
