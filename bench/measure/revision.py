"""Git commands about a checkout: *a folder and a git command → git's answer, or a command that
helps if git refuses*.

Rules: git refuses to read the checkout of another user ("dubious ownership"). This happens in a
container if the checkout was made outside the container. In this case, lockbench shows the command
that git recommends. It does not report a missing revision. Source: git-config(1), about
safe.directory.
"""

import os
import re
import subprocess
from pathlib import Path

_LINE = re.compile(r"git config --global --add safe\.directory .+")


def ask_git(
    folder: Path, *arguments: str, timeout_s: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder` and return its exit code and output, in English.

    A failure of git is not an exception. Raises OSError, subprocess.TimeoutExpired.
    """
    command = ["git", "-C", str(folder), *arguments]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, timeout=timeout_s, check=False, env=environment
    )


def refusal_of(done: subprocess.CompletedProcess[bytes], folder: Path) -> str:
    """If git refuses a checkout of another user, return a sentence with the cure. Otherwise return
    ""."""
    line = _LINE.search(done.stderr.decode(errors="replace")) if done.returncode else None
    if line is None:
        return ""
    return (
        f"git does not read {folder}, because it belongs to another user; if you trust it, "
        f"type: {line[0].strip()}"
    )
