"""What `compare` and `gate` are given: *words of a command line → sides to run, or series of stored results*.

    results/a             a stored result, or a folder of several
    mine.toml             a scenario, run now
    git:main · main       the lock library of a git revision, run now
    lib:DIR               the packages in DIR (a virtual environment, or pip install --target), run now

Rules: what exists as a path is a path; what was named and is not there is a mistake, said with the nearest name there.
Runs made only to be compared are short: 1 s each unless a duration was asked for; a scenario whose faults come later
keeps its own. Source: README, "Gate your CI".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.errors import UsageError
from bench.experiments.compare.pairs import Side
from bench.experiments.compare.revision import checked_out, commit_of, installed
from bench.scenario import Scenario
from bench.scenario.quantity import nearest

WINDOW_MS, WARMUP_MS = 1000.0, 300.0
Load = Callable[[Path | None], Scenario]


@dataclass(frozen=True, slots=True)
class Given:
    """One side as it was named. `kind`: stored, scenario, revision, library, or here."""

    text: str
    kind: str
    where: Path = Path()
    commit: str = ""

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return f"{self.text} ({self.commit[:9]})" if self.kind == "revision" else self.text


def read_given(text: str, repository: Path) -> Given:
    """Return what `text` names. Raises UsageError when there is no such thing, EnvironmentNotReadyError without git."""
    prefix, _, rest = text.partition(":")
    if prefix == "lib":
        if not rest or not Path(rest).exists():
            raise UsageError(f"{text}: there is no such folder{_hint(rest)}")
        return Given(text, "library", Path(rest))
    if prefix == "git":
        return Given(text, "revision", repository, commit_of(rest, repository))
    path = Path(text)
    if text and path.exists():
        return Given(text, "scenario" if path.suffix == ".toml" else "stored", path)
    wrong = f"{text or 'an empty name'}: there is no such result or scenario{_hint(text)}"
    if not text or path.suffix == ".toml":
        raise UsageError(wrong)
    try:
        return Given(text, "revision", repository, commit_of(text, repository))
    except UsageError as error:
        raise UsageError(f"{wrong}; and {error}") from None


def _hint(name: str) -> str:
    """The path most like `name` beside where it should be."""
    folder = Path(name).parent
    return nearest(name, [str(other) for other in folder.glob("*")]) if name and folder.is_dir() else ""


def is_stored(given: list[Given]) -> bool:
    """Return whether all are stored results. Raises UsageError for a mixture: only runs made in turn compare well."""
    stored = [one for one in given if one.kind == "stored"]
    if stored and len(stored) < len(given):
        other = next(one for one in given if one.kind != "stored")
        raise UsageError(
            f"{stored[0].text} was stored and {other.text} would be run now: a run of another hour is no fair "
            "comparison. Give two results, or let both be run (two scenarios, or two revisions)"
        )
    return bool(stored)


@contextlib.contextmanager
def opened(given: list[Given], load: Load, options: Mapping[str, object]) -> Iterator[list[Side]]:
    """Yield the sides to run; checkouts last as long as the context. `load`: a scenario file, or None, → Scenario.

    Raises BenchError.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_opened(one, load, options)) for one in given]


@contextlib.contextmanager
def _opened(given: Given, load: Load, options: Mapping[str, object]) -> Iterator[Side]:
    scenario = shortened(load(given.where if given.kind == "scenario" else None), options)
    if given.kind == "revision":
        with checked_out(given.commit, given.where) as folders:
            yield Side(given.label, scenario, folders)
    else:
        yield Side(given.label, scenario, installed(given.where) if given.kind == "library" else ())


def shortened(scenario: Scenario, options: Mapping[str, object]) -> Scenario:
    """Return the scenario with a short window, unless `options` give a duration or its faults come after it."""
    latest_ms = max((fault.at_ms for fault in scenario.faults), default=0.0)
    if "duration" not in options and latest_ms < WINDOW_MS:
        scenario = replace(scenario, duration_ms=min(scenario.duration_ms, WINDOW_MS))
    if "warmup" not in options:
        scenario = replace(scenario, warmup_ms=min(scenario.warmup_ms, WARMUP_MS))
    return scenario
