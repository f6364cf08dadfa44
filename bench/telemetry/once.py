"""What is known only at the end: *points of a run that has ended → one export by OTLP*.

Rules: for commands whose figures come from many short lives of servers, not from one history; a page for scraping would
be gone before it was scraped, so there is none. Source: otlp.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.telemetry.otlp import CLOSE_S, open_otlp
from bench.telemetry.points import Point, Snapshot
from bench.telemetry.run import Run
from bench.telemetry.settings import settings_of

Environ = Mapping[str, str]


def export_once(run: Run, points: Sequence[Point], environ: Environ, within_s: float = CLOSE_S) -> list[str]:
    """Export `points` as those of `run`, if `environ` asks for it; wait `within_s` (s) at most. Returns warnings.

    Raises BenchError when a variable cannot be read or a package is missing.
    """
    settings = settings_of(environ)
    if settings is None or settings.metrics is None:
        return []
    otlp = open_otlp(replace(settings, traces=None), run.resource(settings.service_name), wall_ns=0)
    now_ns = time.time_ns()
    otlp.offer(Snapshot(now_ns, now_ns, run.common, points))
    otlp.close(within_s)
    return [*settings.warnings, *otlp.complaints(settings.endpoint)]
