"""A wrong wall clock: clock-jump and clock-rate, through the shim. Servers expire keys by their wall clock.

Rules: monotonic clocks stay true, as they do where NTP steps a clock. A jump is undone by a jump back; a rate is undone
without a jump, so what it gained stays gained. Both survive a restart of the server: it is the machine's clock.
Source: Redis 7.0's mstime; the drift term of the Redlock text.
"""

import contextlib
import time

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.topology.faults.injection import Injection
from bench.topology.faults.params import NS_PER_MS, Param, number, signed_duration
from bench.topology.faults.site import Need
from bench.topology.shim.control import Control

_DAY_MS = 86_400_000.0
_NOTICE_S = 2.0


class _ClockFault(Injection):
    """A fault of the wall clock."""

    always_needs = frozenset({Need.SHIM})


class ClockJump(_ClockFault):
    """The clock jumps `by` a time: forward, keys vanish early; back, they block longer."""

    params = (Param("by", signed_duration(_DAY_MS), None, "how far, such as 5s or -5s"),)

    def begin(self) -> None:
        """Jump, and return when the server has noticed: it looks at its clock once per turn."""
        self._jump(1)

    def end(self) -> None:
        """Jump back."""
        with contextlib.suppress(BenchError):  # it is down, or stands still: the clock is right all the same
            self._jump(-1)

    def _jump(self, sign: int) -> None:
        by_ns = sign * int(self.order.params.number("by") * NS_PER_MS)
        control = self.site.control(self.index)
        control.shift_clock(by_ns)
        deadline_s = time.monotonic() + _NOTICE_S
        while abs(self._behind_ns(control)) > abs(by_ns) / 2:
            if time.monotonic() > deadline_s:
                raise EnvironmentNotReadyError(f"instance {self.index} does not show the jump of its clock")

    def _behind_ns(self, control: Control) -> int:
        """How far the time the server tells is from what the shim shows, its way here and back left out."""
        before_ns = time.time_ns()
        seconds, microseconds = map(int, self.site.command(self.index, "TIME"))
        after_ns = time.time_ns()
        told_ns = (seconds * 1_000_000 + microseconds) * 1000 - control.clock_offset_ns()
        return min(told_ns - before_ns, 0) + max(told_ns - after_ns, 0)


class ClockRate(_ClockFault):
    """The clock runs at `rate` times true speed."""

    params = (Param("rate", number(0.1, 10), None, "1.1 = ten percent fast"),)

    def begin(self) -> None:
        """Run wrong."""
        self.site.control(self.index).set_clock_rate(self.order.params.number("rate"))

    def end(self) -> None:
        """Run true."""
        control = self.site.control(self.index)
        control.set_clock_rate(1.0)
        self.detail["ahead_ms"] = control.clock_offset_ns() / NS_PER_MS
