"""Facts about servers: *a program, its disk, the replies of an instance → facts of a result*.

Rules: null means that an instance did not report the fact. The `warnings` of the instance say why.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from bench.measure.section import Amount, Count, says


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """One server program and what identifies it in a result."""

    path: Annotated[str, says("as found; Redis acts by the name it is called by")]
    name: Annotated[str, says("redis or valkey, or a fork's own name")]
    version: Annotated[str, says("as it says")]
    sha256: Annotated[str, says("of the file behind any links")] = ""
    tls: Annotated[bool, says("whether it was built with TLS")] = False
    source: Annotated[str, says("how it was found")] = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


@dataclass(frozen=True, slots=True)
class SyncLatency:
    """How long an append of 100 bytes and its fdatasync take on the disk of the servers."""

    count: Annotated[Count, says("how often it was measured")]
    p50_s: Annotated[Amount, says("half took no longer")]
    p99_s: Annotated[Amount | None, says("99 % took no longer; null below 100 writes")]
    max_s: Annotated[Amount, says("the longest")]


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """What one instance is. null: it did not or may not say, and `warnings` tell why."""

    index: Annotated[Count, says("position in the list of targets")]
    address: Annotated[str, says("host:port or socket path, without secrets")]
    tls: Annotated[bool, says("whether the connection is encrypted")]
    unreachable: Annotated[str | None, says("why it does not answer, else null")] = None
    server: Annotated[str | None, says("redis or valkey")] = None
    version: Annotated[str | None, says("as it says")] = None
    run_id: Annotated[str | None, says("differs after each of its starts")] = None
    role: Annotated[str | None, says("primary or replica")] = None
    cluster: Annotated[bool | None, says("whether it is a node of a cluster")] = None
    fsync: Annotated[str | None, says("none, no, everysec or always")] = None
    no_fsync_on_rewrite: Annotated[
        bool | None, says("whether it syncs nothing while it rewrites its AOF")
    ] = None
    maxmemory_bytes: Annotated[int | None, says("0: no limit")] = None
    maxmemory_policy: Annotated[str | None, says("what it evicts at the limit")] = None
    release_command: Annotated[
        str | None, says("its compare-and-delete: delex, delifeq or evalsha")
    ] = None
    warnings: Annotated[tuple[str, ...], says("what a reader must know about it")] = ()
    hazards: Annotated[
        tuple[str, ...], says("settings that cost locks or callers' time, and what to do")
    ] = ()


def servers_text(instances: Iterable[InstanceFacts]) -> str:
    """Return the names and versions of the servers, such as `redis 7.0.15, valkey 9.1.2`.

    The text is empty if no instance has reported its server.
    """
    return ", ".join(sorted({f"{one.server} {one.version}" for one in instances if one.server}))
