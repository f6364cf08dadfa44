"""The boards without Grafana: *their committed JSON, a Prometheus, a range → every panel's answer*.

Rules: what Grafana would put in for a variable is put in here: the run's own id, everything else for the others, the
first choice of a list. Without a baseline nothing is compared: a run against itself would be 1.0 everywhere. An instant
panel is asked at the end of the run, all others over the whole of it.
Source: dashboards/boards; Grafana, "Global variables".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

from msgspec import field
from msgspec.structs import asdict, replace

from bench.experiments.observe.query import Prometheus
from bench.experiments.observe.result import AskedBoard, AskedPanel, AskedQuery, Series, Stretch
from bench.measure.reading import decoded
from bench.measure.section import Section

BOARDS = ("run-overview", "quorum", "fsync", "generator")
MOST_POINTS = 240
_RATE_SCRAPES = 4  # Grafana's rule: $__rate_interval is at least four scrapes
_VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose panels, and over what time (seconds since the epoch); `scrape_s`: how often Prometheus looked."""

    run: str
    start_s: float
    end_s: float
    scrape_s: float
    baseline: str = ""

    @property
    def step_s(self) -> float:
        """From point to point."""
        return float(max(1, math.ceil((self.end_s - self.start_s) / MOST_POINTS)))


class _Variable(Section, frozen=True):
    name: str
    type: str
    query: object = None

    @property
    def first(self) -> str:
        """What it stands for when nobody has chosen."""
        return self.query.split(",")[0] if self.type == "custom" and isinstance(self.query, str) else ".*"


class _Annotation(Section, frozen=True):
    name: str
    expr: str
    title: str = field(name="titleFormat")


class _PanelQuery(Section, frozen=True):
    expr: str
    legend: str = field(name="legendFormat", default="")
    instant: bool = False


class _Defaults(Section, frozen=True):
    unit: str = ""


class _Fields(Section, frozen=True):
    defaults: _Defaults = _Defaults()


class _Panel(Section, frozen=True, kw_only=True):
    id: int
    title: str
    type: str
    description: str = ""
    fields: _Fields = field(name="fieldConfig", default=_Fields())
    targets: tuple[_PanelQuery, ...] = ()


class Board(Section, frozen=True, kw_only=True):
    """What is asked of a committed board: its variables, annotations and panels."""

    uid: str
    title: str
    description: str
    templating: dict[str, tuple[_Variable, ...]]  # under "list", as the next
    annotations: dict[str, tuple[_Annotation, ...]]
    panels: tuple[_Panel, ...]


def read_boards() -> list[Board]:
    """The committed boards, in the order they are read."""
    folder = resources.files("dashboards") / "boards"
    return [decoded((folder / f"{name}.json").read_bytes(), Board) for name in BOARDS]


def resolve(expr: str, board: Board, watched: Watched) -> str:
    """`expr` with its variables replaced. Raises KeyError for a variable that the board does not have."""
    rate_s = max(_RATE_SCRAPES * watched.scrape_s, watched.step_s + watched.scrape_s)
    values = {variable.name: variable.first for variable in board.templating["list"]} | {
        "run": watched.run,
        "baseline": watched.baseline,
        "__rate_interval": f"{math.ceil(rate_s)}s",
        "__range": f"{math.ceil(watched.end_s - watched.start_s)}s",
    }
    return _VARIABLE.sub(lambda found: values[found.group(1)], expr)


def ask_boards(prometheus: Prometheus, boards: Sequence[Board], watched: Watched) -> tuple[AskedBoard, ...]:
    """Every panel of every board with its answers. Raises EnvironmentNotReadyError when Prometheus is gone."""
    return tuple(
        AskedBoard(
            uid=board.uid,
            title=board.title,
            description=board.description,
            annotations=tuple(_stretches(prometheus, board, watched)),
            panels=tuple(_panels(prometheus, board, watched)),
        )
        for board in boards
    )


def _panels(prometheus: Prometheus, board: Board, watched: Watched) -> Iterator[AskedPanel]:
    row = ""
    for panel in board.panels:
        if panel.type == "row":
            row = panel.title
            continue
        answers = tuple(_asked(prometheus, target, board, watched) for target in panel.targets)
        yield AskedPanel(
            id=panel.id, row=row, title=panel.title, type=panel.type, unit=panel.fields.defaults.unit,  # type: ignore[arg-type]  # a test knows all
            description=panel.description, targets=answers,
        )  # fmt: skip


def _asked(prometheus: Prometheus, target: _PanelQuery, board: Board, watched: Watched) -> AskedQuery:
    query = resolve(target.expr, board, watched)
    if target.instant:
        answer = prometheus.at(query, watched.end_s)
    else:
        answer = prometheus.over(query, watched.start_s, watched.end_s, watched.step_s)
    ordered = sorted(answer.series, key=lambda one: [(key, _natural(text)) for key, text in sorted(one.labels.items())])
    series = tuple(_told(one, target.legend, watched) for one in ordered)
    return AskedQuery(expr=target.expr, query=query, **asdict(replace(answer, series=series)))


def _natural(text: str) -> tuple[float, str]:
    """Numbers by value (buckets, ports), words after them."""
    try:
        return (float(text), "")
    except ValueError:
        return (math.inf, text)


def _told(one: Series, legend: str, watched: Watched) -> Series:
    name = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: one.labels.get(found.group(1), ""), legend)
    points = tuple((round(time_s - watched.start_s, 3), value) for time_s, value in one.points)
    return replace(one, name="" if legend == "__auto" else name, points=points)


def _stretches(prometheus: Prometheus, board: Board, watched: Watched) -> Iterator[Stretch]:
    for one in board.annotations["list"]:
        query = resolve(one.expr, board, watched)
        answer = prometheus.over(query, watched.start_s, watched.end_s, watched.step_s)
        for series in (_told(found, one.title, watched) for found in answer.series):
            for start_s, end_s in runs_of([time_s for time_s, _ in series.points], watched.step_s):
                yield Stretch(name=one.name, title=series.name, start_s=start_s, end_s=end_s)  # type: ignore[arg-type]  # a test knows all


def runs_of(times: Sequence[float], step_s: float) -> Iterator[tuple[float, float]]:
    """Points that follow each other by one step belong together: yield where each such run begins and ends."""
    ends = [index for index, (one, other) in enumerate(pairwise(times)) if other - one > 1.5 * step_s]
    begins = [0, *(index + 1 for index in ends)]
    if times:
        yield from ((times[begin], times[end]) for begin, end in zip(begins, [*ends, -1], strict=True))
