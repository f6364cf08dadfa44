"""What a play of a row comes to."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.experiments.judge import contention as contention_module
from bench.experiments.judge.contention import ContendedLoad, contention
from bench.experiments.judge.experiment import asked
from bench.experiments.judge.playing import Plays, judged
from bench.experiments.judge.row import JudgeRow, OutlivedError, RowFinding, UnmetError
from bench.experiments.judge.rows import ROWS
from bench.experiments.judge.stage import JudgeStage
from bench.measure.record import OperationFacts


def stage_of(**changes: Any) -> JudgeStage:
    """A stage on which nobody plays."""
    facts = {
        "instances": 1,
        "capacity": 1,
        "is_shared": False,
        "seconds": 1.0,
        "lock_keys": [{b"key"}],
        "course": [],
        "clear": lambda: None,
        "end_parties": lambda: None,
        "require_servers": lambda: None,
        "has_waited": lambda: True,
        "broken": lambda: "",
    }
    return cast("JudgeStage", SimpleNamespace(**facts | changes))


@pytest.mark.parametrize(
    ("error", "word"),
    [(OutlivedError("the lock was still held"), "holds"), (UnmetError("it asked"), "not known")],
)
def test_only_a_client_that_outwaited_the_lease_did_right(error: Exception, word: str) -> None:
    def play(_stage: JudgeStage) -> RowFinding:
        raise error

    row = JudgeRow("?", "?", "?", play, may_wait=True)
    assert judged(stage_of(), row, asked, Plays(), Event()).verdict == word


def test_a_row_for_one_holder_says_nothing_of_a_semaphore() -> None:
    names = [row.name for row in ROWS if not row.for_one_holder]
    assert "contention" in names
    assert "late-set" in names
    assert not {"release-after-expiry", "body-without-lock", "sigkill", "restart"} & {*names}


def test_two_holders_are_not_forgotten_because_few_leases_were_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow lock is loaded once more, and the second load may meet no fault."""
    lease = OperationFacts(
        start_ns=0,
        attempt_ns=0,
        ended_ns=1,
        resource=0,
        caller=0,
        sequence=1,
        outcome="acquired",
        granted_ns=1,
        valid_until_ns=100,
        release_sent_ns=50,
    )
    loads = [ContendedLoad([[lease], [lease]], 1.0, 0, 0.0), ContendedLoad([[lease]], 1.0, 0, 0.0)]
    monkeypatch.setattr(contention_module, "contend", lambda *_words: loads.pop(0))
    assert contention(stage_of()).wrong == "2 processes held the lock at once, and one may"
