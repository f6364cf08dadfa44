"""Measures split votes, judges the measurement, and stores the result.

The experiment starts its own servers on loopback. These servers keep their data in memory. The
trials of all rows are mixed in one random order. So other work on the machine disturbs all rows
equally.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from redis import Redis
from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.contenders import Contenders
from bench.experiments.split_votes.judge import (
    calibration_row,
    contention_row,
    judge_split_votes,
    retry_row,
)
from bench.experiments.split_votes.plan import TTL_MS, Attempt, Contest, SplitVotesPlan
from bench.experiments.split_votes.result import CalibrationRow, Endings, SplitVotesResult
from bench.measure.fleet_facts import OwnFleet
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.servers import Servers, ask
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore.bench import quorum_of

CALIBRATION_ROUNDS = 2000
REPLY_S = 5.0
# The trials of each row. A trial is the list of all its attempts.
Rows = Mapping[Contest, list[list[Attempt]]]


def run_split_votes(order: ExperimentOrder[SplitVotesPlan], show: Show) -> Done[SplitVotesResult]:
    """Measure the plan of `order`, and store and return the result.

    Raises BenchError if this machine cannot measure the plan. Raises KeyboardInterrupt if the user
    interrupts the experiment before the first measurement.
    """
    plan = order.plan
    with Experiment(order) as experiment:
        with start_fleet(plan.instances, "none", server=find_server(order.server)) as fleet:
            facts = ask(fleet.urls, allow_missing=False)
            measured = _Measurement(order, show)
            measured.measure(fleet, experiment)
            losses = tuple(Servers(fleet.urls, facts, fleet, None).losses())
        contention = tuple(
            contention_row(plan.instances, *row) for row in measured.contests.items() if row[1]
        )
        retries = tuple(retry_row(*row) for row in measured.retried.items() if row[1])
        unreachable = sum(row.endings.unreachable for row in contention)
        warning = (
            f"in {unreachable:,} rounds, fewer instances than a quorum answered; these rounds "
            "do not count as split votes"
        )
        result = SplitVotesResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            fleet=OwnFleet(server=fleet.server, fsync=fleet.fsync, instances=facts),
            conditions=plan,
            calibration=tuple(measured.calibration),
            contention=contention,
            retries=retries,
            losses=losses,
            warnings=(warning,) if unreachable else (),
            verdict=judge_split_votes(
                measured.calibration, contention, retries, losses, interrupted=experiment.cut
            ),
        )
        return experiment.store(result)


class _Measurement:
    def __init__(self, order: ExperimentOrder[SplitVotesPlan], show: Show) -> None:
        self._plan = order.plan
        self._show = show
        self._prefix = f"lockbench:{order.run_id}:"
        self._rng = Random(f"{order.plan.seed} split votes")
        self.calibration: list[CalibrationRow] = []
        self.contests: Rows = {contest: [] for contest in order.plan.contests}
        self.retried: Rows = {contest: [] for contest in order.plan.retried}

    def measure(self, fleet: Fleet, experiment: Experiment) -> None:
        """Measure all rows.

        Raises KeyboardInterrupt if the user interrupts the experiment before the first measurement.
        """
        seats = max(contest.contenders for contest in [*self.contests, *self.retried])
        self._show(f"starting {seats} contenders")
        folder = Path(tempfile.mkdtemp(prefix="contenders-", dir=fleet.folder))
        with (
            Contenders(fleet.urls, seats, folder, self._prefix, self._plan.seed) as contenders,
            experiment.cuttable(),
        ):
            self._calibrate(fleet.urls)
            self._contend(contenders, "contention", self.contests)
            self._contend(contenders, "retries", self.retried)
        experiment.require(self.calibration)

    def _calibrate(self, urls: Sequence[str]) -> None:
        rounds = max(CALIBRATION_ROUNDS, self._plan.rounds)
        with Driver(urls, self._prefix) as driver:
            for contenders in self._plan.contenders:
                self._show(f"calibration: {rounds:,} rounds, K={contenders}")
                endings = driver.rounds(contenders, rounds, self._rng)
                self.calibration.append(calibration_row(self._plan.instances, contenders, endings))

    def _contend(self, contenders: Contenders, section: str, rows: Rows) -> None:
        trials = [contest for contest in rows for _ in range(contest.trials)]
        self._rng.shuffle(trials)
        for number, contest in enumerate(trials, 1):
            what = f"K={contest.contenders} {contest.order}"
            self._show(f"{section}: trial {number:,} of {len(trials):,} ({what})")
            rows[contest].append(contenders.run(contest))


class Driver(ExitStack):
    """A context manager that plays calibration rounds. The votes of these rounds depend only on
    chance.

    The driver has one connection to each instance. A round has K · N SETs, one for each pair of
    contender and instance. The driver puts all SETs into a uniformly random sequence. Each instance
    gets its SETs in this sequence. So each contender gets an instance's vote with probability 1/K,
    as in the closed form.
    """

    def __init__(self, urls: Sequence[str], key_prefix: str) -> None:
        super().__init__()
        self._key = f"{key_prefix}calibration"
        clients = (
            Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=REPLY_S)
            for url in urls
        )
        self._servers = [self.enter_context(client) for client in clients]

    def rounds(self, contenders: int, rounds: int, rng: Random) -> Endings:
        """Play `rounds` rounds. Return how many of these rounds had a winner, and how many had no
        winner. Raises EnvironmentNotReadyError.
        """
        quorum = quorum_of(len(self._servers))
        won = 0
        for _ in range(rounds):
            won += max(self._round(contenders, rng).values()) >= quorum
        return Endings(won=won, nobody=rounds - won)

    def _round(self, contenders: int, rng: Random) -> Counter[int]:
        """Play a round, and return the number of votes for each contender. The result leaves out
        contenders without a vote.
        """
        turns = [(seat, index) for seat in range(contenders) for index in range(len(self._servers))]
        rng.shuffle(turns)
        votes = Counter[int]()
        try:
            for index, server in enumerate(self._servers):
                commands = server.pipeline(transaction=False)
                for seat, at in turns:
                    if at == index:
                        commands.set(self._key, seat, nx=True, px=TTL_MS)
                commands.get(self._key)
                commands.delete(self._key)
                *_, winner, _ = commands.execute()
                votes[int(winner)] += 1
        except RedisError as error:
            raise EnvironmentNotReadyError(
                f"a server did not answer a round of the calibration: {error}"
            ) from error
        return votes
