"""A wrong wall clock: clock-jump and clock-rate, through the shim. Servers expire keys by their wall clock.

Rules: monotonic clocks stay true, as they do where NTP steps a clock. A jump is undone by a jump back; a rate is undone
without a jump, so what it gained stays gained. Both survive a restart of the server: it is the machine's clock.
Source: Redis 7.0's mstime; the drift term of the Redlock text.
"""

from collections.abc import Mapping
from typing import Any

from bench.topology.faults.injection import Injection, Need
from bench.topology.faults.params import NS_PER_MS, Param, number, signed_duration

_DAY_MS = 86_400_000.0


class _ClockFault(Injection):
    """A fault of the wall clock."""

    @classmethod
    def needs(cls, params: Mapping[str, Any]) -> frozenset[Need]:
        """The shim."""
        return frozenset({Need.SHIM})


class ClockJump(_ClockFault):
    """The clock jumps `by` a time: forward, keys vanish early; back, they block longer."""

    params = (Param("by", signed_duration(_DAY_MS), None, "how far, such as 5s or -5s"),)

    def begin(self) -> None:
        """Jump."""
        self.site.control(self.index).shift_clock(self._by_ns)

    def end(self) -> None:
        """Jump back."""
        self.site.control(self.index).shift_clock(-self._by_ns)

    @property
    def _by_ns(self) -> int:
        return int(self.order.params["by"] * NS_PER_MS)


class ClockRate(_ClockFault):
    """The clock runs at `rate` times true speed."""

    params = (Param("rate", number(0.1, 10), None, "1.1 = ten percent fast"),)

    def begin(self) -> None:
        """Run wrong."""
        self.site.control(self.index).set_clock_rate(self.order.params["rate"])

    def end(self) -> None:
        """Run true."""
        control = self.site.control(self.index)
        control.set_clock_rate(1.0)
        self.detail["ahead_ms"] = control.clock_offset_ns() / NS_PER_MS
