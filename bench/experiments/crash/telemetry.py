"""What crashes cost, as metrics: *cuts → `redlock.crash.*` by AOF policy, exported once*.

Rules: the sums are those of the result's cuts, each lock counted once; one run per policy, so that boards can set them
side by side; a collector's troubles become warnings. Source: bench.experiments.crash.judge; the instrument table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bench.errors import BenchError
from bench.experiments.crash.judge import CutFacts
from bench.telemetry.points import Buckets, DataPoint, point
from bench.telemetry.run import Run
from bench.telemetry.settings import is_wanted
from lockcore.clock import NS_PER_S


def export_crashes(run_id: str, cuts: Sequence[CutFacts], environ: Mapping[str, str]) -> list[str]:
    """Export what `cuts` came to, if `environ` asks for telemetry. Returns warnings; never costs the result."""
    if not is_wanted(environ):
        return []
    from bench.telemetry.otlp import export_once

    warnings: list[str] = []
    for policy in dict.fromkeys(cut.crash.policy for cut in cuts):
        of_it = [cut for cut in cuts if cut.crash.policy == policy]
        most = max(cut.crash.instances for cut in of_it)
        run = Run(
            id=run_id, recipe="redlock", fsync=policy, addresses=[("127.0.0.1", 0)] * most, users=1, processes=1,
            rate_per_s=None, instance_timeout_ms=0.0, instance=f"{run_id}-{policy}",
        )  # fmt: skip
        try:
            warnings += export_once(run, tuple(_points(of_it)), environ)
        except BenchError as error:
            warnings.append(str(error))
    return list(dict.fromkeys(warnings))


def _points(cuts: Sequence[CutFacts]) -> Iterator[DataPoint]:
    figures = [cut.of() for cut in cuts]
    windows = Buckets()
    windows.add(np.array([round(window_s * NS_PER_S) for *_, window_s in figures if window_s is not None], np.int64))
    yield point("redlock.crash.lost_locks", sum(lost for _, _, lost, _ in figures))
    yield point("redlock.crash.lost_window", windows)
    yield point("redlock.crash.double_grants", sum(one.double_grants for cut in cuts for one in cut.asked))
