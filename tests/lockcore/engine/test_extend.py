"""Extensions: sent only inside the validity, never shortening it, believed only on a quorum that
came in time."""

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine import attempt
from lockcore.engine.attempt import extend_steps
from lockcore.engine.engine import Engine
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.rounds import ExtendRound
from tests.doubles.keyspace import MISCONF, NIL, OK
from tests.lockcore.by_hand import Run
from tests.lockcore.scripted import TTL_MS, ScriptedFleet

USABLE_NS = (TTL_MS - 102) * NS_PER_MS


def leased(ttl_ms: int = TTL_MS) -> tuple[ScriptedFleet, Lease]:
    fleet = ScriptedFleet(3)
    return fleet, fleet.won(ttl_ms=ttl_ms)


def extending(fleet: ScriptedFleet, lease: Lease, ttl_ms: int = TTL_MS) -> Run:
    return Run(fleet, extend_steps(fleet.engine, lease, ttl_ms, fleet.now_ns))


def test_an_extended_lease_is_the_same_lock_with_a_later_end() -> None:
    fleet, lease = leased()
    fleet.after(5_000)
    asked_ns = fleet.now_ns
    extended = extending(fleet, lease).answer(OK, OK, OK, after_ms=2).result
    assert isinstance(extended, Lease)
    # from before it was sent
    assert extended.valid_until_ns == asked_ns + USABLE_NS
    assert (extended.started_ns, extended.granted_ns) == (asked_ns, asked_ns + 2 * NS_PER_MS)
    assert (extended.resource, extended.owner_token) == (lease.resource, lease.owner_token)
    assert lease.valid_until_ns < extended.valid_until_ns
    assert fleet.sent[0][-1] == [
        b"SET",
        b"stock",
        lease.owner_token,
        b"IFEQ",
        lease.owner_token,
        b"PX",
        b"10000",
    ]


@pytest.mark.parametrize(
    "replies, outcome",
    [
        ((OK, OK, NIL), Outcome.ACQUIRED),
        ((NIL, NIL, OK), Outcome.GONE),
        ((OK, MISCONF, NIL), Outcome.UNREACHABLE),
        ((OK, b"", b""), Outcome.UNREACHABLE),
    ],
)
def test_an_extension_is_believed_on_a_quorum_only_and_a_failed_one_changes_nothing(
    replies: tuple[bytes, ...], outcome: Outcome
) -> None:
    fleet, lease = leased()
    before = lease.valid_until_ns
    fleet.after(100)
    run = extending(fleet, lease).answer(*replies)
    assert run.result.outcome is outcome
    assert (run.result.attempts, run.result.split_votes) == (1, 0)
    assert lease.valid_until_ns == before
    assert all("release" not in fleet.kinds(index) for index in range(3))


@pytest.mark.parametrize("late_ns", [0, 1, 10**9])
def test_nothing_is_sent_when_the_lease_has_ended(late_ns: int) -> None:
    fleet, lease = leased()
    fleet.now_ns = lease.valid_until_ns + late_ns
    run = extending(fleet, lease)
    assert fleet.kinds(0) == ["set"]
    assert run.result.outcome is Outcome.GONE


@pytest.mark.parametrize("left_ns, is_extended", [(1, True), (0, False), (-1, False)])
def test_an_answer_after_the_old_end_comes_too_late(left_ns: int, is_extended: bool) -> None:
    """Between the old end and the answer somebody else may have had it."""
    fleet, lease = leased()
    fleet.now_ns = lease.valid_until_ns - 2 * NS_PER_MS
    run = extending(fleet, lease)
    fleet.now_ns = lease.valid_until_ns - left_ns
    run.answer(OK, OK, OK, after_ms=0)
    assert isinstance(run.result, Lease) is is_extended
    if not is_extended:
        assert isinstance(run.result, Denied)


def test_an_answer_after_the_new_end_comes_too_late() -> None:
    """Held up so long that even the new validity is used up."""
    fleet, lease = leased(ttl_ms=TTL_MS)
    fleet.now_ns = lease.valid_until_ns - NS_PER_MS
    run = extending(fleet, lease, ttl_ms=100)
    fleet.after(200)
    run.answer(OK, OK, OK, after_ms=0)
    assert run.result.outcome is not Outcome.ACQUIRED


@pytest.mark.parametrize("ttl_ms", [3, 1_000, 8_900])
def test_an_extension_that_would_shorten_the_lease_is_refused(ttl_ms: int) -> None:
    fleet, lease = leased()
    fleet.after(1_000)
    with pytest.raises(
        ValueError,
        match=f"extending 'stock' by {ttl_ms} ms would end the lease before its present end",
    ):
        extending(fleet, lease, ttl_ms)
    assert fleet.kinds(0) == ["set"]


def test_an_extension_that_would_shorten_one_on_its_way_is_refused() -> None:
    """Instances keep the last one: the holder of the longer lease would not hear of it."""
    fleet, lease = leased(ttl_ms=1_000)
    fleet.after(500)
    longer = extending(fleet, lease, ttl_ms=5_000)
    with pytest.raises(
        ValueError, match="extending 'stock' by 2000 ms would end the lease before its present end"
    ):
        extending(fleet, lease, ttl_ms=2_000)
    assert fleet.kinds(0) == ["set", "extend"]
    assert isinstance(longer.answer(OK, OK, OK).result, Lease)


def test_an_old_lease_cannot_shorten_what_it_has_been_extended_to() -> None:
    """The present end is that of the lock, whichever of its leases is shown."""
    fleet, first = leased(ttl_ms=1_000)
    fleet.after(500)
    newest = extending(fleet, first).answer(OK, OK, OK).result
    with pytest.raises(ValueError, match="would end the lease before its present end"):
        extending(fleet, first, ttl_ms=1_000)
    assert fleet.kinds(0) == ["set", "extend"]
    # long after the end of the first
    fleet.now_ns = newest.valid_until_ns - NS_PER_MS
    assert isinstance(extending(fleet, first).answer(OK, OK, OK, after_ms=0.5).result, Lease)


def test_a_cancelled_caller_is_not_woken_by_its_extension_later() -> None:
    fleet, lease = leased()
    fleet.after(1)
    run = extending(fleet, lease)
    run.wanted.waiter = "whoever waits"
    with pytest.raises(KeyboardInterrupt):
        run.steps.throw(KeyboardInterrupt())
    fleet.reply_all(OK)
    assert [
        round_.waiter for round_ in fleet.engine.take_ready() if isinstance(round_, ExtendRound)
    ] == [None]


# -- negative controls -----------------------------------------------------------------------------


def test_an_extension_after_its_own_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still at the start of the lease hides its end."""
    honest = attempt.extend_steps

    def late(engine: Engine, lease: Lease, ttl_ms: int, now_ns: int) -> attempt.Steps:
        return honest(engine, lease, ttl_ms, lease.valid_until_ns - 1)

    monkeypatch.setitem(globals(), "extend_steps", late)
    with pytest.raises(AssertionError):
        test_nothing_is_sent_when_the_lease_has_ended(0)


def test_an_extension_on_any_single_yes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lockcore.rounds.rounds.owned_outcome_of",
        lambda ours, not_ours, instances, quorum: Outcome.RELEASED if ours else Outcome.GONE,
    )
    with pytest.raises(AssertionError):
        test_an_extension_is_believed_on_a_quorum_only_and_a_failed_one_changes_nothing(
            (OK, MISCONF, NIL), Outcome.UNREACHABLE
        )
