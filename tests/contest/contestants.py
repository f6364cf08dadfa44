"""Who takes part: *words of names → contestants that can run, and who is absent and why*.

Rules: the libraries are those of the audit, and those of `drivers/` in other languages. Those in
Python run the load of `clients/`; the others' drivers run it themselves.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import bench
from bench.experiments.audit.experiment import known
from bench.experiments.audit.installed import install
from bench.experiments.audit.installed import ours as audited
from bench.experiments.audit.libraries import read_libraries
from bench.experiments.audit.result import MissingLibrary
from bench.experiments.judge.clients.lock import PUSH
from bench.experiments.judge.library import LibraryDriver

HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
CLIENT = f"{__package__}.clients.driver"
# `bench` and `lockcore` may be compiled and stand elsewhere; these tests stand beside the sources.
SOURCES = HERE.parents[1]
OURS = os.pathsep.join((str(Path(bench.__file__).parents[1]), str(SOURCES)))
# So many processes have to share a load for waiters to hear of a release from another one.
PUSH_PROCESSES = 4
Contestant = LibraryDriver


def contestants(
    cache: Path, words: Sequence[str], show: Callable[[str], None]
) -> list[Contestant | MissingLibrary]:
    """Every library whose name contains one of `words` (none: all), installed below `cache` or
    missing with a reason. Raises UsageError for a word that stands in no name."""
    entries = known([*read_libraries(), *read_libraries(DRIVERS)], words)
    return [
        one if isinstance(one, MissingLibrary) else loading(one)
        for one in install(entries, cache, show)
    ]


def ours(name: str) -> Contestant:
    """A contestant of our own environment, by its driver's name."""
    return loading(audited(name))


def loading(driver: LibraryDriver) -> Contestant:
    """The same library with the driver that runs loads."""
    kind = driver.library.kind
    if kind not in ("lockcore", "python"):
        return driver
    python, *_ = driver.command
    path = OURS if kind == "lockcore" else str(SOURCES)
    return replace(driver, command=(python, "-m", CLIENT), environment={"PYTHONPATH": path})


def takes_part(contestant: Contestant, instances: int, processes: int) -> bool:
    """Whether it takes part in a load on so many instances by so many processes."""
    library = contestant.library
    least = PUSH_PROCESSES if library.name.endswith(PUSH) else 1
    return instances in library.instances and processes >= least
