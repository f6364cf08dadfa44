"""Counters of one instance over a run: *INFO before, INFO after → what happened in between*.

Rules: pure. A field is None when either side is unknown, and all are None when the instance restarted in between (its
counters started anew) with the warning saying so. Our own questions are in the counts: one INFO per snapshot and the
connection's handshake. CPU is the whole process with its background threads.
Source: INFO all of Redis 7.0 and Valkey 9.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_AOF_COUNTERS = ("aof_delayed_fsync", "aof_rewrites")
_AOF_NOW = (
    "aof_enabled",
    "aof_current_size",
    "aof_base_size",
    "aof_pending_bio_fsync",
    "aof_last_write_status",
    "aof_last_bgrewrite_status",
)
_COMMAND = "cmdstat_"


@dataclass(frozen=True, slots=True)
class InfoSnapshot:
    """One instance's INFO at `taken_ns` (monotonic), or None and why in `missing`."""

    address: str
    taken_ns: int
    values: Mapping[str, Any] | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class InfoDelta:
    """What an instance did between two snapshots; ready for JSON through dataclasses.asdict.

    `cpu_s` is system + user time without, `children_cpu_s` that of forked children (rewrites). `calls` and
    `usec_per_call` name the commands that ran ("set", "evalsha", "delifeq", …), a sub-command as "config|get". `aof`
    holds the increase of aof_delayed_fsync and aof_rewrites, and aof_* sizes and states as they are at the end.
    """

    address: str
    warning: str | None
    elapsed_s: float
    cpu_s: float | None = None
    children_cpu_s: float | None = None
    commands_processed: int | None = None
    calls: dict[str, int] = field(default_factory=dict)
    usec_per_call: dict[str, float] = field(default_factory=dict)
    expired_keys: int | None = None
    evicted_keys: int | None = None
    input_bytes: int | None = None
    output_bytes: int | None = None
    aof: dict[str, int | str] = field(default_factory=dict)


def delta(before: InfoSnapshot, after: InfoSnapshot) -> InfoDelta:
    """Return what one instance did from `before` to `after`, two snapshots of the same address."""
    elapsed_s = (after.taken_ns - before.taken_ns) / 1e9
    old, new = before.values, after.values
    if old is None or new is None:
        return InfoDelta(after.address, f"no counters: {before.missing or after.missing}", elapsed_s)
    if old.get("run_id") != new.get("run_id"):
        return InfoDelta(after.address, "no counters: it restarted in between", elapsed_s)

    def increase(*names: str) -> Any:
        if not all(name in values for name in names for values in (old, new)):
            return None
        return sum(new[name] - old[name] for name in names)

    calls, usec_per_call = _commands(old, new)
    aof = {name: new[name] for name in _AOF_NOW if name in new}
    aof |= {name: change for name in _AOF_COUNTERS if (change := increase(name)) is not None}
    return InfoDelta(
        after.address,
        None,
        elapsed_s,
        cpu_s=_rounded(increase("used_cpu_sys", "used_cpu_user")),
        children_cpu_s=_rounded(increase("used_cpu_sys_children", "used_cpu_user_children")),
        commands_processed=increase("total_commands_processed"),
        calls=calls,
        usec_per_call=usec_per_call,
        expired_keys=increase("expired_keys"),
        evicted_keys=increase("evicted_keys"),
        input_bytes=increase("total_net_input_bytes"),
        output_bytes=increase("total_net_output_bytes"),
        aof=aof,
    )


def _commands(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, float]]:
    calls: dict[str, int] = {}
    usec_per_call: dict[str, float] = {}
    for name, stat in new.items():
        if not name.startswith(_COMMAND):
            continue
        before = old.get(name, {"calls": 0, "usec": 0})
        count = stat["calls"] - before["calls"]
        if count > 0:
            command = name.removeprefix(_COMMAND)
            calls[command] = count
            usec_per_call[command] = round((stat["usec"] - before["usec"]) / count, 3)
    return calls, usec_per_call


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)  # the servers' own resolution
