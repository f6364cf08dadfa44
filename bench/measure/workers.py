"""What the load processes said of themselves: *`worker-*.json` → totals over all of them*.

Rules: counts add up, histograms merge, a worker that never reported its end is named in a warning. Nothing here is
measured; it is only put together. Source: the folder protocol of a run (README of this folder).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.measure.histogram import Histogram
from bench.measure.latency import Latency
from bench.measure.outcomes import add_counts
from bench.measure.run_result import InstanceReport
from bench.measure.section import typed

Worker = Mapping[str, Any]

# worst last: what the summary must not hide
STATES = ("voting", "abstaining", "lagging", "refused", "down")
_SUMS = (
    "commands", "bytes_sent", "bytes_received", "writes", "reads", "late_replies", "pending", "owed_releases",
    "reconnects",
)  # fmt: skip


def read_workers(workdir: Path) -> list[Worker]:
    """All workers' files, by worker index. Each is replaced atomically, so reading while they run is safe."""
    workers = [json.loads(path.read_text("utf-8")) for path in workdir.glob("worker-*.json")]
    return sorted(workers, key=lambda worker: (int(worker["worker"]), int(worker["pid"])))


def total(workers: Sequence[Worker], key: str) -> int:
    """The sum of a count over the workers; one that lacks it adds 0."""
    return sum(int(worker.get(key) or 0) for worker in workers)


def cpu_s(workers: Sequence[Worker]) -> float:
    """CPU seconds of all load processes since their users ran."""
    return sum(float(worker.get("cpu_s") or 0.0) for worker in workers)


def cpu_ratio(workers: Sequence[Worker]) -> float | None:
    """The busiest worker's share of one core (0…1); None when no worker reported its end."""
    ratios = [
        float(worker.get("cpu_s") or 0.0) * 1e9 / (worker["stopped_ns"] - worker["spawned_ns"])
        for worker in workers
        if (worker.get("stopped_ns") or 0) > (worker.get("spawned_ns") or 0) > 0
    ]
    return max(ratios, default=None)


def scheduler_lag(workers: Sequence[Worker]) -> Histogram:
    """How late greenlets run in the load processes, over all of them."""
    return _merged(workers, "lag_histogram")


def timer_lateness(workers: Sequence[Worker]) -> Histogram:
    """How late the timer ended waits: for an operation that was due (open loop), of a think time (closed loop)."""
    return _merged(workers, "lateness_histogram")


def kept_ns(workers: Sequence[Worker], operations: int) -> float:
    """For how long (ns) the load processes kept a caller from its next operation, on average over all `operations`."""
    return total(workers, "kept_ns") / operations if operations else 0.0


def _merged(workers: Sequence[Worker], key: str) -> Histogram:
    return Histogram.merged(Histogram.decode(worker[key]) for worker in workers if worker.get(key))


def errors(workers: Sequence[Worker]) -> dict[str, int]:
    """Exceptions of the users by text."""
    counts: dict[str, int] = {}
    for worker in workers:
        counts = add_counts(counts, worker.get("errors") or {})
    return counts


def figures(workers: Sequence[Worker]) -> dict[str, int]:
    """What the recipe counted of itself, by name; what never happened is left out."""
    counts: dict[str, int] = {}
    for worker in workers:
        counts = add_counts(counts, worker.get("figures") or {})
    return {name: number for name, number in counts.items() if number}


def locust_totals(workers: Sequence[Worker], row: str) -> tuple[int, int]:
    """Requests and failures of a row (`acquire` or `release`) in Locust's own tables."""
    rows = [(worker.get("locust") or {}).get(row) or (0, 0) for worker in workers]
    return sum(int(requests) for requests, _ in rows), sum(int(failures) for _, failures in rows)


def warnings(workers: Sequence[Worker]) -> list[str]:
    """One sentence for each worker whose figures are not final."""
    return [
        f"worker {worker['worker']} (pid {worker['pid']}) did not report its end: its CPU, lag and counts (also in "
        "Locust's table) are those of its last report"
        for worker in workers
        if worker.get("phase") != "stopped"
    ]


def instances(workers: Sequence[Worker]) -> list[InstanceReport]:
    """The section `instances`: each instance as all workers together saw it, with its reply times in seconds."""
    count = max((len(worker.get("instances") or ()) for worker in workers), default=0)
    return [_instance(workers, index) for index in range(count)]


def _instance(workers: Sequence[Worker], index: int) -> InstanceReport:
    seen = [worker["instances"][index] for worker in workers if len(worker.get("instances") or ()) > index]
    worst = max(seen, key=lambda status: STATES.index(status["state"]))
    merged = {**worst, **{name: sum(int(status.get(name) or 0) for status in seen) for name in _SUMS}}
    merged["errors"] = {}
    for status in seen:
        merged["errors"] = add_counts(merged["errors"], status.get("errors") or {})
    return replace(typed(merged, InstanceReport, "a worker's note"), reply_s=Latency.of(_replies(workers, index)))


def reply_histograms(workers: Sequence[Worker]) -> dict[str, str]:
    """Each instance's reply times over all workers, encoded, as `reply_<index>`."""
    count = max((len(worker.get("reply_histograms") or ()) for worker in workers), default=0)
    return {f"reply_{index}": _replies(workers, index).encode() for index in range(count)}


def _replies(workers: Sequence[Worker], index: int) -> Histogram:
    return Histogram.merged(
        Histogram.decode(worker["reply_histograms"][index])
        for worker in workers
        if len(worker.get("reply_histograms") or ()) > index
    )
