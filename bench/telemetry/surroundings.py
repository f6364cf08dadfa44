"""What is not an operation: *workers' notes, INFO of the servers, faults, the run itself → data points*.

Rules: nothing is asked for here, only translated; what is not known makes no point, never a 0 that nobody has seen.
Source: the notes of bench.workloads.note; INFO of Redis 7.0 and Valkey 9.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from bench.measure.histogram import Histogram
from bench.measure.workers import Worker, total
from bench.telemetry.attempts import Attempt
from bench.telemetry.attributes import PHASES
from bench.telemetry.buckets import Buckets
from bench.telemetry.points import Point, point
from bench.telemetry.run import Address, Run, version

_CLIENT_ERRORS = ("errored", "silent")


def run_points(run: Run) -> Iterator[Point]:
    """What stays the same."""
    yield point(
        "redlock.run.info", 1, redlock_users=run.users, redlock_instances=len(run.addresses),
        redlock_processes=run.processes, redlock_loop="closed" if run.rate_per_s is None else "open",
        service_version=version(),
    )  # fmt: skip
    yield point("redlock.quorum.size", run.quorum)
    if run.rate_per_s is not None:
        yield point("redlock.load.offered", run.rate_per_s)


def phase_of(run: Run, notes: Sequence[Worker], now_ns: int) -> str | None:
    """The part of the run at `now_ns` (monotonic); None before all workers have spawned their users."""
    begun = [int(note["spawned_ns"]) for note in notes]
    if len(begun) < run.processes or not all(begun):
        return None
    since_ns = now_ns - max(begun)
    if all(note["phase"] == "stopped" for note in notes):
        return "draining"
    if since_ns < run.warmup_ns:
        return "warm_up"
    if run.duration_ns is not None and since_ns >= run.warmup_ns + run.duration_ns:
        return "draining"
    return "measuring"


def phase_points(phase: str | None) -> Iterator[Point]:
    """1 for the phase the run is in, 0 for the others; all 0 when it has ended or not begun."""
    for name in PHASES:
        yield point("redlock.run.active", int(name == phase), redlock_run_phase=name)


def worker_points(notes: Sequence[Worker]) -> Iterator[Point]:
    """The load processes' own health."""
    yield point("redlock.load.late_starts", total(notes, "late_starts"))
    yield point("redlock.load.queued_starts", total(notes, "queued_starts"))
    for note in notes:
        index = int(note["worker"])
        yield point("redlock.client.cpu", max(float(note["cpu_s"]), 0.0), redlock_worker=index)
        if note.get("lag_histogram"):
            lag = Buckets.of_histogram(Histogram.decode(note["lag_histogram"]))
            yield point("redlock.scheduler.lag", lag, redlock_worker=index)


def instance_points(notes: Sequence[Worker], addresses: Sequence[Address]) -> Iterator[Point]:
    """The instances as the load sees them, over all processes."""
    for index, (host, port) in enumerate(addresses):
        seen = [note["instances"][index] for note in notes if len(note.get("instances") or ()) > index]
        if not seen:
            continue
        where: dict[str, str | int] = {"server_address": host, "server_port": port}
        states = [status["state"] for status in seen]
        yield point("redlock.instance.voting", int(all(state == "voting" for state in states)), **where)
        yield point("redlock.instance.abstaining", int("abstaining" in states), **where)
        yield point("redlock.instance.commands", sum(int(status["commands"]) for status in seen), **where)
        yield point("redlock.instance.reconnects", sum(int(status["reconnects"]) for status in seen), **where)
        errors: Counter[str] = Counter()
        for status in seen:
            errors.update(status.get("errors") or {})
        for kind, number in errors.items():
            yield point("redlock.instance.errors", number, error_type=kind, **where)


class Replies:
    """How long each instance takes to answer a SET, from observed attempts."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._times_ns: dict[tuple[int, str], list[int]] = {}
        self._buckets: dict[tuple[int, str], Buckets] = {}
        self._operation: dict[str, str | int] = {"db_operation_name": "SET"}

    def note(self, attempts: Sequence[Attempt]) -> None:
        """Count the answers of these attempts; a silent instance took until the round closed."""
        for attempt in attempts:
            for index, ask in enumerate(attempt.asks):
                if ask.sent_ns:
                    error = ask.vote if ask.vote in _CLIENT_ERRORS else ""
                    took_ns = max((ask.replied_ns or attempt.closed_ns) - ask.sent_ns, 0)
                    self._times_ns.setdefault((index, error), []).append(took_ns)

    def adopt(self, notes: Sequence[Worker]) -> None:
        """For a recipe whose attempts are not observed: the reply times of any command, left by its workers."""
        if self._buckets or self._times_ns:
            return
        self._operation = {}
        for note in notes:
            for index, text in enumerate(note.get("reply_histograms") or ()):
                buckets = Buckets.of_histogram(Histogram.decode(text))
                known = self._buckets.setdefault((index, ""), Buckets())
                known.merge(buckets)

    def points(self) -> Iterator[Point]:
        """One histogram per instance and error."""
        for key, times_ns in self._times_ns.items():
            self._buckets.setdefault(key, Buckets()).add(np.array(times_ns, np.int64))
        self._times_ns = {}
        for (index, error), buckets in self._buckets.items():
            host, port = self._addresses[index]
            failed: dict[str, str | int] = {"error_type": error} if error else {}
            yield point(
                "db.client.operation.duration", buckets, db_system_name="redis",
                server_address=host, server_port=port, **self._operation, **failed,
            )  # fmt: skip
