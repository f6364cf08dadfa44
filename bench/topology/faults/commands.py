"""What a server does to its clients when it is told to: client-pause, client-kill, script-flush.

Rules: the commands go to the instance itself, past any proxy. Source: CLIENT PAUSE, CLIENT KILL and SCRIPT FLUSH of
Redis 7.0 and Valkey 9.1.
"""

import time

from bench.topology.faults.injection import Injection, Moment
from bench.topology.faults.params import Param, Params, choice

_DAY_MS = 86_400_000


class ClientPause(Injection):
    """CLIENT PAUSE: commands wait, connections stay. ALL holds back even its own undoing, so it needs a `for`."""

    params = (Param("mode", choice("all", "write"), "all", "all commands wait, or only those that write"),)
    _until_s = 0.0

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """As said; a pause of everything must be bounded beforehand."""
        if for_ms is None and params["mode"] == "all":
            raise ValueError("mode all cannot be undone early by any command; say `for` how long, or take mode write")
        return for_ms

    def begin(self) -> None:
        """Pause."""
        lasts_ms = round(self.order.lasts_ms) if self.order.lasts_ms is not None else _DAY_MS
        self._until_s = time.monotonic() + lasts_ms / 1000
        self.site.command(self.index, "CLIENT", "PAUSE", lasts_ms, self.order.params.word("mode").upper())

    def end(self) -> None:
        """Let writes go on; a pause of everything ends by itself, or, if that is too early, by a restart."""
        if self.order.params["mode"] == "write":
            self.site.command(self.index, "CLIENT", "UNPAUSE")
        elif time.monotonic() < self._until_s:
            self.detail["restarted"] = True
            with self.site.lock(self.index):
                self.site.fleet.restart(self.index)


class ClientKill(Moment):
    """CLIENT KILL TYPE normal: every client's connection is closed; they may connect again at once."""

    def begin(self) -> None:
        """Close all connections."""
        self.detail["closed"] = self.site.command(self.index, "CLIENT", "KILL", "TYPE", "normal")


class ScriptFlush(Moment):
    """SCRIPT FLUSH: every EVALSHA answers NOSCRIPT until its script is sent again."""

    def begin(self) -> None:
        """Forget all scripts."""
        self.site.command(self.index, "SCRIPT", "FLUSH", "SYNC")
