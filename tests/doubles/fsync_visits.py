"""Visits of fsync cells made by hand: as many locks, fsyncs and milliseconds as a test says."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.experiments.durability import price_judge as product
from bench.experiments.durability.command import REPEATS
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.price_result import FsyncRow, LoadSeen, VisitSeen
from bench.measure.histogram import Histogram
from bench.measure.section import typed


def rows_of(visits: Iterable[dict[str, Any]]) -> list[FsyncRow]:
    """The rows of visits made by hand."""
    return product.rows_of(typed(list(visits), list[VisitSeen]))


def turns(visits: Iterable[dict[str, Any]], count: int = REPEATS) -> list[dict[str, Any]]:
    """Each of these visits as often as policies take turns, so that all make pairs."""
    return [visit | {"repeat": turn} for visit in visits for turn in range(count)]


def sustained(made: dict[str, Any]) -> bool | None:
    """Whether an open load kept up."""
    return product.sustained([typed(made, LoadSeen)])


def crash_of(*cells: dict[str, Any], groups: Sequence[dict[str, Any]] = ()) -> CrashResult:
    """A stored crash result, but with these rows and groups."""
    old = json.loads(
        (Path(__file__).parents[1] / "histories/results/crash.json").read_text("utf-8")
    )
    row = old["rows"][0]
    group = old["groups"][0]
    old["conditions"] |= {"cuts_per_cell": 40, "instances": [1, 3, 5]}
    made = {
        "rows": [row | cell for cell in cells],
        "groups": [group | one for one in groups],
        "id": "c0ffee00",
    }
    return typed(old | made, CrashResult)


def load(
    granted: int = 1000,
    *,
    rate: float | None = None,
    due: int | None = None,
    ms: float = 1.0,
    fsyncs: int | None = 100,
    cpu: float = 0.5,
    **more: Any,
) -> dict[str, Any]:
    """One load of one second: `granted` locks, each after `ms`."""
    histogram = Histogram()
    histogram.add(np.full(granted, int(ms * 1e6), np.int64))
    littles_law_ratio = 1.0 if rate is None else None
    lateness_p99_ns = None if rate is None else 1000
    return {
        "seconds": 1.0,
        "granted": granted,
        "due": due,
        "histogram": histogram.encode(),
        "max_ns": histogram.max_ns,
        "sum_ns": histogram.sum_ns,
        "leases": granted,
        "denied": {},
        "release_failures": 0,
        "wanted_ratio": cpu,
        "littles_law_ratio": littles_law_ratio,
        "lateness_p99_ns": lateness_p99_ns,
        "rate_per_s": rate,
        "fsyncs": fsyncs,
        "elapsed_s": 1.0,
        "server_cpu_s": 0.1,
        "aof_delayed_fsync": 0,
    } | more


def visit(
    policy: str,
    granted: int = 1000,
    *,
    instances: int = 1,
    shape: tuple[int, int] = (1, 1),
    ms: float = 2.0,
    disk_s: float | None = 0.0001,
    hold: str = "0",
    **more: Any,
) -> dict[str, Any]:
    """One visit: a maximum of `granted` locks per second, an open loop that keeps up, `ms` added to
    every fsync."""
    cell = {
        "policy": policy,
        "instances": instances,
        "clients": shape[0],
        "pipeline": shape[1],
        "injected_ms": 0.0 if policy == "none" else ms,
        "hold": hold,
    }
    due = int(0.8 * granted)
    loads = {"max": load(granted, **more), "80%": load(due, rate=0.8 * granted, due=due, **more)}
    disk = (
        None
        if disk_s is None
        else {"count": 100, "p50_s": disk_s, "p99_s": 2 * disk_s, "max_s": 3 * disk_s}
    )
    return {"repeat": 0, "cell": cell, "disk": disk, "loads": loads}


def cut(
    policy: str, restart: str, *, instances: int = 3, grants: int = 0, lost: int = 0, **more: Any
) -> dict[str, Any]:
    """A row of a crash result: 40 power cuts of all instances."""
    window_s = {"median": 0.4, "max": 0.9} if lost else {"median": None, "max": None}
    unavailable_s = {"median": 0.1, "max": 0.2}
    if restart == "delayed":
        unavailable_s = {"median": 2.0, "max": 2.2}
    return {
        "instances": instances,
        "quorum": instances // 2 + 1,
        "policy": policy,
        "kind": "power-cut",
        "crashed": instances,
        "restart": restart,
        "margin": 0,
        "abstention": False,
        "cuts": 40,
        "asked": 400,
        "lost_per_cut": {"median": lost / 2, "max": lost},
        "lost_window_s": window_s,
        "double_grants": grants,
        "unavailable_s": unavailable_s,
    } | more
