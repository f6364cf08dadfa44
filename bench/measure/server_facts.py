"""Facts about servers: *a server program, its disk, the replies of an instance → facts in a
result*.

Rules: a fact of null means that the instance did not report it. The `warnings` of the instance say
why.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from bench.measure.section import Amount, Count, says


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """One server program and the facts that identify it in a result."""

    path: Annotated[str, says("path of the server as found; Redis acts by the name of its command")]
    name: Annotated[str, says("redis, valkey, or the name of a fork")]
    version: Annotated[str, says("as it says")]
    sha256: Annotated[str, says("hash of the file behind any links")] = ""
    tls: Annotated[bool, says("true if the server was built with TLS")] = False
    source: Annotated[str, says("how it was found")] = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


@dataclass(frozen=True, slots=True)
class SyncLatency:
    """How long it takes to append 100 bytes to a file on the servers' disk and to sync them with
    fdatasync."""

    count: Annotated[Count, says("how often it was measured")]
    p50_s: Annotated[Amount, says("half took no longer")]
    p99_s: Annotated[Amount | None, says("99 % took at most this long; null below 100 writes")]
    max_s: Annotated[Amount, says("the longest")]


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """Facts about one instance. If a fact is null, the instance did not report it or did not permit
    the query. `warnings` say why."""

    index: Annotated[Count, says("position in the list of targets")]
    address: Annotated[str, says("host:port or socket path, without secrets")]
    tls: Annotated[bool, says("whether the connection is encrypted")]
    unreachable: Annotated[
        str | None, says("why the instance does not answer; null if it answers")
    ] = None
    server: Annotated[str | None, says("redis or valkey")] = None
    version: Annotated[str | None, says("as it says")] = None
    run_id: Annotated[str | None, says("an id that changes at each start of the server")] = None
    role: Annotated[str | None, says("primary or replica")] = None
    cluster: Annotated[bool | None, says("true if the instance is a node of a cluster")] = None
    fsync: Annotated[str | None, says("none, no, everysec or always")] = None
    no_fsync_on_rewrite: Annotated[
        bool | None, says("true if nothing is synced while the instance rewrites its AOF")
    ] = None
    maxmemory_bytes: Annotated[int | None, says("0: no limit")] = None
    maxmemory_policy: Annotated[
        str | None, says("which keys the server evicts at the memory limit")
    ] = None
    release_command: Annotated[
        str | None, says("the compare-and-delete command: delex, delifeq or evalsha")
    ] = None
    warnings: Annotated[
        tuple[str, ...], says("facts that a reader must know about the instance")
    ] = ()
    hazards: Annotated[
        tuple[str, ...], says("settings that cost locks or time, and what to do about them")
    ] = ()


def servers_text(instances: Iterable[InstanceFacts]) -> str:
    """Return the names and versions of the servers, such as `redis 7.0.15, valkey 9.1.2`.

    The text is empty if no instance has reported its server.
    """
    return ", ".join(sorted({f"{one.server} {one.version}" for one in instances if one.server}))
