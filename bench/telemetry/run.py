"""What a run is, as far as telemetry must know: *scenario and servers → Run*. Pure.

Source: the resource and `redlock.run.info` of `table.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

from lockcore.clock import NS_PER_MS

Address = tuple[str, int]
PATCHED_WITHIN_NS = 2_000 * NS_PER_MS  # the workers patch votes once a second


@dataclass(frozen=True, slots=True)
class Run:
    """One run, or one process's share of it. `addresses`: host and port of each instance (port 0: a unix socket).

    `fsync`: one of attributes.POLICIES. `instance`: tells the exporters of one run apart. `duration_ns` None: no end.
    """

    id: str
    recipe: str
    fsync: str
    addresses: Sequence[Address]
    users: int
    processes: int
    rate_per_s: float | None
    instance_timeout_ms: float
    warmup_ns: int = 0
    duration_ns: int | None = None
    instance: str = ""

    @property
    def quorum(self) -> int:
        """Votes that win."""
        return len(self.addresses) // 2 + 1

    @property
    def common(self) -> tuple[tuple[str, str], ...]:
        """The attributes of every data point."""
        return ("redlock.recipe", self.recipe), ("redlock.fsync", self.fsync)

    def resource(self, service_name: str | None) -> dict[str, str]:
        """What exports, as OpenTelemetry wants it said."""
        return {
            "service.name": service_name or "lockbench",
            "service.instance.id": self.instance or self.id,
            "service.version": version(),
            "redlock.run.id": self.id,
            **dict(self.common),
        }

    @property
    def settle_ns(self) -> int:
        """So long after an operation's end its votes are patched no more."""
        return PATCHED_WITHIN_NS + int(2 * self.instance_timeout_ms * NS_PER_MS)


def address_of(text: str) -> Address:
    """Host and port of `host:port` or `[host]:port`; anything else is a unix socket's path, with port 0."""
    host, colon, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdigit() else (text, 0)


def policy_of(policies: Iterable[str | None]) -> str:
    """One of attributes.POLICIES for the instances' AOF policies; None: it did not say."""
    known = set(policies) - {None}
    return str(known.pop()) if len(known) == 1 else "mixed" if known else "unknown"


def version() -> str:
    """Of lockbench, as it is installed."""
    try:
        return metadata.version("lockbench")
    except metadata.PackageNotFoundError:
        return "unknown"
