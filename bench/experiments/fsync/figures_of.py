"""What an fsync policy costs: *visits of cells → a row per cell and load, with spread*.

Rules: pure. Histograms of repeats are merged, percentiles never averaged; a figure with a spread is the median over the
repeats with the lowest and highest beside it. What a server did is divided by the leases of the same time. fsyncs are
per instance. An open load is sustained unless it fell behind its schedule by more than 1 % and more than chance.
A load process that ran or waited for a core 0.9 of the time was
the limit. Source: the sections of bench.experiments.fsync.visit; README, "Choosing an fsync policy".
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.measure.generator import BUSY_CORE, LATENESS_SHARE, LITTLE_TOLERANCE, LITTLE_USERS
from bench.measure.histogram import Histogram
from bench.measure.latency import block

Row = dict[str, Any]
BEHIND_SHARE = 0.01
BEHIND_SIGMAS = 2.0  # of the number of arrivals, which is a Poisson count
CELL_KEYS = ("instances", "policy", "clients", "pipeline", "injected_ms", "rewrite")
_POLICY_ORDER = ("none", "no", "everysec", "always", "waitaof")


def rows_of(visits: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per cell and load, in a fixed order. A visit: `cell`, `disk`, `loads` by name."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for visit in visits:
        cells.setdefault(tuple(visit["cell"][key] for key in CELL_KEYS), []).append(visit)
    rows = []
    for key in sorted(cells, key=_rank):
        cell = dict(zip(CELL_KEYS, key, strict=True))
        for name in cells[key][0]["loads"]:
            disks = [visit["disk"] for visit in cells[key]]
            rows.append(_row(cell, name, [visit["loads"][name] for visit in cells[key]], disks))
    return rows


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, lowest and highest; None unless all values are known."""
    known = list(values)
    if not known or None in known:
        return None
    numbers = [float(value) for value in known if value is not None]
    return {"median": statistics.median(numbers), "low": min(numbers), "high": max(numbers)}


def find_rows(rows: Iterable[Row], load: str = "max", **wanted: Any) -> list[Row]:
    """The rows of one load whose cells have these values, rewrites off unless asked for."""
    wanted = {"rewrite": "off", **wanted}
    return [row for row in rows if row["load"] == load and all(row[key] == value for key, value in wanted.items())]


def costs_of_pair(rows: Sequence[Row], fast: str, slow: str) -> list[Row]:
    """What policy `slow` costs: the maximum under `fast` ÷ that under it, per N, shape and added latency, of medians of
    interleaved repeats. `generator_bound`: the load process was the limit of one, so the ratio is understated."""
    costs = []
    for slower in find_rows(rows, policy=slow):
        cell = {key: slower[key] for key in ("instances", "clients", "pipeline", "injected_ms")}
        for faster in find_rows(rows, policy=fast, **cell):
            if rate_of(slower):
                bound = faster["generator"]["bound"] or slower["generator"]["bound"]
                ratio = rate_of(faster) / rate_of(slower)
                costs.append({**cell, "callers": slower["callers"], "ratio": ratio, "generator_bound": bound})
    return costs


def rate_of(row: Row) -> float:
    """Leases per second, the median."""
    return float(row["acquired_per_s"]["median"])


def _rank(key: tuple[Any, ...]) -> tuple[Any, ...]:
    instances, policy, clients, pipeline, injected_ms, rewrite = key
    return instances, clients * pipeline, clients, injected_ms, rewrite != "off", rewrite, _POLICY_ORDER.index(policy)


def _row(cell: Row, name: str, loads: Sequence[Row], disks: Sequence[Row | None]) -> Row:
    histograms = [_histogram(load) for load in loads]
    merged = Histogram.merged(histograms)
    per_repeat = [histogram.percentile(99) for histogram in histograms]
    figures = _per(loads, lambda load: load["granted"] / load["seconds"])
    return {
        **cell,
        "callers": cell["clients"] * cell["pipeline"],
        "load": name,
        "repeats": len(loads),
        "offered_per_s": _per(loads, lambda load: load["rate_per_s"]),
        "acquired_per_s": figures,
        "sustained": sustained(loads),
        "acquire_s": block(merged),
        "p99_s": spread(None if value is None else value / 1e9 for value in per_repeat),
        "fsyncs_per_s": _per(loads, lambda load: _over(load["fsyncs"], load["elapsed_s"] * cell["instances"])),
        "locks_per_fsync": _per(loads, lambda load: _over(load["leases"] * cell["instances"], load["fsyncs"])),
        "server_cpu_us_per_lock": _per(loads, lambda load: _over(load["server_cpu_s"], load["leases"], 1e6)),
        "busiest_server_ratio": _per(loads, lambda load: load["busiest_server_ratio"]),
        "aof_delayed_fsync": _sum(load["aof_delayed_fsync"] for load in loads),
        "latency_events": _events(loads),
        "rewrite_took_s": _per(loads, lambda load: (load["rewrite"] or {}).get("took_s")),
        "rewrite_fsyncs_per_s": _per(loads, _rewrite_fsyncs_per_s),
        "leases": sum(load["leases"] for load in loads),
        "denied": dict(sum((Counter(load["denied"]) for load in loads), Counter())),
        "release_failures": sum(load["release_failures"] for load in loads),
        "waitaof": dict(sum((Counter(load["waitaof"]) for load in loads), Counter())) if loads[0]["waitaof"] else None,
        "disk_fdatasync_s": _disk(disks),
        "generator": _generator(cell, loads, merged.percentile(99)),
        "histogram": merged.encode(),
    }


def sustained(loads: Sequence[Row]) -> bool | None:
    """Whether as many were granted as were due, but for 1 % or chance; None in closed loop."""
    if loads[0]["due"] is None:
        return None
    due, granted = sum(load["due"] for load in loads), sum(load["granted"] for load in loads)
    return bool(due - granted <= max(BEHIND_SHARE * due, BEHIND_SIGMAS * math.sqrt(due)))


def _histogram(load: Row) -> Histogram:
    histogram = Histogram.decode(load["histogram"])
    histogram.max_ns, histogram.sum_ns = load["max_ns"], load["sum_ns"]
    return histogram


def _per(loads: Sequence[Row], figure: Callable[[Row], float | None]) -> dict[str, float] | None:
    return spread(map(figure, loads))


def _over(part: float | None, whole: float | None, factor: float = 1.0) -> float | None:
    return None if part is None or not whole else part * factor / whole


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _events(loads: Sequence[Row]) -> Row | None:
    """Per event: seconds in which it was noted, longest (ms), over all repeats; None when the servers do not watch."""
    if any(load["latency_events"] is None for load in loads):
        return None
    found: Row = {}
    for load in loads:
        for name, event in load["latency_events"].items():
            before = found.get(name, {"seconds": 0, "max_ms": 0})
            found[name] = {
                "seconds": before["seconds"] + event["seconds"],
                "max_ms": max(before["max_ms"], event["max_ms"]),
            }
    return found


def _rewrite_fsyncs_per_s(load: Row) -> float | None:
    rewrite = load["rewrite"] or {}
    return _over(rewrite.get("fsyncs"), rewrite.get("took_s"))


def _disk(disks: Sequence[Row | None]) -> Row | None:
    """The disk as it was measured before each visit, nothing added: the medians of p50 and of p99, the largest."""
    known = [disk for disk in disks if disk]
    if not known:
        return None
    p99s = [disk["p99_s"] for disk in known if disk["p99_s"] is not None]
    return {
        "p50": statistics.median(disk["p50_s"] for disk in known),
        "p99": statistics.median(p99s) if p99s else None,
        "max": max(disk["max_s"] for disk in known),
    }


def _generator(cell: Row, loads: Sequence[Row], p99_ns: int | None) -> Row:
    cpu_ratio = max(load["cpu_ratio"] for load in loads)
    wanted_ratio = statistics.median(load["cpu_ratio"] + load["cpu_wait_ratio"] for load in loads)
    littles = [load["littles_law_ratio"] for load in loads]
    late = [load["lateness_p99_ns"] for load in loads if load["lateness_p99_ns"] is not None]
    reason = None
    little = None if None in littles else statistics.median(littles)
    if little is not None and cell["clients"] * cell["pipeline"] >= LITTLE_USERS and abs(little - 1) > LITTLE_TOLERANCE:
        reason = f"Little's ratio is {little:.2f}: not all callers were at work"
    lateness_ns = statistics.median(late) if late else None
    if lateness_ns is not None and p99_ns is not None and lateness_ns > LATENESS_SHARE * p99_ns:
        reason = f"the timer was late by {lateness_ns / 1e6:.3g} ms (p99), over 10 % of the p99 shown"
    return {
        "cpu_ratio": cpu_ratio,
        "wanted_ratio": wanted_ratio,
        "bound": wanted_ratio >= BUSY_CORE,
        "littles_law_ratio": little,
        "lateness_p99_s": None if lateness_ns is None else lateness_ns / 1e9,
        "verdict": "INVALID" if reason else "VALID",
        "reason": reason,
    }
