"""One run, apart from its operations and instances: *scenario, servers, workers' notes → Run, data points*.

Rules: pure; what is not known makes no point, never a 0 that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from bench.measure.environment import version_of
from bench.measure.histogram import Histogram
from bench.measure.workers import WorkerNote
from bench.telemetry.points import Buckets, DataPoint, point
from bench.telemetry.table import PHASES
from lockcore.clock import NS_PER_MS

Address = tuple[str, int]
PATCHED_WITHIN_NS = 2_000 * NS_PER_MS  # the workers patch votes once a second


@dataclass(frozen=True, slots=True)
class Run:
    """One run, or one process's share of it. `addresses`: host and port of each instance (port 0: a unix socket).

    `fsync`: one of table.POLICIES. `instance`: tells the exporters of one run apart. `duration_ns` None: no end.
    """

    id: str
    recipe: str
    fsync: str
    addresses: Sequence[Address]
    users: int
    processes: int
    rate_per_s: float | None
    instance_timeout_ms: float
    warmup_ns: int = 0
    duration_ns: int | None = None
    instance: str = ""

    @property
    def quorum(self) -> int:
        """Votes that win."""
        return len(self.addresses) // 2 + 1

    @property
    def common(self) -> tuple[tuple[str, str], ...]:
        """The attributes of every data point."""
        return ("redlock.recipe", self.recipe), ("redlock.fsync", self.fsync)

    def resource(self, service_name: str | None) -> dict[str, str]:
        """What exports, as OpenTelemetry wants it said."""
        return {
            "service.name": service_name or "lockbench",
            "service.instance.id": self.instance or self.id,
            "service.version": _version(),
            "redlock.run.id": self.id,
            **dict(self.common),
        }

    @property
    def settle_ns(self) -> int:
        """So long after an operation's end its votes are patched no more."""
        return PATCHED_WITHIN_NS + int(2 * self.instance_timeout_ms * NS_PER_MS)


def address_of(text: str) -> Address:
    """Host and port of `host:port` or `[host]:port`; anything else is a unix socket's path, with port 0."""
    host, colon, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdigit() else (text, 0)


def policy_of(policies: Iterable[str | None]) -> str:
    """One of table.POLICIES for the instances' AOF policies; None: it did not say."""
    known = set(policies) - {None}
    return str(known.pop()) if len(known) == 1 else "mixed" if known else "unknown"


@cache
def _version() -> str:
    return version_of("lockbench") or "unknown"


def run_points(run: Run) -> Iterator[DataPoint]:
    """What stays the same."""
    yield point(
        "redlock.run.info", 1, redlock_users=run.users, redlock_instances=len(run.addresses),
        redlock_processes=run.processes, redlock_loop="closed" if run.rate_per_s is None else "open",
        service_version=_version(),
    )  # fmt: skip
    yield point("redlock.quorum.size", run.quorum)
    if run.rate_per_s is not None:
        yield point("redlock.load.offered", run.rate_per_s)


def phase_of(run: Run, notes: Sequence[WorkerNote], now_ns: int) -> str | None:
    """The part of the run at `now_ns` (monotonic); None before all workers have spawned their users."""
    begun = [note.spawned_ns for note in notes]
    if len(begun) < run.processes or not all(begun):
        return None
    since_ns = now_ns - max(begun)
    if all(note.phase == "stopped" for note in notes):
        return "draining"
    if since_ns < run.warmup_ns:
        return "warm_up"
    if run.duration_ns is not None and since_ns >= run.warmup_ns + run.duration_ns:
        return "draining"
    return "measuring"


def phase_points(phase: str | None) -> Iterator[DataPoint]:
    """1 for the phase the run is in, 0 for the others; all 0 when it has ended or not begun."""
    for name in PHASES:
        yield point("redlock.run.active", int(name == phase), redlock_run_phase=name)


def worker_points(notes: Sequence[WorkerNote]) -> Iterator[DataPoint]:
    """The load processes' own health."""
    yield point("redlock.load.late_starts", sum(note.late_starts for note in notes))
    yield point("redlock.load.queued_starts", sum(note.queued_starts for note in notes))
    for note in notes:
        yield point("redlock.client.cpu", max(note.cpu_s, 0.0), redlock_worker=note.worker)
        if note.lag_histogram:
            lag = Buckets.of_histogram(Histogram.decode(note.lag_histogram))
            yield point("redlock.scheduler.lag", lag, redlock_worker=note.worker)
