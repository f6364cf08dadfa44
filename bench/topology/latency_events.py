"""What a server itself noticed as slow: *LATENCY before and after → per event, in how many seconds and how long*.

Rules: an event of less than the server's `latency-monitor-threshold` (ms) is not noted, and with 0 none is: then the
answer is None, never "nothing happened". The server keeps the slowest of each second. On servers of our own the monitor
is emptied first; on others only what is younger than our first look counts.
Source: LATENCY LATEST and LATENCY HISTORY; events aof-fsync-always, aof-write-pending-fsync, fork and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from bench.measure.latency import SlowEvent
from bench.topology.target import Target, parse_targets

TIMEOUT_S = 2.0


class LatencyMonitor:
    """The monitors of some servers, from now on. `own`: they are ours, so they may be emptied."""

    def __init__(self, urls: Sequence[str], *, own: bool) -> None:
        self._targets, self._own = parse_targets(urls), own
        self._since_s = [self._begin(target) for target in self._targets]

    def events(self) -> dict[str, SlowEvent] | None:
        """What was noted since then, by event; None when a server does not watch or does not say."""
        found: dict[str, SlowEvent] = {}
        for target, since_s in zip(self._targets, self._since_s, strict=True):
            noted = None if since_s is None else self._noted(target, since_s)
            if noted is None:
                return None
            for name, durations_ms in noted.items():
                before = found.get(name, SlowEvent(0, 0))
                longest_ms = max(before.max_ms, *durations_ms)
                found[name] = SlowEvent(before.seconds + len(durations_ms), longest_ms)
        return found

    def _begin(self, target: Target) -> int | None:
        """The server's clock (s), or None when it watches nothing."""
        client = target.client(TIMEOUT_S)
        try:
            settings: dict[str, str] = client.config_get("latency-monitor-threshold")  # type: ignore[assignment]
            if not int(settings["latency-monitor-threshold"]):
                return None
            if self._own:
                _ask(client, "LATENCY", "RESET")
                return -1
            return int(client.time()[0])
        except (redis.RedisError, OSError, KeyError):
            return None
        finally:
            client.connection_pool.disconnect()

    @staticmethod
    def _noted(target: Target, since_s: int) -> dict[str, list[int]] | None:
        client = target.client(TIMEOUT_S)
        noted = {}
        try:
            for row in _ask(client, "LATENCY", "LATEST"):
                name = row[0].decode()
                history = _ask(client, "LATENCY", "HISTORY", name)
                if durations_ms := [duration_ms for at_s, duration_ms in history if at_s > since_s]:
                    noted[name] = durations_ms
        except (redis.RedisError, OSError):
            return None
        finally:
            client.connection_pool.disconnect()
        return noted


def _ask(client: redis.Redis, *words: str) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]
