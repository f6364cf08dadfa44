"""The folder a command's results go to: *an option or nothing → a new, writable, empty folder*.

Rules: made before any work, so that a wrong place costs no run; an existing folder is never written into; a folder that
stayed empty is taken away again. Source: README's `--out`.
"""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError


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
    return ResultFolder(folder, made)
