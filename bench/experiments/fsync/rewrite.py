"""An AOF rewrite in the middle of a load: *servers → BGREWRITEAOF on all, how long it took, fsyncs meanwhile*.

Rules: the servers are given something to rewrite first. What `no-appendfsync-on-rewrite` does shows in the fsyncs made
while the rewrite ran: with it even `always` makes none, and says nothing. Source: BGREWRITEAOF; INFO persistence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import Ground
from bench.topology.target import parse_targets

FILLERS, FILLER_BYTES = 200_000, 100
LONGEST_S = 30.0
_TIMEOUT_S = 20.0
_LOOK_S = 0.002
_FILL = """
for i = 1, tonumber(ARGV[1]) do redis.call('set', ARGV[3] .. i, string.rep('x', tonumber(ARGV[2]))) end
return 1
"""

Row = dict[str, Any]


def fill(urls: Sequence[str], key_prefix: str) -> None:
    """Give each server `FILLERS` keys, so that a rewrite takes a while. For servers of our own."""
    for target in parse_targets(urls):
        client = target.client(_TIMEOUT_S)
        try:
            client.eval(_FILL, 0, str(FILLERS), str(FILLER_BYTES), f"{key_prefix}filler:")
        except (redis.RedisError, OSError) as error:
            raise EnvironmentNotReadyError(f"{target.address} cannot be filled: {error}") from None
        finally:
            client.connection_pool.disconnect()


def rewrite_now(ground: Ground) -> Row:
    """Rewrite on all servers at once; return when all have ended.

    The row: `took_s` (None when one had not ended in time), `fsyncs` of all servers and their rewriting children
    meanwhile (None where they cannot be counted). Raises EnvironmentNotReadyError.
    """
    clients = [target.client(_TIMEOUT_S) for target in parse_targets(ground.urls)]
    try:
        before, begun_s = ground.syncs, time.monotonic()
        for client in clients:
            client.bgrewriteaof()
        running = set(clients)
        while running and time.monotonic() < begun_s + LONGEST_S:
            running = {client for client in running if _rewrites(client)}
            time.sleep(_LOOK_S)  # no server tells when it has ended
        took_s, after = time.monotonic() - begun_s, ground.syncs
    except (redis.RedisError, OSError) as error:
        raise EnvironmentNotReadyError(f"the append-only file cannot be rewritten: {error}") from None
    finally:
        for client in clients:
            client.connection_pool.disconnect()
    fsyncs = None if before is None or after is None else after - before
    return {"took_s": None if running else took_s, "fsyncs": fsyncs}


def _rewrites(client: redis.Redis) -> bool:
    state: dict[str, Any] = client.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])
