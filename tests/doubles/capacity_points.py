"""Points of a capacity's result: whole ones, of which a test says only what it is about."""

from typing import Any

from bench.experiments.capacity.result import CapacityPoint, CapacityResult
from bench.measure.environment import Environment
from bench.measure.section import builtins_of, typed
from bench.measure.verdict import Verdict
from bench.scenario import load
from tests.bench.whole_run import SAMPLE

ACQUIRE = {"count": 30_000, "mean": 0.001, "p50": 0.0009, "p99": 0.0085, "p999": 0.012, "max": 0.03}
ATTAINED = {
    "within": 29_850,
    "operations": 30_000,
    "limit_s": 0.01,
    "rate": 0.995,
    "low": 0.9941,
    "high": 0.9958,
}
CPU = {"name": "server CPU of one instance", "ratio": 0.97, "text": "#2: 97 % of a core"}
INSTANCE = {
    "index": 2,
    "address": "127.0.0.1:40000",
    "cpu_ratio": 0.97,
    "cpu_us_per_command": 4.1,
    "reply_p50_s": 0.0003,
    "reply_p99_s": None,
    "delayed_fsyncs": 0,
}


def probe(rate: float, seen: str = "held", p99: float = 0.0085) -> dict[str, Any]:
    """One probe as it is stored."""
    return {
        "rate_per_s": rate,
        "step": "search",
        "seen": seen,
        "completed_per_s": rate,
        "users": 512,
        "acquire_s": {**ACQUIRE, "p99": p99},
        "attainment": ATTAINED,
        "uses": [CPU],
        "instances": [INSTANCE],
        "generator": {"cpu_ratio": 0.71, "late_s": 0.0031},
    }


def point(
    low: float | None = 11_200.0, high: float | None = 11_480.0, **given: Any
) -> CapacityPoint:
    """A point whose capacity lies between `low` and `high`; `given`: sections of it as they are
    stored."""
    middle = (low * high) ** 0.5 if low and high else None
    capacity = {"low": low, "high": high, "at_least": False, "likely": middle, "sure": 0.95}
    document = {
        "variables": {},
        "scenario": builtins_of(load(None, {"hold": "5ms", "duration": "3s"})),
        "fleet": SAMPLE["fleet"],
        "status": "pass",
        "reasons": [],
        "knee": {"rate_per_s": 9_500.0, "acquire_s": ACQUIRE},
        "headroom": {"ratio": 0.31, "acquire_s": {"value": 0.006, "low": 0.004, "high": 0.009}},
        "next_limit": {**CPU, "full_per_s": 11_700.0},
        "probes": [probe(low or 1.0)],
        "callers": [],
        "agreement": "64 callers in closed loop reached 11,300/s within the SLO: they agree",
        **given,
        "capacity": {**capacity, **given.get("capacity", {})},
    }
    return typed(document, CapacityPoint)


def capacity_result(*points: CapacityPoint) -> CapacityResult:
    """The result over these points."""
    return CapacityResult(
        id="x",
        command=("lockbench",),
        seed=1,
        started_at="2026-11-21T00:00:00Z",
        duration_s=100.0,
        environment=Environment(usable_cores=4, packages={}),
        slo=("acquire.p99 < 10ms",),
        target_rate_per_s=5_000.0,
        points=points,
        warnings=("fsync is cheap on this disk",),
        verdict=Verdict(status=points[0].status, reasons=points[0].reasons),
    )
