"""The shim as a library: *fault_shim.c, a C compiler → one .so in the cache, compiled on first use, in every server*.

Rules
- The file's name holds the hash of what it was made from (source, flags, machine, C library) and the hash of itself: a
  file that is not what its name says is never loaded, and is compiled anew.
- It is moved into place whole, so that two first uses at once do no harm. The cache is private to its user.
- It is copied into each server's own folder and preloaded as `./…`, because LD_PRELOAD cannot hold a path with a space
  and a server starts in its folder. A preload that is already set stays, behind ours.

Source: ld.so(8); the XDG base directory specification for the cache folder.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.topology.shim.control import Control

SOURCE = Path(__file__).with_name("fault_shim.c")
_COMPILERS = (os.environ.get("CC", "cc"), "gcc", "clang")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11")
_COMPILE_S = 60.0
_DIGITS = 16
LIBRARY_FILE, CONTROL_FILE = "fault-shim.so", "fault-shim.map"
IGNORED = "the server ignores LD_PRELOAD (it is linked statically, or setuid)"


def shim_library(cache: Path | None = None) -> Path:
    """Return the shim's library, compiling it if the cache has none. `cache`: default the user's cache folder.

    Raises EnvironmentNotReadyError when there is no compiler, it fails, or no folder can be written.
    """
    source = SOURCE.read_bytes()
    made_from = _digest(source + repr((_FLAGS, platform.machine(), platform.libc_ver())).encode())
    folder = _private(cache or _cache_folder())
    for found in sorted(folder.glob(f"fault-shim-{made_from}-*.so")):
        if found.stem.rpartition("-")[2] == _digest(found.read_bytes()):
            return found
        found.unlink()
    library = _compiled(folder)
    final = folder / f"fault-shim-{made_from}-{_digest(library.read_bytes())}.so"
    library.rename(final)
    return final


def _compiled(folder: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise EnvironmentNotReadyError(
            "the fault shim needs a C compiler, and there is none: install gcc and libc6-dev"
        )
    descriptor, name = tempfile.mkstemp(prefix=".compiling-", suffix=".so", dir=folder)
    os.close(descriptor)
    try:
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", name, str(SOURCE), "-ldl"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMPILE_S,
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise EnvironmentNotReadyError(f"{compiler} cannot compile the fault shim: {said[0]}; install libc headers")
    except BaseException as error:
        Path(name).unlink()
        if isinstance(error, OSError | subprocess.TimeoutExpired):
            raise EnvironmentNotReadyError(f"{compiler} cannot compile the fault shim: {error}") from error
        raise
    return Path(name)


def _cache_folder() -> Path:
    setting = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home
        return (Path(setting) if setting else Path.home() / ".cache") / "lockbench"
    return Path(tempfile.gettempdir()) / f"lockbench-cache-{os.geteuid()}"


def _private(folder: Path) -> Path:
    """The folder, made if need be. A foreign one is refused: what lies there would run in our servers."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022 or not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "it is not a folder that only this user can write")
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"the fault shim cannot be kept in {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder of your own"
        ) from error
    return folder


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


class Preload:
    """Hands `environment` to `start_fleet`; afterwards `controls[index]` is instance `index`'s shim."""

    def __init__(self, cache: Path | None = None) -> None:
        """Have the library ready. Raises EnvironmentNotReadyError when it cannot be compiled."""
        self._library = shim_library(cache)
        self.controls: dict[int, Control] = {}

    def environment(self, index: int, folder: Path) -> Mapping[str, str]:
        """What instance `index` in `folder` gets; called at every start of it, also after a kill."""
        if index not in self.controls:
            shutil.copyfile(self._library, folder / LIBRARY_FILE)
            self.controls[index] = Control(folder / CONTROL_FILE)
        before = os.environ.get("LD_PRELOAD")
        preload = f"./{LIBRARY_FILE}" + (f":{before}" if before else "")
        return {"LD_PRELOAD": preload, "LOCKBENCH_SHIM": f"./{CONTROL_FILE}"}

    def close(self) -> None:
        """Let go of all mappings; the servers must have ended, or go on as they were set."""
        for control in self.controls.values():
            control.close()
        self.controls.clear()
