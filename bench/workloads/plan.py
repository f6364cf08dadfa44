"""This module makes the plan of a Locust process: *a plan in memory or Locust's own options → one
Plan, or one error message*.

Rules
- `lockbench run` stores the path of a plan in the environment variable LOCKBENCH_PLAN. Plain
  `locust` takes lockbench's options on its command line or in its web form. Workers get the plan of
  the leading process.
- Plans contain passwords, so they are stored in memory files and never on disk.
- For users, processes and run time, plain `locust` has its own options -u, --processes and -t.
- `locust --headless --result DIR` replaces itself by `lockbench run` before it opens a port or
  forks. So a run of this kind becomes an ordinary run of `lockbench run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import msgspec

from bench.errors import UsageError, secrets
from bench.measure.section import decoded
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.scenario import KEYS, Scenario, ScenarioKey, load
from bench.scenario.environment import TARGETS, split_targets, targets_of
from lockcore import RetryPolicy
from lockcore.bench import is_secretive
from lockcore.clock import NS_PER_MS

PLAN_VARIABLE = "LOCKBENCH_PLAN"
# If plain `locust` gets this option, `lockbench run` leads the run.
RESULT = "--result"
# Workers get the plan of the run through Locust's options, under this name.
PLAN = "lockbench_plan"

_LOCUSTS_OWN = {"instances", "fsync", "users", "processes", "duration", "warmup"}
# `lockbench run` injects faults and judges limits from outside Locust.
_RUNS_OWN = {"faults", "thresholds"}
OPTIONS = tuple(key for key in KEYS if key.name not in _LOCUSTS_OWN | _RUNS_OWN)
_NAMES = {key.name: key.option for key in KEYS}
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of runs that share time slices.

    `places` is the number of runs in the ring. `place` is the position of this run in the ring,
    from 0. Only the runs of this ring use `folder`.
    """

    folder: Path
    place: int
    places: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run.

    `workdir`: the folder of the run. If `workdir` is None, no other process reads the history, so
    the worker creates a private folder. `timed`: if true, the run ends after the warm-up and
    duration of the scenario. If `timed` is false, Locust alone decides when the run begins and
    ends. `allow_missing`: if true, the run may begin with only a quorum of the targets.

    `ring`: the runs that share time slices with this run. `bind`: the address and port at which the
    master waits for workers of any host. The master waits for as many workers as the scenario has
    processes, and each worker has its own workdir. If `bind` is None, the master creates all
    workers with fork. `more`: true if another run may follow. `fleet`: the ids of the participating
    Locust workers, in the order of their places.
    """

    run_id: str
    targets: tuple[str, ...]
    key_prefix: str
    scenario: Scenario
    workdir: Path | None = None
    timed: bool = False
    allow_missing: bool = True
    ring: Ring | None = None
    bind: tuple[str, int] | None = None
    more: bool = False
    fleet: tuple[str, ...] = ()

    @property
    def recipe_settings(self) -> RecipeSettings:
        """The settings that the recipe receives when it connects."""
        scenario = self.scenario
        retry = scenario.retry
        return RecipeSettings(
            key_prefix=self.key_prefix,
            max_ttl_ms=scenario.max_ttl_ms,
            instance_timeout_ms=scenario.instance_timeout_ms,
            retry=RetryPolicy(
                retry.policy,  # type: ignore[arg-type]
                retry.window_ms,
                retry.attempts,
                retry.unreachable,
            ),
            rejoin=scenario.rejoin,
            pause=scenario.pause,
            seed=scenario.seed,
            folder=self.workdir,
            fencing=scenario.fencing,
            capacity=scenario.capacity,
        )

    @property
    def window_ns(self) -> tuple[int, int | None]:
        """The start and the end of the measurement, in ns after the origin.

        If Locust alone decides when a run begins and ends, the start is 0 and the end is None.
        """
        if not self.timed:
            return 0, None
        start_ns = round(self.scenario.warmup_ms * NS_PER_MS)
        return start_ns, start_ns + round(self.scenario.duration_ms * NS_PER_MS)

    @property
    def grace_s(self) -> float:
        """The longest time (s) that an operation in progress needs to finish. This time includes
        the wait for the lock, the hold time and the release. The value is at most 120 s."""
        return min((self.scenario.wait_ms + self.scenario.ttl_ms) / 1000 + 2.0, 120.0)

    @property
    def others_s(self) -> float:
        """The longest time (s) by which other processes can delay the end of the run.

        In a ring, the other runs may start late, and each run uses its own time slices. If workers
        run on other hosts, the transfer of their histories takes time.
        """
        if self.ring:
            parts = 3 * self.ring.places
        else:
            parts = 2 if self.bind else 0
        if not parts:
            return 0.0
        return 60.0 + parts * (self.scenario.warmup_ms + self.scenario.duration_ms) / 1000

    @property
    def text(self) -> bytes:
        """The plan as JSON. The text contains passwords."""
        # `enc_hook=str` writes a Path as text.
        return msgspec.json.encode(replace(self, scenario=self.scenario.shown()), enc_hook=str)


def plan_of(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Plan:
    """Return the plan of this process. Raises UsageError with a message that has no secrets."""
    if text := getattr(options, PLAN, None):
        plan = plan_from(text, "the leader's plan")
    elif path := planned(environ):
        plan = plan_from(Path(path).read_bytes(), "its plan")
    else:
        scenario = load(options=given_of(options, environ))
        run_id = token_hex(4)
        plan = Plan(run_id, scenario.targets, f"lockbench:{run_id}:", scenario, allow_missing=False)
    scenario = plan.scenario
    recipe = find_recipe(scenario.recipe)
    recipe.require(len(plan.targets), scenario.pause, scenario.capacity, shared=scenario.shared)
    return plan


def planned(environ: Mapping[str, str]) -> str | None:
    """Return the path of the plan that `lockbench run` has made for this process, or None."""
    return environ.get(PLAN_VARIABLE)


def in_memory(text: bytes) -> int:
    """Return the descriptor of a new file in memory that contains `text`. The file exists until
    every process has closed it.

    The file has no name, so no other process can open it by name. Raises OSError.
    """
    descriptor = os.memfd_create("lockbench")
    os.write(descriptor, text)
    return descriptor


def plan_from(text: bytes | str, what: str) -> Plan:
    """Parse the plan in `text` and return the plan.

    Raises UsageError if `text` is not a plan. `what`: the name of the text in the error message.
    """
    try:
        # The hook decodes a Path.
        plan = decoded(text, Plan, lambda part, value: part(value))
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{what} is not a plan of this lockbench ({error}); install the same version on all "
            "hosts"
        ) from error
    for url in plan.targets:
        secrets().learn(url)
    return plan


def given_of(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the scenario keys that Locust's command line, web form or environment sets. The values
    are texts.

    Raises UsageError.
    """
    texts: dict[str, object] = {}
    for key in OPTIONS:
        text = getattr(options, _dest(key), None)
        if text not in (None, "", key.default):
            texts[key.name] = _items(key, str(text)) if key.kind.many else str(text)
    if "targets" not in texts:
        texts["targets"], _ = targets_of(environ)
    if not texts["targets"]:
        raise UsageError(
            "there is no instance to lock on; give --target redis://host:port for each instance, "
            f"or set {TARGETS} (`lockbench fleet` starts instances)"
        )
    texts["users"] = str(getattr(options, "num_users", None) or 1)
    return texts


def _items(key: ScenarioKey, text: str) -> list[str]:
    return split_targets(text) if key.name == "targets" else text.split()


def add_options(parser: Any) -> None:
    """Add our options to Locust's parser, so that they appear in its help and in its web form."""
    secretive = any(is_secretive(word.partition("=")[2] or word) for word in sys.argv)
    for key in OPTIONS:
        shown = {"include_in_web_ui": not secretive} if key.name == "targets" else {}
        default = None if key.kind.many else key.default
        parser.add_argument(
            key.option,
            dest=_dest(key),
            metavar=key.kind.metavar,
            default=default,
            help=key.help.replace("%", "%%"),
            # If there are choices, the web form shows a drop-down list.
            choices=key.kind.words or None,
            action=_Joined if key.kind.many else "store",
            **shown,
        )
    parser.add_argument(
        RESULT,
        metavar="DIR",
        help="folder for the result; with this option, a headless run works like `lockbench run "
        "--out DIR`",
        include_in_web_ui=False,
    )


class _Joined(argparse.Action):
    """A repeatable option.

    Locust stores all values of this option as one text, because the web form also gives one text.
    """

    def __call__(
        self,
        _parser: object,
        namespace: argparse.Namespace,
        value: object,
        _option: str | None = None,
    ) -> None:
        earlier = getattr(namespace, self.dest) or ""
        setattr(namespace, self.dest, f"{earlier} {value}".strip())


def _dest(key: ScenarioKey) -> str:
    return key.name.replace(".", "_")


# -- `locust --headless --result DIR` --------------------------------------------------------------


def is_wanted(arguments: list[str]) -> bool:
    """Return whether the command line starts a headless leader and names a folder for the
    result."""
    named = any(word == RESULT or word.startswith(f"{RESULT}=") for word in arguments)
    return named and "--worker" not in arguments and "--headless" in arguments


def words_of(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the arguments after `lockbench run SCENARIO`, and the targets. Raises UsageError."""
    if not options.run_time:
        raise UsageError(f"{RESULT} needs a measured time; set it with -t, as in -t 20s")
    texts = given_of(options, environ)
    targets = texts.pop("targets")
    assert isinstance(targets, list)
    words = [f"--out={options.result}", f"--duration={options.run_time}s"]
    for name, value in texts.items():
        words += [
            f"{_NAMES[name]}={item}" for item in (value if isinstance(value, list) else [value])
        ]
    if options.master:
        where = (
            f"[{options.master_bind_host}]"
            if ":" in options.master_bind_host
            else options.master_bind_host
        )
        words += [
            f"--expect-workers={options.expect_workers}",
            f"--bind={where}:{options.master_bind_port}",
        ]
    elif options.processes:
        words.append(
            f"--processes={options.processes if options.processes > 0 else os.cpu_count()}"
        )
    return words, targets


def become(words: list[str], targets: list[str]) -> NoReturn:
    """Replace this process by `lockbench run`, which then decides the output and the exit code."""
    scenario = in_memory(b"targets = " + msgspec.json.encode(targets))
    os.set_inheritable(scenario, True)
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "bench", "run", f"/proc/self/fd/{scenario}", *words]
    os.execve(sys.executable, command, environ)  # noqa: S606
