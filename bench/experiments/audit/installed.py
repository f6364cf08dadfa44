"""Installs the audited libraries in separate environments: *entries of a table and a cache folder →
drivers, and reasons for missing drivers*.

The table names the exact version of each library. Each Python library has a virtual environment.
All Node libraries share one folder. For Go, Rust and Java, the audit builds one program per
language. If a library is already installed, the audit uses this installation. If an installation
fails, the result names the reason, and the audit continues.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from bench.experiments.audit.libraries import HERE, LibraryEntry
from bench.experiments.audit.result import MissingLibrary
from bench.experiments.judge.library import ROOT, Library, LibraryDriver, LibraryWords

DRIVER = f"{__package__}.clients.driver"
INSTALL_S = 600.0
# After this time (s) the audit checks again whether the work was interrupted.
LOOK_S = 0.1
# Killed programs have this time (s) to end before their temporary files are deleted.
END_S = 2.0
# How many installations run at once. An installation waits for the network more than it compiles.
AT_ONCE = 3

# For each kind of driver: the programs that it needs, and the command that builds it in its folder.
_BUILT: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "node": (
        ("node", "npm"),
        ("npm", "install", "--silent", "--no-audit", "--no-fund", "--legacy-peer-deps"),
    ),
    "go": (("go",), ("go", "build", "-o", "driver", ".")),
    "java": (("java", "mvn"), ("mvn", "--quiet", "--batch-mode", "process-classes")),
    "rust": (("cargo",), ("cargo", "build", "--release", "--quiet")),
}
# For each kind of driver: the path of the built program.
_PROGRAMS = {"go": "driver", "rust": "target/release/driver"}
# In a Python library's environment, this folder holds lockbench's driver.
_OURS = "ours"


def install(
    entries: Sequence[LibraryEntry], cache: Path, say: Callable[[str], None]
) -> list[LibraryDriver | MissingLibrary]:
    """Install each library in a folder below `cache`, and return the drivers. If a library cannot
    be installed, its entry in the list has the reason."""
    homes = {entry.library.home: entry for entry in entries if entry.library.home}
    cut = Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            came = pool.map(
                lambda entry: _install(entry, cache / entry.library.home, say, cut), homes.values()
            )
            reasons = dict(zip(homes, came, strict=True))
        except BaseException:
            cut.set()
            pool.shutdown(cancel_futures=True)
            raise
    drivers: list[LibraryDriver | MissingLibrary] = []
    for entry in entries:
        library = entry.library
        if library.name.startswith("lockcore uvloop") and find_spec("uvloop") is None:
            reason = "uvloop is not installed"
        else:
            reason = reasons.get(library.home, "")
        drivers.append(
            MissingLibrary(name=library.name, reason=reason)
            if reason
            else _driver(entry, cache / library.home)
        )
    return drivers


def ours(name: str) -> LibraryDriver:
    """Return the driver for the lock called `name`. This driver runs in the environment of
    lockbench itself."""
    return _driver(LibraryEntry(Library(name, "lockcore"), LibraryWords(), HERE), Path())


def _driver(entry: LibraryEntry, home: Path) -> LibraryDriver:
    kind = entry.library.kind
    environment: dict[str, str] = {}
    if kind == "lockcore":
        # The driver imports the same lockcore as this process. This lockcore may be compiled.
        command: tuple[str, ...] = (sys.executable, "-m", DRIVER)
        environment = {"PYTHONPATH": str(ROOT)}
    elif kind == "python":
        _link_bench(home)
        command = (str(home / "bin" / "python"), "-m", DRIVER)
        environment = {"PYTHONPATH": str(home / _OURS)}
    elif kind == "node":
        command = ("node", str(entry.folder / "node" / "driver.mjs"))
        environment = {"LOCKBENCH_NODE": str(home)}
    elif kind == "java":
        places = f"{home / 'target/classes'}:{home / 'target/dependency'}/*"
        command = ("java", "-cp", places, "Driver")
    else:
        command = (str(home / _PROGRAMS[kind]),)
    return LibraryDriver(entry.library, entry.words, command, environment)


def _link_bench(home: Path) -> None:
    """Create a folder in `home` that contains a link to `bench` and nothing else.

    If `bench` is installed, the folder with `bench` also contains the other packages of lockbench's
    environment. If this folder were on the import path of a library's environment, Python would
    import these packages instead of the versions that the audit must test.
    """
    link = home / _OURS / "bench"
    package = ROOT / "bench"
    if not link.is_symlink() or link.readlink() != package:
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(package)


def _install(entry: LibraryEntry, home: Path, say: Callable[[str], None], cut: Event) -> str:
    """Build the installation in `home`. Do nothing if `home` already contains an installation that
    was built from the same sources and packages with the same Python version. Return the reason if
    the build failed, or "" if it succeeded.

    `cut` ends the build.
    """
    library = entry.library
    programs, command = _BUILT.get(library.kind, ((), ()))
    sources = sorted((entry.folder / library.kind).glob("*.*"))
    made_from = [source.read_text(encoding="utf-8") for source in sources] or library.packages
    stamp = home / ".installed"
    recipe = "\n".join([sys.version, *made_from])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == recipe:
        return ""
    say(f"installing: {library.home} ({', '.join(library.packages)})")
    # An interrupted build continues where it stopped. Any other build starts again from the
    # beginning.
    if stamp.exists() or not command:
        shutil.rmtree(home, ignore_errors=True)
    for program in programs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    home.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copy(source, home)
    pip = [
        str(home / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "install",
    ]
    steps = (
        [command]
        if command
        else [[sys.executable, "-m", "venv", str(home)], [*pip, *library.packages]]
    )
    reason = next(filter(None, (_call(step, home, cut) for step in steps)), "")
    if not reason:
        stamp.write_text(recipe, encoding="utf-8")
    return reason


def _call(command: Sequence[str], folder: Path, cut: Event) -> str:
    """Run a command in `folder`. Return the reason if the command failed, or "" if it succeeded. If
    the event `cut` is set, kill the command.

    The command runs in a session of its own. A SIGINT may reach only the process of lockbench. So
    lockbench kills the whole process group, which includes the programs that pip or cargo started.
    Killed programs do not remove their temporary files. So lockbench gives the command a temporary
    folder, and removes this folder after the command.
    """
    program = Path(command[0]).name
    deadline_s = time.monotonic() + INSTALL_S
    with TemporaryDirectory(prefix="lockbench-install-", ignore_cleanup_errors=True) as scratch:
        settings = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "TMPDIR": scratch}
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | settings,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"{program} did not run ({type(error).__name__})"
        reason = ""
        output = ""
        with process:
            while True:
                try:
                    output, _ = process.communicate(timeout=LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    if cut.is_set() or time.monotonic() > deadline_s:
                        reason = "was cut short" if cut.is_set() else f"took over {INSTALL_S:.0f} s"
                        # The killed programs close the pipe as they end. A program that went into
                        # a session of its own is not killed, and may keep the pipe open for ever.
                        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                            os.killpg(process.pid, signal.SIGKILL)
                            process.communicate(timeout=END_S)
                        break
    if process.returncode and not reason:
        lines = ["it said nothing", *filter(str.strip, output.splitlines())]
        reason = f"failed: {lines[-1][:200]}"
    return f"{program} {reason}" if reason else ""
