"""The instances as they see themselves: *INFO, look by look → data points of this run*.

Rules
- A counter holds what was added since the first answer: it starts at 0 with the run, as every other does, however long
  its server has been up. What a server counts after a restart is added to what it had told before.
- A restart is another `run_id`; where INFO has none, an uptime that fell.
- While an instance does not answer, its counters stay as they are, and its gauges are left out.

Source: redis.io, INFO; OpenTelemetry's metrics data model, "Resets and gaps".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.telemetry.attributes import CPU_STATES
from bench.telemetry.points import Point, point
from bench.telemetry.run import Address
from bench.telemetry.table import BY_NAME, Kind

Info = Mapping[str, Any] | None  # one instance's INFO; None: it did not say
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
_CPU = {state: f"used_cpu_{state}" for state in CPU_STATES}
_COUNTERS = {name: field for name, field in _FIELDS.items() if BY_NAME[name].kind is Kind.COUNTER}
_GAUGES = {name: field for name, field in _FIELDS.items() if BY_NAME[name].kind is Kind.GAUGE}


class Servers:
    """What INFO of the instances at `addresses` adds up to since the run began."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._known = [_Server() for _ in addresses]

    def note(self, infos: Sequence[Info]) -> None:
        """Take what they say now; the same answer twice counts once."""
        for server, info in zip(self._known, infos, strict=False):
            server.note(info)

    def points(self) -> Iterator[Point]:
        """Counters of every instance that has ever answered, gauges of those that did now."""
        for server, (host, port) in zip(self._known, self._addresses, strict=True):
            yield from server.points({"server_address": host, "server_port": port})


class _Server:
    def __init__(self) -> None:
        self._now: Info = None
        self._before: Mapping[str, Any] = {}
        self._added: dict[str, float] = {}
        self._restarts = 0

    def note(self, info: Info) -> None:
        self._now = info
        if info is None:
            return
        restarted = bool(self._before) and _is_another(self._before, info)
        self._restarts += restarted
        for field in (*_COUNTERS.values(), *_CPU.values()):
            if (value := info.get(field)) is not None:
                before = self._before.get(field, value)
                if field != FSYNCS and (restarted or value < before):
                    before = 0
                self._added[field] = self._added.get(field, 0) + max(value - before, 0)
        self._before = {**self._before, **info}

    def points(self, where: Mapping[str, str | int]) -> Iterator[Point]:
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


def _is_another(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if "run_id" in before and "run_id" in now:
        return bool(before["run_id"] != now["run_id"])
    return int(now.get("uptime_in_seconds", 0)) < int(before.get("uptime_in_seconds", 0))
