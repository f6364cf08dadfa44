"""Random storms over a small world of servers: what must hold whatever happens, and that a planted fault is noticed."""

from collections.abc import Callable
from typing import Any

import pytest

from lockcore import attempt, claims, engine
from lockcore.commands import Dialect
from lockcore.engine import Engine
from lockcore.flight import Flight
from lockcore.model import Lease
from lockcore.rounds import SetRound
from tests.lockcore.scripted import DELEX, DELIFEQ, EVALSHA
from tests.lockcore.storm import Plan, Storm

REFUSALS = Flight.refusals
DIALECTS: tuple[Any, ...] = ((EVALSHA,), (DELIFEQ, DELEX, EVALSHA))


def often(*instances: int) -> list[Any]:
    """Storms of so many instances, each for a while; and one of six, the largest, in test-long."""
    return [*instances, pytest.param(6, marks=pytest.mark.slow)]


def weather(plan: Plan) -> Storm:
    """A whole storm, checked."""
    storm = Storm(plan)
    storm.run()
    storm.check_nothing_is_left()
    return storm


@pytest.mark.parametrize("instances", often(1, 2, 3, 5))
def test_in_a_storm_on_few_keys_no_two_leases_are_valid_and_no_key_is_left(instances: int) -> None:
    """Breaks, restarts, stops, pauses, full disks, flushed scripts and killed callers, from two clients."""
    for_ms = 1_000 if instances == 6 else 400
    storm = weather(Plan(seed=instances, instances=instances, for_ms=for_ms, dialects=DIALECTS[instances % 2]))
    assert storm.world.steps > 5 * for_ms
    assert min(storm.names[name] for name in ("acquired", "released", "contended", "unreachable")) > 5
    assert instances == 1 or storm.names["split_vote"] > 0


@pytest.mark.parametrize("instances", often(1, 3, 4))
@pytest.mark.parametrize(
    "resources, faults_per_s, contended", [(100_000, 15, 0), (150, 5, 50)], ids=["none is refused", "some are refused"]
)
def test_in_a_storm_of_large_batches_every_vote_is_counted_once(
    instances: int, resources: int, faults_per_s: float, contended: int
) -> None:
    """Many callers: what is expected comes in whole flights, until something breaks or one of them is refused."""
    plan = Plan(
        seed=instances, instances=instances, callers=30, resources=resources, batch_ms=2,
        for_ms=400 if instances == 6 else 150, faults_per_s=faults_per_s, dialects=DIALECTS[instances % 2],
    )  # fmt: skip
    storm = weather(plan)
    assert storm.names["released"] > 50
    assert storm.names["contended"] >= contended


def test_callers_killed_while_they_wait_leave_nothing() -> None:
    storm = weather(Plan(seed=7, instances=5, faults=("cancel",), faults_per_s=3_000, for_ms=150))
    assert storm.callers_lost > 50


def test_without_faults_and_contention_every_acquire_and_release_succeeds() -> None:
    storm = weather(Plan(seed=8, instances=5, faults=(), resources=1_000_000, for_ms=150, ttls_ms=(200,)))
    names = {name for name, count in storm.names.items() if count}
    assert names <= {"acquired", "released", "extension acquired"}


# -- negative controls ----------------------------------------------------------------------------------------------


def complaint(plan: Plan, seeds: int = 8) -> str:
    """What the first storm of these seeds, from the plan's own on, complains about; empty when none does."""
    for seed in range(plan.seed, plan.seed + seeds):
        plan.seed = seed
        try:
            weather(plan)
        except AssertionError as error:
            return str(error)
    return ""


CONTENDED: dict[str, Any] = {"instances": 3, "resources": 1, "clients": 6, "callers": 2, "for_ms": 600}


def test_a_quorum_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "quorum_of", lambda instances: instances // 2)
    assert "granted on 1 of 3" in complaint(Plan(seed=0, faults=(), **CONTENDED))


def test_votes_counted_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    once = SetRound.reply

    def twice(self: SetRound, reply: object, pipe: Any) -> None:
        once(self, reply, pipe)
        if reply == b"OK" and self.undecided:
            once(self, reply, pipe)

    monkeypatch.setattr(SetRound, "reply", twice)
    plan = Plan(seed=5, instances=3, callers=30, resources=100, batch_ms=2, for_ms=400, faults=())
    assert "granted on 1 of 3" in complaint(plan)


@pytest.mark.parametrize(
    "planted, named",
    [
        (lambda self, part, seen: [index + 1 for index in REFUSALS(self, part, seen)][:-1], "granted on"),
        (lambda self, part, seen: REFUSALS(self, part, seen)[:1], "granted on"),
    ],
    ids=["the wrong round", "one of them"],
)
def test_a_refusal_of_a_batch_that_is_given_to_the_wrong_round_is_noticed(
    planted: Callable[..., list[int]], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flight, "refusals", planted)
    assert named in complaint(Plan(seed=0, instances=3, callers=30, resources=100, batch_ms=2, for_ms=400, faults=()))


def test_an_ignored_drift_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers whose clock runs 0.8 % fast, leases kept beyond their end, a TTL long enough to show it."""
    plan = Plan(seed=0, faults=("pause",), rate=1.008, settings={"max_ttl_ms": 500}, **CONTENDED)
    plan.ttls_ms, plan.for_ms, plan.holds = (500,), 2_000, (1.5,)
    assert complaint(plan, seeds=1) == ""
    monkeypatch.setattr(claims, "drift_ns", lambda ttl_ms, factor: 0)
    assert "two valid leases" in complaint(plan)


def test_an_ignored_validity_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(round_: SetRound, now_ns: int, attempts: int = 1, split_votes: int = 0) -> Lease:
        token, until_ns = round_.claim.split(b"\r\n")[-2], round_.started_ns + round_.terms.usable_ns
        return Lease(
            round_.resource,
            token,
            round_.terms.ttl_ms,
            round_.started_ns,
            now_ns,
            until_ns,
            round_,
            attempts,
            split_votes,
        )

    plan = Plan(seed=0, instances=3, resources=8, faults=("pause",), faults_per_s=60, ttls_ms=(40,))
    assert weather(plan).names["too_late"] > 0
    monkeypatch.setattr(attempt, "lease_of", blind)
    assert "granted without validity" in complaint(plan)


def test_a_skipped_clean_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "clean_up", lambda self, round_: None)
    assert "keys are left" in complaint(Plan(seed=0, faults=(), **CONTENDED))


def test_a_killed_caller_that_is_not_cleaned_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SetRound, "abandon", lambda self: None)
    plan = Plan(seed=0, faults=("cancel",), faults_per_s=2_000, **CONTENDED)
    plan.ttls_ms, plan.for_ms, plan.holds = (200,), 200, (0.02,)  # a key that is left is still there when it is calm
    assert "keys are left" in complaint(plan)


def test_an_owed_release_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "owe", lambda self, pipe, round_: None)
    assert "keys are left" in complaint(Plan(seed=4, faults=("break",), **CONTENDED))


def test_a_skipped_abstention_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three restart under a lease: whoever counts their votes at once grants it again."""
    plan = Plan(seed=0, faults=("restart",), faults_per_s=30, **CONTENDED)
    plan.ttls_ms, plan.for_ms = (200,), 2_000
    assert complaint(plan, seeds=2) == ""
    monkeypatch.setattr(engine, "abstention_ns", lambda *_: 0)
    assert "two valid leases" in complaint(plan)


def test_a_release_without_owner_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[[bytes], bytes] = (b"*3\r\n$3\r\nDEL\r\n").__add__
    monkeypatch.setattr(Dialect, "encode_release", property(lambda self: plain))
    plan = Plan(seed=0, faults=("break",), settings={"merge_releases": False}, **CONTENDED)
    assert "two valid leases" in complaint(plan)
