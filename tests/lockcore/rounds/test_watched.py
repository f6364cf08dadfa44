"""An observed attempt: one record when its round has closed and its caller has decided, with every
vote and time."""

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import lease_of
from lockcore.facts.model import AttemptRecord, Lease, Outcome, Vote
from lockcore.rounds.rounds import SetRound
from lockcore.rounds.watched import WatchedSetRound
from tests.doubles.keyspace import MISCONF, NIL, OK
from tests.lockcore.by_hand import Caller, NoChance, acquiring
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, settings_of

GRANTED, REFUSED, ERRORED, SILENT, ABSENT = Vote


class Notebook:
    """Keeps what it observes."""

    def __init__(self) -> None:
        self.records: list[AttemptRecord] = []

    def observe(self, record: AttemptRecord) -> None:
        self.records.append(record)


def watched(instances: int = 3, every: int = 1) -> tuple[ScriptedFleet, list[AttemptRecord]]:
    notebook = Notebook()
    settings = settings_of(observer=notebook, observe_every=every)
    return ScriptedFleet(instances, settings=settings), notebook.records


def check_order(record: AttemptRecord) -> None:
    """Whatever happened, its times are in order."""
    for sent_ns, replied_ns in zip(record.sent_ns, record.replied_ns, strict=True):
        assert sent_ns == 0 or record.started_ns <= sent_ns <= record.closed_ns
        assert replied_ns == 0 or sent_ns <= replied_ns <= record.closed_ns
    assert record.started_ns <= record.closed_ns
    assert record.started_ns <= record.decided_ns


def judged(round_: SetRound, now_ns: int) -> Lease | None:
    """As its caller does it."""
    lease = lease_of(round_, now_ns)
    round_.decided(Outcome.TOO_LATE if lease is None else Outcome.ACQUIRED, now_ns)
    return lease


def test_a_granted_attempt_is_reported_when_its_last_vote_is_in() -> None:
    fleet, records = watched()
    started_ns = fleet.now_ns
    round_ = fleet.begin()
    fleet.after(1)
    fleet.flush()
    fleet.after(1)
    fleet.reply(2, OK)
    fleet.after(1)
    fleet.reply(0, OK)
    fleet.after(1)
    assert judged(round_, fleet.now_ns) is not None
    assert records == []
    fleet.after(1)
    fleet.reply(1, NIL)
    (record,) = records
    ms = [started_ns + number * NS_PER_MS for number in range(6)]
    assert record == AttemptRecord(
        resource="stock",
        attempt=1,
        acquire_ns=ms[0],
        started_ns=ms[0],
        decided_ns=ms[4],
        closed_ns=ms[5],
        outcome=Outcome.ACQUIRED,
        tally=record.tally,
        validity_ns=(TTL_MS - 102) * NS_PER_MS - 4 * NS_PER_MS,
        margin=0,
        votes=(GRANTED, REFUSED, GRANTED),
        sent_ns=(ms[1],) * 3,
        replied_ns=(ms[3], ms[5], ms[2]),
    )
    assert record.tally == (2, 1, 0, 0, 0, 0)


def test_an_attempt_that_closed_first_is_reported_when_its_caller_has_decided() -> None:
    fleet, records = watched()
    round_ = fleet.ask()
    fleet.after(1)
    fleet.reply_all(OK)
    closed_ns = fleet.now_ns
    fleet.after(TTL_MS)
    assert records == []
    assert judged(round_, fleet.now_ns) is None
    (record,) = records
    assert record.outcome is Outcome.TOO_LATE
    assert (record.closed_ns, record.decided_ns) == (closed_ns, fleet.now_ns)
    assert record.validity_ns < 0
    assert record.margin == 1


@pytest.mark.parametrize("company", [0, 6])
def test_votes_are_those_of_each_instance(company: int) -> None:
    fleet, records = watched(5)
    fleet.detach(4)
    for number in range(company):
        fleet.begin(f"before {number}")
    run = acquiring(fleet)
    fleet.after(1)
    for index, reply in enumerate([OK, NIL, MISCONF]):
        fleet.reply(index, *[OK] * company, reply)
    fleet.tick(60)
    run.answer(after_ms=0)
    record = next(one for one in records if one.resource == "stock")
    assert record.votes == (GRANTED, REFUSED, ERRORED, SILENT, ABSENT)
    assert record.errors == ("", "", "MISCONF", "", "")
    assert record.tally == (1, 1, 1, 1, 1, 0)
    assert record.outcome is Outcome.UNREACHABLE
    assert [bool(sent) for sent in record.sent_ns] == [True] * 4 + [False]
    assert [bool(replied) for replied in record.replied_ns] == [True] * 3 + [False] * 2
    assert record.margin == -2
    check_order(record)


@pytest.mark.parametrize("company", [0, 6])
def test_a_broken_connection_is_a_silent_vote(company: int) -> None:
    fleet, records = watched()
    for number in range(company):
        fleet.begin(f"before {number}")
    run = acquiring(fleet)
    fleet.reply_all(*[OK] * (company + 1), of=[0, 1])
    run.answer(after_ms=1)
    fleet.after(1)
    fleet.detach(2)
    record = next(one for one in records if one.resource == "stock")
    assert record.votes == (GRANTED, GRANTED, SILENT)
    assert record.tally == (2, 0, 0, 1, 0, 0)
    assert record.closed_ns == fleet.now_ns
    check_order(record)


def test_every_attempt_of_an_acquire_has_its_record_and_number_and_the_time_it_began() -> None:
    fleet, records = watched()
    began_ns = fleet.now_ns
    run = acquiring(fleet, wait_ms=100)
    run.answer(NIL, NIL, NIL)
    run.answer(OK, NIL, MISCONF)
    run.answer(OK, OK, OK)
    assert isinstance(run.result, Lease)
    assert [record.attempt for record in records] == [1, 2, 3]
    assert [record.acquire_ns for record in records] == [began_ns] * 3
    assert began_ns == records[0].started_ns < records[1].started_ns
    names = [record.outcome for record in records]
    assert names == [Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.ACQUIRED]
    for record in records:
        check_order(record)


@pytest.mark.parametrize(
    "first, then, attempts",
    [((NIL, NIL, NIL), "a held lock", []), ((OK, NIL, MISCONF), "a split vote", [2])],
)
def test_an_acquire_that_is_not_observed_is_from_its_first_odd_attempt_on(
    first: tuple[bytes, ...], then: str, attempts: list[int]
) -> None:
    fleet, records = watched(every=999_983)
    run = acquiring(fleet, wait_ms=100)
    run.answer(*first)
    run.answer(OK, OK, OK)
    assert isinstance(run.result, Lease)
    assert [record.attempt for record in records] == attempts, then


def test_an_attempt_without_a_quorum_of_voters_is_reported_too() -> None:
    fleet, records = watched()
    fleet.tick(10)
    fleet.detach(0)
    fleet.detach(1)
    fleet.after(10)
    # nothing was batched, so no shell has flushed
    acquiring(fleet, run=Caller)
    (record,) = records
    assert record.outcome is Outcome.UNREACHABLE
    assert record.votes == (ABSENT,) * 3
    assert record.sent_ns == record.replied_ns == (0, 0, 0)
    check_order(record)


def test_a_cancelled_attempt_is_reported_once_with_what_it_would_have_been() -> None:
    fleet, records = watched()
    run = acquiring(fleet)
    fleet.after(1)
    with pytest.raises(KeyboardInterrupt):
        run.steps.throw(KeyboardInterrupt())
    fleet.drain()
    assert [fleet.about(index, run.rounds[0]) for index in range(3)] == [["set", "release"]] * 3
    fleet.tick(60)
    (record,) = records
    assert record.votes == (GRANTED,) * 3
    assert record.outcome is Outcome.ACQUIRED
    check_order(record)


def test_a_late_vote_changes_no_record() -> None:
    fleet, records = watched()
    run = acquiring(fleet)
    run.answer(OK, NIL, b"")
    before = records[0]
    fleet.drain()
    assert records == [before]
    assert before.votes == (GRANTED, REFUSED, SILENT)


@pytest.mark.parametrize("every, expected", [(1, 12), (2, 6), (5, 2), (100, 0)])
def test_one_attempt_in_so_many_is_observed(every: int, expected: int) -> None:
    fleet, _ = watched(every=every)
    terms = fleet.engine.terms(TTL_MS)
    rounds = [fleet.engine.set_round(f"r{number}", terms, fleet.now_ns) for number in range(12)]
    assert abs(sum(isinstance(round_, WatchedSetRound) for round_ in rounds) - expected) <= 1


@pytest.mark.parametrize("seed", range(6))
def test_an_observer_changes_no_outcome(seed: int) -> None:
    names = []
    for fleet in (ScriptedFleet(5), watched(5)[0]):
        random = NoChance(seed)
        rounds = [fleet.begin(f"r{number}") for number in range(10)]
        fleet.flush()
        for index in range(5):
            fleet.reply(index, *random.choices([OK, OK, OK, OK, NIL, MISCONF], k=10))
        names.append([(round_.outcome, round_.tally) for round_ in rounds])
    assert names[0] == names[1]
