"""Runs that were stored before: *a folder or file → results; two series of them → entries as of runs made now*.

Rules
- A place is a result.json, a folder with one, or a folder of such folders (a series: several runs of one thing). Runs
  of one place must agree in everything; what differs between places must have been declared.
- Scenario, servers, machine and packages (that both results name) count; what only names a run (ids, times, seed,
  thresholds, ports) and the code under test (commit, lockbench's own version) do not.

Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from bench.errors import UsageError
from bench.experiments.compare.pairs import Rounds, entry_of
from bench.gates.threshold import Threshold
from bench.measure.result import RESULT_NAME
from bench.measure.run_result import RunResult, read_run
from bench.measure.section import builtins_of
from bench.scenario import Scenario
from bench.scenario.quantity import nearest

_MACHINE = ("cpu_model", "usable_cores", "kernel", "python")
_NOT_COMPARED = ("seed", "thresholds")
Settings = Mapping[str, object]


def read_series(place: Path) -> list[RunResult]:
    """Return the results at `place`, oldest first. Raises UsageError for what holds none of a run."""
    if place.is_dir() and not (place / RESULT_NAME).exists():
        found = [read_run(path) for path in sorted(place.glob(f"*/{RESULT_NAME}"))]
        if not found:
            raise UsageError(f"{place} holds no result; give a result folder of lockbench run, or a folder of them")
    else:
        found = [read_run(place)]
    return sorted(found, key=lambda result: result.started_at)


def require_alike(series: Sequence[Sequence[RunResult]], labels: Sequence[str], variables: Sequence[str]) -> list[str]:
    """Return what differs between the series, in words. Raises UsageError when it was not declared."""
    told = [[settings_of(result) for result in results] for results in series]
    for settings, label in zip(told, labels, strict=True):
        for other in settings[1:]:
            if found := differences(settings[0], other):
                raise UsageError(f"the runs in {label} are not of one thing: {'; '.join(found.values())}")
    return require_declared([settings[0] for settings in told], labels, variables)


def require_declared(sides: Sequence[Settings], labels: Sequence[str], variables: Sequence[str]) -> list[str]:
    """Return in what the sides differ from the first, in words. Raises UsageError when it was not declared."""
    names = list(sides[0])
    for variable in variables:
        if not any(_covers(variable, name) for name in names):
            hint = nearest(variable, names) or "; the settings are " + ", ".join(names)
            raise UsageError(f"option --variable: there is no setting {variable}{hint}")
    declared: dict[str, None] = {}
    for settings, label in zip(sides[1:], labels[1:], strict=True):
        found = differences(sides[0], settings)
        wrong = [name for name in found if not any(_covers(variable, name) for variable in variables)]
        if wrong:
            said = "; ".join(found[name] for name in wrong)
            raise UsageError(
                f"{labels[0]} and {label} cannot be compared, as more than the variable differs: {said}. "
                f"Run them alike, or declare what is meant to differ (--variable {wrong[0]})"
            )
        declared |= dict.fromkeys(found.values())
    return list(declared)


def rounds_of(series: Sequence[Sequence[RunResult]], thresholds: Sequence[Threshold] = ()) -> Rounds:
    """Return stored runs as if they had been run: they are not paired, `Rounds.paired` says so.

    `thresholds`: asked for now; those of the runs themselves were judged then.
    """
    runs = [
        structs.replace(
            entry_of(result, side, number), thresholds=tuple(threshold.judge(result) for threshold in thresholds)
        )
        for side, results in enumerate(series)
        for number, result in enumerate(results)
    ]
    return Rounds(runs, {side: results[-1] for side, results in enumerate(series)}, paired=False)


def differences(first: Settings, second: Settings) -> dict[str, str]:
    """Return the settings in which two results differ: by name, each told as `name a → b`."""
    names = dict.fromkeys([*first, *second])
    both = [name for name in names if not name.startswith("packages.") or (name in first and name in second)]
    return {
        name: f"{name} {_text(first.get(name))} → {_text(second.get(name))}"
        for name in both
        if first.get(name) != second.get(name)
    }


def settings_of(result: RunResult) -> dict[str, object]:
    """Return the settings of a result by dotted name: scenario keys bare, then server.…, machine.… and packages.…"""
    settings, fleet, environment = scenario_settings(result.scenario), result.fleet, result.environment
    settings["server"] = sorted({f"{one.server} {one.version}" for one in fleet.instances if one.server}) or None
    settings["server.sha256"] = fleet.server.sha256 if fleet.server else None
    settings |= {f"machine.{name}": getattr(environment, name) for name in _MACHINE}
    packages = environment.packages.items()
    return settings | {f"packages.{name}": version for name, version in packages if name != "lockbench"}


def scenario_settings(scenario: Scenario) -> dict[str, object]:
    """Return the keys of a scenario that make runs unlike, by dotted name."""
    settings = dict(_leaves(builtins_of(scenario), ""))
    return {name: value for name, value in settings.items() if name not in _NOT_COMPARED}


def _covers(variable: str, name: str) -> bool:
    """Whether a declared variable means this setting: `retry` covers `retry.window_ms`, `hold` covers `hold.ms`."""
    wanted, bare = variable.replace("-", "_"), name
    for unit in ("_ms", "_per_s"):
        bare = bare.removesuffix(unit)
    return wanted in (name, bare) or name.startswith(wanted + ".")


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _text(value: object) -> str:
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, Mapping):
        return ":".join(_text(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return "none" if value is None else str(value)
