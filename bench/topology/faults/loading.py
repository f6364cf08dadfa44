"""A server that loads its data: every command is answered -LOADING, for as long as it takes.

Rules: DEBUG RELOAD saves and loads the data of the running server, so process, run id and keys stay. Ballast and the
server's own delay per loaded key stretch it; taking the delay away ends it early, as CONFIG is answered meanwhile.
The saved file is removed, for a later restart must not find it. Source: DEBUG RELOAD, key-load-delay of Redis 7.0
and Valkey 9.1 (their own tests use both).
"""

import threading
from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError
from bench.topology.faults.injection import FaultOrder, Injection
from bench.topology.faults.site import Need, Site

_FEWEST_KEYS, _MOST_KEY_MS, _VALUE_BYTES = 1000, 10.0, 1024
_LONGER = 2.0  # the load is planned to take twice as long, and cut
_NORMAL = {"key-load-delay": "0", "rdbcompression": "yes"}


class Loading(Injection):
    """LOADING for the fault's time."""

    def __init__(self, site: Site, order: FaultOrder) -> None:
        super().__init__(site, order)
        self._reload: threading.Thread | None = None
        self._keys = 0

    @classmethod
    def needs(cls, params: Mapping[str, Any]) -> frozenset[Need]:
        """DEBUG must be allowed."""
        return frozenset({Need.DEBUG})

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Mapping[str, Any]) -> float | None:
        """As said."""
        if for_ms is None:
            raise ValueError("a load must end: say `for` how long")
        return for_ms

    def begin(self) -> None:
        """Have it load, and return when it says that it does."""
        lasts_ms = self.order.lasts_ms or 1000.0
        self._keys = max(_FEWEST_KEYS, round(lasts_ms * _LONGER / _MOST_KEY_MS))
        value = "x" * _VALUE_BYTES
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
