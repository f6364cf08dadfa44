"""The parameters of a fault's kind: *a table of params → checked values, or one half sentence*.

Rules: every kind lists its params once, for checking, help and documentation alike; what is unknown is refused with the
nearest valid name. Every refusal is a ValueError, to which the reader of faults adds the place.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.scenario.quantity import duration_text, nearest, parse_duration

NS_PER_MS = 1_000_000
Value = float | str | bool
Parse = Callable[[object], Value]


class Params(dict[str, Value]):
    """The resolved params of a fault, each asked for as what its table says it is."""

    def number(self, name: str) -> float:
        """A number, or a time in milliseconds."""
        return float(self[name])

    def word(self, name: str) -> str:
        """One of its words."""
        return str(self[name])


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter: `default` as one would write it (None = must be given)."""

    name: str
    parse: Parse
    default: object
    help: str


def read_params(table: Sequence[Param], given: Mapping[str, object]) -> Params:
    """Return every param of the table with its value, the defaults filled in. Raises ValueError."""
    names = [param.name for param in table]
    for name in given:
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none"
            raise ValueError(f"there is no param {name!r} ({known}){nearest(name, names)}")
    values = Params()
    for param in table:
        raw = given.get(param.name, param.default)
        if raw is None:
            raise ValueError(f"it needs the param {param.name!r}: {param.help}")
        try:
            values[param.name] = param.parse(raw)
        except ValueError as error:
            raise ValueError(f"param {param.name!r}: {error}") from None
    return values


def duration(low_ms: float, high_ms: float) -> Parse:
    """A time such as "2ms", resolved to milliseconds."""

    def parse(raw: object) -> float:
        ms = parse_duration(raw)
        if not low_ms <= ms <= high_ms:
            raise ValueError(f"{raw!r} is outside {duration_text(low_ms)} to {duration_text(high_ms)}")
        return ms

    return parse


def signed_duration(most_ms: float) -> Parse:
    """A time with a direction such as "5s" or "-5s", not zero, resolved to milliseconds."""

    def parse(raw: object) -> float:
        text = raw.strip() if isinstance(raw, str) else raw
        back = isinstance(text, str) and text.startswith("-")
        ms = parse_duration(text.lstrip("+-") if isinstance(text, str) else text)
        if not 0 < ms <= most_ms:
            raise ValueError(f"{raw!r} is not a time up to {duration_text(most_ms)}, forward or back (5s or -5s)")
        return -ms if back else ms

    return parse


def choice(*names: str) -> Parse:
    """One of some words."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or raw not in names:
            raise ValueError(f"{raw!r} is none of {', '.join(names)}{nearest(raw, names)}")
        return raw

    return parse


def number(low: float, high: float) -> Parse:
    """A number from `low` to `high`."""

    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
            raise ValueError(f"{raw!r} is not a number from {low:g} to {high:g}")
        return float(raw)

    return parse


def flag(raw: object) -> bool:
    """True or false."""
    if not isinstance(raw, bool):
        raise ValueError(f"{raw!r} is not true or false")
    return raw


def error_number(*names: str) -> Parse:
    """The errno of a name such as "EIO"."""
    named = choice(*names)
    return lambda raw: int(getattr(errno, str(named(raw))))
