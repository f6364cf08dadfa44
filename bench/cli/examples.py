"""Examples for the help of every command: *a command's name → lines that can be typed*.

Rules: each line is one that works; a test parses them all, as it does those of the READMEs. A command without a row is
named by a test. Source: README, "First hour".
"""

from __future__ import annotations

from collections.abc import Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "lockbench run",
        "lockbench run hot-key --duration 10s",
        "lockbench run --instances 3 --fsync always --users 8 --rate 500",
        "lockbench run --target redis://10.0.0.1 --target redis://10.0.0.2 --target redis://10.0.0.3",
        "lockbench run --threshold 'acquire.p99 < 10ms' --junit lock.xml",
    ),
    "fleet": ("lockbench fleet --instances 3 --fsync always", "lockbench fleet --quiet --port 7000"),
    "recipes": ("lockbench recipes", "lockbench recipes --json"),
    "doctor": ("lockbench doctor",),
    "init": ("lockbench init", "lockbench init mine.toml"),
    "completion": ('eval "$(lockbench completion bash)"', "lockbench completion fish > lockbench.fish"),
    "safety": ("lockbench safety --quick", "lockbench safety --recipe set-nx-get-del --claim votes"),
    "split-votes": ("lockbench split-votes --quick", "lockbench split-votes --instances 5 --contenders 3,5,10"),
    "fsync": ("lockbench fsync --quick",),
    "planner": ("lockbench planner", "lockbench planner --fsync results/fsync --crash results/crash"),
    "crash": ("lockbench crash --quick",),
    "capacity": (
        "lockbench capacity --slo 'acquire.p99 < 10ms' --quick",
        "lockbench capacity --slo 'acquire.p99 < 10ms' --sweep fsync=everysec,always",
    ),
    "compare": (
        "lockbench compare --recipe redlock --recipe redlock-sequential --pairs 10",
        "lockbench compare results/before results/after",
    ),
    "gate": ("lockbench gate --baseline git:main --candidate git:HEAD --tolerance 10%",),
    "report": (
        "lockbench report results/20261121-014300-run-7f3a90c1",
        "lockbench report results/before results/after --html side-by-side.html",
        "lockbench report results/20261121-014300-run-7f3a90c1 --markdown - | gh pr comment 7 --body-file -",
    ),
}


def with_examples(command: click.Command) -> click.Command:
    """Return `command` with its examples at the end of its help, before whatever it says there itself."""
    lines = EXAMPLES.get(command.name or "", ())
    shown = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if lines and not (command.epilog or "").startswith(shown):
        command.epilog = "\n\n".join(filter(None, (shown, command.epilog)))
    return command
