"""Implements `lockbench report --judge`, which judges kept records again: *results and their
records → a new verdict on each record*. The command compares the new verdict with the stored
result."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.errors import UsageError
from bench.measure.verdict import Verdict, word_of, worst_code
from bench.report.run_answer import RUN
from bench.run.conclude import JudgedRecord
from bench.run.kept import judge_kept
from bench.screen import note, say

SAME = "as stored"
OTHER = "NOT AS STORED"
PARTED = (
    "result.json and the kept record differ, so one of them was changed or is damaged; make the "
    "run again"
)


def judge_again(places: Sequence[Path], *, quiet: bool = False) -> int:
    """Judge the record of each result again, and print the new verdicts.

    Return the worst exit code of all results. If a new verdict is good but the stored result is
    different, the exit code of this result is 2. Raises UsageError.
    """
    codes = []
    for place in places:
        judged = judge_kept(place)
        wrong = _differences(place, judged)
        if not quiet:
            say(*_lines(place, judged, wrong))
        if wrong:
            note(f"lockbench: {place}: {PARTED}")
        codes.append(judged.verdict.exit_code or (UsageError.exit_code if wrong else 0))
    return worst_code(codes)


def _lines(place: Path, judged: JudgedRecord, wrong: Sequence[str]) -> Iterator[str]:
    safety = judged.measured.safety
    rate = judged.measured.rate
    yield f"{judged.verdict.word}   {place}: lockbench judged the kept record again"
    for reason in judged.verdict.reasons:
        yield f"reason     {reason}"
    yield (
        f"safety     {safety.verdict}: {safety.service_faults:,} service faults, "
        f"{safety.granted_invalid:,} granted invalid, {safety.foreign_deletes:,} foreign deletes "
        f"in {safety.tested_leases:,} tested leases"
        + (f"; {safety.reason}" if safety.reason else "")
    )
    achieved = "–" if rate.achieved_per_s is None else f"{rate.achieved_per_s:,.1f}"
    yield f"figures    {achieved} leases/s, {judged.measured.totals.acquired:,} leases in all"
    if wrong:
        yield f"stored     {OTHER}: {'; '.join(wrong)}"
    else:
        yield f"stored     {SAME}: {_told(judged.verdict)}, and all figures are the same"


def _differences(place: Path, judged: JudgedRecord) -> list[str]:
    """Return sentences about the differences between the stored result and the new judgement.
    Return an empty list if there are no differences."""
    try:
        stored = RUN.read_file(place)
    except UsageError as error:
        return [str(error)]
    old = stored.verdict
    new = judged.verdict
    names = judged.measured.__struct_fields__
    wrong = [
        f"{name} differs"
        for name in names
        if getattr(stored, name) != getattr(judged.measured, name)
    ]
    if (old.word, old.status) != (new.word, new.status):
        wrong.insert(
            0, f"the result has the verdict {_told(old)}, and the record gives {_told(new)}"
        )
    if stored.thresholds != judged.thresholds:
        wrong.append("thresholds differ")
    return wrong


def _told(verdict: Verdict) -> str:
    return word_of("run", verdict).text
