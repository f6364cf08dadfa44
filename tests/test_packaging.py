"""What is built from here: a wheel that is whole, a lock that needs little, a recipe that comes
from elsewhere."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bench.topology.fleet import start_fleet
from lockcore.compiled import LOAD, MODULES
from tests.lockcore.source import needs_compiler
from tests.trials import GATED, SHORT, TRIALS, trial_of, typed_lines

ROOT = Path(__file__).parents[1]
PACKAGES = ("lockcore", "bench", "dashboards")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
HEAVY = (
    "locust",
    "opentelemetry",
    "numpy",
    "scipy",
    "click",
    "rich",
    "jinja2",
    "gevent",
    "hdrh",
    "psutil",
)

# no public names of the lock
INSIDE = ("lockcore.rounds.awaited", "lockcore.rounds.rounds", "lockcore.shells.greenlets.fast")


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def built(source: Path, into: Path) -> Path:
    """The wheel of `source`, built without an isolated environment, hence without a network."""
    words = ("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", into, source)
    # to make fast code takes a minute of a core, and whether there is some is asked here
    quick = into / "cc"
    quick.write_text('#!/bin/sh\nexec cc "$@" -O0\n', "utf-8")
    quick.chmod(0o755)
    done = run(*PIP, *words, cwd=into, CC=str(quick))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Our own, from a copy: building leaves traces beside the sources."""
    copy = tmp_path_factory.mktemp("source") / "lockbench"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return built(copy, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory, wheel):
    """An environment with nothing in it but the wheel, redis-py and hiredis: its Python."""
    place = tmp_path_factory.mktemp("empty")
    assert (
        run(sys.executable, "-m", "venv", "--without-pip", place / "env", cwd=place).returncode == 0
    )
    python = place / "env" / "bin" / "python"
    installed = run(
        *PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place
    )
    assert installed.returncode == 0, installed.stderr
    (site,) = (place / "env" / "lib").glob("python*/site-packages")
    for package in ("redis", "hiredis"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        (site / package).symlink_to(Path(spec.origin).parent)
    return python


def test_the_wheel_holds_every_file_that_is_not_python(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    kinds = {".lua", ".toml", ".c", ".json", ".j2", ".css", ".js", ".yaml", ".yml", ".typed"}
    data = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    }
    assert data - inside == set()
    assert {f"{package}/py.typed" for package in PACKAGES} <= data


@needs_compiler
def test_the_core_in_the_wheel_is_compiled_and_its_source_is_there(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for module in (*MODULES, *LOAD):
        path = module.replace(".", "/")
        assert f"{path}.py" in names
        assert any(name.startswith(f"{path}.") and name.endswith(".so") for name in names), module


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory, wheel):
    """The wheel's files in a folder."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@needs_compiler
def test_the_compiled_load_is_not_linked_with_the_compiled_lock(unpacked):
    (load,) = unpacked.glob("lockbench_load__mypyc.*.so")
    (core,) = unpacked.glob("lockcore__mypyc.*.so")
    assert b"lockcore__mypyc" in core.read_bytes(), "else its absence below says nothing"
    assert b"lockcore__mypyc" not in load.read_bytes()


@needs_compiler
def test_the_compiled_load_runs_on_the_source_of_another_lockcore(unpacked, tmp_path):
    """As of a gate: `git:` brings lockcore as source, of a version whose inside may be another.
    What it has for the bench stands behind `lockcore.bench`, which is of the same version."""
    shutil.copytree(
        ROOT / "lockcore",
        tmp_path / "lockcore",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    code = (
        "import sys, lockcore, lockcore.bench, lockcore.engine.engine\n"
        f"sys.modules.update(dict.fromkeys({INSIDE!r}))  # planted: they cannot be "
        "imported any more\n"
        "import bench.workloads.worker as worker\n"
        "from bench.workloads import operation\n"
        "assert worker.Caller is operation.Caller\n"
        "print(lockcore.engine.engine.__file__, operation.__file__)\n"
    )
    done = run(sys.executable, "-P", "-c", code, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{unpacked}")
    assert done.returncode == 0, done.stderr
    core, load = done.stdout.split()
    assert core == str(tmp_path / "lockcore" / "engine" / "engine.py")
    assert load.startswith(str(unpacked))
    assert load.endswith(".so")


def test_the_wheel_holds_the_licence_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]


def test_the_lock_alone_needs_redis_py_and_hiredis_only(empty, tmp_path):
    code = (
        "import importlib.util as u, sys, lockcore, lockcore.errors\n"
        f"assert not [name for name in {HEAVY!r} if u.find_spec(name)], 'the environment "
        "is not empty'\n"
        "assert lockcore.Redlock and lockcore.AsyncRedlock\n"
        "try: lockcore.Redlock.connect(['redis://127.0.0.1:1'], connect_timeout_s=0.2)\n"
        "except lockcore.errors.LockcoreError as error: print(type(error).__name__)\n"
    )
    done = run(empty, "-c", code, cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("Error")


def test_the_command_without_its_extra_says_which(empty, tmp_path):
    done = run(empty.with_name("lockbench"), "doctor", cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 3
    assert (
        done.stderr
        == "lockbench: the package click is missing; install lockbench with the extra [run]\n"
    )


def test_the_wheel_promises_what_pyproject_says(wheel):
    (name,) = (
        name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")
    )
    text = zipfile.ZipFile(wheel).read(name).decode()
    extras = {
        line.partition(": ")[2] for line in text.splitlines() if line.startswith("Provides-Extra")
    }
    assert {"embedded", "load", "telemetry", "report", "dev", "run"} <= extras
    base = [
        line
        for line in text.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    ]
    assert sorted(line.split()[1].partition("<")[0].partition(">")[0] for line in base) == [
        "hiredis",
        "redis",
    ]


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    """A folder of installed packages with the example plug-in in it."""
    copy = tmp_path_factory.mktemp("plugin") / "source"
    shutil.copytree(ROOT / "tests" / "plugins" / "redis-py-lock", copy)
    site = tmp_path_factory.mktemp("site")
    done = run(
        *PIP,
        "install",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        site,
        copy,
        cwd=site,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def test_the_example_plug_in_shows_its_recipe_once_installed(plugged, lockbench, tmp_path):
    listed = run(
        sys.executable,
        "-m",
        "bench",
        "recipes",
        cwd=tmp_path,
        PYTHONPATH=f"{plugged}:{ROOT}",
        COLUMNS="200",
    )
    assert "redis-py-lock" in listed.stdout, listed.stderr
    assert "(from lockbench-redis-py-lock 1.0)" in listed.stdout
    assert "redis-py-lock" not in lockbench("recipes").stdout


@pytest.mark.integration
def test_the_example_plug_in_is_loaded_and_judged_like_any_other(plugged, tmp_path):
    load = (
        "--users",
        "4",
        "--resources",
        "1",
        "--hold",
        "2ms",
        "--duration",
        "500ms",
        "--warmup",
        "200ms",
    )
    command = (
        sys.executable,
        "-m",
        "bench",
        "run",
        "--recipe",
        "redis-py-lock",
        *load,
        "--out",
        "r",
    )
    done = run(*command, cwd=tmp_path, PYTHONPATH=f"{plugged}:{ROOT}")
    # a busy machine may make a run invalid
    assert done.returncode in (0, 4), done.stdout + done.stderr
    assert (
        "redis-py-lock · closed loop · 4 users in 2 processes · 1 resource · hold 2ms"
        in done.stdout
    )
    safety = json.loads((tmp_path / "r" / "result.json").read_text("utf-8"))["safety"]
    assert safety["violations"] == 0 < safety["tested_leases"]


def test_the_version_is_the_one_that_is_installed(lockbench):
    assert lockbench("--version").stdout == f"lockbench {importlib.metadata.version('lockbench')}\n"


def test_a_source_archive_holds_whatever_its_tests_and_its_makefile_need():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("this is no git checkout")
    # setuptools takes these by itself
    always = {"README.md", "LICENSE", "pyproject.toml", "MANIFEST.in"}
    manifest = set((ROOT / "MANIFEST.in").read_text("utf-8").split())
    assert {line.partition("/")[0] for line in listed.stdout.splitlines()} - always <= manifest


# -- as README and the CI examples say -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installed:
    """The wheel in an environment of its own, with what it depends on, and a clone of a repository
    to work in. `tools`: a folder that comes first on PATH: `lockbench` appends LOCKBENCH_TRIAL to
    commands that measure, `pip` asks no index and takes the wheel for the clone."""

    tools: Path
    clone: Path

    def sh(
        self, script: str, cwd: Path, options: str = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Type `script` as a CI runner does."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "OTEL", "GIT_"))
        }
        path = f"{self.tools}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=1800,
            env={**kept, "PATH": path, "LOCKBENCH_TRIAL": options, **environ},
            check=False,
        )


LOCKBENCH = """#!/bin/sh
case "$1" in
    run|gate|capacity|observe) exec {bin}/lockbench "$@" $LOCKBENCH_TRIAL ;;
    *) exec {bin}/lockbench "$@" ;;
esac
"""
PIP_HERE = """#!/bin/bash
words=("${{@:2}}")
for place in "${{!words[@]}}"; do
    [ "${{words[place]}}" = '.[run]' ] && words[place]='{wheel}[run]'
done
pip=({python} -m pip --disable-pip-version-check --python {bin}/python)
exec "${{pip[@]}}" "$1" --no-index --no-build-isolation "${{words[@]}}"
"""


def git(folder: Path, *words: str) -> None:
    identity = (
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    )
    done = run("git", *identity, *words, cwd=folder)
    assert done.returncode == 0, done.stderr


def cloned(folder: Path) -> Path:
    """A clone whose branch is one commit of lockcore ahead of `origin/main`."""
    origin = folder / "origin"
    clone = folder / "clone"
    for part in (*PACKAGES, "tests/plugins"):
        shutil.copytree(
            ROOT / part, origin / part, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, origin / name)
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A")
    git(origin, "commit", "-q", "-m", "before")
    git(folder, "clone", "-q", "origin", "clone")
    git(clone, "checkout", "-q", "-b", "change")
    with (clone / "lockcore" / "clock.py").open("a", encoding="utf-8") as file:
        file.write("\n# a change\n")
    git(clone, "commit", "-q", "-a", "-m", "after")
    return clone


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    """What the wheel depends on is seen where it is installed here, so no index is asked. None of
    this checkout is: a path in a .pth file brings packages, and not the hook of an editable
    install."""
    if absent := [name for name in ("git", "bash") if shutil.which(name) is None]:
        pytest.skip(f"not on this machine: {', '.join(absent)}")
    place = tmp_path_factory.mktemp("installed")
    tools = place / "tools"
    binaries = place / "env" / "bin"
    assert (
        run(sys.executable, "-m", "venv", "--without-pip", place / "env", cwd=place).returncode == 0
    )
    done = run(
        *PIP,
        "--python",
        binaries / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    (site,) = (place / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    tools.mkdir()
    # no link: through one it would not know its environment
    python = '#!/bin/sh\nexec {bin}/python "$@"\n'
    for name, text in (
        ("lockbench", LOCKBENCH),
        ("pip", PIP_HERE),
        ("python", python),
        ("python3", python),
    ):
        (tools / name).write_text(
            text.format(bin=binaries, python=sys.executable, wheel=wheel), "utf-8"
        )
        (tools / name).chmod(0o755)
    return Installed(tools, cloned(place))


def tried(installed, line, cwd, servers=()):
    """Type one line of README where its files are, and look at its end."""
    trial = trial_of(line)
    for name in ("mine.toml", "mine-too.toml"):
        if f"init {name}" not in line and not (cwd / name).exists():
            assert installed.sh(f"lockbench init {name} > /dev/null", cwd).returncode == 0
    for number, url in enumerate(servers, 1):
        line = line.replace(f"redis://10.0.0.{number}", url)
    line = line.replace("_ENDPOINT=…", "_ENDPOINT=http://127.0.0.1:9").replace(
        "redis://…", next(iter(servers), "")
    )
    line = line.replace("./tests/plugins", str(installed.clone / "tests" / "plugins"))
    line = line.replace("constraints.txt", str(installed.clone / "constraints.txt"))
    for name in ("old", "new"):
        line = line.replace(f"/venvs/{name}", str(cwd / name))
        if str(cwd / name) in line:
            shutil.copytree(installed.clone / "lockcore", cwd / name / "lockcore")
    done = installed.sh(line, installed.clone if "git:" in line else cwd, trial.options)
    said = done.stdout + done.stderr
    assert done.returncode in trial.codes, said
    assert "Traceback" not in said
    assert "lockbench has an internal fault" not in said
    assert trial.text in said
    return done


def test_every_command_of_readme_has_a_trial():
    lines = typed_lines()
    assert len(lines) > 25
    assert [line for line in lines if trial_of(line) is None] == []
    assert all(
        any(trial_of(line) is trial for line in lines) or trial.elsewhere for trial in TRIALS
    )


FLEET = ("10.0.0", "redis://…")
LINES = [line for line in typed_lines() if (trial := trial_of(line)) and not trial.elsewhere]


@pytest.mark.integration
def test_the_short_commands_of_readme_end_as_they_should_from_a_wheel(installed, tmp_path):
    """One test: they share an environment that takes long to build, and each takes a second or
    two."""
    with start_fleet(3, "none") as fleet:
        for number, line in enumerate(line for line in LINES if not trial_of(line).slow):
            (tmp_path / str(number)).mkdir()
            tried(
                installed,
                line,
                tmp_path / str(number),
                fleet.urls if any(part in line for part in FLEET) else (),
            )


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("line", [line for line in LINES if trial_of(line).slow])
def test_a_long_command_of_readme_ends_as_it_should_from_a_wheel(installed, tmp_path, line):
    if line.startswith("lockbench compare"):
        for name in ("before", "after"):
            tried(
                installed,
                f"lockbench run mine.toml --repeat 10 --name {name} --out {name} --csv runs.csv",
                tmp_path,
            )
    # fsync compares policies of an append-only file, which must be there
    with start_fleet(3, "everysec") as fleet:
        tried(installed, line, tmp_path, fleet.urls if any(part in line for part in FLEET) else ())


def steps_of(path):
    """What a runner of this example types, but for what it takes from a distribution or from the
    network."""
    document = yaml.safe_load(path.read_text("utf-8"))
    if path.name == ".gitlab-ci.yml":
        job = document["lock-gate"]
        lines = [*job["before_script"], *job["script"]]
    else:
        lines = [step["run"] for step in document["jobs"]["gate"]["steps"] if "run" in step]
    return [line for line in lines if "apt-get" not in line]


@pytest.mark.integration
@pytest.mark.parametrize(
    "path",
    [
        ROOT / ".github" / "workflows" / "lock-gate.yml",
        # the same commands, in another form
        pytest.param(ROOT / ".gitlab-ci.yml", marks=pytest.mark.slow),
    ],
    ids=lambda path: path.name,
)
def test_a_ci_example_runs_as_it_stands_from_a_wheel(installed, path, tmp_path):
    """It ended with exit 3 and a traceback of Locust in every project that had copied it."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(installed.clone), "clone")
    git(
        clone,
        "fetch",
        "-q",
        str(installed.clone.parent / "origin"),
        "main:refs/remotes/origin/main",
    )
    git(clone, "remote", "set-url", "origin", str(installed.clone.parent / "origin"))
    steps = steps_of(path)
    assert any("pip install" in step for step in steps)
    variables = {"BASE": "main", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    for step in steps:
        options = GATED if "lockbench gate" in step else SHORT
        done = installed.sh(step, clone, options, **variables)
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert done.returncode in ((0, 4, 75) if "lockbench" in step else (0,)), said
    for name in ("safety", "gate"):
        assert (clone / f"{name}.xml").exists()
        result = json.loads((clone / name / "result.json").read_text("utf-8"))
        assert result["verdict"]["exit_code"] in (0, 4)
    assert len(result["runs"]) >= 2, "both revisions were loaded"
    assert [side["label"].partition(" ")[0] for side in result["sides"]][1] == "git:HEAD"


def test_what_is_installed_is_not_this_checkout(installed, tmp_path):
    done = installed.sh(
        "python -c 'import bench, lockcore; print(bench.__file__, lockcore.__file__)'", tmp_path
    )
    assert str(ROOT) not in done.stdout.replace(str(sysconfig.get_path("purelib")), "")
    assert done.stdout.count(str(installed.tools.parent)) == 2
