"""What a client meets: answers that are late, missing or refusals, and a way to the instance that is no better.

Rules
- The commands go to the instance itself, past any proxy. Settings and keys are as before at the end.
- maxmemory, noeviction: a limit below what is in use refuses every SET. volatile-ttl: ballast with a far expiry and a
  limit just above what is in use, so that each new key takes the place of the lock that would expire first.
- loading: DEBUG RELOAD of the running server, so process, run id and keys stay. Ballast and the server's own delay
  per loaded key stretch it; taking the delay away ends it. The saved file is removed: a restart must not find it.
- misconf: a folder stands where the snapshot's file belongs.
- Drop rules name one loopback port of ours, in a table that belongs to an `nft` process and dies with it. "to" is
  what clients send, "from" what the instance answers.

Source: Redis 7.0 and Valkey 9.1; nft(8), `flags owner`.
"""

import os
import secrets
import shutil
import threading
import time

from bench.errors import BenchError
from bench.scenario.keys import choice, duration
from bench.topology.child import CLEAR, Leash, Shape
from bench.topology.faults.injection import Injection, Moment, Need, Param, Params
from bench.topology.fleet import HOST, KeptPort

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
        self.undo.callback(self._go_on)
        lasts_ms = round(self.order.lasts_ms) if self.order.lasts_ms is not None else _DAY_MS
        self._until_s = time.monotonic() + lasts_ms / 1000
        self.site.command(self.index, "CLIENT", "PAUSE", lasts_ms, self.order.params["mode"].upper())

    def _go_on(self) -> None:
        """Let writes go on; a pause of everything ends by itself, or, if that is too early, by a restart."""
        if self.order.params["mode"] == "write":
            self.site.command(self.index, "CLIENT", "UNPAUSE")
        elif time.monotonic() < self._until_s:
            self.detail["restarted"] = True
            self.site.restart(self.index)


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


_BALLAST_KEYS, _BALLAST_BYTES, _BALLAST_TTL_S = 256, 16384, 86_400
_ROOM_BYTES = 32768


class MaxMemory(Injection):
    """maxmemory with the policy `noeviction` or `volatile-ttl`."""

    params = (
        Param("policy", choice("noeviction", "volatile-ttl"), "noeviction", "SETs fail, or live locks vanish silently"),
    )

    def begin(self) -> None:
        """Leave no room."""
        policy, limit = self.order.params["policy"], 1
        self.undo.callback(self.site.command, self.index, "UNLINK", *_ballast())
        if policy == "volatile-ttl":
            value = "x" * _BALLAST_BYTES
            self.site.commands(self.index, [("SET", key, value, "EX", _BALLAST_TTL_S) for key in _ballast()])
            info = self.site.info(self.index)  # an AOF that waits for its disk is in use, and not what evicts
            limit = int(info["used_memory"]) - int(info["mem_not_counted_for_evict"]) + _ROOM_BYTES
        settings = {"maxmemory-policy": policy, "maxmemory-samples": "64", "maxmemory": str(limit)}
        before = self.site.configure(self.index, settings)
        self.undo.callback(self.site.configure, self.index, dict(reversed(before.items())))  # the limit goes first


def _ballast() -> list[str]:
    return [f"lockbench-maxmemory:{number}" for number in range(_BALLAST_KEYS)]


_FEWEST_KEYS, _MOST_KEY_MS, _LOADED_BYTES = 1000, 10.0, 1024
_LONGER = 2.0  # the load is planned to take twice as long, and cut
_NORMAL = {"key-load-delay": "0", "rdbcompression": "yes"}


class Loading(Injection):
    """LOADING for the fault's time."""

    needs = frozenset({Need.DEBUG})
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
        self.undo.callback(self._end_load)
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

    def _end_load(self) -> None:
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
    """MISCONF by a snapshot that fails while one is wanted."""

    def begin(self) -> None:
        """Fail, and return when the server has noticed."""
        obstacle = self.site.database_file(self.index)
        self.undo.callback(shutil.rmtree, obstacle, ignore_errors=True)
        (obstacle / "in the way").mkdir(parents=True)
        before = self.site.configure(self.index, {"save": "3600 1", "stop-writes-on-bgsave-error": "yes"})
        self.undo.callback(self.site.configure, self.index, before)
        self.site.command(self.index, "BGSAVE", "SCHEDULE")
        self.site.until(self.index, lambda info: info["rdb_last_bgsave_status"] != "ok", "notice the failed snapshot")


class ReadOnly(Injection):
    """REPLICAOF a master that nobody reaches: reads go on, writes are answered -READONLY, keys stay."""

    def begin(self) -> None:
        """Become a replica."""
        nobody = KeptPort()
        self.undo.callback(nobody.release)
        self.undo.callback(self.site.command, self.index, "REPLICAOF", "NO", "ONE")
        self.site.command(self.index, "REPLICAOF", HOST, nobody.number)


_DIRECTIONS = {"both": ("to", "from"), "to": ("to",), "from": ("from",)}
_MINUTE_MS = 60_000.0
_DIRECTION = Param("direction", choice(*_DIRECTIONS), "both", "to the instance, from it, or both")


class ProxyFault(Injection):
    """A link that is late, hands over nothing until it is healed, or resets every connection."""

    params = (
        Param(
            "mode", choice("delay", "black-hole", "reset"), "delay", "late, nothing at all, or all connections reset"
        ),
        Param("delay", duration(0, _MINUTE_MS), "0", "how late each chunk is"),
        Param("jitter", duration(0, _MINUTE_MS), "0", "up to how much later, uniform, in order"),
        _DIRECTION,
    )

    needs = frozenset({Need.PROXY})

    @classmethod
    def lasts_ms(cls, for_ms: float | None, params: Params) -> float | None:
        """As said; the params must go together."""
        late = params["delay"] + params["jitter"] > 0
        if late != (params["mode"] == "delay"):
            raise ValueError("mode delay needs a delay or a jitter, and the other modes have neither")
        if params["mode"] == "reset" and params["direction"] != "both":
            raise ValueError("a reset has both directions")
        return for_ms

    def begin(self) -> None:
        """Bend the link; at the end everything goes through, what was held first."""
        self.undo.callback(self.site.proxies.shape, self.index, CLEAR)
        self.site.proxies.shape(self.index, self._shape())

    def _shape(self) -> Shape:
        params = self.order.params
        directions = _DIRECTIONS[params["direction"]]
        if params["mode"] == "reset":
            return Shape(reset=True)
        if params["mode"] == "black-hole":
            return Shape(held=directions)
        return Shape(params["delay"] / 1000, params["jitter"] / 1000, slow=directions)


class Drop(Injection):
    """Packets to or from the instance's port are lost; TCP repeats them, ever more seldom, until they come through."""

    params = (_DIRECTION,)

    def why_not(self) -> str | None:
        """It needs root and nft: tried with a table that drops nothing."""
        reason = super().why_not()
        if reason:
            return reason
        if os.geteuid() != 0:
            return "it needs root"
        try:
            _hold([]).release()
        except BenchError as error:
            return f"it needs root and nftables: {error}"
        return None

    def begin(self) -> None:
        """Lose packets."""
        port = self.site.fleet.instances[self.index].port
        ends = {"to": f"tcp dport {port} drop", "from": f"tcp sport {port} drop"}
        rules = _hold([ends[direction] for direction in _DIRECTIONS[self.order.params["direction"]]])
        self.undo.callback(rules.release)


def _hold(rules: list[str]) -> Leash:
    """Have these rules on what arrives over loopback until the leash is released, or this process is gone."""
    table = f"lockbench_{secrets.token_hex(4)}"
    lines = [
        f"add table inet {table} {{ flags owner; }}",
        f"add chain inet {table} arriving {{ type filter hook input priority 0; }}",
        *(f'add rule inet {table} arriving iifname "lo" {rule}' for rule in rules),
        f"list chain inet {table} arriving",
    ]
    return Leash(["nft", "-i"], ready=f"table inet {table} {{", say="\n".join(lines) + "\n")
