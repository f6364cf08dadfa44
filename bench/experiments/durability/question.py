"""Describes the two questions that `lockbench fsync` and `lockbench crash` answer. The first
question asks what each fsync policy costs. The second question asks which locks are lost in a crash
under each fsync policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.durability.command import crash, fsync
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.durability.loss_result import CrashResult
    from bench.experiments.durability.price_result import FsyncResult
    from bench.report.answer import Answer


def _losses() -> Answer[CrashResult]:
    from bench.experiments.durability.answers import LOSSES

    return LOSSES


def _prices() -> Answer[FsyncResult]:
    from bench.experiments.durability.answers import PRICES

    return PRICES


FSYNC = Question(
    "fsync",
    fsync,
    _prices,
    examples=("lockbench fsync --quick", "lockbench fsync mine.toml --disk /mnt/data"),
    note="lockbench starts and stops servers on loopback. With --quick, the command takes "
    "less than 5 minutes, and without --quick less than 35 minutes.",
)
CRASH = Question(
    "crash",
    crash,
    _losses,
    examples=("lockbench crash --quick",),
    note="lockbench starts and stops servers on loopback. With --quick, the command takes less "
    "than 6 minutes on two cores.",
)
