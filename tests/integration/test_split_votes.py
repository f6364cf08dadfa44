"""`lockbench split-votes` on real servers with real processes: the calibration is right, and
nothing is left behind."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes import experiment as split_votes
from bench.experiments.split_votes import plan as split_plan
from bench.experiments.split_votes.contenders import Contenders
from bench.experiments.split_votes.experiment import Driver
from bench.experiments.split_votes.judge import calibration_row, double_grants, rounds_of
from bench.experiments.split_votes.plan import ORDERS, Contest, RetrySettings
from bench.experiments.split_votes.result import SplitVotesResult
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Outcome
from tests.conftest import Ended
from tests.integration.locust_runs import cut_short, keys, result_in, started

pytestmark = pytest.mark.integration
PREFIX = "lockbench:test:"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(5, "none") as started:
        yield started


@pytest.fixture(scope="module")
def contenders(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contenders]:
    with Contenders(
        fleet.urls, 5, tmp_path_factory.mktemp("contenders"), PREFIX, seed=1
    ) as started:
        yield started


class NoShuffle(Random):
    """The planted fault: contender after contender, instead of one uniform order."""

    def shuffle(self, x: object) -> None:
        """Leave it as it is."""


# -- calibration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("instances", "chance"), [(5, 0.370), (4, 2 / 3)])
def test_votes_shared_by_chance_split_as_the_closed_form_says(
    fleet: Fleet, instances: int, chance: float
) -> None:
    with Driver(fleet.urls[:instances], PREFIX) as driver:
        endings = driver.rounds(3, 1000, Random(1))
    row = calibration_row(instances, 3, endings)
    assert row.closed_form == pytest.approx(chance, abs=0.01)
    assert row.misses == ()
    assert row.split_rate.low < row.closed_form < row.split_rate.high
    assert keys(fleet) == 0


def test_an_order_that_is_not_shuffled_is_noticed(fleet: Fleet) -> None:
    with Driver(fleet.urls, PREFIX) as driver:
        row = calibration_row(5, 3, driver.rounds(3, 200, NoShuffle(1)))
    assert row.misses
    assert row.split_rate.rate == 0, "the first contender takes all"


# -- contention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_contenders_start_together_and_at_most_one_wins(contenders: Contenders, order: str) -> None:
    met = 0
    for _ in range(100):
        attempts = contenders.run(Contest(5, order))
        assert [attempt.contender for attempt in attempts] == [0, 1, 2, 3, 4], "one attempt each"
        assert sum(attempt.is_won for attempt in attempts) <= 1
        assert double_grants(attempts) == 0
        assert all(attempt.started_ns < attempt.decided_ns for attempt in attempts)
        assert Outcome.UNREACHABLE not in {attempt.outcome for attempt in attempts}
        met += any(len(round_) > 1 for round_ in rounds_of(attempts))
        # on a busy machine fewer of them have a core at the same time
        if met >= 10:
            break
    assert met >= 10, "released together, they meet"


def test_who_loses_leaves_no_key_behind(contenders: Contenders, fleet: Fleet) -> None:
    before = keys(fleet)
    for order in ORDERS:
        grants = sum(attempt.is_won for attempt in contenders.run(Contest(5, order)))
        # The winner keeps its lease, on a quorum of the instances at least.
        before += 5 * grants
    assert keys(fleet) <= before


def test_starts_are_spread_as_asked(contenders: Contenders) -> None:
    spread = [contenders.run(Contest(4, "parallel", spread_ms=40.0)) for _ in range(20)]
    skews_ms = sorted(
        max(a.started_ns for a in one) / 1e6 - min(a.started_ns for a in one) / 1e6
        for one in spread
    )
    assert 10 < skews_ms[10] < 60


def test_who_retries_goes_on_until_somebody_wins(contenders: Contenders) -> None:
    contest = Contest(5, "random", retry=RetrySettings("full-jitter", 20.0))
    trials = [contenders.run(contest) for _ in range(30)]
    assert all(sum(attempt.is_won for attempt in attempts) == 1 for attempts in trials)
    assert max(map(len, trials)) > 5, "somebody tried again"
    assert {attempt.outcome for attempts in trials for attempt in attempts} == {
        Outcome.ACQUIRED,
        Outcome.CONTENDED,
    }


def test_a_contender_that_is_killed_ends_the_trial_in_one_sentence(
    fleet: Fleet, tmp_path: Path
) -> None:
    before = set(psutil.Process().children())
    with Contenders(fleet.urls, 2, tmp_path, PREFIX, seed=1) as contenders:
        members = set(psutil.Process().children()) - before
        assert len(members) == 2
        next(iter(members)).kill()
        with pytest.raises(
            EnvironmentNotReadyError, match=r"contender \d ended early \(signal 9\)"
        ):
            contenders.run(Contest(2, "parallel"))
    assert not any(member.is_running() for member in members)


def test_a_crew_without_servers_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match=r"contender 0 ended early \(its log says: .*refused"
    ):
        Contenders(["redis://127.0.0.1:1"], 1, tmp_path, PREFIX, seed=1)


# -- the command -----------------------------------------------------------------------------------


def test_a_small_run_is_as_expected_stored_and_shown(
    lockbench: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_plan, "RETRY_CONTENDERS", 6)
    monkeypatch.setattr(split_votes, "CALIBRATION_ROUNDS", 1000)
    small = (
        "--contenders",
        "4",
        "--order",
        "random",
        "--spread",
        "0",
        "--repeats",
        "5",
        "--retry-policy",
        "full-jitter:5ms",
    )
    files = ("--out", "here", "--markdown", "shown.md", "--json")
    done = lockbench("split-votes", *small, *files, "--quick")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == result_in(tmp_path / "here", SplitVotesResult)
    assert (result["verdict"]["status"], result["verdict"]["reasons"]) == ("pass", [])
    assert [row["rounds"] for row in result["calibration"]] == [1000]
    assert [(row["contenders"], row["order"]) for row in result["contention"]] == [(4, "random")]
    assert [(row["contenders"], row["granted"]) for row in result["retries"]] == [(6, 5)]
    assert "server" in result["fleet"]
    assert result["seed"] == 1
    assert "### calibration: " in (tmp_path / "shown.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "shown.md"], (
        "no work folder is left"
    )


@pytest.mark.slow
def test_ctrl_c_in_the_middle_keeps_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    few = ("--contenders", "4", "--order", "parallel", "--spread", "0", "--retry-policy", "none")
    out = cut_short(
        started(tmp_path, "split-votes", *few, "--repeats", "2000", "--out", "here"),
        "contention",
        5 + 4,
    )
    result = result_in(tmp_path / "here", SplitVotesResult)
    assert result["interrupted"]
    assert [row["rounds"] for row in result["calibration"]] == [2000]
    assert all(0 < row["trials"] < 2000 for row in result["contention"])
    assert "interrupted" in out.splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["here"], "no work folder is left"
