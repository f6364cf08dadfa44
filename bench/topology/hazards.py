"""This module finds settings of an instance that endanger locks: *INFO and CONFIG GET → hazards,
each with advice*. All functions are pure.

Rules: the functions do not judge a setting whose value is unknown. The caller must report the
settings that it could not read. The result begins with the hazards that make an instance lose
locks.

Sources: the Redis documentation, "Key eviction", "Replication", "Persistence"; redis.conf of Redis
7.0 on `timeout`, `min-replicas-to-write` and `protected-mode`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

NO_EVICTION: Final = "noeviction"
# If an instance uses a larger share of maxmemory, it counts as nearly full.
NEARLY_FULL: Final = 0.8
SETTINGS: Final = (
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "timeout",
    "protected-mode",
    "save",
)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One setting of an instance that endangers locks. The instance may lose locks, refuse callers,
    or delay callers.

    `advice`: what the user should do, or "" if no action is necessary.
    """

    name: str
    value: str
    advice: str = ""
    loses_locks: bool = False

    @property
    def sentence(self) -> str:
        """The text of the warning that a run shows for this hazard."""
        return f"{self.name}: {self.value}" + (f"; {self.advice}" if self.advice else "")


def hazards_of(info: Mapping[str, object], config: Mapping[str, str]) -> tuple[Hazard, ...]:
    """Return the hazards of one instance.

    `info`: INFO by field. `config`: CONFIG GET by name. Any field may be missing.
    """
    hazards = [*_memory(info, config), *_replicas(info, config), *_connections(config)]
    return tuple(sorted(hazards, key=lambda hazard: not hazard.loses_locks))


def persistence_of(info: Mapping[str, object], fsync: str | None) -> str:
    """Return a sentence that describes which data this instance loses in a crash.

    `fsync`: the policy of the instance, which is "none", "no", "everysec" or "always". If `fsync`
    is None, the function returns "".
    """
    if fsync is None:
        return ""
    snapshots = (
        "" if fsync != "none" or not info.get("rdb_saves") else " that is not in its last snapshot"
    )
    return {
        "none": f"no AOF, so a restarted server has lost every lock{snapshots}; the server must "
        "not vote until the longest TTL has passed",
        "no": "AOF, synced when the kernel decides; a power cut may lose half a minute of locks",
        "everysec": "AOF, synced every second; a power cut loses about a second of locks",
        "always": "AOF, synced before each reply; a crash loses no lock",
    }.get(fsync, f"AOF, appendfsync {fsync}")


def _memory(info: Mapping[str, object], config: Mapping[str, str]) -> Iterator[Hazard]:
    most = _number(info.get("maxmemory", config.get("maxmemory")))
    policy = str(info.get("maxmemory_policy") or config.get("maxmemory-policy") or "")
    if not most:
        return
    size = _size_text(most)
    if policy and policy != NO_EVICTION:
        yield Hazard(
            "eviction",
            f"maxmemory is {size} with {policy}: a full server evicts locks, and a second caller "
            "gets them",
            f"set maxmemory-policy {NO_EVICTION}, or use separate servers for locks",
            loses_locks=True,
        )
    used = _number(info.get("used_memory"))
    if policy == NO_EVICTION and used and used > NEARLY_FULL * most:
        yield Hazard(
            "memory",
            f"the server uses {used / most:.0%} of its maxmemory {size}; a full server grants "
            "no lock (OOM)",
            "raise maxmemory, or free memory",
        )


def _replicas(info: Mapping[str, object], config: Mapping[str, str]) -> Iterator[Hazard]:
    replicas = _number(info.get("connected_slaves"))
    if replicas:
        yield Hazard(
            "replicas",
            f"{replicas} connected: a failover loses the locks that the new primary has not "
            "received",
            "promote no replica before the longest TTL has passed, or lock on independent "
            "primaries",
            loses_locks=True,
        )
    least = _number(config.get("min-replicas-to-write", config.get("min-slaves-to-write")))
    if least:
        yield Hazard(
            "min-replicas-to-write",
            f"{least}; with fewer connected replicas, the server refuses every SET (NOREPLICAS); "
            f"now {replicas} are connected",
            "set min-replicas-to-write to 0 on servers that hold locks",
        )


def _connections(config: Mapping[str, str]) -> Iterator[Hazard]:
    idle_s = _number(config.get("timeout"))
    if idle_s:
        yield Hazard(
            "timeout",
            f"the server closes a connection that is idle for {idle_s} s, so a client with "
            "few requests must often connect again",
            "set timeout 0",
        )
    if config.get("protected-mode") == "yes":
        yield Hazard(
            "protected mode",
            "on; without a password, the server answers only clients on its own host",
        )


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB" if size_bytes >= 2**20 else f"{size_bytes:,} bytes"
