"""The scenario, key by key: *a field of `Scenario` → a TOML key, an option of the same name, its help, its schema*.

Rules: a field says all there is to say about its key: what values it takes, its default as one would write it, what it
means. The field's name carries the unit, the key's does not. Add a key here and nowhere else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self, get_type_hints

from bench.scenario.quantity import (
    Delay,
    Fault,
    Pause,
    Skew,
    duration_text,
    inline_table,
    nearest,
    parse_delay,
    parse_duration,
    parse_fault,
    parse_pause,
    parse_skew,
    parse_target,
    parse_threshold,
    says,
)
from lockcore.mask import shown

Parse = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class KeyKind:
    """What values a key takes: `parse` makes a TOML value the resolved one, `from_text` an option a TOML value.

    `words`: the only ones there are, if they are few.
    """

    metavar: str
    parse: Parse
    from_text: Callable[[str], object] = str
    many: bool = False
    flag: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioKey:
    """One key: dotted TOML `name`, dotted `field` of Scenario, `default` as in TOML (None = absent)."""

    name: str
    field: str
    kind: KeyKind
    default: object
    help: str

    @property
    def option(self) -> str:
        """The command-line option: `retry.window` → `--retry-window`; a list's is repeatable, in the singular."""
        name = self.name.removesuffix("s") if self.kind.many else self.name
        return "--" + name.replace(".", "-").replace("_", "-")


def _whole(low: int, high: int) -> KeyKind:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(f"{raw!r} is not a whole number")
        if not low <= raw <= high:
            raise ValueError(f"{raw} is outside {low} to {high}")
        return raw

    return KeyKind("N", parse, lambda text: int(text) if text.lstrip("+-").isdecimal() else text)


def _float_of(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _number(above: float, high: float) -> KeyKind:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError(f"{raw!r} is not a number")
        if not above < raw <= high:
            raise ValueError(f"{raw:g} is not above {above:g} and up to {high:g}")
        return float(raw)

    return KeyKind("NUMBER", parse, _float_of)


def duration(low_ms: float, high_ms: float, *, whole: bool = False) -> KeyKind:
    """A time such as "2ms", resolved to milliseconds."""

    def parse(raw: object) -> float:
        ms = parse_duration(raw)
        if not low_ms <= ms <= high_ms:
            low, high = duration_text(low_ms), duration_text(high_ms)
            raise ValueError(f"{raw!r} is outside {low} to {high}")
        if whole and ms != int(ms):
            raise ValueError(f"{raw!r} is not a whole number of milliseconds, as Redis counts them")
        return int(ms) if whole else ms

    return KeyKind("DURATION", parse)


def _auto_or(kind: KeyKind) -> KeyKind:
    return KeyKind(f"auto|{kind.metavar}", lambda raw: None if raw == "auto" else kind.parse(raw), kind.from_text)


def choice(*names: str) -> KeyKind:
    """One of some words."""

    def parse(raw: object) -> str:
        if raw not in names or not isinstance(raw, str):
            raise ValueError(f"{raw!r} is none of {', '.join(names)}{nearest(raw, names)}")
        return raw

    return KeyKind("|".join(names), parse, words=names)


def _word(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"{raw!r} is not a name")
    return raw


def _truth(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError(f"{raw!r} is not true or false")
    return raw


def _many(metavar: str, item: Parse, from_text: Callable[[str], object] = str) -> KeyKind:
    def parse(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise ValueError(f"{raw!r} is not a list (write it in [ ])")
        return tuple(item(entry) for entry in raw)

    return KeyKind(metavar, parse, from_text, many=True)


_DAY_MS = 86_400_000.0
FLAG = KeyKind("", _truth, flag=True)
_TIME = KeyKind("TIME", parse_delay)


@dataclass(frozen=True, slots=True)
class Retry:
    """When an acquire tries again."""

    policy: Annotated[
        str, choice("full-jitter", "poll", "push", "fixed", "none"), "full-jitter", says("how a refused acquire waits")
    ] = "full-jitter"
    window_ms: Annotated[
        float, duration(0.1, 3_600_000), "5ms", says("U(0, window) or the fixed wait before a retry")
    ] = 5.0
    attempts: Annotated[int, _whole(1, 1_000_000), 1000, says("attempts of one acquire at most")] = 1000
    unreachable: Annotated[
        bool,
        FLAG,
        False,
        says("try again, within wait, when a quorum was unreachable; else such an acquire fails at once"),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What one run does, every default filled in. `rate_per_s` None means closed loop."""

    recipe: Annotated[
        str, KeyKind("NAME", _word), "redlock", says("which lock to load (`lockbench recipes` lists them)")
    ]
    instances: Annotated[
        int,
        _whole(1, 64),
        5,
        says("how many servers to start (the recipe may want another number); or name running ones with targets"),
    ]
    targets: Annotated[
        tuple[str, ...],
        _many("URL", parse_target),
        (),
        says("a running instance instead of started ones: redis://, rediss:// or unix:// (once per instance)"),
    ]
    fsync: Annotated[
        str,
        choice("none", "no", "everysec", "always"),
        "everysec",
        says("AOF policy of started servers; none = no AOF"),
    ]
    users: Annotated[int, _whole(1, 100_000), 64, says("concurrent callers over all processes")]
    processes: Annotated[int, _whole(1, 256), 1, says("Locust worker processes")]
    rate_per_s: Annotated[
        float | None, _number(0, 10_000_000), None, says("operations per second in all: open loop; absent: closed loop")
    ]
    arrivals: Annotated[str, choice("poisson", "fixed"), "poisson", says("how open-loop operations are spaced")]
    duration_ms: Annotated[float, duration(100, _DAY_MS), "20s", says("measured time; the warm-up comes before it")]
    warmup_ms: Annotated[
        float, _auto_or(duration(0, _DAY_MS)), "auto", says("time left out before measuring; auto = max(2s, 10 %)")
    ]
    resources: Annotated[int, _whole(1, 10_000_000), 1000, says("how many different things are locked")]
    skew: Annotated[
        Skew,
        KeyKind("SKEW", parse_skew),
        "uniform",
        says("uniform, own (each caller its own), zipf:1.1, or hot:0.9 (that share on one key)"),
    ]
    hold: Annotated[Delay, _TIME, "0", says("work under the lock: 0, fixed:5ms, exp:5ms, lognormal:5ms,1.0")]
    think: Annotated[Delay, _TIME, "0", says("a caller's rest between two operations, closed loop only")]
    ttl_ms: Annotated[int, duration(5, _DAY_MS, whole=True), "10s", says("time to live of a lock, the PX argument")]
    wait_ms: Annotated[int, duration(0, _DAY_MS, whole=True), "1s", says("how long one acquire may wait")]
    instance_timeout_ms: Annotated[
        float,
        _auto_or(duration(0.1, _DAY_MS)),
        "auto",
        says("how long one instance may take to answer; auto = min(50ms, ttl / 4), never above ttl / 4"),
    ]
    retry: Annotated[Retry, says("how a refused acquire waits")]
    max_ttl_ms: Annotated[
        int, duration(5, _DAY_MS, whole=True), "10s", says("largest TTL of the whole fleet; larger are refused")
    ]
    rejoin: Annotated[
        str,
        choice("trust-first", "delay", "trust"),
        "trust-first",
        says("who votes at once: trust-first = at first contact, not after a restart; delay = nobody; trust = all"),
    ]
    merge_releases: Annotated[
        bool,
        FLAG,
        False,
        says("merge the script releases of one turn into one call: less server CPU, but commands per lease vary"),
    ] = False  # younger than the first stored results
    wait_for_own: Annotated[
        bool,
        FLAG,
        False,
        says("redlock: who waits for what its own process holds asks no server: less CPU, but nothing is tested"),
    ] = False
    events: Annotated[str, choice("fast", "stock"), "fast", says("stock = one Locust event per operation")]
    seed: Annotated[int, _whole(0, 2**63 - 1), 1, says("drives every random choice of the load")]
    fencing: Annotated[
        bool,
        FLAG,
        False,
        says("every holder writes to a register that rejects stale writes, by fencing token or by owner token"),
    ]
    thresholds: Annotated[
        tuple[str, ...],
        _many("EXPR", parse_threshold),
        (),
        says("a limit that the result must keep, like 'acquire.p99 < 10ms'"),
    ]
    pause: Annotated[
        tuple[Pause, ...],
        _many("P:D:S", parse_pause),
        (),
        says(
            "stretch a recipe's pause point: point:how long:share of passes "
            "(`lockbench recipes --json` lists the points)"
        ),
    ]
    faults: Annotated[
        tuple[Fault, ...],
        _many("TABLE", parse_fault, inline_table),
        (),
        says("a fault as an inline TOML table: at, for, kind, target, phase, params"),
    ]

    def shown(self) -> Self:
        """Return it with targets that hold no secrets."""
        return replace(self, targets=tuple(shown(url) for url in self.targets))


def _keys_of(section: type, prefix: str = "") -> Iterator[ScenarioKey]:
    for field, hint in get_type_hints(section, include_extras=True).items():
        *about, meaning = hint.__metadata__
        if not about:
            yield from _keys_of(hint.__origin__, f"{field}.")
        else:
            kind, default = about
            name = field.removesuffix("_ms").removesuffix("_per_s")
            yield ScenarioKey(prefix + name, prefix + field, kind, default, meaning.description)


KEYS = tuple(_keys_of(Scenario))
BY_NAME = {key.name: key for key in KEYS}
