"""One operation: what it records and tells, however it ends."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from bench.measure.record import LATE_VOTES, OUTCOME_CODES, READER, RECORD_FIELDS
from bench.measure.recorder import Recorder
from bench.workloads.operation import (
    KEPT,
    Books,
    Caller,
    CallerSetting,
    Ledger,
    OpenVotes,
    PackedVotes,
)
from lockcore import Denied, Lease, Outcome, Tally
from lockcore.clock import monotonic_ns
from lockcore.facts.model import Closed, Counted

ALL = Tally(granted=5)
SOME = Tally(granted=3, undecided=2)
STILL_OPEN = 5 << 40
IN_BOOKS = {field.name for field in fields(Books)}


class Killed(BaseException):
    """What a greenlet meets when somebody ends it."""


class Sheet(Recorder):
    """A recorder without a file, whose disk is full once it has `room` records."""

    def __init__(self, records: list[dict[str, int]], room: float = inf) -> None:
        self.records = records
        self.room = room

    def write(self, *values: int) -> int:
        if len(self.records) == self.room:
            raise OSError("the disk is full")
        self.records.append(dict(zip(RECORD_FIELDS, values, strict=False)))
        return len(self.records) - 1


@dataclass
class Scene:
    """A lock that does as told, and everything an operation leaves behind."""

    acquires: Callable[[], Lease | Denied]
    releases: Callable[[], Outcome] = lambda: Outcome.RELEASED
    holds_ns: Iterator[int] | None = None
    nap: Callable[[int], int] = lambda _due_ns: 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    records: list[dict[str, int]] = field(default_factory=list)
    pending: list[tuple[int, Counted]] = field(default_factory=list)
    told: list[tuple[int, str | None]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    cuts: int = 0
    begun: memoryview = field(default_factory=lambda: memoryview(bytearray(16)).cast("q"))
    lost: list[tuple[Any, ...]] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def run(self, intended_ns: int | None = None) -> None:
        start_ns = monotonic_ns()
        self.caller().operate(2, start_ns if intended_ns is None else intended_ns, start_ns)

    def caller(self, **changes: Any) -> Caller:
        """A caller; `changes` replace what its CallerSetting, its Books or itself are made with."""
        load = CallerSetting(
            acquire=self._acquire,
            acquire_shared=self._acquire_shared,
            release=self._release,
            ttl_ms=10_000,
            wait_ms=700,
            take=None,
            nap_until=self.nap,
            rest_until=self.nap,  # type: ignore[arg-type]
            keep=self.kept.append,
            pause_ns=0,
            believes_grant=False,
        )
        books = Books(
            recorder=Sheet(self.records),
            votes=PackedVotes(),
            lost=lambda *row: self.lost.append(row),
            pending=self.pending.append,
            tell=lambda ns, name: self.told.append((ns, name)),
            cut=self._cut,
            misreport=self.reported.append,
            still_open=STILL_OPEN,
            held=set(),
        )
        own = {"resources": repeat(2), "holds_ns": self.holds_ns, "thinks_ns": None}
        own |= {"readers": None}
        own |= {name: changes.pop(name) for name in own.keys() & changes.keys()}
        for_books = {name: changes.pop(name) for name in IN_BOOKS & changes.keys()}
        number = changes.pop("number", 41)
        ledger = Ledger(replace(books, **for_books), number, self.begun, 1)
        return Caller(replace(load, **changes), ledger, **own)

    def _acquire_shared(self, *call: Any) -> Lease | Denied:
        self.calls.append(("acquire_shared", *call))
        return self.acquires()

    def _acquire(self, *call: Any) -> Lease | Denied:
        self.calls.append(("acquire", *call))
        return self.acquires()

    def _release(self, lease: Lease) -> Outcome:
        self.calls.append(("release", lease))
        return self.releases()

    def _cut(self) -> None:
        self.cuts += 1


def lease(tally: Tally = ALL, attempts: int = 1, split_votes: int = 0) -> Lease:
    now_ns = monotonic_ns()
    return Lease(
        "r2",
        b"t" * 34,
        10_000,
        now_ns,
        now_ns,
        now_ns + 10**10,
        Closed(tally),
        attempts,
        split_votes,
    )


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def test_a_granted_operation_is_recorded_whole() -> None:
    made: list[Lease] = []

    def granted() -> Lease:
        made.append(lease(Tally(3, 1, 0, 1, 0, 0), attempts=4, split_votes=2))
        return made[0]

    scene = Scene(granted)
    scene.run(intended_ns=77)
    (mine,) = made
    (record,) = scene.records
    assert scene.calls == [("acquire", "r2", 10_000, 700), ("release", mine)]
    assert record["intended_ns"] == 77 < record["start_ns"] <= mine.granted_ns < record["ended_ns"]
    # nothing was held: one reading
    assert record["work_end_ns"] == record["release_sent_ns"] == record["ended_ns"]
    assert (record["attempt_ns"], record["granted_ns"]) == (mine.started_ns, mine.granted_ns)
    assert record["valid_until_ns"] == mine.valid_until_ns
    assert (record["resource"], record["caller"]) == (2, 41)
    assert record["outcome"] == OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    assert record["votes"] == 3 | 1 << 8 | 1 << 24
    assert record["attempts"] == 4 | 2 << 32
    assert record["owner"] == hash(mine.owner_token)
    assert scene.told == [(record["ended_ns"] - 77, None)]
    assert (scene.pending, scene.cuts) == ([], 0)


def test_a_hold_lasts_from_the_grant_and_is_recorded_as_it_was() -> None:
    waits: list[int] = []
    scene = Scene(lease, holds_ns=iter([2_000_000]), nap=lambda due_ns: waits.append(due_ns) or 0)
    scene.run()
    (record,) = scene.records
    assert waits == [record["ended_ns"] + 2_000_000]
    assert (
        record["ended_ns"]
        < record["work_end_ns"]
        == record["release_sent_ns"]
        <= record["release_replied_ns"]
    )


def test_a_late_end_of_a_think_time_is_no_latency_of_the_lock() -> None:
    user = SimpleNamespace(_state="running")
    rests = []

    def rest_until(due_ns: int) -> None:
        # far beyond the think time of 1 ns
        time.sleep(0.02)
        rests.append(due_ns)
        user._state = "stopped" if len(rests) == 3 else user._state

    scene = Scene(lease)
    scene.caller(thinks_ns=repeat(1), rest_until=rest_until).run(user, "running")
    assert [row["start_ns"] - row["intended_ns"] for row in scene.records] == [0] * 3
    assert all(row["start_ns"] >= due for due, row in zip(rests, scene.records[1:], strict=False))


def test_votes_still_out_are_handed_on() -> None:
    mine = lease(SOME)
    scene = Scene(lambda: mine)
    scene.run()
    assert scene.records[0]["votes"] == STILL_OPEN
    assert scene.pending == [(0, mine.round)]


@pytest.mark.parametrize(
    "outcome", [Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.UNREACHABLE, Outcome.TOO_LATE]
)
def test_a_denied_operation_is_recorded_and_releases_nothing(outcome: Outcome) -> None:
    times: list[int] = []

    def denied() -> Denied:
        times.extend(monotonic_ns() for _ in range(3))
        return Denied("r2", outcome, Tally(1, 4), 7, 3, 5, 12, tuple(times))

    scene = Scene(denied)
    scene.run()
    (record,) = scene.records
    assert record["outcome"] == OUTCOME_CODES[outcome.value]
    assert (
        record["granted_ns"],
        record["valid_until_ns"],
        record["release_sent_ns"],
        record["owner"],
    ) == (0, 0, 0, 0)
    assert (record["attempt_ns"], record["votes"], record["attempts"]) == (
        times[-1],
        1 | 4 << 8,
        7 | 3 << 32,
    )
    # the last one stands in the record
    assert scene.lost == [(2, tuple(times[:-1]))]
    assert scene.told == [(record["ended_ns"] - record["intended_ns"], outcome.value)]
    assert [name for name, *_ in scene.calls] == ["acquire"]


def test_votes_that_a_denied_acquire_did_not_wait_for_are_patched_too() -> None:
    """It returns once its name is certain, before the slowest instance has answered."""
    round_ = Closed(Tally(refused=3))
    answers = [Tally(refused=2, undecided=1), Tally(refused=3)]
    scene = Scene(lambda: Denied("r2", Outcome.CONTENDED, answers.pop(0), 1, 0, 0, 0, (), round_))
    scene.run()
    assert scene.pending == [(0, round_)]
    scene.run()
    assert len(scene.pending) == 1, "all votes of the second were in"


def test_the_turn_of_the_hub_after_a_failure_is_no_part_of_the_acquire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[int] = []

    def turn(_seconds: float) -> None:
        # others run meanwhile
        time.sleep(0.02)
        turns.append(monotonic_ns())

    monkeypatch.setattr("bench.workloads.operation.gevent.sleep", turn)
    scene = Scene(lambda: Denied("r2", Outcome.UNREACHABLE, Tally(0, 0, 0, 0, 3), 1, 0, 11, 12))
    scene.run()
    (record,) = scene.records
    (turned_ns,) = turns
    (kept_ns,) = scene.kept
    assert record["ended_ns"] <= turned_ns - 20_000_000 < record["ended_ns"] + kept_ns


@pytest.mark.parametrize(
    ("outcome", "took_ns", "rests"),
    [
        (Outcome.UNREACHABLE, 0, True),
        (Outcome.UNREACHABLE, 5_000_000, False),
        (Outcome.CONTENDED, 0, False),
    ],
)
def test_a_caller_rests_after_an_acquire_that_failed_at_once_for_want_of_instances(
    outcome: Outcome, took_ns: int, rests: bool
) -> None:
    """Else an outage keeps a core busy."""
    rested_ns: list[int] = []
    scene = Scene(lambda: Denied("r2", outcome, Tally(0, 0, 0, 0, 3), 1, 0, 11, 12))
    caller = scene.caller(rest_until=rested_ns.append, pause_ns=5_000_000)
    now_ns = monotonic_ns()
    caller.ledger.begin(2, now_ns, now_ns, is_reader=False)
    caller._denied(scene.acquires(), now_ns + took_ns)
    assert rested_ns == [now_ns + 5_000_000] * rests
    assert len(scene.records) == len(scene.kept) == 1


@pytest.mark.parametrize(
    "answer", [lease, lambda: Denied("r2", Outcome.CONTENDED, Tally(), 1, 0, 1, 2)]
)
def test_a_readers_operation_is_recorded_as_a_readers(answer: Callable[[], Lease | Denied]) -> None:
    scene = Scene(answer)
    caller = scene.caller(readers=iter([1, 0]))
    for _ in range(2):
        now_ns = monotonic_ns()
        caller.operate(2, now_ns, now_ns)
    asked = [call[0] for call in scene.calls if call[0] != "release"]
    assert asked == ["acquire_shared", "acquire"]
    one, other = (record["outcome"] for record in scene.records)
    assert one == other | READER != other


@pytest.mark.parametrize("outcome", [Outcome.GONE, Outcome.UNREACHABLE])
def test_a_release_that_did_not_find_the_lock_ours_counts_as_failed(outcome: Outcome) -> None:
    scene = Scene(lease, lambda: outcome)
    scene.run()
    assert (
        scene.records[0]["outcome"] == OUTCOME_CODES["acquired"] | OUTCOME_CODES[outcome.value] << 8
    )
    assert [exception for _, exception in scene.told] == [None]


@pytest.mark.parametrize("error", [Killed(), RuntimeError("a bug")])
def test_whoever_is_killed_in_the_acquire_leaves_no_record_and_is_counted_as_cut(
    error: BaseException,
) -> None:
    scene = Scene(raising(error))
    with pytest.raises(type(error)):
        scene.run()
    assert (scene.records, scene.told, scene.cuts) == ([], [], 1)


@pytest.mark.parametrize("error", [Killed(), RuntimeError("a bug")])
def test_whoever_is_killed_under_a_lease_gives_it_back_and_is_recorded(
    error: BaseException,
) -> None:
    scene = Scene(lease, holds_ns=iter([1]), nap=raising(error))
    with pytest.raises(type(error)):
        scene.run()
    (record,) = scene.records
    assert [name for name, *_ in scene.calls] == ["acquire", "release"]
    assert record["outcome"] == OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    assert 0 < record["ended_ns"] <= record["release_sent_ns"] <= record["release_replied_ns"]
    assert [exception for _, exception in scene.told] == [None]
    assert scene.cuts == 0


@pytest.mark.parametrize(
    "more", [{}, {"holds_ns": iter([1]), "nap": raising(Killed())}], ids=["once", "giving back"]
)
def test_whoever_is_killed_in_the_release_is_recorded_without_a_reply(more: dict[str, Any]) -> None:
    scene = Scene(lease, raising(Killed()), **more)
    with pytest.raises(Killed):
        scene.run()
    (record,) = scene.records
    # not sent twice
    assert [name for name, *_ in scene.calls] == ["acquire", "release"]
    assert record["release_sent_ns"] > 0 == record["release_replied_ns"]
    assert record["outcome"] == OUTCOME_CODES["acquired"]
    assert [exception for _, exception in scene.told] == [None]


def test_open_votes_are_patched_as_they_close_and_few_are_kept() -> None:
    """A thousand leases a second-long look would have kept: 256, and those whose votes stay out."""
    patched: list[tuple[int, int]] = []
    votes = PackedVotes()
    kept = OpenVotes(lambda slot, packed: patched.append((slot, packed)) is None, votes)
    for slot in range(1000):
        kept.add((slot, Closed(SOME if slot % 100 == 0 else ALL)))
        assert len(kept) <= KEPT + 10 + 1
    assert {packed for _, packed in patched} == {votes[ALL] | LATE_VOTES}
    assert not [slot for slot, _ in patched if slot % 100 == 0]
    kept.look(len(kept))
    assert len(kept) == 10, "still out"
    kept.look(len(kept), last=True)
    assert len(kept) == 0
    assert sorted(slot for slot, _ in patched) == list(range(1000))
    assert sorted(slot for slot, packed in patched if packed == votes[SOME] | LATE_VOTES) == list(
        range(0, 1000, 100)
    )


# -- what a recipe reports and cannot be: a finding about the recipe, never a crash or a figure


def changed(**fields: object) -> Lease:
    """A lease with other fields, be they of the wrong type."""
    made = lease()
    for name, value in fields.items():
        setattr(made, name, value(made) if callable(value) else value)
    return made


HOUR_NS = 3_600 * 10**9
OUTSIDE: dict[str, Callable[[], Any]] = {
    "begun before the call": lambda: changed(started_ns=lambda one: one.started_ns - HOUR_NS),
    "granted before the call": lambda: changed(granted_ns=lambda one: one.granted_ns - HOUR_NS),
    "granted after the return": lambda: changed(granted_ns=lambda one: one.granted_ns + HOUR_NS),
    "granted before it began": lambda: changed(granted_ns=lambda one: one.started_ns - 1),
}


@pytest.mark.parametrize("made", OUTSIDE.values(), ids=OUTSIDE)
def test_a_grant_outside_its_acquire_is_reported_and_counts_from_the_return(
    made: Callable[[], Any],
) -> None:
    scene = Scene(made)
    scene.run()
    (record,) = scene.records
    assert scene.reported == ["a lease whose start or grant is outside the time of its acquire"]
    assert record["start_ns"] == record["attempt_ns"] <= record["granted_ns"] == record["ended_ns"]
    assert record["outcome"] & 0xFF == OUTCOME_CODES["acquired"], "its caller holds it"


def lease_is_native() -> bool:
    """Whether a Lease is compiled, and takes no field of a wrong type."""
    try:
        lease().granted_ns = None  # type: ignore[assignment]
    except TypeError:
        return True
    return False


UNREADABLE: dict[str, dict[str, object]] = {
    "no grant": {"granted_ns": None},
    "a float": {"granted_ns": lambda one: float(one.granted_ns)},
    "a text": {"started_ns": "now"},
    "no end": {"valid_until_ns": None},
    "an end beyond all clocks": {"valid_until_ns": 1 << 80},
    "an end before all clocks": {"valid_until_ns": -5},
}


@pytest.mark.parametrize("fields", UNREADABLE.values(), ids=UNREADABLE)
def test_a_lease_without_times_is_given_back_and_is_an_acquire_that_failed(
    fields: dict[str, Any],
) -> None:
    if lease_is_native() and not isinstance(fields.get("valid_until_ns"), int):
        pytest.skip("a compiled Lease takes no such value")
    scene = Scene(lambda: changed(**fields))
    scene.run()
    (record,) = scene.records
    assert len(scene.reported) == 1
    assert record["outcome"] == OUTCOME_CODES["unreachable"]
    assert [name for name, *_ in scene.calls] == ["acquire", "release"]
    assert (scene.cuts, scene.begun[1]) == (0, 0)


PARTLY: dict[str, dict[str, object]] = {
    "attempts that no record takes": {"attempts": 1 << 40},
    "fewer attempts than split votes": {"attempts": 1, "split_votes": 2},
    "lost attempts outside the call": {"lost_ns": (1, 2)},
}


@pytest.mark.parametrize("fields", PARTLY.values(), ids=PARTLY)
def test_attempts_that_cannot_be_are_reported_and_the_lease_counts(fields: dict[str, Any]) -> None:
    scene = Scene(lambda: changed(**fields))
    scene.run()
    (record,) = scene.records
    assert len(scene.reported) == 1
    assert (record["outcome"] & 0xFF, scene.lost) == (OUTCOME_CODES["acquired"], [])


@pytest.mark.parametrize("answer", [None, True, "r2", 7, (), b"lease"])
def test_an_acquire_that_returns_anything_else_is_reported(answer: object) -> None:
    scene = Scene(lambda: answer)  # type: ignore[arg-type, return-value]
    scene.run()
    (record,) = scene.records
    assert scene.reported == [
        f"an acquire that returned {type(answer).__name__} instead of a Lease or a Denied"
    ]
    assert record["outcome"] == OUTCOME_CODES["unreachable"]


@pytest.mark.parametrize(
    "facts",
    [
        (Outcome.ACQUIRED, Tally(), 1, 0, 0, 0),
        (Outcome.RELEASED, Tally(), 1, 0, 0, 0),
        ("no", Tally(), 1, 0, 0, 0),
        (Outcome.CONTENDED, Tally(refused=300), 1, 0, 0, 0),
        (Outcome.CONTENDED, None, 1, 0, 0, 0),
        (Outcome.CONTENDED, Tally(), -1, 0, 0, 0),
        (Outcome.CONTENDED, Tally(), 1, 2, 0, 0),
        (Outcome.CONTENDED, Tally(), 3, 0, 0, 0, (1, 2, 3)),
        (Outcome.CONTENDED, Tally(), None, 0, 0, 0),
    ],
)
def test_a_denial_that_cannot_be_is_reported(facts: tuple[Any, ...]) -> None:
    try:
        denied = Denied("r2", *facts)
    except TypeError:
        pytest.skip("a compiled Denied takes no such value")
    scene = Scene(lambda: denied)
    scene.run()
    (record,) = scene.records
    assert len(scene.reported) == 1
    assert (record["outcome"], record["attempts"], scene.lost) == (
        OUTCOME_CODES["unreachable"],
        1,
        [],
    )


@pytest.mark.parametrize("answer", [True, "released", Outcome.ACQUIRED, Outcome.CONTENDED, 7])
def test_a_release_that_returns_anything_else_is_reported(answer: Any) -> None:
    scene = Scene(lease, lambda: answer)
    scene.run()
    assert scene.reported == ["a release that did not return RELEASED, GONE or UNREACHABLE"]
    assert (
        scene.records[0]["outcome"] == OUTCOME_CODES["acquired"] | OUTCOME_CODES["unreachable"] << 8
    )


def test_a_lease_is_read_once_whatever_becomes_of_the_object() -> None:
    made: list[Lease] = []

    def granted() -> Lease:
        made.append(lease(attempts=3))
        return made[0]

    def released() -> Outcome:
        made[0].granted_ns += HOUR_NS
        made[0].started_ns -= HOUR_NS
        made[0].attempts = 99
        return Outcome.RELEASED

    scene = Scene(granted, released)
    scene.run()
    (record,) = scene.records
    assert record["start_ns"] <= record["attempt_ns"] <= record["granted_ns"] <= record["ended_ns"]
    assert (record["attempts"], scene.reported) == (3, [])


@pytest.mark.parametrize(("by_ns", "reported"), [(10**9, 0), (-(10**9), 1)])
def test_the_end_of_a_lease_may_be_put_off_while_it_is_held_and_not_taken_back(
    by_ns: int, reported: int
) -> None:
    made: list[Lease] = []

    def granted() -> Lease:
        made.append(lease())
        return made[0]

    def released() -> Outcome:
        made[0].valid_until_ns += by_ns
        return Outcome.RELEASED

    scene = Scene(granted, released)
    scene.run()
    (record,) = scene.records
    assert len(scene.reported) == reported
    assert record["valid_until_ns"] == made[0].valid_until_ns - min(by_ns, 0)


def test_one_lease_object_for_two_callers_at_once_is_reported() -> None:
    shared = lease()

    def granted() -> Lease:
        now_ns = monotonic_ns()
        shared.started_ns = shared.granted_ns = now_ns
        shared.valid_until_ns = now_ns + HOUR_NS
        return shared

    scene = Scene(granted)
    other = scene.caller(held={id(shared)})
    other.operate(2, monotonic_ns(), monotonic_ns())
    assert scene.reported == ["the same Lease object for two callers at once"]
    scene.reported.clear()
    scene.run()
    assert scene.reported == [], "one after the other is nobody's fault"


def test_an_acquire_ends_when_it_returns_not_when_the_lock_says_it_was_granted() -> None:
    def granted() -> Lease:
        made = lease()
        time.sleep(0.02)
        return made

    scene = Scene(granted)
    scene.run()
    (record,) = scene.records
    assert record["ended_ns"] - record["granted_ns"] >= 20_000_000
    assert scene.told[0][0] >= 20_000_000
    # by order: a pause "after-grant" is the holder's
    stalled = scene.caller(believes_grant=True)
    stalled.operate(2, monotonic_ns(), monotonic_ns())
    assert scene.records[1]["ended_ns"] == scene.records[1]["granted_ns"]
