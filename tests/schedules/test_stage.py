"""The stage itself: what it records is what was done, and it is the oracle that judges it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Denied, Lease, Outcome, Tally
from tests.schedules import stage as module
from tests.schedules.holding import Victim
from tests.schedules.stage import SHORT_MS, Client, Gate, Stage


def test_whoever_waits_in_vain_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    gate = Gate("after-get")
    with pytest.raises(TimeoutError, match="nobody opened after-get"):
        gate("after-get")
    with pytest.raises(TimeoutError, match="nobody came to after-get"):
        gate.is_reached()


pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(2, "none") as started:
        yield started


@pytest.fixture
def stage(fleet: Fleet) -> Iterator[Stage]:
    with Stage(find_recipe("set-nx-lua"), fleet) as made:
        yield made


def test_two_leases_at_once_are_found(stage: Stage) -> None:
    first, second = stage.client(), stage.client()
    first.acquire()
    stage.unlink()  # a lock that forgets
    second.acquire()
    report = stage.report()
    assert (report.verdict, report.service_faults, report.unexplained) == ("VIOLATED", 1, 1)


def unanswered(client: Client, times: int) -> None:
    """The client's next attempts meet silence, so many times."""
    acquire, silent = client.recipe.acquire, Tally(silent=1)
    left = [Denied("r0", Outcome.UNREACHABLE, silent, 1, 0, 1, 2)] * times
    client.recipe.acquire = lambda *wanted: left.pop() if left else acquire(*wanted)  # type: ignore[method-assign]


def test_an_attempt_that_nobody_answers_in_time_is_made_again_and_recorded(stage: Stage) -> None:
    client = stage.client()
    unanswered(client, 2)
    assert isinstance(client.acquire(), Lease)
    assert [one.result.outcome for one in client.operations] == [*[Outcome.UNREACHABLE] * 2, Outcome.ACQUIRED]


def test_what_a_gate_has_held_up_is_not_made_again(stage: Stage) -> None:
    client = stage.client("before-release")
    unanswered(client, 1)
    assert isinstance(client.acquire(), Denied)


def test_what_a_begun_operation_raises_comes_out_at_its_end(stage: Stage) -> None:
    client = stage.client()
    client.begin(lambda: client.acquire(ttl_ms=10**9))
    with pytest.raises(ValueError, match="ttl_ms"):
        client.finish()


def test_a_victim_ends_with_whoever_started_it(stage: Stage) -> None:
    victim = Victim("set-nx-lua", stage.urls, stage.settings, SHORT_MS, "after-grant")
    victim.leave()
    assert victim.process.wait(30) == 0
    victim.close()


def test_a_victim_that_cannot_come_to_its_point_says_so(stage: Stage) -> None:
    holder = stage.client()
    holder.acquire()
    with pytest.raises(EnvironmentNotReadyError, match="did not come to after-grant: it got past: Denied"):
        Victim("set-nx-lua", stage.urls, replace(stage.settings), SHORT_MS, "after-grant")


def test_a_victim_that_fails_on_its_way_ends_and_says_why() -> None:
    """Its parent would wait for its word for ever."""
    with pytest.raises(
        EnvironmentNotReadyError, match=r"ended early \(it said: .*locks on 1 instance, and 2 were given"
    ):
        Victim("set-nx-lua", ["redis://127.0.0.1:1", "redis://127.0.0.1:2"], RecipeSettings(), SHORT_MS, "after-grant")
