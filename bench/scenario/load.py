"""From what people wrote to one Scenario: *a TOML file and options → Scenario, or one sentence*.

Rules: an option wins over the file, the file over the default; every refusal names its place (file and key, or option).
"""

import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.scenario.keys import BY_NAME, KEYS, Retry, Scenario, ScenarioKey
from bench.scenario.quantity import duration_text, nearest

_TABLES = {name.partition(".")[0] for name in BY_NAME if "." in name}
READY = Path(__file__).parents[1] / "scenarios"  # shipped with the package, so that they are at hand anywhere
# A source of instances given as an option takes the place of the file's other one.
_REPLACES = {"targets": ("instances", "fsync"), "instances": ("targets",)}


@dataclass(slots=True)
class _Given:
    """What was written so far: parsed values by key name, and where each stands."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def put(self, key: ScenarioKey, raw: object, place: str) -> None:
        try:
            self.values[key.name] = key.kind.parse(raw)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from None
        self.places[key.name] = place


def load(
    path: Path | None = None,
    options: Mapping[str, object] | None = None,
    usual_instances: Callable[[str], int] | None = None,
) -> Scenario:
    """Return the scenario of the TOML file `path`, or a ready one by name, overridden by `options` (key name → text,
    list of texts or bool). `usual_instances`: how many a recipe takes when nothing is said.

    Raises UsageError with the place for an unreadable file, an unknown key, a wrong type or range, a contradiction.
    """
    given = _Given()
    if path is not None:
        _read_file(path, given)
    for name, raw in (options or {}).items():
        key = BY_NAME[name]
        for replaced in _REPLACES.get(name, ()):
            if replaced not in (options or {}):
                given.values.pop(replaced, None)
        given.put(key, _from_option(key, raw), f"option {key.option}")
    if usual_instances and not {"instances", "targets"} & given.values.keys():
        given.values["instances"] = usual_instances(given.values.get("recipe", BY_NAME["recipe"].default))
    scenario = _resolve(given.values)
    for name, sentence in _contradictions(scenario, given.values):
        raise UsageError(f"{given.places.get(name, f'key `{name}`')}: {sentence}")
    return scenario


def _from_option(key: ScenarioKey, raw: object) -> object:
    if isinstance(raw, str):
        return key.kind.from_text(raw)
    if key.kind.many and isinstance(raw, list | tuple):
        return [key.kind.from_text(str(text)) for text in raw]
    return raw


def _read_file(path: Path, given: _Given) -> None:
    try:
        document = tomllib.loads(_place_of(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = sorted(file.stem for file in READY.glob("*.toml"))
        ready = f"ready ones: {', '.join(names)}; `lockbench init` writes one of your own"
        hint = nearest(path, map(str, path.parent.glob("*.toml"))) or nearest(path.stem, names)
        raise UsageError(f"{path}: there is no such scenario file{hint} ({ready})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}") from None
    for name, raw in _flatten(document, path):
        if name not in BY_NAME:
            raise UsageError(f"{path}, key `{name}`: there is no such key{nearest(name, BY_NAME)}")
        given.put(BY_NAME[name], raw, f"{path}, key `{name}`")


def _place_of(path: Path) -> Path:
    """Where a scenario stands: a file; else a ready one by its name, or as in a checkout, bench/scenarios/NAME.toml."""
    ready = READY / f"{path.name.removesuffix('.toml')}.toml"
    by_name = path.parent in (Path(), Path("bench", "scenarios"))
    return ready if by_name and not path.is_file() and ready.exists() else path


def _flatten(document: Mapping[str, object], path: Path) -> Iterator[tuple[str, object]]:
    for name, raw in document.items():
        if name not in _TABLES:
            yield name, raw
        elif isinstance(raw, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in raw.items())
        else:
            raise UsageError(
                f'{path}, key `{name}`: {raw!r} is not a table (write {name} = {{ policy = "full-jitter" }})'
            )


def _resolve(given: Mapping[str, Any]) -> Scenario:
    """Fill in the defaults: those of the table, then those that depend on other keys."""
    values: dict[str, Any] = {}
    for key in KEYS:
        value = given[key.name] if key.name in given else None if key.default is None else key.kind.parse(key.default)
        values[key.field] = value
    if values["targets"]:
        values["instances"] = len(values["targets"])
    if values["warmup_ms"] is None:
        values["warmup_ms"] = max(2000.0, values["duration_ms"] / 10)
    if values["instance_timeout_ms"] is None:
        values["instance_timeout_ms"] = min(50.0, values["ttl_ms"] / 4)
    retry = {name.partition(".")[2]: values.pop(name) for name in list(values) if name.startswith("retry.")}
    return Scenario(**values, retry=Retry(**retry))


def _contradictions(scenario: Scenario, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for keys that are right alone and wrong together."""
    yield from _target_contradictions(scenario, given)
    yield from _time_contradictions(scenario, given)
    yield from _load_contradictions(scenario, given)
    yield from _fault_contradictions(scenario)


def _target_contradictions(scenario: Scenario, given: Collection[str]) -> Iterator[tuple[str, str]]:
    if "targets" not in given:
        return
    if not scenario.targets:
        yield "targets", "the list is empty; name at least one instance, or leave the key out to start a fleet"
    for name in ("instances", "fsync"):
        if name in given:
            yield name, f"{name} is for servers that lockbench starts, but targets names running ones; take one out"
    if len(set(scenario.targets)) < len(scenario.targets):
        yield "targets", "the same instance is named twice; Redlock needs independent instances"


def _time_contradictions(scenario: Scenario, given: Collection[str]) -> Iterator[tuple[str, str]]:
    ttl, max_ttl = duration_text(scenario.ttl_ms), duration_text(scenario.max_ttl_ms)
    if scenario.ttl_ms > scenario.max_ttl_ms:
        where = "ttl" if "ttl" in given else "max_ttl"
        yield (
            where,
            f"ttl {ttl} is above max_ttl {max_ttl}, which all clients of a fleet share; raise max_ttl or lower ttl",
        )
    if scenario.instance_timeout_ms > scenario.ttl_ms / 4:
        shown, most = duration_text(scenario.instance_timeout_ms), duration_text(scenario.ttl_ms / 4)
        yield "instance_timeout", f"{shown} is too long for a ttl of {ttl}: at most a quarter of it, {most}"


def _load_contradictions(scenario: Scenario, given: Collection[str]) -> Iterator[tuple[str, str]]:
    if scenario.processes > scenario.users:
        yield "processes", f"{scenario.processes} processes need at least as many users, and there are {scenario.users}"
    if scenario.rate_per_s is None and "arrivals" in given:
        yield "arrivals", "arrivals need a rate (open loop); add rate or take arrivals out"
    if scenario.rate_per_s is not None and scenario.think.ms:
        yield "think", "think time belongs to the closed loop, and rate makes this one open; take one out"
    for name in ("retry.window", "retry.attempts", "retry.unreachable"):
        if scenario.retry.policy == "none" and name in given:
            yield name, "retry.policy is none, so nothing is tried again; take one out"
    if scenario.skew.kind == "hot" and scenario.resources == 1:
        yield "skew", "hot needs a second resource beside the hot one; raise resources or write uniform"
    if scenario.skew.kind == "own" and scenario.resources < scenario.users:
        yield "skew", f"own needs a resource for each of {scenario.users} users; raise resources or write uniform"


def _fault_contradictions(scenario: Scenario) -> Iterator[tuple[str, str]]:
    counts = {"instance": scenario.instances, "worker": scenario.processes}
    for fault in scenario.faults:
        if fault.at_ms >= scenario.duration_ms:
            last = duration_text(scenario.duration_ms)
            yield "faults", f"{fault.kind} at {duration_text(fault.at_ms)} comes after the end of the run ({last})"
        for target in fault.target:
            noun, _, index = target.partition(":")
            if int(index) >= counts[noun]:
                yield "faults", f"{target} does not exist: this run has {counts[noun]} of them, counted from 0"
