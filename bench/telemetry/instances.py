"""The instances, as they and the load see them: *INFO, workers' notes, observed attempts → data points of this run*.

Rules
- A counter of INFO holds what was added since the first answer: it starts at 0 with the run and goes on after a
  restart, which is another `run_id`.
- While an instance does not answer, its counters stay as they are, and its gauges are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.measure.workers import WorkerNote, added
from bench.telemetry.load_log import ObservedAttempt
from bench.telemetry.points import Buckets, DataPoint, point
from bench.telemetry.run import Address
from bench.telemetry.table import BY_NAME, CPU_STATES, InstrumentKind

Fields = Mapping[str, Any]  # of INFO
Info = Fields | None  # one instance's INFO; None: it did not say
FSYNCS = "lockbench_fsyncs"  # no field of INFO: put there by whoever has the shim, which outlives its server

_FIELDS = {
    "redis.uptime": "uptime_in_seconds",
    "redis.commands.processed": "total_commands_processed",
    "redis.keys.expired": "expired_keys",
    "redis.aof.fsyncs": FSYNCS,
    "redis.aof.delayed_fsyncs": "aof_delayed_fsync",
    "redis.aof.size": "aof_current_size",
    "redis.aof.rewrites": "aof_rewrites",
    "redis.aof.rewrite_in_progress": "aof_rewrite_in_progress",
}
_SILENT_OR_ERROR = ("errored", "silent")
_CPU = {state: f"used_cpu_{state}" for state in CPU_STATES}
_COUNTERS = {name: field for name, field in _FIELDS.items() if BY_NAME[name].kind is InstrumentKind.COUNTER}
_GAUGES = {name: field for name, field in _FIELDS.items() if BY_NAME[name].kind is InstrumentKind.GAUGE}


class InfoTotals:
    """What INFO of the instances at `addresses` adds up to since the run began."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._known = [_Server() for _ in addresses]

    def note(self, infos: Sequence[Info]) -> None:
        """Take what they say now; the same answer twice counts once."""
        for server, info in zip(self._known, infos, strict=False):
            server.note(info)

    def points(self) -> Iterator[DataPoint]:
        """Counters of every instance that has ever answered, gauges of those that did now."""
        for server, (host, port) in zip(self._known, self._addresses, strict=True):
            yield from server.points({"server_address": host, "server_port": port})


class _Server:
    def __init__(self) -> None:
        self._now: Info = None
        self._before: Fields = {}
        self._added: dict[str, float] = {}
        self._restarts = 0

    def note(self, info: Info) -> None:
        self._now = info
        if info is None:
            return
        restarted = bool(self._before) and self._before.get("run_id") != info.get("run_id")
        self._restarts += restarted
        for field in (*_COUNTERS.values(), *_CPU.values()):
            if (value := info.get(field)) is not None:
                before = self._before.get(field, value)
                if field != FSYNCS and (restarted or value < before):
                    before = 0
                self._added[field] = self._added.get(field, 0) + max(value - before, 0)
        self._before = {**self._before, **info}

    def points(self, where: Mapping[str, str | int]) -> Iterator[DataPoint]:
        if not self._before:
            return
        yield point("redis.restarts", self._restarts, **where)
        for state, field in _CPU.items():
            if field in self._added:
                yield point("redis.cpu.time", float(self._added[field]), state=state, **where)
        for name, field in _COUNTERS.items():
            if field in self._added:
                yield point(name, int(self._added[field]), **where)
        for name, field in _GAUGES.items():
            if self._now is not None and (value := self._now.get(field)) is not None:
                yield point(name, int(value), **where)


def instance_points(notes: Sequence[WorkerNote], addresses: Sequence[Address]) -> Iterator[DataPoint]:
    """The instances as the load sees them, over all processes."""
    for index, (host, port) in enumerate(addresses):
        seen = [note.instances[index] for note in notes if len(note.instances) > index]
        if not seen:
            continue
        where: dict[str, str | int] = {"server_address": host, "server_port": port}
        states = [status.state for status in seen]
        yield point("redlock.instance.voting", int(all(state == "voting" for state in states)), **where)
        yield point("redlock.instance.abstaining", int("abstaining" in states), **where)
        yield point("redlock.instance.commands", sum(status.commands for status in seen), **where)
        yield point("redlock.instance.reconnects", sum(status.reconnects for status in seen), **where)
        for kind, number in added(status.errors for status in seen).items():
            yield point("redlock.instance.errors", number, error_type=kind, **where)


class AnswerTimes:
    """How long each instance takes to answer a SET, from observed attempts."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._buckets: dict[tuple[int, str], Buckets] = {}

    def note(self, attempts: Sequence[ObservedAttempt]) -> None:
        """Count the answers of these attempts; a silent instance took until the round closed."""
        times_ns = defaultdict[tuple[int, str], list[int]](list)
        for attempt in attempts:
            for index, ask in enumerate(attempt.asks):
                if ask.sent_ns:
                    error = ask.vote if ask.vote in _SILENT_OR_ERROR else ""
                    took_ns = max((ask.replied_ns or attempt.closed_ns) - ask.sent_ns, 0)
                    times_ns[index, error].append(took_ns)
        for key, times in times_ns.items():
            self._buckets.setdefault(key, Buckets()).add(np.array(times, np.int64))

    def points(self) -> Iterator[DataPoint]:
        """One histogram per instance and error."""
        for (index, error), buckets in self._buckets.items():
            host, port = self._addresses[index]
            failed: dict[str, str | int] = {"error_type": error} if error else {}
            yield point(
                "db.client.operation.duration", buckets, db_system_name="redis", db_operation_name="SET",
                server_address=host, server_port=port, **failed,
            )  # fmt: skip
