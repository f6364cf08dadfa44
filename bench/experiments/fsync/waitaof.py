"""Is it true what WAITAOF says: *a server with the shim → how often it named a lock durable that was not*.

Rules: once WAITAOF has counted the local fsync, the ledger must hold every byte the file had when the SET was answered.
A server without the shim is not asked. Redis 7.4 (repaired later) and Valkey 9.1.2 say so too early under everysec, as
long as the last fsync is less than a second old. Source: redis/redis#13793; bench.topology.shim.
"""

from __future__ import annotations

from pathlib import Path

import redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import Ground
from bench.topology.shim.control import Control
from bench.topology.target import parse_targets

PROBES = 2
_TIMEOUT_S = 5.0
_WAIT_MS = 2000


def waitaof_truth(ground: Ground, key_prefix: str) -> dict[str, int]:
    """`probes` that the first server confirmed, and how many of those were `untrue`; empty without a shim."""
    if not ground.controls:
        return {}
    control, folder = ground.controls[0], ground.server_folders[0]
    client = parse_targets(ground.urls)[0].client(_TIMEOUT_S)
    found = {"probes": 0, "untrue": 0}
    try:
        for number in range(PROBES):
            key = f"{key_prefix}truth:{number}"
            client.set(key, "held", px=10_000)
            sizes = _sizes(folder)
            reply: list[int] = client.waitaof(1, 0, _WAIT_MS)
            if reply[0] >= 1:
                found["probes"] += 1
                found["untrue"] += not _is_durable(control, sizes)
            client.delete(key)
    except (redis.RedisError, OSError) as error:
        raise EnvironmentNotReadyError(f"WAITAOF cannot be tried: {error}") from None
    finally:
        client.connection_pool.disconnect()
    return found


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.glob("appendonlydir/*.incr.aof")}


def _is_durable(control: Control, sizes: dict[Path, int]) -> bool:
    return all(control.synced(path).durable_bytes >= size for path, size in sizes.items() if path.exists())
