"""A disk that is slow, broken or full: fsync-latency, fsync-error (through the shim), disk-full (a disk in memory).

Rules: latency and errors strike every fsync and fdatasync of the server and its children, in whichever thread. A server
that ends because of them (fsync = always) is started again when the fault ends, and the record says so; one that would
refuse writes for ever after (everysec) is made to begin a new append-only file.
Source: Redis 7.0's aof.c and bio.c.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.topology.faults.injection import Injection
from bench.topology.faults.params import NS_PER_MS, Param, duration, error_number
from bench.topology.faults.site import Need

_MORE_THAN_A_PAGE = 8192
NOTHING_IS_SYNCED = {
    "none": "the servers have no append-only file (fsync = none), so nothing is synced",
    "no": "fsync = no leaves syncing to the kernel, so the servers never wait for it",
}


def _appends_again(info: Mapping[str, Any]) -> bool:
    rewriting = info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]
    return not rewriting and info["aof_last_write_status"] == "ok"


class _SyncFault(Injection):
    """A fault of fsync."""

    always_needs = frozenset({Need.SHIM})

    def why_not(self) -> str | None:
        """It needs a server that syncs."""
        if wrong := NOTHING_IS_SYNCED.get(self.site.fleet.fsync):
            raise UsageError(wrong)
        return super().why_not()

    def _revive(self) -> None:
        """Start the instance again if the fault has ended it."""
        with self.site.lock(self.index):
            exit_code = self.site.fleet.exit_codes()[self.index]
            if exit_code is not None:
                self.detail["ended_with"] = exit_code
                self.site.fleet.restart(self.index)


class FsyncLatency(_SyncFault):
    """Every fsync takes `delay` longer, as on a real volume."""

    params = (Param("delay", duration(0.001, 60_000), "2ms", "how much longer each takes"),)

    def begin(self) -> None:
        """Be slow."""
        self.site.control(self.index).set_sync_delay(round(self.order.params.number("delay") * NS_PER_MS))

    def end(self) -> None:
        """Be as fast as the disk."""
        self.site.control(self.index).set_sync_delay(0)


class FsyncError(_SyncFault):
    """Every fsync fails: under everysec writes are refused (-MISCONF), under always the server ends."""

    params = (Param("error", error_number("EIO", "ENOSPC", "EDQUOT"), "EIO", "what fsync says"),)

    def begin(self) -> None:
        """Fail."""
        self.site.control(self.index).set_sync_error(int(self.order.params.number("error")))

    def end(self) -> None:
        """Work again, and see that the server takes writes."""
        self.site.control(self.index).set_sync_error(0)
        if self._write_status() != "ok":
            self._start_anew()

    def _write_status(self) -> str:
        """How its last append went; a server that is just ending, or has ended, is started again."""
        self._revive()
        try:
            return str(self.site.info(self.index)["aof_last_write_status"])
        except EnvironmentNotReadyError:
            self.site.until_dead(self.index)
            self._revive()
            return str(self.site.info(self.index)["aof_last_write_status"])

    def _start_anew(self) -> None:
        """Have it begin a new append-only file: it refuses all writes until a sync succeeds, and syncs after writes."""
        self.detail["file_begun_anew"] = True
        self.site.configure(self.index, {"appendonly": "no"})
        self.site.configure(self.index, {"appendonly": "yes"})
        self.site.until(self.index, _appends_again, "append again")


class DiskFull(_SyncFault):
    """Not one free page: under everysec writes are refused (-MISCONF), under always the server ends."""

    always_needs = frozenset({Need.MEMORY_DISK})

    def why_not(self) -> str | None:
        """It needs a server that writes."""
        if self.site.fleet.fsync == "none":
            raise UsageError(NOTHING_IS_SYNCED["none"])
        return Injection.why_not(self)

    def begin(self) -> None:
        """Be full, and return when the server has noticed by an append of our own."""
        self.site.disk(self.index).make_full()
        with contextlib.suppress(BenchError):  # its own refusal, or its end
            self.site.command(self.index, "SET", "lockbench-disk-full", "x" * _MORE_THAN_A_PAGE, "PX", 1)
        if self.site.fleet.fsync == "always":
            self.site.until_dead(self.index)
        else:
            self.site.until(self.index, lambda info: info["aof_last_write_status"] != "ok", "notice the full disk")

    def end(self) -> None:
        """Have room again."""
        self.site.disk(self.index).make_room()
        self._revive()
