"""A master and its replicas, of servers that lockbench started: *URLs → replicas in step; a replica → a master*.

Rules: never for servers of others, since a replica forgets all it had. Returns when the replicas are in step.
Source: REPLICAOF's reference page; the section `replication` of INFO.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError

PATIENCE_S = 10.0
_POLL_S = 0.01


def replicate(urls: Sequence[str]) -> None:
    """Make all servers after the first replicas of the first, and wait until they are in step.

    Raises EnvironmentNotReadyError when one is not within 10 s, or does not answer.
    """
    master = urlsplit(urls[0])
    for url in urls[1:]:
        _ask(url, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        _ask(url, "REPLICAOF", str(master.hostname), str(master.port))
    _ask(urls[0], "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    deadline = time.monotonic() + PATIENCE_S
    for url in urls[1:]:
        while _ask(url, "INFO", "replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise EnvironmentNotReadyError(
                    f"the replica on port {urlsplit(url).port} was not in step with its master within {PATIENCE_S:g} s"
                )
            time.sleep(_POLL_S)  # no server tells when it is in step


def promote(url: str) -> None:
    """Make a replica a master of its own. Raises EnvironmentNotReadyError when it does not answer."""
    _ask(url, "REPLICAOF", "NO", "ONE")


def _ask(url: str, *command: str) -> Any:
    with Redis.from_url(url, protocol=2, driver_info=None) as client:
        try:
            return client.execute_command(*command)
        except RedisError as error:
            where = f"the server on port {urlsplit(url).port}"
            raise EnvironmentNotReadyError(f"{where} cannot be made master or replica: {error}") from None
