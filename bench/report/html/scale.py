"""Values to pixels: *a range of figures → a scale with ticks that people can read*.

Rules: bounds and ticks are round numbers (1, 2 or 5 times a power of ten); a logarithmic scale shows whole decades, and
the steps between them where there are few. A range without width is widened, never divided by. Pixels are SVG units.
Source: Heckbert, "Nice numbers for graph labels" (Graphics Gems, 1990).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps low…high to start_px…end_px; `ticks` are the values to label."""

    low: float
    high: float
    start_px: float
    end_px: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is put on the edge."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return self.start_px + (self.end_px - self.start_px) * (at - low) / (high - low)


def linear(values: Iterable[float], start_px: float, end_px: float) -> Scale:
    """A linear scale from 0 over `values`, with about five ticks."""
    high = max(values, default=1.0) or 1.0
    step = _nice(high / 5)
    return exact(0.0, math.ceil(high / step - 1e-9) * step, start_px, end_px)


def exact(low: float, high: float, start_px: float, end_px: float, *, most: int = 6) -> Scale:
    """A linear scale that ends exactly at `low` and `high` (time on a run), with round ticks between them."""
    if high <= low:
        high = low + 1.0
    step = _nice((high - low) / most)
    ticks = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-6) + 1)
    return Scale(low, high, start_px, end_px, tuple(round(tick * step, 12) for tick in ticks))


def logarithmic(values: Iterable[float], start_px: float, end_px: float, *, most: int = 7) -> Scale:
    """A logarithmic scale over the positive `values`, with about `most` ticks."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = _nice(min(known), up=False), _nice(max(known))
    if high <= low:
        high = low * 10
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = STEPS if math.log10(high / low) < 2.1 else STEPS[:1]
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return Scale(low, high, start_px, end_px, tuple(ticks[:: 1 + len(ticks) // (2 * most)]), log=True)


def percentiles(count: int, start_px: float, end_px: float) -> Scale:
    """The scale of a percentile curve: 1 ÷ (1 − share), logarithmic, as far as `count` samples reach."""
    nines = math.ceil(math.log10(max(count, 10)))
    ticks = (1.0, 2.0, *(10.0**decade for decade in range(1, nines + 1)))
    return Scale(1.0, 10.0**nines, start_px, end_px, ticks, log=True)


def percentile_text(value: float) -> str:
    """The label of such a tick: 100 → 99 %."""
    share = 100 * (1 - 1 / value)
    return f"{share:.{max(round(math.log10(value)) - 2, 0)}f} %"


def duration_tick(seconds: float) -> str:
    """A time as a tick's label, in the unit that needs fewest digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.999:
            return f"{seconds / size:,.3g} {unit}"
    return "0" if not seconds else f"{seconds * 1e9:.3g} ns"


def number_tick(value: float) -> str:
    """A count or rate as a tick's label: 12,000 → 12k."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 9.99:
            return f"{value / size:g}{unit}"
    return f"{value:,g}"


def ratio_tick(value: float) -> str:
    """A share as a tick's label."""
    return f"{value * 100:g} %"


Label = Callable[[float], str]


def _nice(value: float, *, up: bool = True) -> float:
    """The next number that is 1, 2 or 5 times a power of ten, above `value` or below it; itself if it is one."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = [step * power for step in (*STEPS, 10.0)]
    return min(s for s in steps if s >= value * 0.999999) if up else max(s for s in steps if s <= value * 1.000001)
