"""THE table of scenario keys: *one row → a TOML key, an option of the same name, its help and its documentation*.

Rules: a row says all there is to say about a key: its name, what values it takes, its default as one would write it.
Add a key here and in `model.Scenario`, nowhere else. Source: README's table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.scenario.quantity import (
    duration_text,
    inline_table,
    nearest,
    parse_delay,
    parse_duration,
    parse_fault,
    parse_pause,
    parse_skew,
    parse_threshold,
)
from bench.scenario.target import parse_target

Parse = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a key takes: `parse` makes a TOML value the resolved one, `from_text` an option a TOML value."""

    metavar: str
    parse: Parse
    from_text: Callable[[str], object] = str
    many: bool = False
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One key: dotted TOML `name`, resolved `field` of Scenario, `default` as in TOML (None = absent)."""

    name: str
    field: str
    kind: Kind
    default: object
    help: str
    option_name: str = ""

    @property
    def option(self) -> str:
        """The command-line option: `retry.window` → `--retry-window`; a list's is repeatable, in the singular."""
        return "--" + (self.option_name or self.name).replace(".", "-").replace("_", "-")


def _whole(low: int, high: int) -> Kind:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(f"{raw!r} is not a whole number")
        if not low <= raw <= high:
            raise ValueError(f"{raw} is outside {low} to {high}")
        return raw

    return Kind("N", parse, _int_of)


def _int_of(text: str) -> object:
    return int(text) if text.lstrip("+-").isdecimal() else text


def _float_of(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _number(above: float, high: float) -> Kind:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError(f"{raw!r} is not a number")
        if not above < raw <= high:
            raise ValueError(f"{raw:g} is not above {above:g} and up to {high:g}")
        return float(raw)

    return Kind("NUMBER", parse, _float_of)


def _duration(low_ms: float, high_ms: float, *, whole: bool = False) -> Kind:
    def parse(raw: object) -> float:
        ms = parse_duration(raw)
        if not low_ms <= ms <= high_ms:
            low, high = duration_text(low_ms), duration_text(high_ms)
            raise ValueError(f"{raw!r} is outside {low} to {high}")
        if whole and ms != int(ms):
            raise ValueError(f"{raw!r} is not a whole number of milliseconds, as Redis counts them")
        return int(ms) if whole else ms

    return Kind("DURATION", parse)


def _auto_or(kind: Kind) -> Kind:
    return Kind(f"auto|{kind.metavar}", lambda raw: None if raw == "auto" else kind.parse(raw), kind.from_text)


def _choice(*names: str) -> Kind:
    def parse(raw: object) -> str:
        if raw not in names or not isinstance(raw, str):
            raise ValueError(f"{raw!r} is none of {', '.join(names)}{nearest(raw, names)}")
        return raw

    return Kind("|".join(names), parse)


def _word(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"{raw!r} is not a name")
    return raw


def _truth(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError(f"{raw!r} is not true or false")
    return raw


def _many(metavar: str, item: Parse, from_text: Callable[[str], object] = str) -> Kind:
    def parse(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise ValueError(f"{raw!r} is not a list (write it in [ ])")
        return tuple(item(entry) for entry in raw)

    return Kind(metavar, parse, from_text, many=True)


_DAY_MS = 86_400_000.0

KEYS: tuple[Key, ...] = (
    Key("recipe", "recipe", Kind("NAME", _word), "redlock", "which lock to load (`lockbench recipes` lists them)"),
    Key(
        "instances",
        "instances",
        _whole(1, 64),
        5,
        "how many servers to start (the recipe may want another number); or name running ones with targets",
    ),
    Key(
        "targets",
        "targets",
        _many("URL", parse_target),
        (),
        "a running instance instead of started ones: redis://, rediss:// or unix:// (once per instance)",
        option_name="target",
    ),
    Key(
        "fsync",
        "fsync",
        _choice("none", "no", "everysec", "always"),
        "everysec",
        "AOF policy of started servers; none = no AOF",
    ),
    Key("users", "users", _whole(1, 100_000), 64, "concurrent callers over all processes"),
    Key("processes", "processes", _whole(1, 256), 1, "Locust worker processes"),
    Key(
        "rate",
        "rate_per_s",
        _number(0, 10_000_000),
        None,
        "operations per second in all: open loop; absent: closed loop",
    ),
    Key("arrivals", "arrivals", _choice("poisson", "fixed"), "poisson", "how open-loop operations are spaced"),
    Key("duration", "duration_ms", _duration(100, _DAY_MS), "20s", "measured time; the warm-up comes before it"),
    Key(
        "warmup",
        "warmup_ms",
        _auto_or(_duration(0, _DAY_MS)),
        "auto",
        "time left out before measuring; auto = max(2s, 10 %)",
    ),
    Key("resources", "resources", _whole(1, 10_000_000), 1000, "how many different things are locked"),
    Key(
        "skew",
        "skew",
        Kind("SKEW", parse_skew),
        "uniform",
        "uniform, own (each caller its own), zipf:1.1, or hot:0.9 (that share on one key)",
    ),
    Key(
        "hold",
        "hold",
        Kind("TIME", parse_delay),
        "0",
        "work under the lock: 0, fixed:5ms, exp:5ms, lognormal:5ms,1.0",
    ),
    Key(
        "think",
        "think",
        Kind("TIME", parse_delay),
        "0",
        "a caller's rest between two operations, closed loop only",
    ),
    Key("ttl", "ttl_ms", _duration(5, _DAY_MS, whole=True), "10s", "time to live of a lock, the PX argument"),
    Key("wait", "wait_ms", _duration(0, _DAY_MS, whole=True), "1s", "how long one acquire may wait"),
    Key(
        "instance_timeout",
        "instance_timeout_ms",
        _auto_or(_duration(0.1, _DAY_MS)),
        "auto",
        "how long one instance may take to answer; auto = min(50ms, ttl / 4), never above ttl / 4",
    ),
    Key(
        "retry.policy",
        "retry.policy",
        _choice("full-jitter", "fixed", "none"),
        "full-jitter",
        "how a refused acquire waits",
    ),
    Key(
        "retry.window",
        "retry.window_ms",
        _duration(0.1, 3_600_000),
        "5ms",
        "U(0, window) or the fixed wait before a retry",
    ),
    Key("retry.attempts", "retry.attempts", _whole(1, 1_000_000), 1000, "attempts of one acquire at most"),
    Key(
        "retry.unreachable",
        "retry.unreachable",
        Kind("", _truth, flag=True),
        False,
        "try again, within wait, when a quorum was unreachable; else such an acquire fails at once",
    ),
    Key(
        "max_ttl",
        "max_ttl_ms",
        _duration(5, _DAY_MS, whole=True),
        "10s",
        "largest TTL of the whole fleet; larger are refused",
    ),
    Key(
        "rejoin",
        "rejoin",
        _choice("trust-first", "delay", "trust"),
        "trust-first",
        "who votes at once: trust-first = at first contact, not after a restart; delay = nobody; trust = all",
    ),
    Key(
        "merge_releases",
        "merge_releases",
        Kind("", _truth, flag=True),
        False,
        "merge the script releases of one turn into one call: less server CPU, but commands per lease vary",
    ),
    Key("events", "events", _choice("fast", "stock"), "fast", "stock = one Locust event per operation"),
    Key("seed", "seed", _whole(0, 2**63 - 1), 1, "drives every random choice of the load"),
    Key(
        "fencing",
        "fencing",
        Kind("", _truth, flag=True),
        False,
        "every holder writes to a register that rejects stale writes, by fencing token or by owner token",
    ),
    Key(
        "thresholds",
        "thresholds",
        _many("EXPR", parse_threshold),
        (),
        "a limit that the result must keep, like 'acquire.p99 < 10ms'",
        option_name="threshold",
    ),
    Key(
        "pause",
        "pause",
        _many("P:D:S", parse_pause),
        (),
        "stretch a recipe's pause point: point:how long:share of passes (`lockbench recipes --json` lists the points)",
    ),
    Key(
        "faults",
        "faults",
        _many("TABLE", parse_fault, inline_table),
        (),
        "a fault as an inline TOML table: at, for, kind, target, phase, params",
        option_name="fault",
    ),
)
BY_NAME = {key.name: key for key in KEYS}
