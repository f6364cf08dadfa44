"""The boards without Grafana: *their committed JSON, a Prometheus, a time range → what every panel shows*.

What Grafana would put in for a variable is put in here: the run's own id, everything for the others, the first choice
of a list. A panel of the moment is asked at the end of the range, all others over the whole of it.
"""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards" / "boards"
RATE_SCRAPES = 4  # Grafana's rule: $__rate_interval is at least four scrapes
Board = dict[str, Any]


def read_boards() -> list[Board]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]


def panels_of(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class Watched:
    """Which runs, and over what time (seconds since the epoch); `scrape_s`: how often Prometheus looked."""

    run: str
    start_s: float
    end_s: float
    scrape_s: float
    baseline: str = ""

    @property
    def step_s(self) -> float:
        return float(max(1, math.ceil((self.end_s - self.start_s) / 240)))


def resolve(expr: str, board: Board, watched: Watched) -> str:
    """`expr` with its variables replaced. Raises KeyError for a variable that the board does not have."""
    values = {
        one["name"]: one["query"].split(",")[0] if one["type"] == "custom" else ".*"
        for one in board["templating"]["list"]
    } | {
        "run": watched.run,
        "baseline": watched.baseline,
        "__rate_interval": f"{math.ceil(max(RATE_SCRAPES * watched.scrape_s, watched.step_s + watched.scrape_s))}s",
        "__range": f"{math.ceil(watched.end_s - watched.start_s)}s",
    }
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


@dataclass(frozen=True)
class Answer:
    """What Prometheus said: labels and numbers of each series (NaN is none); complaints and hints."""

    series: list[tuple[dict[str, str], list[float]]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> list[float]:
        return [number for _, numbers in self.series for number in numbers]


class Prometheus:
    """A Prometheus at `url` (http://host:port)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def at(self, query: str, time_s: float) -> Answer:
        return self._ask("query", query=query, time=time_s)

    def over(self, query: str, watched: Watched) -> Answer:
        return self._ask("query_range", query=query, start=watched.start_s, end=watched.end_s, step=watched.step_s)

    def panel(self, board: Board, target: dict[str, Any], watched: Watched) -> Answer:
        """What one query of a panel shows."""
        query = resolve(target["expr"], board, watched)
        return self.at(query, watched.end_s) if target.get("instant") else self.over(query, watched)

    def _ask(self, what: str, **parameters: object) -> Answer:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}", data=body, timeout=30) as answer:
                reply = json.load(answer)
        except urllib.error.HTTPError as refusal:
            return Answer(complaints=[json.load(refusal)["error"]])
        series = [
            (one["metric"], [n for text in _texts(one) if math.isfinite(n := float(text))])
            for one in reply["data"]["result"]
        ]
        return Answer(series, [*reply.get("warnings", ()), *reply.get("infos", ())])


def _texts(series: dict[str, Any]) -> list[str]:
    """The values of a series; of native histograms their counts."""
    histograms = series.get("histograms") or [series[key] for key in ("histogram",) if key in series]
    values = series.get("values") or [series[key] for key in ("value",) if key in series]
    return [text for _, text in values] + [one["count"] for _, one in histograms]
