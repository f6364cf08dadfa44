"""What is left of an unexpected exception: *exception → a file that can be attached to a report*.

Rules: the file goes to the temporary folder with mode 0600, and what is secret is not in it.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path

from bench.errors import secrets


def save_traceback(error: BaseException) -> Path | None:
    """Write the traceback of `error` to a new file and return its path; None when even that fails."""
    text = secrets()("".join(traceback.format_exception(error)))
    try:
        descriptor, name = tempfile.mkstemp(prefix="lockbench-crash-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return Path(name)
