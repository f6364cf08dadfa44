"""What git says of a checkout: *a folder and a question → git's answer, or the line to type where
git refuses*.

Rules: git reads no checkout of another user ("dubious ownership"), as in a container whose checkout
was made outside. Then the answer is not "no such revision": the cure is a line that git itself
names. Source: git-config(1), about safe.directory.
"""

import os
import re
import subprocess
from pathlib import Path

_LINE = re.compile(r"git config --global --add safe\.directory .+")


def ask_git(
    folder: Path, *arguments: str, timeout_s: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Return what git said in `folder`, well or badly, in English.

    Raises OSError, subprocess.TimeoutExpired.
    """
    command = ["git", "-C", str(folder), *arguments]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, timeout=timeout_s, check=False, env=environment
    )


def refusal_of(done: subprocess.CompletedProcess[bytes], folder: Path) -> str:
    """Return the sentence about a checkout that git does not read, as it belongs to another user;
    else ""."""
    line = _LINE.search(done.stderr.decode(errors="replace")) if done.returncode else None
    if line is None:
        return ""
    return (
        f"git does not read {folder}, because it belongs to another user; if you trust it, "
        f"type: {line[0].strip()}"
    )
