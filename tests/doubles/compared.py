"""Entries of a comparison's result: whole ones, of which a test says only what it is about."""

from typing import Any

from bench.experiments.compare.result import ComparedRun, Judged, RunSafety
from bench.measure.run_result import JudgedThreshold
from bench.measure.verdict import TESTED_LEAST


def compared_run(side: int = 0, status: Any = "pass", **more: Any) -> ComparedRun:
    """A run of a side that ended well, unless `status` says otherwise."""
    safety = RunSafety(verdict="SAFE", service_faults=0, tested_leases=TESTED_LEAST)
    usual = {"pair": 0, "id": "x", "reasons": ("so it was",), "generator_cpu_ratio": None}
    return ComparedRun(
        side=side,
        status=status,
        **{**usual, "safety": safety, "figures": {}, "thresholds": (), **more},
    )


def judged(verdict: Any, **more: Any) -> Judged:
    """One figure of the candidate, judged by ten pairs."""
    usual = {
        "metric": "rate",
        "unit": "per_s",
        "higher_is_better": True,
        "first": 1.0,
        "second": 0.8,
        "pairs": 10,
        "paired": True,
        "ratio": 0.8,
        "label": "new",
        "reason": "why",
        "noisy": verdict == "inconclusive",
    }
    return Judged(verdict=verdict, **{**usual, **more})


def limit(
    status: Any, value: float | None = None, path: str = "latency_s.acquire_all.p99"
) -> JudgedThreshold:
    """A limit `x` of a run, judged."""
    return JudgedThreshold(
        expression="x",
        metric="acquire.p99",
        path=path,
        operator="<",
        limit=1.0,
        unit="s",
        value=value,
        margin=None,
        status=status,
        reason="why" if status == "inconclusive" else None,
    )
