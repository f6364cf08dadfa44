"""What a container of the stack runs: *a command and the file of targets → Locust or lockbench, which know them*.

Rules: the URLs hold a password, so they come from a file and reach neither the command line nor the image. `lockbench
run` gets them as its targets, everything else as LOCKBENCH_TARGETS.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

TARGETS = Path("/run/secrets/targets")


def arguments(words: Sequence[str], targets: Sequence[str]) -> list[str]:
    """The words of `lockbench …`, with the targets of the stack if it is a run without targets of its own."""
    if words[1:2] != ["run"] or any(word.startswith(("--target", "--instances")) for word in words):
        return list(words)
    return [*words, *(f"--target={url}" for url in targets)]


def main() -> None:
    """Run sys.argv[1:], `lockbench …` in this very process, so that no password stands in a list of processes."""
    words = sys.argv[1:]
    targets = TARGETS.read_text(encoding="utf-8").split() if TARGETS.exists() else []
    if words[:1] == ["lockbench"]:
        sys.argv = arguments(words, targets)
        runpy.run_module("bench", run_name="__main__", alter_sys=True)
        return
    os.environ["LOCKBENCH_TARGETS"] = " ".join(targets)
    os.execvp(words[0], words)  # noqa: S606  # the container's own command


if __name__ == "__main__":
    main()
