"""Runs git commands in a checkout. If git refuses a command, this module returns a sentence that
helps the user.

Git refuses to read a checkout that belongs to another user ("dubious ownership"). For example, git
refuses in a container if the checkout was made outside the container. If git refuses, lockbench
shows the command that git recommends. In this case, lockbench does not say that the revision is
missing. Source: git-config(1), about safe.directory.
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

    If git fails, the function returns git's exit code and does not raise an exception. Raises
    OSError, subprocess.TimeoutExpired.
    """
    command = ["git", "-C", str(folder), *arguments]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, timeout=timeout_s, check=False, env=environment
    )


def refusal_of(done: subprocess.CompletedProcess[bytes], folder: Path) -> str:
    """If git refuses the checkout because it belongs to another user, return a sentence that shows
    the user how to allow it. Otherwise return ""."""
    line = _LINE.search(done.stderr.decode(errors="replace")) if done.returncode else None
    if line is None:
        return ""
    return (
        f"git does not read {folder}, because it belongs to another user; if you trust it, "
        f"type: {line[0].strip()}"
    )
