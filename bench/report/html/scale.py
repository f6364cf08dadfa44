"""Scales from values to pixels: *a range of figures → a scale with readable ticks*.

Rules: bounds and ticks are round numbers (1, 2 or 5 times a power of ten). A logarithmic scale has
a tick at each power of ten. Over a short range, a logarithmic scale also has ticks at 2 and 5 times
each power of ten. If a range has no width, it is widened, because the scale divides by the width.
Source: Heckbert, "Nice numbers for graph labels" (Graphics Gems, 1990).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0)


Label = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale that maps values from `low` to `high` to pixels from `start` to `end`.

    The drawing code sets `start` and `end`.

    `ticks`: the values that get a label. `label`: a function that returns the label of a tick.
    `name`: the measured quantity, with its unit.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    name: str
    label: Label
    log: bool = False
    start: float = 0.0
    end: float = 1.0

    def __call__(self, value: float) -> float:
        """Return the position (pixels) at which a value is drawn.

        If the value is outside the range, return the position of the nearest end of the range.
        """
        low = self.low
        high = self.high
        at = min(max(value, self.low), self.high)
        if self.log:
            low = math.log10(low)
            high = math.log10(high)
            at = math.log10(at)
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def linear(values: Iterable[float], name: str, label: Label) -> Scale:
    """Return a linear scale from 0 over `values`, with about five ticks."""
    high = max(values, default=1.0) or 1.0
    step = _nice(high / 5)
    return exact(0.0, math.ceil(high / step - 1e-9) * step, name, label)


def exact(low: float, high: float, name: str, label: Label, *, most: int = 6) -> Scale:
    """Return a linear scale that ends exactly at `low` and `high`, with round ticks between them.

    A time axis uses this scale.
    """
    if high <= low:
        high = low + 1.0
    step = _nice((high - low) / most)
    ticks = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-6) + 1)
    return Scale(low, high, tuple(round(tick * step, 12) for tick in ticks), name, label)


def logarithmic(values: Iterable[float], name: str, label: Label, *, most: int = 7) -> Scale:
    """Return a logarithmic scale over the positive `values`, with about `most` ticks."""
    positives = [value for value in values if value > 0] or [1.0]
    low = _nice(min(positives), up=False)
    high = _nice(max(positives))
    if high <= low:
        high = low * 10
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = STEPS if math.log10(high / low) < 2.1 else STEPS[:1]
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return Scale(low, high, tuple(ticks[:: 1 + len(ticks) // (2 * most)]), name, label, log=True)


def latencies(values: Iterable[float]) -> Scale:
    """Return the logarithmic scale of latencies in s."""
    return logarithmic(values, "latency (log scale)", duration_tick)


def percentiles(count: float) -> Scale:
    """Return the scale of a percentile curve with `count` samples.

    The scale is logarithmic. A percentile is converted to a value on this scale: the value for the
    percentile p (0 to 1) is 1 ÷ (1 − p). The last value on the scale is the smallest power of ten
    that is at least `count`.
    """
    nines = math.ceil(math.log10(max(count, 10)))
    ticks = (1.0, 2.0, *(10.0**decade for decade in range(1, nines + 1)))
    return Scale(1.0, 10.0**nines, ticks, "percentile", percentile_text, log=True)


def percentile_text(value: float) -> str:
    """Return the label of a tick on a percentile scale, such as `99 %` for the value 100."""
    share = 100 * (1 - 1 / value)
    return f"{share:.{max(round(math.log10(value)) - 2, 0)}f} %"


def duration_tick(seconds: float) -> str:
    """Return the label of a tick that is a time, in a unit that keeps the number short."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.999:
            return f"{seconds / size:,.3g} {unit}"
    return "0" if not seconds else f"{seconds * 1e9:.3g} ns"


def number_tick(value: float) -> str:
    """Return the label of a tick that is a count or a rate, such as `12k` for the value 12,000."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 9.99:
            return f"{value / size:g}{unit}"
    return f"{value:,g}"


def _nice(value: float, *, up: bool = True) -> float:
    """Return a round number near `value`.

    If `up` is true, return the smallest round number that is at least `value`. If `up` is false,
    return the largest round number that is at most `value`. A round number is 1, 2 or 5 times a
    power of ten.
    """
    power = 10.0 ** math.floor(math.log10(value))
    steps = [step * power for step in (*STEPS, 10.0)]
    return (
        min(s for s in steps if s >= value * 0.999999)
        if up
        else max(s for s in steps if s <= value * 1.000001)
    )
