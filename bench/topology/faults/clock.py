"""A wrong wall clock: clock-jump and clock-rate, through the shim. Servers expire keys by their wall clock.

Rules: monotonic clocks stay true, as they do where NTP steps a clock. A jump is undone by a jump back; a rate is undone
without a jump, so what it gained stays gained. Both survive a restart of the server: it is the machine's clock.
Source: Redis 7.0's mstime; the drift term of the Redlock text.
"""

import contextlib
import time

from bench.errors import BenchError
from bench.scenario.keys import KeyKind
from bench.scenario.quantity import parse_duration
from bench.topology.faults.injection import NS_PER_MS, Injection, Param
from bench.topology.faults.site import Need
from bench.topology.fleet import wait_until
from bench.topology.shim import Control

_DAY_MS = 86_400_000.0
_SLOWEST, _FASTEST = 0.1, 10
_NOTICE_S = 2.0


def _jump_ms(raw: object) -> float:
    """A time with a direction such as "5s" or "-5s", not zero."""
    text = raw.strip() if isinstance(raw, str) else ""
    ms = parse_duration(text.lstrip("+-") or raw)
    if not 0 < ms <= _DAY_MS:
        raise ValueError(f"{raw!r} is not a time up to 24h, forward or back (5s or -5s)")
    return -ms if text.startswith("-") else ms


def _rate(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not _SLOWEST <= raw <= _FASTEST:
        raise ValueError(f"{raw!r} is not a number from {_SLOWEST:g} to {_FASTEST:g}")
    return float(raw)


class ClockJump(Injection):
    """The clock jumps `by` a time: forward, keys vanish early; back, they block longer."""

    needs = frozenset({Need.SHIM})
    params = (Param("by", KeyKind("", _jump_ms), None, "how far, such as 5s or -5s"),)

    def begin(self) -> None:
        """Jump, and return when the server has noticed: it looks at its clock once per turn."""
        self.undo.callback(self._jump_back)
        self._jump(1)

    def _jump_back(self) -> None:
        with contextlib.suppress(BenchError):  # it is down, or stands still: the clock is right all the same
            self._jump(-1)

    def _jump(self, sign: int) -> None:
        by_ns = sign * int(self.order.params.number("by") * NS_PER_MS)
        control = self.site.control(self.index)
        control.shift_clock(by_ns)
        complaint = f"instance {self.index} does not show the jump of its clock"
        wait_until(lambda: abs(self._behind_ns(control)) <= abs(by_ns) / 2, _NOTICE_S, complaint)

    def _behind_ns(self, control: Control) -> int:
        """How far the time the server tells is from what the shim shows, its way here and back left out."""
        before_ns = time.time_ns()
        seconds, microseconds = map(int, self.site.command(self.index, "TIME"))
        after_ns = time.time_ns()
        told_ns = (seconds * 1_000_000 + microseconds) * 1000 - control.clock_offset_ns()
        return min(told_ns - before_ns, 0) + max(told_ns - after_ns, 0)


class ClockRate(Injection):
    """The clock runs at `rate` times true speed."""

    needs = frozenset({Need.SHIM})
    params = (Param("rate", KeyKind("", _rate), None, "1.1 = ten percent fast"),)

    def begin(self) -> None:
        """Run wrong."""
        self.undo.callback(self._run_true)
        self.site.control(self.index).set_clock_rate(self.order.params.number("rate"))

    def _run_true(self) -> None:
        control = self.site.control(self.index)
        control.set_clock_rate(1.0)
        self.detail["ahead_ms"] = control.clock_offset_ns() / NS_PER_MS
