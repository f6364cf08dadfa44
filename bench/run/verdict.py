"""From figures to one word and one exit code: *sections of a result → verdict → exit code*.

Rules
- Of an invalid run nothing is judged but violations, which are certain: its figures mean nothing.
- UNKNOWN safety, or one that was not tested, is the word of a run that has nothing else to say; it is never green.
- A run that Ctrl-C cut is not known, however well it began.

Source: bench.measure.verdict, which has the words, their order and their exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bench.errors import EnvironmentNotReadyError
from bench.gates.threshold import sentence
from bench.measure import verdict as words
from bench.measure.result import Document, write_result
from bench.measure.run_result import JudgedThreshold, Measured
from bench.measure.verdict import TESTED_LEAST, Evidence, Verdict, conclude

INTERRUPTED = words.INTERRUPTED_CODE
_JUDGED = ("fail", "inconclusive")
_OF_SAFETY = {word.text: word for word in (words.SAFE, words.NOT_TESTED, words.UNKNOWN)}


def judge_run(
    measured: Measured,
    deaths: Sequence[str],
    thresholds: Sequence[JudgedThreshold] = (),
    *,
    interrupted: bool = False,
) -> Verdict:
    """Return the run's verdict.

    `deaths`: workers that ended early; `thresholds`: as `Threshold.judge` returns them; `interrupted`: by Ctrl-C.
    """
    safety, invalid = measured.safety, invalidities(measured, deaths)
    by_status = {status: [sentence(one) for one in thresholds if one.status == status] for status in _JUDGED}
    found = {
        words.VIOLATED: [str(safety.reason)] if safety.verdict == "VIOLATED" else [],
        words.FAIL: [] if invalid else by_status["fail"],
        words.INVALID: invalid,
        words.INTERRUPTED: ["interrupted before its time"] if interrupted and not invalid else [],
        words.INCONCLUSIVE: [] if invalid else [*_nothing_granted(measured), *by_status["inconclusive"]],
    }
    evidence = (Evidence.none_in("tested leases", safety.tested_leases, TESTED_LEAST),)
    word = _OF_SAFETY.get(safety.verdict, words.UNKNOWN)
    if word is not words.SAFE and not any(found.values()):
        return Verdict.of(word, word.exit_code, evidence, ())
    return conclude(words.SAFE, evidence, found, thin=words.NOT_TESTED)


def exit_code(verdict: Verdict, *, interrupted: bool) -> int:
    """Return the exit code of a run with this verdict."""
    return INTERRUPTED if interrupted else int(verdict.exit_code or 0)


def invalidities(measured: Measured, deaths: Sequence[str]) -> list[str]:
    """Why no figure of this run means anything; nothing when they do. `deaths`: workers that ended early."""
    generator = measured.generator
    claim = [f"the load was not what it claims: {generator.reason}"] if generator.verdict == "INVALID" else []
    return [*deaths, *claim]


def _nothing_granted(measured: Measured) -> list[str]:
    """Outcomes count what was due in the window, the rate what was granted in it: in a long queue these are others."""
    if measured.outcomes.acquired:
        return []
    if measured.rate.achieved_per_s:
        return ["no acquire that was due in the measured window got its lease; those granted in it were due before"]
    return ["no lease was granted in the measured window"]


Stored = TypeVar("Stored", bound=Document)
Stored_co = TypeVar("Stored_co", bound=Document, covariant=True)


@dataclass(frozen=True, slots=True)
class Done(Generic[Stored_co]):
    """What came of it; `exit_code` as in README. `path` None = it could not be stored, `unstored` says why."""

    result: Stored_co
    path: Path | None
    exit_code: int
    unstored: str = ""


def store(result: Stored, folder: Path, code: int, also: Callable[[], None] = lambda: None) -> Done[Stored]:
    """Write `result` into `folder`, and what `also` writes; one that cannot be written is told all the same.

    A full disk takes neither the result, which can still be shown, nor 130 from its exit code, which is else `code`.
    """
    path = None
    try:
        path = write_result(result, folder)
        also()
    except EnvironmentNotReadyError as error:
        return Done(result, path, code if code == INTERRUPTED else error.exit_code, str(error))
    return Done(result, path, code)
