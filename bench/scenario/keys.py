"""The keys of a scenario: *a TOML file and options → one resolved `Scenario`, or one sentence about
an error*. Each field of `Scenario` also defines a TOML key, an option, a help text and a schema.

Rules: a field of `Scenario` defines the meaning of its key, the valid values, and the default. The
default is written in the same notation as a value in a TOML file. The name of the field includes
the unit, but the name of the key does not include the unit. A new key is added in this module and
nowhere else. An option overrides the file, and the file overrides the default. Each error message
names either the file and the key, or the option.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from msgspec import Meta, ValidationError, convert

import bench.scenario.quantity as quantities
from bench.errors import UsageError
from bench.scenario.quantity import (
    Delay,
    Fault,
    Pause,
    Skew,
    duration_text,
    nearest,
    parse_duration,
    says,
    toml_value,
)
from lockcore.bench import shown

# These scenarios are part of the package, so an installed lockbench has them, too.
READY = Path(__file__).parents[1] / "scenarios"
# If an option names a source of instances, this source replaces the other source in the file.
_REPLACES = {"targets": ("instances", "fsync"), "instances": ("targets",)}
_DAY_MS = 86_400_000.0
_TOML_KEY = re.compile(r"""\s*(?:([\w.'" -]*?[\w'"])\s*=|(\[+[^\]]+\]+))""")
Parse = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class KeyKind:
    """The kind of values that a key accepts.

    `parse`: a function that turns a TOML value into the resolved value. `many`: true if the value
    is a list. `flag`: true if the value is a bool. `words`: all valid words, if the key accepts
    only a few.
    """

    metavar: str
    parse: Parse
    many: bool = False
    flag: bool = False
    words: tuple[str, ...] = ()


def of_type(metavar: str, kind: object, description: str, *, flag: bool = False) -> KeyKind:
    """Return a `KeyKind` that accepts values of the Python type `kind`. `description`: the valid
    values in words, for error messages."""

    def parse(raw: object) -> object:
        try:
            return convert(raw, kind)
        except ValidationError:
            raise ValueError(f"{raw!r} is not {description}") from None

    return KeyKind(metavar, parse, flag=flag)


def whole(low: int, high: int) -> KeyKind:
    """Return a `KeyKind` that accepts whole numbers from `low` to `high`."""
    return of_type(
        "N", Annotated[int, Meta(ge=low, le=high)], f"a whole number from {low} to {high}"
    )


def duration(low_ms: float, high_ms: float, *, whole: bool = False) -> KeyKind:
    """Return a `KeyKind` that accepts times such as "2ms". The times are resolved to
    milliseconds."""

    def parse(raw: object) -> float:
        ms = parse_duration(raw)
        if not low_ms <= ms <= high_ms:
            low = duration_text(low_ms)
            high = duration_text(high_ms)
            raise ValueError(f"{raw!r} is outside {low} to {high}")
        if whole and ms != int(ms):
            raise ValueError(f"{raw!r} is not a whole number of milliseconds, the unit of Redis")
        return int(ms) if whole else ms

    return KeyKind("DURATION", parse)


def auto_or(kind: KeyKind) -> KeyKind:
    """Return a `KeyKind` that accepts the word `auto` and the values that `kind` accepts. The word
    `auto` is resolved to None."""
    return KeyKind(f"auto|{kind.metavar}", lambda raw: None if raw == "auto" else kind.parse(raw))


def choice(*names: str) -> KeyKind:
    """Return a `KeyKind` that accepts only the words in `names`."""

    def parse(raw: object) -> str:
        if raw not in names or not isinstance(raw, str):
            raise ValueError(f"{raw!r} is none of {', '.join(names)}{nearest(raw, names)}")
        return raw

    return KeyKind("|".join(names), parse, words=names)


def many(metavar: str, item: Parse) -> KeyKind:
    """Return a `KeyKind` that accepts lists. `item`: a function that parses each item of a list."""

    def parse(raw: object) -> tuple[object, ...]:
        if not isinstance(raw, list | tuple):
            raise ValueError(f"{raw!r} is not a list (write it in square brackets: [ ])")
        return tuple(item(entry) for entry in raw)

    return KeyKind(metavar, parse, many=True)


WORD = of_type("NAME", Annotated[str, Meta(min_length=1)], "a name")
FLAG = of_type("", bool, "true or false", flag=True)
RATE = of_type(
    "NUMBER", Annotated[float, Meta(gt=0, le=10_000_000)], "a number above 0 and up to 10000000"
)
TIME = KeyKind("TIME", quantities.parse_delay)
SKEW = KeyKind("SKEW", quantities.parse_skew)
LIMITS = many("EXPR", quantities.parse_threshold)
TARGETS = many("URL", quantities.parse_target)
PAUSES = many("P:D:S", quantities.parse_pause)
FAULTS = many("TABLE", quantities.parse_fault)


@dataclass(frozen=True, slots=True)
class ScenarioKey:
    """One key of a scenario. `name`: the dotted name of the key in TOML. `field`: the dotted name
    of the field of Scenario. `default`: the default in TOML notation (None: the key is absent by
    default)."""

    name: str
    field: str
    kind: KeyKind
    default: object
    help: str

    @property
    def option(self) -> str:
        """The option of the key, such as `--retry-window`. If the value is a list, the name of the
        option loses its final `s`, and the option can be repeated."""
        name = self.name.removesuffix("s") if self.kind.many else self.name
        return "--" + name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True, slots=True)
class Retry:
    """The rules by which an acquire tries again."""

    policy: Annotated[
        str,
        choice("full-jitter", "poll", "push", "fixed", "none"),
        "full-jitter",
        says("how an acquire waits after a refusal before it tries again"),
    ] = "full-jitter"
    window_ms: Annotated[
        float,
        duration(0.1, 3_600_000),
        "5ms",
        says("limit of the first random wait; with `fixed`, each wait is about this long"),
    ] = 5.0
    attempts: Annotated[
        int | None,
        whole(1, 1_000_000),
        None,
        says("the most attempts of one acquire; without this key, only `wait` limits the attempts"),
    ] = None
    unreachable: Annotated[
        bool, FLAG, False, says("true if an acquire tries again when it cannot reach a quorum")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The servers, callers and requests of a run. Without `rate_per_s` the run is a closed loop."""

    recipe: Annotated[
        str, WORD, "redlock", says("the lock under test (`lockbench recipes` lists all)")
    ]
    instances: Annotated[
        int,
        whole(1, 64),
        5,
        says("how many servers lockbench starts (some recipes have a default of their own)"),
    ]
    targets: Annotated[
        tuple[str, ...],
        TARGETS,
        (),
        says("the address of a running server: redis://, rediss:// or unix://"),
    ]
    fsync: Annotated[
        str,
        choice("none", "no", "everysec", "always"),
        "everysec",
        says("AOF fsync policy of started servers; the policy none switches the AOF off"),
    ]
    users: Annotated[
        int, whole(1, 100_000), 64, says("how many callers run at once, over all processes")
    ]
    processes: Annotated[
        int,
        whole(1, 256),
        1,
        says("number of Locust worker processes; the default is 2 for a recipe of another package"),
    ]
    rate_per_s: Annotated[
        float | None, RATE, None, says("operations per second; the default load is a closed loop")
    ]
    arrivals: Annotated[
        str,
        choice("poisson", "fixed"),
        "poisson",
        says("distribution of the time between two starts; only for a load with a rate"),
    ]
    duration_ms: Annotated[
        float,
        duration(100, _DAY_MS),
        "20s",
        says("length of the measured time, which begins after the warm-up"),
    ]
    warmup_ms: Annotated[
        float,
        auto_or(duration(0, _DAY_MS)),
        "auto",
        says("length of the warm-up; auto is 10 % of the duration and at least 2s"),
    ]
    resources: Annotated[
        int, whole(1, 10_000_000), 1000, says("how many different resources the callers lock")
    ]
    skew: Annotated[
        Skew,
        SKEW,
        "uniform",
        says("how callers choose resources: uniform, own (one per caller), zipf:1.1 or hot:0.9"),
    ]
    hold: Annotated[
        Delay, TIME, "0", says("hold time of a lock: 0, fixed:5ms, exp:5ms or lognormal:5ms,1.0")
    ]
    think: Annotated[
        Delay, TIME, "0", says("a caller's pause between operations; only without a rate")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Workload):
    """The complete description of one run, with all defaults filled in.

    A scenario adds the lock's settings and the faults to the workload.
    """

    ttl_ms: Annotated[
        int,
        duration(5, _DAY_MS, whole=True),
        "10s",
        says("time to live of a lock (the PX argument)"),
    ]
    wait_ms: Annotated[
        int, duration(0, _DAY_MS, whole=True), "1s", says("longest wait of one acquire for a lock")
    ]
    instance_timeout_ms: Annotated[
        float,
        auto_or(duration(0.1, _DAY_MS)),
        "auto",
        says("longest wait for the reply of one instance; auto is min(50ms, ttl / 4)"),
    ]
    retry: Annotated[Retry, says("how an acquire waits after a refusal before it tries again")]
    max_ttl_ms: Annotated[
        int,
        duration(5, _DAY_MS, whole=True),
        "10s",
        says("the largest TTL that any client of the servers uses"),
    ]
    rejoin: Annotated[
        str,
        choice("trust-first", "delay", "trust"),
        "trust-first",
        says(
            "rule for an instance to which a client has just connected: trust (it votes), delay "
            "(it does not vote yet), or trust-first (it votes unless it has restarted)"
        ),
    ]
    events: Annotated[
        str,
        choice("fast", "stock"),
        "fast",
        says("fast means few Locust events; stock means one event per operation, which is slower"),
    ]
    seed: Annotated[int, whole(0, 2**63 - 1), 1, says("seed of all random choices of the load")]
    fencing: Annotated[
        bool,
        FLAG,
        False,
        says("true if holders write to a register that rejects stale writes"),
    ]
    capacity: Annotated[
        int,
        whole(1, 64),
        1,
        says("how many callers may hold a resource at once (only for recipes that count holders)"),
    ]
    shared: Annotated[
        bool,
        FLAG,
        False,
        says(
            "true if nine in ten operations are readers (only for recipes with readers and writers)"
        ),
    ]
    thresholds: Annotated[
        tuple[str, ...],
        LIMITS,
        (),
        says("a limit on a figure of the result, such as 'acquire.p99 < 10ms'"),
    ]
    pause: Annotated[
        tuple[Pause, ...],
        PAUSES,
        (),
        says("a pause, written point:time:share (`lockbench recipes --json` lists the points)"),
    ]
    faults: Annotated[
        tuple[Fault, ...],
        FAULTS,
        (),
        says("a fault, written as a TOML table with the keys at, for, kind, target, phase, params"),
    ]

    def shown(self) -> Self:
        """Return the scenario with the secrets of its targets masked."""
        return replace(self, targets=tuple(shown(url) for url in self.targets))


def _keys_of(section: type, prefix: str = "") -> Iterator[ScenarioKey]:
    for name, hint in get_type_hints(section, include_extras=True).items():
        *about, meaning = hint.__metadata__
        if not about:
            yield from _keys_of(hint.__origin__, f"{name}.")
        else:
            kind, default = about
            key = name.removesuffix("_ms").removesuffix("_per_s")
            yield ScenarioKey(prefix + key, prefix + name, kind, default, meaning.description)


KEYS = tuple(_keys_of(Scenario))
BY_NAME = {key.name: key for key in KEYS}


def load(
    path: Path | None = None,
    options: Mapping[str, object] | None = None,
    usual_instances: Callable[[str], int] | None = None,
    usual_processes: Callable[[str], int] | None = None,
) -> Scenario:
    """Return the scenario of the TOML file `path`, or a ready scenario by name.

    `options`: a mapping from key names to values, which override the values of the file. A value is
    a text, a list of texts or a bool. `usual_instances`, `usual_processes`: functions that return
    the default number of instances and of load processes for a recipe. The default number of load
    processes is never above the number of users.

    Raises UsageError for an unreadable file, an unknown key, a wrong type or range, or a
    contradiction. The error message shows where the error is.
    """
    settings: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, raw, place in (*(_of_file(path) if path else ()), *_of_options(options or {})):
        try:
            settings[name] = BY_NAME[name].kind.parse(raw)
            places[name] = place
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from None
    for name in options or {}:
        for replaced in {*_REPLACES.get(name, ())} - {*(options or {})}:
            settings.pop(replaced, None)
    if usual_instances and not {"instances", "targets"} & settings.keys():
        settings["instances"] = usual_instances(settings.get("recipe", BY_NAME["recipe"].default))
    if usual_processes and "processes" not in settings:
        users = int(settings.get("users", BY_NAME["users"].default))
        settings["processes"] = min(
            usual_processes(settings.get("recipe", BY_NAME["recipe"].default)), users
        )
    scenario = _resolve(settings)
    wrong = (_server_contradictions, _load_contradictions, _fault_contradictions)
    for name, sentence in chain.from_iterable(one(scenario, settings) for one in wrong):
        raise UsageError(f"{places.get(name, f'key `{name}`')}: {sentence}")
    return scenario


def _of_options(options: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    """Yield three facts about each option: the name of the key, the value as in TOML, and the name
    of the option in error messages."""
    for name, raw in options.items():
        value = [toml_value(str(text)) for text in raw] if isinstance(raw, list | tuple) else raw
        yield (
            name,
            toml_value(value) if isinstance(value, str) else value,
            f"option {BY_NAME[name].option}",
        )


def document_of(path: Path) -> dict[str, object]:
    """Return the content of a scenario's file. The file may have a byte order mark.

    Raises UsageError if the file is not TOML, and OSError or UnicodeDecodeError if it cannot be
    read.
    """
    text = place_of(path).read_text(encoding="utf-8-sig")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_wrong_toml(path, text, str(error))) from None
    except RecursionError:
        raise UsageError(
            f"{path}: lists or tables are nested too deeply; a scenario has at most two levels"
        ) from None


def _wrong_toml(path: Path, text: str, error: str) -> str:
    """Return one sentence about the error in the text.

    tomllib itself gives only a line number. If the file has the same key or table twice, the
    sentence also names this key or table.
    """
    lines = text.split("\n")
    position = re.search(r"at line (\d+)", error)
    number = int(position[1]) if position else len(lines)
    if "Cannot overwrite a value" in error or "Cannot declare" in error:
        for place in range(number, 0, -1):
            if key := _TOML_KEY.match(lines[place - 1]):
                what = f"key `{key[1]}`" if key[1] else f"table {key[2]}"
                return f"{path}, line {place}: {what} is given twice; remove one of the two"
    return f"{path}: is not TOML: {error}"


def _of_file(path: Path) -> Iterator[tuple[str, object, str]]:
    """Yield the name, the value and the place of each key in a file."""
    try:
        document = document_of(path)
    except FileNotFoundError:
        names = sorted(file.stem for file in READY.glob("*.toml"))
        ready = f"ready scenarios: {', '.join(names)}; `lockbench init` writes a new one"
        hint = nearest(path, map(str, path.parent.glob("*.toml"))) or nearest(path.stem, names)
        raise UsageError(f"{path}: no scenario file has this name{hint} ({ready})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})"
        ) from None
    retry = document.pop("retry", {})
    if not isinstance(retry, dict):
        raise UsageError(
            f"{path}, key `retry`: {retry!r} is not a table (write retry = {{ policy = "
            f'"full-jitter" }})'
        )
    for name, raw in (
        document | {f"retry.{inner}": value for inner, value in retry.items()}
    ).items():
        place = f"{path}, key `{name}`"
        if name not in BY_NAME:
            raise UsageError(f"{place}: there is no such key{nearest(name, BY_NAME)}")
        yield name, raw, place


def place_of(path: Path) -> Path:
    """Return the file of a scenario.

    If `path` is not a file, `path` may name the ready scenario NAME in one of three forms: NAME,
    NAME.toml or bench/scenarios/NAME.toml.
    """
    ready = READY / f"{path.name.removesuffix('.toml')}.toml"
    by_name = path.parent in (Path(), Path("bench", "scenarios"))
    return ready if by_name and not path.is_file() and ready.exists() else path


def _resolve(settings: Mapping[str, object]) -> Scenario:
    """Fill in the fixed defaults, then the defaults that depend on other keys."""
    values: dict[str, Any] = {}
    for key in KEYS:
        value = None
        if key.name in settings:
            value = settings[key.name]
        elif key.default is not None:
            value = key.kind.parse(key.default)
        values[key.field] = value
    if values["targets"]:
        values["instances"] = len(values["targets"])
    if values["warmup_ms"] is None:
        values["warmup_ms"] = max(2000.0, values["duration_ms"] / 10)
    if values["instance_timeout_ms"] is None:
        values["instance_timeout_ms"] = min(50.0, values["ttl_ms"] / 4)
    retry = {
        name.partition(".")[2]: values.pop(name)
        for name in list(values)
        if name.startswith("retry.")
    }
    return Scenario(**values, retry=Retry(**retry))


# -- keys that are right alone and wrong together, with a sentence each ----------------------------


def _server_contradictions(scenario: Scenario, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    if "targets" in keys and not scenario.targets:
        yield (
            "targets",
            "targets is empty; name at least one server, or remove targets so that lockbench "
            "starts servers",
        )
    for name in ("instances", "fsync"):
        if "targets" in keys and name in keys:
            yield (
                name,
                f"{name} is only for servers that lockbench starts; remove {name} or targets",
            )
    if len(set(scenario.targets)) < len(scenario.targets):
        yield ("targets", "targets contains one instance twice; name each instance once")
    ttl = duration_text(scenario.ttl_ms)
    max_ttl = duration_text(scenario.max_ttl_ms)
    if scenario.ttl_ms > scenario.max_ttl_ms:
        cure = "raise max_ttl for all clients of the fleet, or lower ttl"
        yield (
            "ttl" if "ttl" in keys else "max_ttl",
            f"the ttl of {ttl} is above the max_ttl of {max_ttl}; {cure}",
        )
    if scenario.instance_timeout_ms > scenario.ttl_ms / 4:
        shown = duration_text(scenario.instance_timeout_ms)
        most = duration_text(scenario.ttl_ms / 4)
        yield (
            "instance_timeout",
            f"{shown} is too long for a ttl of {ttl}; set at most {most}, a quarter of the ttl",
        )


def _load_contradictions(scenario: Scenario, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    if scenario.processes > scenario.users:
        yield (
            "processes",
            f"{scenario.processes} processes are more than {scenario.users} users; add users",
        )
    if scenario.users <= scenario.capacity > 1:
        yield (
            "capacity",
            f"capacity is {scenario.capacity}, so none of the {scenario.users} users is ever "
            "refused; raise users above capacity",
        )
    if scenario.fencing and scenario.capacity > 1:
        yield ("capacity", "fencing needs a capacity of 1; remove fencing or capacity")
    if scenario.shared and scenario.capacity > 1:
        yield ("shared", "capacity and shared cannot be combined; remove shared or capacity")
    if scenario.shared and scenario.fencing:
        yield "shared", "readers do not write, so fencing has no effect; remove shared or fencing"
    if scenario.rate_per_s is None and "arrivals" in keys:
        yield "arrivals", "the key arrivals needs a rate; set rate, or remove arrivals"
    if scenario.rate_per_s is not None and scenario.think.ms:
        yield "think", "think times are only possible without a rate; remove think or rate"
    for name in ("retry.window", "retry.attempts", "retry.unreachable"):
        if scenario.retry.policy == "none" and name in keys:
            yield (
                name,
                f"retry.policy is none, so no acquire is tried again; remove {name}, or set "
                "another policy",
            )
    if scenario.skew.kind == "hot" and scenario.resources == 1:
        yield "skew", "a hot skew needs at least two resources; raise resources or use skew uniform"
    if scenario.skew.kind == "own" and scenario.resources < scenario.users:
        yield (
            "skew",
            f"with skew own, each of the {scenario.users} users needs its own resource; raise "
            "resources, or use skew uniform",
        )


def _fault_contradictions(scenario: Scenario, _: Collection[str]) -> Iterator[tuple[str, str]]:
    counts = {"instance": scenario.instances, "worker": scenario.processes}
    for fault in scenario.faults:
        if fault.at_ms >= scenario.duration_ms:
            at = duration_text(fault.at_ms)
            last = duration_text(scenario.duration_ms)
            yield ("faults", f"{fault.kind} at {at} is not before the end of the run ({last})")
        for target in fault.target:
            noun, _, index = target.partition(":")
            if int(index) >= counts[noun]:
                yield (
                    "faults",
                    f"{target} does not exist; this run has {counts[noun]} {noun}s, counted from 0",
                )
