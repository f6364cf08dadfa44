"""The folder a command's results go to: *an option or nothing → a new, writable, empty folder*.

Rules: made before any work, so that a wrong place costs no run; an existing folder is never written into; a folder that
stayed empty is taken away again. Source: README's `--out`.
"""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

from bench.errors import EnvironmentNotReadyError


def make_result_folder(wanted: Path | None, command: str, run_id: str) -> Path:
    """Return the new folder `wanted`, or results/<UTC time>-<command>-<run id>. Raises EnvironmentNotReadyError."""
    now = datetime.datetime.now(datetime.UTC)
    folder = wanted or Path("results") / f"{now:%Y%m%d-%H%M%S}-{command}-{run_id}"
    try:
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
    return folder


def remove_if_empty(folder: Path) -> None:
    """Take `folder` away if nothing was written into it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
