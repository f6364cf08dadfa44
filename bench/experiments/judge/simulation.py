"""Tests a lock in virtual time. The finding holds the smallest simulated schedule that breaks the
lock.

A lock can be simulated only if it is a mutex, is written in Python, and sends all commands through
redis-py. For any other lock, the row states why the lock cannot be simulated. The same seed always
gives the same schedules.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from bench.experiments.judge.party import NotApplicableError
from bench.experiments.judge.result import CourseStep, RowFigure
from bench.experiments.judge.row import RowFinding, need
from bench.experiments.judge.stage import JudgeStage, driver_of
from bench.topology.child import Child

SEED = 1
# The largest number of schedules, and the smallest number of tested schedules.
MOST = 2000
LEAST = 20
# On a busy machine the play may last longer than its processor time, by this factor.
SLOWER = 15
LOOK_S = 0.1
PROCESS = f"{__package__}.simulation_process"


class SimulationOrder(Struct, frozen=True):
    """An order to play schedules of the lock called `lock`. The process plays at most `most`
    schedules, and stops after `seconds` of processor time. `answers` is true if the lock's acquire
    returns something at a grant.
    """

    lock: str
    ttl_ms: int
    instances: int
    seconds: float
    seed: int
    most: int
    answers: bool = False


class SimulationAnswer(Struct, frozen=True):
    """The result of an order. If the process could not play the lock, `trouble` states the reason.
    `rule` is the rule that schedule `number` broke. `steps` holds the time (ms), the client and the
    text of each step. The client of a step is -1 if a server did the step.
    """

    played: int
    tested: int
    trouble: str
    rule: str = ""
    number: int = 0
    steps: list[tuple[float, int, str]] = []


def search(stage: JudgeStage) -> RowFinding:
    """Play schedules in virtual time. In these schedules messages are late or lost, clients pause
    or are killed, and servers stop or forget scripts."""
    if stage.subject.command:
        raise NotApplicableError("a command cannot run in virtual time")
    if stage.is_shared:
        raise NotApplicableError("the search can only test a mutex")
    order = SimulationOrder(
        stage.subject.text,
        stage.require_ttl(),
        stage.instances,
        stage.seconds,
        SEED,
        MOST,
        stage.party().acquire().answers,
    )
    answer = _answer(stage, order)
    figures = (
        RowFigure("schedules", float(answer.played), ""),
        RowFigure("seed", float(SEED), ""),
    )
    if answer.rule:
        stage.course[:] = [
            CourseStep(ms, chr(ord("A") + who) if who >= 0 else "", _lettered(text))
            for ms, who, text in answer.steps
            if not text.startswith("HELLO")
        ]
        wrong = f"{_lettered(answer.rule)}, in schedule {answer.number} of seed {SEED}, shortened"
        return RowFinding(wrong, figures=figures)
    if answer.trouble:
        raise NotApplicableError(f"the lock cannot run in virtual time: {answer.trouble}")
    if not answer.tested:
        raise NotApplicableError(
            "no schedule sent a command during another lease; maybe the lock does not use redis-py"
        )
    need(
        answer.tested >= LEAST,
        f"at least {LEAST} schedules request a lock while another client holds it (in this "
        f"search: {answer.tested})",
    )
    return RowFinding(
        remark=f"no fault in {answer.played:,} simulated schedules of seed {SEED}",
        figures=figures,
    )


def _lettered(text: str) -> str:
    """Replace the explorer's client names in `text` by the judge's client names, and return the new
    text. For example, C1 becomes A.
    """
    return re.sub(r"\bC([1-9])\b", lambda name: chr(ord("A") - 1 + int(name[1])), text)


def _answer(stage: JudgeStage, order: SimulationOrder) -> SimulationAnswer:
    environ = {**os.environ, **driver_of(stage.subject).environment}
    with Child("the search", PROCESS, environ=environ, folder=Path.cwd()) as child:
        child.tell(order)
        for _ in range(round(SLOWER * (order.seconds + 1) / LOOK_S)):
            if child.has_written(LOOK_S):
                return child.hear(SimulationAnswer)
            stage.rest(0)
    raise NotApplicableError(
        "the simulation does not end; the lock may wait for something in real time"
    )
