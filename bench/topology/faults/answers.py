"""Faults that a client notices in the answers of an instance. The instance answers late, refuses
commands or does not answer, or the link to the instance breaks.

Rules
- The commands go directly to the instance, never through a proxy. After the fault, the settings and
  keys are the same as before.
- readonly: the instance becomes a replica of an unreachable master. The instance still answers
  reads, but it answers -READONLY to writes. The instance keeps its keys.
- maxmemory with noeviction: the memory limit is below the used memory, so the server refuses every
  SET.
- maxmemory with volatile-ttl: ballast keys with a late expiry fill the memory. The memory limit is
  just above the used memory. So for each new key, the server evicts the lock with the earliest
  expiry.
- loading: the running server executes DEBUG RELOAD, so its process, run id and keys stay the same.
  Loading takes long, because there are ballast keys and the server delays each loaded key. The
  fault ends when the delay is set to zero. At the end, the saved file is removed, so that a
  restarted server does not load the file.
- misconf: a folder with the name of the snapshot file makes every snapshot fail.
- drop: the nft rules apply only to the loopback port of the instance. The table of these rules
  belongs to an `nft` process and ends with that process. The direction "to" drops packets from
  clients to the instance. The direction "from" drops packets from the instance to clients.

Source: Redis 7.0 and Valkey 9.1; nft(8), `flags owner`.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.topology.faults.injection import Injection, Params
from bench.topology.fleet import Fleet
from bench.topology.leash import Leash
from bench.topology.servants import Shape

# The default name of the snapshot's file.
SNAPSHOT_FILE = "dump.rdb"


def commanding(
    words: tuple[str, ...], undoing: tuple[str, ...] = ()
) -> Callable[[Injection], None]:
    """Return a fault that one command begins and another command undoes."""

    def begin(fault: Injection) -> None:
        if undoing:
            fault.undo.callback(fault.fleet.command, fault.index, *undoing)
        fault.fleet.command(fault.index, *words)

    return begin


_BALLAST_KEYS = 256
_BALLAST_BYTES = 16384
_BALLAST_TTL_S = 86_400
_ROOM_BYTES = 32768


def fill_memory(fault: Injection) -> None:
    """Limit the memory, so that there is no room for new keys. The param `policy` is `noeviction`
    or `volatile-ttl`."""
    fleet = fault.fleet
    index = fault.index
    policy = fault.params["policy"]
    limit = 1
    ballast = [f"lockbench-maxmemory:{number}" for number in range(_BALLAST_KEYS)]
    fault.undo.callback(fleet.command, index, "UNLINK", *ballast)
    if policy == "volatile-ttl":
        fleet.commands(
            index, [("SET", key, "x" * _BALLAST_BYTES, "EX", _BALLAST_TTL_S) for key in ballast]
        )
        # An AOF buffer that waits for its disk counts as used memory, but it does not cause
        # eviction.
        info = fleet.info(index)
        limit = int(info["used_memory"]) - int(info["mem_not_counted_for_evict"]) + _ROOM_BYTES
    settings = {"maxmemory-policy": policy, "maxmemory-samples": "64", "maxmemory": str(limit)}
    before = fleet.configure(index, settings)
    # The settings are restored in reverse order, so the memory limit is removed first.
    fault.undo.callback(fleet.configure, index, dict(reversed(before.items())))


_FEWEST_KEYS = 1000
_MOST_KEY_MS = 10.0
_LOADED_BYTES = 1024
# Without an end, the load would take twice as long as the fault. The end of the fault cuts the load
# short.
_LONGER = 2.0
_NORMAL = {"key-load-delay": "0", "rdbcompression": "yes"}


def load(fault: Injection) -> None:
    """Make the server answer -LOADING for the duration of the fault.

    When the fault ends, the remaining keys are loaded without delay, and the ballast is removed.
    """
    fleet = fault.fleet
    index = fault.index
    lasts_ms = fault.order.lasts_ms
    assert lasts_ms is not None
    number = max(_FEWEST_KEYS, round(lasts_ms * _LONGER / _MOST_KEY_MS))
    ballast = [f"lockbench-loading:{key}" for key in range(number)]

    def reload() -> None:
        # If the server does not begin to load, `until` below raises an error.
        with suppress(BenchError):
            fleet.command(index, "DEBUG", "RELOAD", timeout_s=lasts_ms * _LONGER / 1000 + 30)

    def end_load() -> None:
        fleet.configure(index, _NORMAL)
        if thread.is_alive():
            thread.join()
        fleet.until(index, lambda info: info["loading"] == 0, "end its load")
        fleet.command(index, "UNLINK", *ballast)
        (fleet.instances[index].folder / SNAPSHOT_FILE).unlink(missing_ok=True)

    thread = Thread(target=reload, daemon=True)
    fault.undo.callback(end_load)
    fleet.commands(index, [("SET", key, "x" * _LOADED_BYTES) for key in ballast])
    delay_us = max(round(lasts_ms * 1000 * _LONGER / int(fleet.command(index, "DBSIZE"))), 1)
    fleet.configure(index, {"key-load-delay": str(delay_us), "rdbcompression": "no"})
    thread.start()
    fleet.until(index, lambda info: info["loading"] == 1, "begin to load")


def fail_snapshots(fault: Injection) -> None:
    """Make the server answer -MISCONF by requesting a snapshot that fails.

    This function returns when the server has noticed the failed snapshot.
    """
    fleet = fault.fleet
    index = fault.index
    obstacle = fleet.instances[index].folder / SNAPSHOT_FILE
    fault.undo.callback(shutil.rmtree, obstacle, ignore_errors=True)
    (obstacle / "in the way").mkdir(parents=True)
    before = fleet.configure(index, {"save": "3600 1", "stop-writes-on-bgsave-error": "yes"})
    fault.undo.callback(fleet.configure, index, before)
    fleet.command(index, "BGSAVE", "SCHEDULE")
    fleet.until(
        index, lambda info: info["rdb_last_bgsave_status"] != "ok", "notice the failed snapshot"
    )


DIRECTIONS = {"both": ("to", "from"), "to": ("to",), "from": ("from",)}


def bend_link(fault: Injection) -> None:
    """Disturb the link to an instance. The link becomes slow, holds back all data, or resets its
    connections.

    When the fault ends, the data that the link held back arrive before any new data.
    """
    mode = fault.params["mode"]
    directions = DIRECTIONS[fault.params["direction"]]
    shape = Shape(fault.params["delay"] / 1000, fault.params["jitter"] / 1000, slow=directions)
    if mode != "delay":
        shape = Shape(reset=True) if mode == "reset" else Shape(held=directions)
    fault.undo.callback(fault.fleet.shape, fault.index, Shape())
    fault.fleet.shape(fault.index, shape)


def require_one_bend(params: Params) -> None:
    """Raise ValueError if the params of a link contradict each other."""
    late = params["delay"] + params["jitter"] > 0
    if late != (params["mode"] == "delay"):
        raise ValueError(
            "the mode delay needs a delay or a jitter; every other mode allows neither"
        )
    if params["mode"] == "reset" and params["direction"] != "both":
        raise ValueError("a reset has both directions")


def drop_packets(fault: Injection) -> None:
    """Drop the packets to or from the instance's port.

    TCP sends each lost packet again, at growing intervals, until the packet arrives.
    """
    port = fault.fleet.instances[fault.index].port
    ends = {"to": f"tcp dport {port} drop", "from": f"tcp sport {port} drop"}
    rules = _hold([ends[direction] for direction in DIRECTIONS[fault.params["direction"]]])
    fault.undo.callback(rules.release)


def require_nft(_fleet: Fleet) -> None:
    """Check that this user is root and that nft works, by adding a table that drops nothing.
    Dropping packets needs both.

    Raises EnvironmentNotReadyError.
    """
    if os.geteuid() != 0:
        raise EnvironmentNotReadyError("it needs root")
    try:
        _hold([]).release()
    except BenchError as error:
        raise EnvironmentNotReadyError(f"the fault needs root and nftables: {error}") from error


def _hold(rules: list[str]) -> Leash:
    """Apply these nft rules to packets that arrive over loopback.

    The rules end when the leash is released or when this process ends.
    """
    table = f"lockbench_{secrets.token_hex(4)}"
    lines = [
        f"add table inet {table} {{ flags owner; }}",
        f"add chain inet {table} arriving {{ type filter hook input priority 0; }}",
        *(f'add rule inet {table} arriving iifname "lo" {rule}' for rule in rules),
        f"list chain inet {table} arriving",
    ]
    return Leash(["nft", "-i"], ready=f"table inet {table} {{", say="\n".join(lines) + "\n")
