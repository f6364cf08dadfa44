"""A server that refuses writes because it cannot persist them: -MISCONF, to SETs and to releases.

Rules: by = "rdb" makes a snapshot fail (a folder stands where its file belongs) while a snapshot is wanted; by = "aof"
makes appends fail through the shim. Under fsync = always a failed append ends the server instead, so that is skipped.
Source: writeCommandsDeniedByDiskError of Redis 7.0.
"""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.topology.faults.injection import FaultOrder, Injection
from bench.topology.faults.params import Param, choice
from bench.topology.faults.site import Need, Site


class Misconf(Injection):
    """MISCONF by a failing snapshot or a failing append-only file."""

    params = (Param("by", choice("rdb", "aof"), "rdb", "a snapshot that fails, or an append that fails (shim)"),)

    def __init__(self, site: Site, order: FaultOrder) -> None:
        super().__init__(site, order)
        self._by_aof = order.params["by"] == "aof"
        self._before: dict[str, str] = {}
        self._obstacle: Path | None = None

    @classmethod
    def needs(cls, params: Mapping[str, Any]) -> frozenset[Need]:
        """The shim, for appends."""
        return frozenset({Need.SHIM}) if params["by"] == "aof" else frozenset()

    def why_not(self) -> str | None:
        """An append fails only where something is appended, and where that is survived."""
        reason = super().why_not()
        if self._by_aof and self.site.fleet.fsync == "none":
            raise UsageError("the servers have no append-only file (fsync = none)")
        if self._by_aof and self.site.fleet.fsync == "always":
            raise UsageError("a failed append ends a server with fsync = always")
        return reason

    def begin(self) -> None:
        """Fail, and return when the server has noticed."""
        if self._by_aof:
            self.site.control(self.index).set_write_error(errno.ENOSPC)
            self._append()
            self.site.until(self.index, lambda info: info["aof_last_write_status"] != "ok", "notice the failed append")
            return
        self._obstacle = self.site.database_file(self.index)
        (self._obstacle / "in the way").mkdir(parents=True)
        self._before = self.site.configure(self.index, {"save": "3600 1", "stop-writes-on-bgsave-error": "yes"})
        self.site.command(self.index, "BGSAVE", "SCHEDULE")
        self.site.until(self.index, lambda info: info["rdb_last_bgsave_status"] != "ok", "notice the failed snapshot")

    def _append(self) -> None:
        try:
            self.site.command(self.index, "SET", "lockbench-misconf", "", "PX", 1)
        except EnvironmentNotReadyError:  # somebody else's append has failed already
            return

    def end(self) -> None:
        """Take the cause away, and return when writes are taken again."""
        if self._by_aof:
            self.site.control(self.index).set_write_error(0)
            self.site.until(self.index, lambda info: info["aof_last_write_status"] == "ok", "append again")
            return
        if self._obstacle is not None and self._obstacle.is_dir():
            (self._obstacle / "in the way").rmdir()
            self._obstacle.rmdir()
        self.site.configure(self.index, self._before)
