"""`report --judge`: what the record says decides, and a result that says something else is never
passed over."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.commands import judging
from bench.gates.run_verdict import judge_result
from bench.measure.run_result import RunResult
from bench.report.answer import Answer
from tests.bench.whole_run import run_of


def judged_of(run: RunResult) -> Any:
    """What a kept record comes to that says what this run says."""
    return SimpleNamespace(measured=run, thresholds=run.thresholds, verdict=judge_result(run))


def other_rate(run: RunResult) -> RunResult:
    """The same run with twice the rate."""
    return run_of(run, rate={"achieved_per_s": 2 * (run.rate.achieved_per_s or 1.0)})


VIOLATED = {
    "verdict": "VIOLATED",
    "reason": "7 × service fault",
    "service_faults": 7,
    "violations": 7,
    "upper_bound_95": None,
}


@pytest.mark.parametrize(
    ("record", "is_forged", "code"),
    [(run_of(), False, 0), (run_of(), True, 2), (run_of(safety=VIOLATED), True, 5)],
    ids=[
        "as stored",
        "a good record beside a forged result",
        "a bad record beside a forged result",
    ],
)
def test_a_forged_result_never_ends_with_zero(
    record: RunResult,
    is_forged: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(judging, "judge_kept", lambda _place: judged_of(record))
    stored = other_rate(run_of()) if is_forged else record
    monkeypatch.setattr(Answer, "read_file", lambda _answer, _place: stored)
    assert judging.judge_again([Path("there")]) == code
    shown = capsys.readouterr()
    assert ("NOT AS STORED" in shown.out) is is_forged
    assert ("make the run again" in shown.err) is is_forged
