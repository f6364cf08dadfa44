"""A server that refuses: out of memory, loading its data, unable to persist, read-only.

Rules
- maxmemory, noeviction: a limit below what is in use refuses every SET. volatile-ttl: ballast with a far expiry and a
  limit just above what is in use, so that each new key takes the place of the lock that would expire first.
- loading: DEBUG RELOAD saves and loads the data of the running server, so process, run id and keys stay. Ballast and
  the server's own delay per loaded key stretch it; taking the delay away ends it early, as CONFIG is answered
  meanwhile. The saved file is removed, for a later restart must not find it.
- misconf: by = "rdb" makes a snapshot fail (a folder stands where its file belongs) while one is wanted; by = "aof"
  makes appends fail through the shim. Under fsync = always a failed append ends the server instead: skipped.
- Settings and keys are as before at the end.

Source: maxmemory-policy, DEBUG RELOAD, key-load-delay, writeCommandsDeniedByDiskError of Redis 7.0 and Valkey 9.1.
"""

import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.topology.faults.injection import Injection
from bench.topology.faults.params import Param, Params, choice
from bench.topology.faults.site import Need
from bench.topology.ports import HOST, KeptPort

BALLAST_KEYS, _BALLAST_BYTES, _BALLAST_TTL_S = 256, 16384, 86_400
_ROOM_BYTES = 32768


class MaxMemory(Injection):
    """maxmemory with the policy `noeviction` or `volatile-ttl`."""

    params = (
        Param("policy", choice("noeviction", "volatile-ttl"), "noeviction", "SETs fail, or live locks vanish silently"),
    )

    _before: Mapping[str, str] = MappingProxyType({})
    _evicted = 0

    def begin(self) -> None:
        """Leave no room."""
        policy, limit = self.order.params.word("policy"), 1
        if policy == "volatile-ttl":
            value = "x" * _BALLAST_BYTES
            self.site.commands(self.index, [("SET", key, value, "EX", _BALLAST_TTL_S) for key in _ballast()])
            info = self.site.info(self.index)
            limit, self._evicted = int(info["used_memory"]) + _ROOM_BYTES, int(info["evicted_keys"])
        self.detail["limit_bytes"] = limit
        settings = {"maxmemory-policy": policy, "maxmemory-samples": "64", "maxmemory": str(limit)}
        self._before = self.site.configure(self.index, settings)
        self._before = dict(reversed(self._before.items()))  # the limit goes first

    def end(self) -> None:
        """Have the old limit, and take the ballast away."""
        if self._before:
            self.detail["evicted_keys"] = int(self.site.info(self.index)["evicted_keys"]) - self._evicted
            self.site.configure(self.index, self._before)
        self.site.command(self.index, "UNLINK", *_ballast())


def _ballast() -> list[str]:
    return [f"lockbench-maxmemory:{number}" for number in range(BALLAST_KEYS)]


_FEWEST_KEYS, _MOST_KEY_MS, _LOADED_BYTES = 1000, 10.0, 1024
_LONGER = 2.0  # the load is planned to take twice as long, and cut
_NORMAL = {"key-load-delay": "0", "rdbcompression": "yes"}


class Loading(Injection):
    """LOADING for the fault's time."""

    always_needs = frozenset({Need.DEBUG})
    _reload: threading.Thread | None = None
    _keys = 0

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """As said."""
        if for_ms is None:
            raise ValueError("a load must end: say `for` how long")
        return for_ms

    def begin(self) -> None:
        """Have it load, and return when it says that it does."""
        lasts_ms = self.order.lasts_ms or 1000.0
        self._keys = max(_FEWEST_KEYS, round(lasts_ms * _LONGER / _MOST_KEY_MS))
        value = "x" * _LOADED_BYTES
        self.site.commands(self.index, [("SET", key, value) for key in self._ballast()])
        keys = int(self.site.command(self.index, "DBSIZE"))
        delay_us = max(round(lasts_ms * 1000 * _LONGER / keys), 1)
        self.site.configure(self.index, {"key-load-delay": str(delay_us), "rdbcompression": "no"})
        self._reload = threading.Thread(target=self._load, args=(lasts_ms * _LONGER / 1000 + 30,), daemon=True)
        self._reload.start()
        self.site.until(self.index, lambda info: info["loading"] == 1, "begin to load")

    def _load(self, timeout_s: float) -> None:
        try:
            self.site.command(self.index, "DEBUG", "RELOAD", timeout_s=timeout_s)
        except BenchError as error:
            self.detail["reload"] = str(error)

    def end(self) -> None:
        """Have it load the rest at once, and take away what was only there to be loaded."""
        self.site.configure(self.index, _NORMAL)
        if self._reload is not None:
            self._reload.join()
        self.site.until(self.index, lambda info: info["loading"] == 0, "end its load")
        self.site.command(self.index, "UNLINK", *self._ballast())
        self.site.database_file(self.index).unlink(missing_ok=True)

    def _ballast(self) -> list[str]:
        return [f"lockbench-loading:{number}" for number in range(self._keys)]


class Misconf(Injection):
    """MISCONF by a failing snapshot or a failing append-only file."""

    params = (Param("by", choice("rdb", "aof"), "rdb", "a snapshot that fails, or an append that fails (shim)"),)

    _before: Mapping[str, str] = MappingProxyType({})
    _obstacle: Path | None = None

    @property
    def _by_aof(self) -> bool:
        return self.order.params.word("by") == "aof"

    @classmethod
    def needs(cls, params: Params) -> frozenset[Need]:
        """The shim, for appends."""
        return frozenset({Need.SHIM}) if params.word("by") == "aof" else frozenset()

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


class ReadOnly(Injection):
    """REPLICAOF a master that nobody reaches: reads go on, writes are answered -READONLY, keys stay."""

    _nobody: KeptPort | None = None

    def begin(self) -> None:
        """Become a replica."""
        self._nobody = KeptPort()
        self.site.command(self.index, "REPLICAOF", HOST, self._nobody.number)

    def end(self) -> None:
        """Be a primary again."""
        try:
            self.site.command(self.index, "REPLICAOF", "NO", "ONE")
        finally:
            if self._nobody is not None:
                self._nobody.release()
