"""Facts about servers in a result: the server program, its disk, and the replies of each instance.

A fact is null if the instance did not report it. The `warnings` of the instance explain why.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from bench.measure.section import Amount, Count, says


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """One server program and the facts that identify it in a result."""

    path: Annotated[str, says("path of the server program, as lockbench found the program")]
    name: Annotated[str, says("name of the server: redis, valkey or a fork")]
    version: Annotated[str, says("version that the server reports")]
    sha256: Annotated[str, says("SHA-256 of the server program, after following links")] = ""
    tls: Annotated[bool, says("true if the server was built with TLS")] = False
    source: Annotated[str, says("how lockbench found the server program")] = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


@dataclass(frozen=True, slots=True)
class SyncLatency:
    """How long it takes to append 100 bytes to a file on the servers' disk and to sync them with
    fdatasync."""

    count: Annotated[Count, says("number of measured appends with fdatasync")]
    p50_s: Annotated[Amount, says("50 % of the appends with fdatasync took at most this long")]
    p99_s: Annotated[
        Amount | None,
        says("99 % of the appends with fdatasync took at most this long; null below 100 appends"),
    ]
    max_s: Annotated[Amount, says("duration of the longest append with fdatasync")]


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """Facts about one instance. A fact is null if the instance did not report it or refused the
    query. `warnings` explain why."""

    index: Annotated[Count, says("position of the instance in the list of targets, from 0")]
    address: Annotated[
        str, says("address of the instance, without secrets: host:port or socket path")
    ]
    tls: Annotated[bool, says("true if the connection to the instance uses TLS")]
    unreachable: Annotated[
        str | None, says("why the instance does not answer; null if the instance answers")
    ] = None
    server: Annotated[str | None, says("name of the server: redis or valkey")] = None
    version: Annotated[str | None, says("version that the server reports")] = None
    run_id: Annotated[
        str | None, says("id of the server process; each start of the server gives a new id")
    ] = None
    role: Annotated[str | None, says("role of the instance: primary or replica")] = None
    cluster: Annotated[bool | None, says("true if the instance is a node of a cluster")] = None
    fsync: Annotated[
        str | None, says("AOF fsync policy of the instance: none, no, everysec or always")
    ] = None
    no_fsync_on_rewrite: Annotated[
        bool | None, says("true if the instance does not sync its AOF during an AOF rewrite")
    ] = None
    maxmemory_bytes: Annotated[
        int | None, says("memory limit of the instance; 0 means no limit")
    ] = None
    maxmemory_policy: Annotated[
        str | None, says("policy by which the server evicts keys at its memory limit")
    ] = None
    release_command: Annotated[
        str | None,
        says(
            "the command that deletes a key if it has the owner's token: delex, delifeq or evalsha"
        ),
    ] = None
    warnings: Annotated[
        tuple[str, ...], says("facts about the instance that the reader of the result must know")
    ] = ()
    hazards: Annotated[
        tuple[str, ...],
        says("settings of the instance that can lose locks or cost time, each with a remedy"),
    ] = ()


def servers_text(instances: Iterable[InstanceFacts]) -> str:
    """Return the names and versions of the servers, such as `redis 7.0.15, valkey 9.1.2`.

    The text is empty if the server of every instance is unknown.
    """
    return ", ".join(sorted({f"{one.server} {one.version}" for one in instances if one.server}))
