"""`lockbench report --judge`: *results with a kept record → what the record says today, and whether it is the same*."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.errors import UsageError
from bench.measure.run_result import RunResult
from bench.measure.verdict import Verdict, word_of, worst_code
from bench.report.kinds import read_run
from bench.run.conclude import Judged
from bench.run.kept import judge_kept

SAME, OTHER = "as stored", "NOT AS STORED"


def judge_again(places: Sequence[Path], *, quiet: bool = False) -> int:
    """Judge the kept record of each result, print what it says, and return the exit code of the worst. Raises
    UsageError."""
    codes = []
    for place in places:
        judged = judge_kept(place)
        codes.append(judged.verdict.exit_code or 0)
        if not quiet:
            print("\n".join(_lines(place, judged)), flush=True)
    return worst_code(codes)


def _lines(place: Path, judged: Judged) -> Iterator[str]:
    safety, rate = judged.measured.safety, judged.measured.rate
    yield f"{judged.verdict.word}   {place}: its record, judged anew"
    for reason in judged.verdict.reasons:
        yield f"reason     {reason}"
    yield (
        f"safety     {safety.verdict}: {safety.service_faults:,} service faults, {safety.granted_invalid:,} granted "
        f"invalid, {safety.foreign_deletes:,} foreign deletes in {safety.tested_leases:,} tested leases"
        + (f"; {safety.reason}" if safety.reason else "")
    )
    achieved = "–" if rate.achieved_per_s is None else f"{rate.achieved_per_s:,.1f}"
    yield f"figures    {achieved} leases/s, {judged.measured.totals.acquired:,} leases in all"
    yield from _compared(place, judged)


def _compared(place: Path, judged: Judged) -> Iterator[str]:
    """Whether the stored result says the same."""
    try:
        stored = read_run(place)
    except UsageError as error:
        yield f"stored     {OTHER}: {error}"
        return
    differences = list(_differences(stored, judged))
    if not differences:
        yield f"stored     {SAME}: {_told(stored.verdict)}, and all figures are the same"
        return
    yield f"stored     {OTHER}: {'; '.join(differences)}"
    print(f"lockbench: {place}: its record does not say what its result says", file=sys.stderr)


def _differences(stored: RunResult, judged: Judged) -> Iterator[str]:
    old, new = stored.verdict, judged.verdict
    if (old.word, old.status) != (new.word, new.status):
        yield f"the result says {_told(old)}, the record {_told(new)}"
    for name in judged.measured.__struct_fields__:
        if getattr(stored, name) != getattr(judged.measured, name):
            yield f"{name} differs"
    if stored.thresholds != judged.thresholds:
        yield "thresholds differs"


def _told(verdict: Verdict) -> str:
    return word_of("run", verdict).text
