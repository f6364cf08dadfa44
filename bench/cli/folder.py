"""The folder a command's results go to: *an option or nothing → a new, writable, empty folder*.

Rules: made before any work, so that a wrong place or a full disk costs no run; an existing folder is never written
into, but that of a matrix which was cut, to go on with it; a folder that stayed empty is taken away again. Source:
README's `--out`.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.experiments.journal import is_unfinished

LEAST_FREE_BYTES = 8 << 20  # a result takes 0.1 to 2 MB


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A new folder; `made` are all folders that came into being with it, the deepest first."""

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
    return make_result_folder(wanted, command, run_id)


def make_result_folder(wanted: Path | None, command: str, run_id: str) -> ResultFolder:
    """Return the new folder `wanted`, or results/<UTC time>-<command>-<run id>. Raises EnvironmentNotReadyError."""
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
    result_folder = ResultFolder(folder, made)
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < LEAST_FREE_BYTES:  # a file system without a size has no limit
        result_folder.remove_if_empty()
        raise EnvironmentNotReadyError(
            f"the result folder {folder} has {usage.free / 1e6:.1f} MB of free space, and a result may need "
            f"{LEAST_FREE_BYTES / 1e6:.0f} MB; free the disk or name another place with --out"
        )
    return result_folder
