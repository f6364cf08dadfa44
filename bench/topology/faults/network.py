"""The way to an instance: proxy (slow, cut, reset; any user) and drop (packets lost in the kernel; root and nftables).

Rules: the proxy stands before every instance from the start, and only what is ordered is bent. Drop rules name one
loopback port of ours, in a table that belongs to an `nft` process and dies with it. "to" is what clients send, "from"
what the instance answers. Source: nft(8), `flags owner`.
"""

import os
import secrets

from bench.errors import BenchError
from bench.scenario.keys import choice, duration
from bench.topology.child import Leash
from bench.topology.faults.injection import Injection, Param, Params
from bench.topology.faults.site import Need
from bench.topology.proxy import CLEAR, Shape

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
        late = params.number("delay") + params.number("jitter") > 0
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
        directions = _DIRECTIONS[params.word("direction")]
        if params["mode"] == "reset":
            return Shape(reset=True)
        if params["mode"] == "black-hole":
            return Shape(held=directions)
        return Shape(params.number("delay") / 1000, params.number("jitter") / 1000, slow=directions)


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
        rules = _hold([ends[direction] for direction in _DIRECTIONS[self.order.params.word("direction")]])
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
