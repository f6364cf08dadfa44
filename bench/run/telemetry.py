"""Telemetry around one run: *OTEL_* variables, the run and its servers → an exporter beside it, or nothing*.

Rules: without a wish for telemetry nothing of it is imported or asked; a collector's troubles become a warning of the
result, and only what is wrong before the load starts stops the run.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.errors import BenchError
from bench.measure.run_result import SafetyReport
from bench.run.faults import FaultTimeline
from bench.run.servers import Servers
from bench.safety.judge import LiveJudge
from bench.telemetry.run import FSYNCS, Run
from bench.telemetry.settings import settings_of
from bench.topology.faults.injection import Site
from bench.topology.probe import InfoWatch

if TYPE_CHECKING:
    from bench.telemetry.exporter import Exporter

HURRIED_S = 1.0


class RunTelemetry:
    """What a run exports, if `environ` asks for anything: `start` with the load, `finish` with the result."""

    def __init__(
        self,
        run: Run,
        servers: Servers,
        workdir: Path,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Prepare it; what the servers are is added to `run`. Raises BenchError when it cannot be had."""
        self._export: tuple[Exporter, InfoWatch] | None = None
        self._timeline: FaultTimeline | None = None
        self._live: LiveJudge | None = None
        self._asked_ns = 0
        if settings := settings_of(environ):
            from bench.telemetry import exporter

            asked = InfoWatch(servers.urls, partial(_syncs, servers.site))
            sources = exporter.Sources(infos=lambda: asked.infos, faults=self.faults, judged=self.judged)
            self._export = exporter.Exporter(settings, run.seen(servers.facts), workdir, sources), asked

    def start(self, timeline: FaultTimeline, live: LiveJudge) -> None:
        """The load starts, with these faults and this judge of what is known by now."""
        self._timeline, self._live = timeline, live
        for part in reversed(self._export or ()):
            part.start()

    def finish(self, safety: SafetyReport, *, hurried: bool = False) -> list[str]:
        """Export what the run came to; return warnings. `hurried`: somebody waits, so a collector gets little time."""
        if self._export is None:
            return []
        (exporter, asked), self._export = self._export, None
        asked.stop()
        return exporter.finish(safety, HURRIED_S) if hurried else exporter.finish(safety)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        """Without a result nothing more is exported."""
        if self._export is not None:
            exporter, asked = self._export
            asked.stop()
            exporter.abort()

    def judged(self) -> tuple[int, Mapping[str, int]] | None:
        """How many leases were judged by now, and the violations by kind."""
        return None if self._live is None else (self._live.verdict.leases, self._live.verdict.counts)

    def faults(self) -> Sequence[tuple[str, str, bool]]:
        """Kind, target and whether it has been in force since the last time this was asked: a short one shows, too."""
        asked_ns, self._asked_ns = self._asked_ns, time.monotonic_ns()
        events = self._timeline.events if self._timeline is not None else ()
        return [
            (event.order.kind, event.order.target, bool(event.begun_ns and (event.ended_ns or asked_ns) >= asked_ns))
            for event in events
        ]


def _syncs(site: Site, index: int) -> Mapping[str, int]:
    """What INFO does not say: how often an instance has synced, where the shim counts it."""
    with suppress(BenchError, LookupError):
        return {FSYNCS: site.control(index).syncs}
    return {}
