"""Defines the command `lockbench judge`. The command tests a lock row by row and judges the
results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bench.frame.experiment import experiment_options, measured
from bench.frame.outputs import Outputs

if TYPE_CHECKING:
    from bench.experiments.judge.result import JudgeResult
    from bench.run.experiment import Done


@click.argument("lock", metavar="LOCK")
@click.option(
    "--quick",
    is_flag=True,
    help="play each row only once and use short loads; this takes about two minutes",
)
@click.option(
    "--instances",
    metavar="N",
    type=click.IntRange(1, 15),
    default=1,
    help="how many servers to start for the lock  [1]",
)
@click.option(
    "--capacity",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    help="how many callers may hold the lock at once: 1 for a mutex, more for a semaphore  [1]",
)
@click.option(
    "--shared",
    is_flag=True,
    help="the lock is for readers and a writer. `lock(urls)` returns an object with read(name) and "
    "write(name)",
)
@experiment_options("judge", seed=None)
def judge(
    outputs: Outputs,
    *,
    lock: str,
    quick: bool,
    instances: int,
    capacity: int,
    shared: bool,
    server: str | None,
) -> Done[JudgeResult]:
    """Judge whether your own lock is safe. The report answers each question about the lock on one
    page.

    LOCK is a file (mine.py), package.module:object, or a command. The function `lock(urls)` of the
    file returns the lock. The lock is either a callable that turns a name into a context manager,
    or an object with acquire(name) and release(name). The calls of the lock may be synchronous or
    asynchronous. A command reads `acquire NAME` and `release NAME` on stdin. The command answers
    each line with ok, no, or the text of an error. The last arguments of the command are the URLs
    of the servers.

    Exit code 5 means that two clients had the lock, or could have had it. Exit code 1 means that
    the lock failed another test.
    """
    from bench.experiments.judge.experiment import run_judge
    from bench.experiments.judge.plan import plan_of
    from bench.experiments.judge.subject import read_subject

    plan = plan_of(
        read_subject(lock), quick=quick, instances=instances, capacity=capacity, shared=shared
    )
    return measured("judge", plan, outputs, run_judge, server=server)
