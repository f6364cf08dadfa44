"""Whether two results may be compared: *two results → the settings in which they differ, by name*.

Rules: scenario, servers, machine and packages count; what only names a run (ids, times, seed, thresholds, ports) and
the code under test (commit, lockbench's own version) do not. A difference that was declared as the variable is allowed.
Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.measure.section import builtins_of
from bench.scenario.quantity import nearest

_MACHINE = ("cpu_model", "usable_cores", "kernel", "python")
_NOT_COMPARED = ("seed", "thresholds")
Settings = dict[str, Any]


def settings_of(result: Any) -> Settings:
    """Return the settings of a result by dotted name: scenario keys bare, then server.…, machine.… and packages.…"""
    settings = dict(_leaves(builtins_of(result["scenario"]), ""))
    for name in _NOT_COMPARED:
        settings.pop(name, None)
    fleet, environment = result.get("fleet") or {}, result["environment"]
    instances = [(found.get("server"), found.get("version")) for found in fleet.get("instances") or ()]
    settings["server"] = sorted({f"{name} {version}" for name, version in instances if name}) or None
    settings["server.sha256"] = (fleet.get("server") or {}).get("sha256")
    settings |= {f"machine.{name}": environment.get(name) for name in _MACHINE}
    packages = environment.get("packages") or {}
    settings |= {f"packages.{name}": version for name, version in packages.items() if name != "lockbench"}
    return settings


def differences(first: Any, second: Any) -> list[str]:
    """Return the names of the settings in which two results differ, in order."""
    a, b = settings_of(first), settings_of(second)
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]


def undeclared(names: Iterable[str], variables: Iterable[str]) -> list[str]:
    """Return those of `names` that no variable covers; `retry` covers `retry.window_ms`, `hold` covers `hold.ms`."""
    return [name for name in names if not any(_covers(variable, name) for variable in variables)]


def describe(name: str, first: Any, second: Any) -> str:
    """Return `name a → b` of one difference."""
    a, b = (settings_of(result).get(name) for result in (first, second))
    return f"{name} {_text(a)} → {_text(b)}"


def unknown_variable(variable: str, result: Any) -> str | None:
    """Return why `variable` names no setting, None if it does."""
    names = list(settings_of(result))
    if any(_covers(variable, name) for name in names):
        return None
    return f"there is no setting {variable}{nearest(variable, names) or '; the settings are ' + ', '.join(names)}"


def _covers(variable: str, name: str) -> bool:
    wanted = variable.replace("-", "_")
    bare = name
    for unit in ("_ms", "_per_s"):
        bare = bare.removesuffix(unit)
    return wanted in (name, bare) or name.startswith(wanted + ".")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _text(value: Any) -> str:
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, Mapping):
        return ":".join(_text(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return "none" if value is None else str(value)
