"""What a container runs: *a command and the file of targets → Locust or lockbench, which know
them*.

Rules: the URLs hold a password, so they come from a file and reach neither the command line nor the
image. `lockbench run` gets them as its targets, everything else as LOCKBENCH_TARGETS.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

TARGETS = Path("/run/secrets/targets")


def arguments(words: Sequence[str], targets: Sequence[str]) -> list[str]:
    """The command: options alone are Locust's; `lockbench run` gets the targets of the file unless
    it has its own."""
    if words[0].startswith("-"):
        return ["locust", *words]
    if words[1:2] != ["run"] or any(word.startswith(("--target", "--instances")) for word in words):
        return list(words)
    return [*words, *(f"--target={url}" for url in targets)]


def main() -> None:
    """Run sys.argv[1:], `lockbench …` in this very process, so that no password stands in a list of
    processes."""
    targets = TARGETS.read_text(encoding="utf-8").split() if TARGETS.exists() else []
    words = arguments(sys.argv[1:], targets)
    if words[0] == "lockbench":
        sys.argv = words
        runpy.run_module("bench", run_name="__main__", alter_sys=True)
        return
    if targets:
        os.environ["LOCKBENCH_TARGETS"] = " ".join(targets)
    os.execvp(words[0], words)  # noqa: S606  # the container's own command


if __name__ == "__main__":
    main()
