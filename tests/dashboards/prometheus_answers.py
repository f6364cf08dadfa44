"""The boards without Grafana: *their committed JSON, a Prometheus, a time range → what every panel
shows*.

What Grafana would put in for a variable is put in here: the run's own id, everything for the
others, the first choice of a list. A panel of the moment is asked at the end of the range, all
others over the whole of it.
"""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards" / "boards"
# Grafana's rule: $__rate_interval is at least four scrapes
RATE_SCRAPES = 4
Board = dict[str, Any]


def read_boards() -> list[Board]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]


def panels_of(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class WatchedRun:
    """Which runs, and over what time (seconds since the epoch); `scrape_s`: how often Prometheus
    looked."""

    run: str
    start_s: float
    end_s: float
    scrape_s: float
    baseline: str = ""

    @property
    def step_s(self) -> float:
        return float(max(1, math.ceil((self.end_s - self.start_s) / 240)))

    @property
    def rate_s(self) -> float:
        """Over how long a rate is taken."""
        return float(math.ceil(max(RATE_SCRAPES * self.scrape_s, self.step_s + self.scrape_s)))

    @property
    def whole(self) -> "WatchedRun":
        """The same, looked at so that a rate is that of all of it."""
        return replace(self, scrape_s=self.end_s - self.start_s)


def resolve(expr: str, board: Board, watched: WatchedRun) -> str:
    """`expr` with its variables replaced.

    Raises KeyError for a variable that the board does not have.
    """
    values = {
        one["name"]: one["query"].split(",")[0] if one["type"] == "custom" else ".*"
        for one in board["templating"]["list"]
    } | {
        "run": watched.run,
        "baseline": watched.baseline,
        "__rate_interval": f"{watched.rate_s:.0f}s",
        "__range": f"{math.ceil(watched.end_s - watched.start_s)}s",
    }
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


@dataclass(frozen=True)
class Answer:
    """What Prometheus said: labels and numbers of each series (NaN is none); complaints and
    hints."""

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

    def over(self, query: str, watched: WatchedRun) -> Answer:
        return self._ask(
            "query_range",
            query=query,
            start=watched.start_s,
            end=watched.end_s,
            step=watched.step_s,
        )

    def panel(self, board: Board, target: dict[str, Any], watched: WatchedRun) -> Answer:
        """What one query of a panel shows."""
        query = resolve(target["expr"], board, watched)
        return self.at(query, watched.end_s) if target.get("instant") else self.over(query, watched)

    def _ask(self, what: str, **parameters: object) -> Answer:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{what}", data=body, timeout=30
            ) as answer:
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
    histograms = series.get("histograms") or [
        series[key] for key in ("histogram",) if key in series
    ]
    values = series.get("values") or [series[key] for key in ("value",) if key in series]
    return [text for _, text in values] + [one["count"] for _, one in histograms]


@dataclass(frozen=True)
class ExpectedFigure:
    """The series with these labels shows a figure between `low` and `high`."""

    low: float
    high: float
    labels: Mapping[str, str] = field(default_factory=dict)


def near(figure: float, factor: float = 1.0, off: float = 0.0, **labels: str) -> ExpectedFigure:
    """It may be off by a factor, and by so much."""
    return ExpectedFigure(figure / factor - off, figure * factor + off, labels)


def wrong(
    prometheus: Prometheus,
    board: Board,
    watched: WatchedRun,
    expected: Mapping[str, Sequence[ExpectedFigure]],
) -> list[str]:
    """Which queries of panels show other figures at the end of the whole of what was watched than
    is right.

    Of every one (its panel's title and letter) something must be known, but of heat maps and of
    single numbers.
    """
    found = []
    for panel in panels_of(board):
        for target in panel["targets"]:
            name = f"{panel['title']} {target['refId']}"
            if name not in expected and (target.get("instant") or panel["type"] == "heatmap"):
                continue
            answer = prometheus.at(resolve(target["expr"], board, watched.whole), watched.end_s)
            series = [one for one in answer.series if one[1]]
            for right in expected[name]:
                shown = [
                    n
                    for labels, numbers in series
                    if right.labels.items() <= labels.items()
                    for n in numbers
                ]
                if len(shown) != 1 or not right.low <= shown[0] <= right.high:
                    found.append(f"{name}: {shown} for {right}")
            if len(series) != len(expected[name]):
                found.append(f"{name}: {series}")
    return found
