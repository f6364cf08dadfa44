"""What panels.json holds: *every board's panels, and what Prometheus answered to each of their queries*."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from bench.measure.section import Section, says


class Series(Section, frozen=True, kw_only=True):
    """One series: (time in seconds, value) with null for NaN and infinity."""

    name: Annotated[str, says("as in the panel's legend")] = ""
    labels: Annotated[dict[str, str], says("what tells it from the others")]
    points: Annotated[tuple[tuple[float, float | None], ...], says("time in s after start_s, and value")]

    @property
    def last(self) -> float | None:
        """The last value that is a number."""
        return next((value for _, value in reversed(self.points) if value is not None), None)


class Answer(Section, frozen=True, kw_only=True):
    """What came back from Prometheus."""

    error: Annotated[str, says("why it could not be answered; empty when it was")] = ""
    warnings: Annotated[tuple[str, ...], says("of Prometheus, its hints included")] = ()
    series: Annotated[tuple[Series, ...], says("in the order of their labels")] = ()

    @property
    def has_data(self) -> bool:
        """Whether there is at least one number."""
        return any(one.last is not None for one in self.series)


class AskedQuery(Answer, frozen=True, kw_only=True):
    """A query of a panel, and its answer."""

    expr: Annotated[str, says("as in the board, with its variables")]
    query: Annotated[str, says("as Prometheus was asked")]


class AskedPanel(Section, frozen=True, kw_only=True):
    """A panel."""

    id: Annotated[int, says("on its board")]
    row: Annotated[str, says("the heading it stands under")]
    title: Annotated[str, says("on its head")]
    type: Annotated[Literal["stat", "timeseries", "bargauge", "heatmap", "table"], says("how Grafana draws it")]
    unit: Annotated[str, says("as Grafana names it")]
    description: Annotated[str, says("what it shows")]
    targets: Annotated[tuple[AskedQuery, ...], says("its queries")]


class Stretch(Section, frozen=True, kw_only=True):
    """A time that a board marks."""

    name: Annotated[Literal["Faults", "Run start and end", "Measured time"], says("of the annotation")]
    title: Annotated[str, says("what was in force")]
    start_s: Annotated[float, says("after the document's start_s")]
    end_s: Annotated[float, says("after the document's start_s")]


class AskedBoard(Section, frozen=True, kw_only=True):
    """A board."""

    uid: Annotated[str, says("in Grafana")]
    title: Annotated[str, says("on its head")]
    description: Annotated[str, says("what it shows")]
    annotations: Annotated[tuple[Stretch, ...], says("faults, runs and measured times")]
    panels: Annotated[tuple[AskedPanel, ...], says("in the order they are read")]


class Panels(Section, frozen=True, kw_only=True):
    """panels.json of lockbench observe."""

    schema_version: Annotated[Literal[1], says("version of this document's form")] = 1
    id: Annotated[str, says("the run's id, as in result.json beside it")]
    command: Annotated[tuple[str, ...], says("as typed, without secrets")]
    start_s: Annotated[float, says("where time begins, in seconds since the epoch")]
    end_s: Annotated[float, says("when Prometheus last saw the run, in seconds since the epoch")]
    step_s: Annotated[float, says("from point to point")]
    prometheus: Annotated[str, says("its version")]
    by_collector: Annotated[bool, says("whether the data came through an OpenTelemetry Collector")]
    boards: Annotated[tuple[AskedBoard, ...], says("in the order they are read")]

    @property
    def panels(self) -> list[AskedPanel]:
        """Those of all boards."""
        return [panel for board in self.boards for panel in board.panels]

    @property
    def full(self) -> int:
        """How many panels have data."""
        return sum(any(target.has_data for target in panel.targets) for panel in self.panels)

    def complaints(self) -> Iterator[str]:
        """Yield what Prometheus complained of."""
        for panel in self.panels:
            for target in panel.targets:
                yield from filter(None, (*target.warnings, target.error))


RESULT = Panels
