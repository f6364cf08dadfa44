"""What a play of a row comes to."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.experiments.judge import contention as contention_module
from bench.experiments.judge.contention import ContendedLoad, contention
from bench.experiments.judge.experiment import asked
from bench.experiments.judge.needs import needs_of
from bench.experiments.judge.party import HangsError
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
        "broken": lambda **_waits: "",
        "parties": [],
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


def row_raising(error: Exception) -> JudgeRow[JudgeStage]:
    """A row in which a client may wait, and whose play raises this error."""

    def play(_stage: JudgeStage) -> RowFinding:
        raise error

    return JudgeRow("?", "?", "?", play, may_wait=True)


@pytest.mark.parametrize(("is_waiting", "word"), [(True, "holds"), (False, "not known")])
def test_only_a_client_that_waits_for_a_held_lock_may_hang(is_waiting: bool, word: str) -> None:
    row = row_raising(HangsError("no answer within 8 s", lambda _parties: is_waiting))
    judgement = judged(stage_of(), row, asked, Plays(), Event())
    assert judgement.verdict == word
    assert ("no answer within 8 s" in judgement.happened) is not is_waiting


@pytest.mark.parametrize(
    "error",
    [HangsError("no answer", lambda _parties: True), OutlivedError("the lock was still held")],
)
@pytest.mark.parametrize("has_waited", [True, False])
def test_two_holders_are_a_fault_even_if_a_client_waited(
    error: Exception, has_waited: bool
) -> None:
    stage = stage_of(broken=lambda **_waits: "two at once", has_waited=lambda: has_waited)
    judgement = judged(stage, row_raising(error), asked, Plays(), Event())
    assert (judgement.verdict, judgement.happened) == ("does not", "two at once")


def test_a_row_for_one_holder_says_nothing_of_a_semaphore() -> None:
    names = [row.name for row in ROWS if "one holder" not in needs_of(row.name)]
    assert "contention" in names
    assert "late-set" in names
    assert "release-after-expiry" in names
    assert not {"paused-in-acquire", "body-without-lock", "sigkill", "restart"} & {*names}


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
    assert contention(stage_of()).wrong == "2 processes held the lock at once, but only one may"


@pytest.mark.parametrize("callers", [1, 2, 4])
def test_the_errors_of_a_load_are_named_whatever_its_result(
    callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One caller tests no lease. Two callers take turns. Four callers hold the lock at once."""
    leases = [
        OperationFacts(
            start_ns=0,
            attempt_ns=0,
            ended_ns=300,
            resource=0,
            caller=0,
            sequence=1,
            outcome="acquired",
            granted_ns=number + 1,
            valid_until_ns=1000,
            release_sent_ns=number + (50 if callers == 4 else 2),
        )
        for number in range(200)
    ]
    operations = [leases[number::callers] for number in range(callers)]
    load = ContendedLoad(operations, 1.0, 0, 0.0, ["ConnectionError: gone", "no answer"])
    monkeypatch.setattr(contention_module, "contend", lambda *_words: load)
    judgement = judged(stage_of(), JudgeRow("?", "?", "?", contention), asked, Plays(), Event())
    assert judgement.verdict == {1: "not known", 2: "holds", 4: "does not"}[callers]
    assert judgement.happened.endswith("; 2 errors, the first: ConnectionError: gone")
