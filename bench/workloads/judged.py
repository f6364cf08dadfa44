"""`locust --headless --result DIR`: *Locust's options → `lockbench run`, which leads the run, judges it and stores it*.

Rules: there is one way to lead a run, so this process becomes it before a port is open or anybody forked. Targets may
hold passwords: they go by a file in memory that nobody else can open by name.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from bench.errors import UsageError
from bench.scenario import KEYS
from bench.workloads.plan import RESULT, given_of

_ROOT = Path(__file__).parents[2]
_OPTIONS = {key.name: key.option for key in KEYS}


def is_wanted(arguments: list[str]) -> bool:
    """Whether the command line is of a leader without a page and names a place for the result."""
    named = any(word == RESULT or word.startswith(f"{RESULT}=") for word in arguments)
    return named and "--worker" not in arguments and "--headless" in arguments


def words_of(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The words after `lockbench run SCENARIO`, and the targets. Raises UsageError."""
    if not options.run_time:
        raise UsageError(f"{RESULT} needs the time to measure; give it with -t, as in -t 20s")
    given = given_of(options, environ)
    targets = given.pop("targets")
    assert isinstance(targets, list)
    words = [f"--out={options.result}", f"--duration={options.run_time}s"]
    for name, value in given.items():
        words += [f"{_OPTIONS[name]}={item}" for item in (value if isinstance(value, list) else [value])]
    if options.master:
        where = f"[{options.master_bind_host}]" if ":" in options.master_bind_host else options.master_bind_host
        words += [f"--expect-workers={options.expect_workers}", f"--bind={where}:{options.master_bind_port}"]
    elif options.processes:
        words.append(f"--processes={options.processes if options.processes > 0 else os.cpu_count()}")
    return words, targets


def become(words: list[str], targets: list[str]) -> NoReturn:
    """Go on as `lockbench run`: its output, its exit code."""
    scenario = os.memfd_create("targets.toml", 0)
    os.write(scenario, b"targets = " + msgspec.json.encode(targets))
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "bench", "run", f"/proc/self/fd/{scenario}", *words]
    os.execve(sys.executable, command, environ)  # noqa: S606
