"""The folder a command's results go to: *an option or nothing → a place where a new folder can be made*.

Rules: tried before any work, so that a wrong place or a full disk costs no run, and made when there is something to
write, so that a killed command leaves no empty one; an existing folder is never written into, but that of a matrix
which was cut, to go on with it. Source: README's `--out`.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.run.journal import is_unfinished

LEAST_FREE_BYTES = 8 << 20  # a result takes 0.1 to 2 MB


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The place of a new folder; `made` are all folders that come into being with it, the deepest first."""

    path: Path
    made: tuple[Path, ...]

    def remove_if_empty(self) -> None:
        """Take away what was made, as far as nothing was written into it."""
        with contextlib.suppress(OSError):
            for folder in self.made:
                folder.rmdir()


def matrix_folder(wanted: Path | None, command: str, run_id: str) -> ResultFolder:
    """The folder of a matrix that may be cut: `wanted` if one was cut there, else a new one. Raises as the next."""
    if wanted is not None and is_unfinished(wanted):
        return ResultFolder(wanted, ())
    place = result_folder(wanted, command, run_id)
    place.path.mkdir(parents=True)
    return place


def result_folder(wanted: Path | None, command: str, run_id: str) -> ResultFolder:
    """Return the place `wanted`, or results/<UTC time>-<command>-<run id>, where a folder can be made and is not yet.

    Raises EnvironmentNotReadyError.
    """
    now = datetime.datetime.now(datetime.UTC)
    folder = wanted or Path("results") / f"{now:%Y%m%d-%H%M%S}-{command}-{run_id}"
    try:
        made = tuple(place for place in (folder, *folder.parents) if not place.exists())
        folder.mkdir(parents=True)
    except FileExistsError:
        raise EnvironmentNotReadyError(
            f"the result folder {folder} exists already; name a new one with --out"
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EnvironmentNotReadyError(
            f"the result folder {folder} cannot be made ({reason}); name another place with --out"
        ) from None
    place = ResultFolder(folder, made)
    usage = shutil.disk_usage(folder)
    place.remove_if_empty()
    if usage.total and usage.free < LEAST_FREE_BYTES:  # a file system without a size has no limit
        raise EnvironmentNotReadyError(
            f"the result folder {folder} has {usage.free / 1e6:.1f} MB of free space, and a result may need "
            f"{LEAST_FREE_BYTES / 1e6:.0f} MB; free the disk or name another place with --out"
        )
    return place
