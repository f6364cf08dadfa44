"""Plays rows, for one lock or for many locks. Each play gives a verdict word and a course of
events.

A row is played until enough plays have a result. The class `Plays` defines how many plays are
enough. If Ctrl-C interrupts a row, the play raises CutError and the row is dropped.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from redis.exceptions import RedisError

from bench.errors import BenchError
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import HangsError, NotApplicableError
from bench.experiments.judge.result import JudgedRow, JudgedWord
from bench.experiments.judge.row import JudgeRow, OutlivedError, RowFinding, UnmetError, need
from bench.run.experiment import Show

StageT = TypeVar("StageT", bound=Stage)
Ask = Callable[[StageT, JudgeRow[StageT]], RowFinding]


@dataclass(frozen=True, slots=True)
class Plays:
    """The number of plays of a row. If no play shows a fault, the number of plays is `held`. If a
    play shows a fault, the number of plays is `repeats`. After `tries` plays without a result, the
    row gets the verdict "not known".
    """

    held: int = 1
    repeats: int = 1
    tries: int = 1


def judged(
    stage: StageT, row: JudgeRow[StageT], ask: Ask[StageT], plays: Plays, stop: Event
) -> JudgedRow:
    """Play a row several times, as `plays` requires, and return the judged row. Once `stop` is set,
    no further play begins. Raises CutError.
    """
    wrong = 0
    played = 0
    unknown = 0
    word: JudgedWord = "not known"
    while True:
        again, finding = _played(stage, row, ask)
        if word != "does not" or again == word:
            word = again
            happened = finding.wrong or finding.remark
            figures = finding.figures
            tested = finding.tested
            holders = finding.holders
            course = tuple(stage.course) if word in ("does not", "not known") else ()
        played += again in ("holds", "does not", "told")
        wrong += again == "does not"
        unknown += again == "not known"
        enough = played >= (plays.repeats if wrong else plays.held) or unknown >= plays.tries
        if enough or again in ("not applicable", "told") or stop.is_set():
            break
    return JudgedRow(
        group=row.group,
        topic=row.name,
        question=row.question,
        is_safety=row.is_safety,
        verdict=word,
        happened=happened,
        wrong=wrong,
        plays=played,
        tested=tested,
        figures=figures,
        holders=holders,
        course=course,
    )


def _played(
    stage: StageT, row: JudgeRow[StageT], ask: Ask[StageT]
) -> tuple[JudgedWord, RowFinding]:
    try:
        stage.clear()
        try:
            finding = ask(stage, row)
        except HangsError as error:
            finding = _hung(stage, row, error)
        except OutlivedError:
            finding = _waited(stage, "the other client waited until the holder's lease had ended")
            if not row.may_wait or not (finding.wrong or stage.has_waited()):
                raise
        stage.require_servers()
    except NotApplicableError as error:
        return "not applicable", RowFinding(remark=str(error))
    except UnmetError as error:
        return "not known", RowFinding(remark=f"a precondition was not met: {error}")
    except (BenchError, RedisError, TimeoutError, OSError) as error:
        return "not known", RowFinding(remark=f"{type(error).__name__}: {error}")
    if finding.wrong:
        return "does not", finding
    return ("told" if row.only_tells else "holds"), finding


def _hung(stage: StageT, row: JudgeRow[StageT], error: HangsError) -> RowFinding:
    """Return the finding for a client that did not answer. In some rows, a client may wait for a
    lock that another client holds. Raises UnmetError if the client hangs in such a row although
    nobody holds the lock.
    """
    if row.may_wait:
        need(
            error.is_waiting(stage.parties),
            f"the client answers if nobody has the lock ({error})",
        )
        return _waited(stage, "the other client waited")
    return RowFinding(remark=str(error)) if row.only_tells else RowFinding(wrong=str(error))


def _waited(stage: StageT, remark: str) -> RowFinding:
    """Return the finding of a play in which a client waited for the lock. The finding is a fault if
    clients held the lock together.
    """
    return RowFinding(stage.broken(has_waited=True), remark)


def play_together(
    jobs: Mapping[str, Callable[[], None]], per_core: int, stop: Event, show: Show
) -> None:
    """Run all jobs. A job waits most of the time, so the function runs `per_core` jobs per core at
    the same time. If the user presses Ctrl-C, the function sets `stop`, and the running jobs end
    within a moment.
    """
    with ThreadPoolExecutor(per_core * len(os.sched_getaffinity(0))) as pool:
        begun = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for number, one in enumerate(as_completed(begun), 1):
                one.result()
                show(f"{number} of {len(begun)}: {begun[one]}")
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    stop.clear()
