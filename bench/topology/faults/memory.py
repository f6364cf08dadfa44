"""A server out of memory: noeviction refuses every SET, volatile-ttl lets live locks vanish without a word.

Rules: noeviction sets a limit below what is in use. For volatile-ttl there is ballast with a far expiry and a limit
just above what is in use: each new key then takes the place of the lock that would expire first, and SETs succeed.
Settings and keys are as before at the end. Source: CONFIG maxmemory, maxmemory-policy of Redis 7.0 and Valkey 9.1.
"""

from bench.topology.faults.injection import FaultOrder, Injection
from bench.topology.faults.params import Param, choice
from bench.topology.faults.site import Site

BALLAST_KEYS, _BALLAST_BYTES, _BALLAST_TTL_S = 256, 16384, 86_400
_ROOM_BYTES = 32768


class MaxMemory(Injection):
    """maxmemory with the policy `noeviction` or `volatile-ttl`."""

    params = (
        Param("policy", choice("noeviction", "volatile-ttl"), "noeviction", "SETs fail, or live locks vanish silently"),
    )

    def __init__(self, site: Site, order: FaultOrder) -> None:
        super().__init__(site, order)
        self._before: dict[str, str] = {}
        self._evicted = 0

    def begin(self) -> None:
        """Leave no room."""
        policy, limit = self.order.params["policy"], 1
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
