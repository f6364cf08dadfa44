"""The answer of `lockbench run`: *a stored RunResult → its sheet, cases and page*."""

from collections.abc import Iterator

from bench.gates.run_verdict import earned
from bench.measure.agreement import disagreements
from bench.measure.run_result import RunResult
from bench.measure.section import contradictions_in
from bench.report.answer import Answer
from bench.report.html.run_page import run_page
from bench.report.summary import sheet, suite


def _contradictions(result: RunResult) -> Iterator[str]:
    yield from disagreements(result)
    yield from contradictions_in(result)


RUN = Answer(
    "run",
    RunResult,
    earned,
    sheet,
    suite,
    whole_page=run_page,
    contradictions=_contradictions,
)
