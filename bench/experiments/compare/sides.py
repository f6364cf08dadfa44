"""Reads the sides that `compare` and `gate` compare: *arguments of a command line → sides to run,
or series of stored results*.

    results/a       a stored result, or a folder of several stored results
    mine.toml       a scenario file, or the name of a ready scenario; lockbench runs it now
    git:main        a git revision of the lock library; lockbench runs it now
    lib:DIR         a virtual environment, or a folder of pip install --target; lockbench runs the
                    packages in it now

The README of this folder contains the general rules. This module adds the following rules. For a
revision, a fresh interpreter reports from which folder Python imports each package. If Python would
import a package from a folder outside the revision, the command refuses the revision. A checkout is
stored in a private folder. A guard process removes this folder even if lockbench is killed. When
the command looks for differences between two runs, it ignores ids, times, seed, thresholds and
ports. The command also ignores the commit and the version of lockbench, because these two identify
the code under test.
"""

import contextlib
import difflib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from bench.errors import EnvironmentNotReadyError, UsageError, writing
from bench.experiments.compare.pairs import HERE, Rounds, Side, entry_of
from bench.gates.threshold import Threshold
from bench.measure.environment import describe_environment
from bench.measure.result import RESULT_NAME
from bench.measure.revision import ask_git, refusal_of
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, leaves
from bench.report.run_answer import RUN
from bench.scenario import READY, Scenario
from bench.scenario.quantity import nearest
from bench.topology.servants import Guard

PREFIX = "lockbench-revision-"
# A side never uses these folders of a revision, because every side uses the bench that runs now.
_THE_BENCH = ("bench", "dashboards", "tests")
_ASK = (
    "import importlib.util,sys; s=importlib.util.find_spec(sys.argv[1]); print(s.origin if s "
    "and s.origin else '')"
)
# Two names must be at least this similar for a hint. /nope and /opt have a similarity of 0.57.
LIKE = 0.7
WINDOW_MS = 1500.0
WARMUP_MS = 300.0
_MACHINE = ("cpu_model", "cores", "usable_cores", "memory_bytes", "kernel", "python", "lockcore")
_INSTANCE = (
    "fsync",
    "no_fsync_on_rewrite",
    "maxmemory_bytes",
    "maxmemory_policy",
    "tls",
    "release_command",
)
_NOT_COMPARED = ("seed", "thresholds")
Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Named:
    """One side of a comparison, as the user named it on the command line.

    `kind` is one of the words "stored", "scenario", "recipe", "revision", "library" and "here".
    `label` is the name that tables show for the side.
    """

    label: str
    kind: str
    where: Path = Path()
    commit: str = ""


def read_named(text: str, repository: Path) -> Named:
    """Return the side that the user named with `text`.

    Raises UsageError if the named side does not exist. Raises EnvironmentNotReadyError if git is
    not installed.
    """
    prefix, _, rest = text.partition(":")
    if prefix == "git":
        commit = commit_of(rest, repository)
        return Named(f"{text} ({commit[:9]})", "revision", repository, commit)
    name = rest if prefix == "lib" else text
    path = Path(name)
    # Path.exists would raise an error for a name that is too long.
    if name and os.path.exists(name):  # noqa: PTH110
        kind = "scenario" if path.suffix == ".toml" else "stored"
        if prefix == "lib":
            kind = "library"
        return Named(text, kind, path)
    ready = [] if prefix == "lib" else [scenario.stem for scenario in READY.glob("*.toml")]
    if path.parent == Path() and path.stem in ready:
        return Named(text, "scenario", path)
    what = "folder" if prefix == "lib" else "result or scenario (write a revision as git:REV)"
    raise UsageError(f"{text or 'an empty name'}: there is no such {what}{_like(path, ready)}")


def _like(path: Path, ready: Sequence[str]) -> str:
    """Return a question such as `; did you mean X?`. X is either a file in the same folder as
    `path` or a ready scenario. The name of X is similar to the last part of `path`. Return "" if no
    name is similar."""
    places = {place.name: str(place) for place in path.parent.glob("*")} | {
        name: name for name in ready
    }
    near = difflib.get_close_matches(path.name, places, n=1, cutoff=LIKE)
    return f"; did you mean {places[near[0]]}?" if near else ""


def is_stored(sides: list[Named]) -> bool:
    """Return whether all sides are stored results.

    Raises UsageError if only some of the sides are stored results. A stored result and a new run
    were not interleaved, so a comparison of the two would be unfair.
    """
    stored = [one.label for one in sides if one.kind == "stored"]
    if 0 < len(stored) < len(sides):
        raise UsageError(
            f"{stored[0]} is a stored result, but lockbench would have to run the other side "
            "now. A comparison of runs from different hours is not fair. Give two stored "
            "results, or two sides to run (scenarios or revisions)"
        )
    return bool(stored)


@contextlib.contextmanager
def opened(
    named_things: list[Named], load: Callable[[Named], Scenario], options: Mapping[str, object]
) -> Iterator[list[Side]]:
    """Yield the sides to run. The function removes the checkouts of revisions when the context
    ends. Raises BenchError."""
    with contextlib.ExitStack() as stack:
        sides = []
        here = any(one.kind == "here" for one in named_things)
        for one in named_things:
            folders: tuple[str, ...] = installed(one.where) if one.kind == "library" else ()
            if one.kind == "revision":
                folders = stack.enter_context(checked_out(one.commit, one.where))
            if here and folders:
                _require_here(one, folders)
            sides.append(Side(one.label, shortened(load(one), options), folders))
        yield sides


def shortened(scenario: Scenario, options: Mapping[str, object]) -> Scenario:
    """Return the scenario with a short window and a short warm-up. The function keeps a duration or
    a warm-up that the user set in `options`. The function also keeps the length of the window if a
    short window would end before a fault starts."""
    latest_ms = max((fault.at_ms for fault in scenario.faults), default=0.0)
    if "duration" not in options and latest_ms < WINDOW_MS:
        scenario = replace(scenario, duration_ms=min(scenario.duration_ms, WINDOW_MS))
    if "warmup" not in options:
        scenario = replace(scenario, warmup_ms=min(scenario.warmup_ms, WARMUP_MS))
    return scenario


def commit_of(revision: str, repository: Path) -> str:
    """Return the id of the commit that `revision` names.

    Raises UsageError if the revision does not exist. Raises EnvironmentNotReadyError if git is not
    installed.
    """
    done = _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if not done.returncode:
        return done.stdout.decode().strip()
    fault = _first_line(done)
    names = _lines(repository, "for-each-ref", "--format=%(refname:short)")
    hint = nearest(revision, names) or nearest(revision.rpartition("/")[2], names)
    if _lines(repository, "rev-parse", "--is-shallow-repository") == ["true"]:
        hint += "; this clone is shallow: fetch the missing commits (in CI: the whole history)"
    raise UsageError(
        f"{repository.absolute()} has no revision {revision or '(no name)'}: git says "
        f"{fault!r}{hint}"
    )


@contextlib.contextmanager
def checked_out(commit: str, repository: Path) -> Iterator[tuple[str, ...]]:
    """Check out a commit of `repository`, and yield the folders from which Python can import the
    commit's packages. The checkout does not contain the folders `bench`, `dashboards` and `tests`.
    Raises UsageError if the commit contains no package. Raises EnvironmentNotReadyError if git
    cannot provide the commit, or if Python would import the library from another place."""
    # In a subfolder, git would archive only that subfolder.
    top = _top(repository) or repository
    archive = _git(top, "archive", "--format=tar", commit)
    if archive.returncode:
        raise EnvironmentNotReadyError(
            f"git cannot read commit {commit[:12]} of {top.absolute()} (git says "
            f"{_first_line(archive)!r}); fetch the missing objects, or clone the repository again"
        )
    with contextlib.closing(Guard(Path(tempfile.gettempdir()), PREFIX)) as guard:
        try:
            with (
                writing(guard.folder, "make room, or set TMPDIR to another disk"),
                tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar,
            ):
                members = [member for member in tar if _is_wanted(member, guard.folder)]
                tar.extractall(guard.folder, members, filter="data")
        except tarfile.TarError as error:
            # If a commit has no files, git's archive is a bare header. tarfile cannot read a bare
            # header, and there is nothing to extract.
            if _git(top, "ls-tree", commit).stdout.strip():
                raise EnvironmentNotReadyError(
                    f"the git archive of commit {commit[:12]} of {top.absolute()} cannot be read "
                    f"({error}); run `git archive {commit[:12]} | tar -t` there to see the cause"
                ) from None
        folders = tuple(str(path) for path in (guard.folder, guard.folder / "src") if path.is_dir())
        if not any(_packages(folders)):
            raise UsageError(
                f"commit {commit[:12]} of {top.absolute()} contains no Python package to compare; "
                "name another revision"
            )
        # Without this check, the gate could compare a revision with itself.
        if strange := _imported_elsewhere(folders, folders, guard.folder):
            raise EnvironmentNotReadyError(f"{strange}, not from git")
        yield folders


def _is_wanted(member: tarfile.TarInfo, folder: Path) -> bool:
    """Return whether to extract this member of the archive into `folder`. Return False for a file
    in the folders `bench`, `dashboards` and `tests`. Also return False for a path outside `folder`,
    and for a link to a place outside `folder`, such as /etc."""
    if member.name.partition("/")[0] in _THE_BENCH:
        return False
    try:
        tarfile.data_filter(member, str(folder))
    except tarfile.FilterError:
        return False
    return True


def installed(folder: Path) -> tuple[str, ...]:
    """Return the folder from which Python can import the packages of a library. If `folder` is a
    virtual environment, the function returns its site-packages. Otherwise it returns `folder`
    itself.

    Raises UsageError if `folder` and its site-packages contain no package.
    """
    for place in (*sorted(folder.glob("lib/python*/site-packages")), folder):
        if any(_packages([str(place)])):
            return (str(place.resolve()),)
    raise UsageError(
        f"{folder} contains no Python package; give a virtual environment or a folder of pip "
        "install --target"
    )


def _require_here(other: Named, folders: Sequence[str]) -> None:
    """Raise UsageError if a comparison of "the code here" with the side `other` is impossible. A
    comparison is impossible in three cases. In the first case, lockcore is compiled here, but the
    other side would run lockcore from source. In the second case, Python would not import the code
    here from the revision's repository. Changes in the repository would then have no effect, and
    every gate would pass. In the third case, the repository is bare, so it contains no code to
    run."""
    wrong = ""
    if describe_environment().lockcore == "compiled" and "lockcore" in _packages(folders):
        wrong = "the code here is compiled, and the other side would run from source"
    elif other.kind == "revision":
        top = _top(other.where)
        if top is None:
            raise UsageError(
                f"{other.where.absolute()} is a bare repository, so it contains no code to "
                f"compare with {other.label}; name a revision for the candidate, too (--candidate "
                "git:HEAD)"
            )
        wrong = _imported_elsewhere(folders, (), top)
    if wrong:
        raise UsageError(
            f"a gate of the code in this folder against {other.label} would always pass, "
            f"because {wrong}; install the code in editable mode (pip install --editable .), "
            "or name a revision as the candidate (--candidate git:HEAD)"
        )


def _packages(folders: Sequence[str]) -> Iterator[str]:
    """Return the names of the packages in these folders."""
    return (place.parent.name for folder in folders for place in Path(folder).glob("*/__init__.py"))


def _imported_elsewhere(checkout: Sequence[str], first: Sequence[str], root: Path) -> str:
    """Look for a package of a checkout that Python would import from a place other than `root` and
    `root/src`. Return a sentence about the first such package, or "" if there is no such package.
    For each package, a fresh interpreter reports from where Python would import the package. This
    interpreter searches the folders in `first` before all other folders."""
    path = os.pathsep.join([*first, os.environ.get("PYTHONPATH", ""), str(HERE)])
    roots = (root.resolve(), root.resolve() / "src")
    for package in _packages(checkout):
        process = subprocess.run(
            [sys.executable, "-c", _ASK, package],
            env={**os.environ, "PYTHONPATH": path},
            cwd=os.sep,
            capture_output=True,
            text=True,
            check=False,
        )
        origin = process.stdout.strip()
        if Path(os.sep, origin).resolve().parent.parent not in roots:
            return f"the package {package} would be imported from {origin or 'nowhere'}"
    return ""


def _top(repository: Path) -> Path | None:
    """Return the top folder of the git checkout that contains `repository`, or None for a bare
    repository."""
    path = _git(repository, "rev-parse", "--show-toplevel").stdout.removesuffix(b"\n")
    return Path(os.fsdecode(path)) if path else None


def _first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").splitlines()
    faults = [line for line in lines if line.startswith(("fatal: ", "error: "))]
    return (faults or lines or [""])[0].partition(": ")[2] or "nothing"


def _lines(repository: Path, *arguments: str) -> list[str]:
    return _git(repository, *arguments).stdout.decode(errors="replace").split()


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git and return its exit code and its output, even if git reports an error. Raises
    EnvironmentNotReadyError if git cannot be started, or if git refuses to read this repository."""
    try:
        done = ask_git(repository, *arguments)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentNotReadyError(
            f"git is needed for a revision, and git cannot be run ({error})"
        ) from None
    if refusal := refusal_of(done, repository.absolute()):
        raise EnvironmentNotReadyError(refusal)
    return done


def read_series(place: Path) -> list[RunResult]:
    """Return the results that are stored at `place`, sorted by their start. The oldest result is
    first.

    Raises UsageError if `place` contains no result of a run.
    """
    is_series = place.is_dir() and not (place / RESULT_NAME).exists()
    results = list(
        map(RUN.read_file, sorted(place.glob(f"*/{RESULT_NAME}")) if is_series else [place])
    )
    if not results:
        raise UsageError(
            f"{place} contains no result; give a result folder of lockbench run, or a folder of "
            "such folders"
        )
    return sorted(results, key=lambda result: result.started_at)


def require_alike(
    series: Sequence[Sequence[RunResult]], labels: Sequence[str], variables: Sequence[str]
) -> None:
    """Raise UsageError if a run appears twice. Also raise UsageError if two runs of one series have
    different settings. Also raise UsageError if a series differs from the first series in a setting
    that `variables` does not include."""
    runs = Counter(result.id for results in series for result in results)
    if twice := [name for name, times in runs.items() if times > 1]:
        raise UsageError(
            f"run {', '.join(twice)} was named twice, and a run that is compared with itself "
            "passes every gate; name each run once"
        )
    settings_by_series = [[settings_of(result) for result in results] for results in series]
    for settings, label in zip(settings_by_series, labels, strict=True):
        for other in settings[1:]:
            if changes := differences(settings[0], other):
                raise UsageError(
                    f"the runs in {label} have different settings: {'; '.join(changes.values())}"
                )
    require_declared([settings[0] for settings in settings_by_series], labels, variables)


def require_declared(
    sides: Sequence[Settings], labels: Sequence[str], variables: Sequence[str]
) -> None:
    """Raise UsageError if a side differs from the first side in a setting that `variables` does not
    include. Also raise UsageError if a variable is not the name of a setting."""
    names = list(sides[0])
    for variable in variables:
        if not any(_covers(variable, name) for name in names):
            hint = nearest(variable, names) or "; the settings are " + ", ".join(names)
            raise UsageError(f"option --variable: there is no setting {variable}{hint}")
    for settings, label in zip(sides[1:], labels[1:], strict=True):
        changes = differences(sides[0], settings)
        wrong = [
            name for name in changes if not any(_covers(variable, name) for variable in variables)
        ]
        if wrong:
            text = "; ".join(changes[name] for name in wrong)
            raise UsageError(
                f"{labels[0]} and {label} cannot be compared, because they differ in settings "
                f"that must be equal: {text}. Run both with the same settings, or declare the "
                f"intended differences ({' '.join(f'--variable {one}' for one in wrong)})"
            )


def rounds_of(
    series: Sequence[Sequence[RunResult]], thresholds: Sequence[Threshold] = ()
) -> Rounds:
    """Return stored runs as rounds that are not paired. The function judges `thresholds` again in
    each run."""
    runs = [
        structs.replace(
            entry_of(result, side, number),
            thresholds=tuple(threshold.judge(result) for threshold in thresholds),
        )
        for side, results in enumerate(series)
        for number, result in enumerate(results)
    ]
    return Rounds(runs, {side: results[-1] for side, results in enumerate(series)}, paired=False)


def differences(first: Settings, second: Settings) -> dict[str, str]:
    """Return the settings that differ. Each key is the name of a setting, and each value is a text
    of the form `name a → b`. If a scenario key and a server setting with the same name differ, the
    function leaves out the server setting. For example, it leaves out `server.fsync` if `fsync`
    differs. The function also leaves out a package if only one of the two runs has this package."""
    changes: dict[str, str] = {}
    for name in {**first, **second}:
        echo = name.startswith("server.") and name.removeprefix("server.") in changes
        unknown = name.startswith("packages.") and not (name in first and name in second)
        if first.get(name) != second.get(name) and not echo and not unknown:
            changes[name] = f"{name} {_text(first.get(name))} → {_text(second.get(name))}"
    return changes


def settings_of(result: RunResult) -> dict[str, object]:
    """Return the settings of a run, each under its dotted name. The name of a scenario key has no
    prefix. The name `server` has no prefix, either. All other names begin with `server.`,
    `machine.` or `packages.`."""
    settings = scenario_settings(result.scenario)
    fleet = result.fleet
    environment = result.environment
    settings["server"] = (
        sorted({f"{one.server} {one.version}" for one in fleet.instances if one.server}) or None
    )
    settings["server.sha256"] = fleet.server.sha256 if fleet.server else None
    for name in _INSTANCE:
        settings[f"server.{name}"] = sorted({str(getattr(one, name)) for one in fleet.instances})
    settings |= {f"machine.{name}": getattr(environment, name) for name in _MACHINE}
    packages = environment.packages.items()
    return settings | {
        f"packages.{name}": version for name, version in packages if name != "lockbench"
    }


def scenario_settings(scenario: Scenario) -> dict[str, object]:
    """Return the values of the scenario keys, each under its dotted name. The function leaves out
    `seed` and `thresholds`, because a change of these keys does not count as a difference between
    runs."""
    settings = dict(leaves(builtins_of(scenario)))
    return {name: value for name, value in settings.items() if name not in _NOT_COMPARED}


def _covers(variable: str, name: str) -> bool:
    """Return whether the variable that the user declared includes the setting `name`. For example,
    the variable `retry` includes `retry.window_ms`, and the variable `hold` includes `hold.ms`. The
    variable `fsync` includes both `fsync` and `server.fsync`."""
    setting = variable.replace("-", "_")
    bare = name.removeprefix("server.")
    for unit in ("_ms", "_per_s"):
        bare = bare.removesuffix(unit)
    return setting in (name, bare) or name.startswith(setting + ".")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
