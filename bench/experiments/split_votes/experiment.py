"""How often nobody wins, and how long that lasts: *N, K, spreads, orders, retry policies → a
judged, written result*.

Rules: own servers on loopback, in memory; blocks of all rows are interleaved in random order, so
that what else the machine does hits all alike.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

from redis import Redis
from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.contenders import Contenders
from bench.experiments.split_votes.judge import ContestFigures, calibration_row, judge_split_votes
from bench.experiments.split_votes.plan import TTL_MS, Attempt, Block, CastVote, SplitVotesPlan
from bench.experiments.split_votes.result import CalibrationRow, SplitVotesResult
from bench.measure.run_result import OwnFleet
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.servers import Servers, ask
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore import Outcome, Vote
from lockcore.bench import outcome_of, quorum_of
from lockcore.clock import NS_PER_MS, monotonic_ns

CALIBRATION_ROUNDS = 2000
BLOCK = 20  # trials
REPLY_S = 5.0


def run_split_votes(order: ExperimentOrder[SplitVotesPlan], show: Show) -> Done[SplitVotesResult]:
    """Measure `order` and store its result. Raises BenchError when it cannot be measured here,
    KeyboardInterrupt when it was cut before anything was measured."""
    plan = order.plan
    with Experiment(order) as experiment:
        with start_fleet(plan.instances, "none", server=find_server(order.server)) as fleet:
            facts = ask(fleet.urls, allow_missing=False)
            measured = _Measurement(order, experiment, show)
            measured.measure(fleet)
            losses = Servers(fleet.urls, facts, fleet, None).losses()
        unreachable = sum(
            row.endings["unreachable"] for row in (*measured.contests, *measured.retried)
        )
        warning = f"in {unreachable:,} rounds fewer than a quorum answered: they are no split votes"
        contention = tuple(
            figures.contention_row(plan.instances)
            for figures in measured.contests
            if figures.trials
        )
        retries = tuple(figures.retry_row() for figures in measured.retried if figures.trials)
        result = SplitVotesResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            fleet=OwnFleet(server=fleet.server, fsync=fleet.fsync, instances=facts),
            conditions=plan,
            calibration=tuple(measured.calibration),
            contention=contention,
            retries=retries,
            losses=tuple(losses),
            warnings=(warning,) if unreachable else (),
            verdict=judge_split_votes(
                measured.calibration, contention, retries, losses, interrupted=experiment.cut
            ),
        )
        return experiment.store(result)


class _Measurement:
    def __init__(
        self, order: ExperimentOrder[SplitVotesPlan], experiment: Experiment, show: Show
    ) -> None:
        self._plan = order.plan
        self._experiment = experiment
        self._show = show
        self._prefix = f"lockbench:{order.run_id}:"
        self._rng = Random(f"{order.plan.seed} split votes")
        self._blocks = count(1, BLOCK)
        self.calibration: list[CalibrationRow] = []
        self.contests = [ContestFigures(contest) for contest in order.plan.contests]
        self.retried = [ContestFigures(contest) for contest in order.plan.retried]

    def measure(self, fleet: Fleet) -> None:
        """Measure everything.

        Raises KeyboardInterrupt if it was cut before anything was measured.
        """
        seats = max(figures.contest.contenders for figures in [*self.contests, *self.retried])
        self._show(f"starting {seats} contenders")
        folder = Path(tempfile.mkdtemp(prefix="contenders-", dir=fleet.folder))
        with (
            Contenders(fleet.urls, seats, folder, self._prefix, self._plan.seed) as contenders,
            self._experiment.cuttable(),
        ):
            self._calibrate(fleet.urls)
            self._contend(contenders, "contention", self.contests)
            self._contend(contenders, "retries", self.retried)
        self._experiment.require(self.calibration)

    def _calibrate(self, urls: Sequence[str]) -> None:
        rounds = max(CALIBRATION_ROUNDS, self._plan.rounds)
        with Driver(urls, self._prefix) as driver:
            for contenders in self._plan.contenders:
                played = []
                for number in range(rounds):
                    if number % 100 == 0:
                        self._show(f"calibration: round {number:,} of {rounds:,}, K={contenders}")
                    played.append(driver.round(contenders, number, self._rng))
                self.calibration.append(calibration_row(self._plan.instances, contenders, played))

    def _contend(
        self, contenders: Contenders, section: str, rows: Sequence[ContestFigures]
    ) -> None:
        """Pass after pass over all rows, a block each, until every row has its trials."""
        while wanting := [figures for figures in rows if figures.missing]:
            for figures in self._rng.sample(wanting, len(wanting)):
                contest = figures.contest
                what = (
                    f"trial {figures.trials:,} of {contest.trials:,}, K={contest.contenders} "
                    f"{contest.order}"
                )
                self._show(f"{section}: {what}")
                figures.take(
                    contenders.run(Block(next(self._blocks), min(BLOCK, figures.missing), contest))
                )


class Driver(ExitStack):
    """Votes shared out by pure chance, over one connection per instance. A context manager.

    A round's K · N SETs stand in one uniformly shuffled order over (contender, instance), and each
    instance is sent its own in that order. So it falls to each contender with the chance 1/K, which
    is what the closed form assumes.
    """

    def __init__(self, urls: Sequence[str], key_prefix: str) -> None:
        super().__init__()
        self._prefix = key_prefix
        clients = (
            Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=REPLY_S)
            for url in urls
        )
        self._servers = [self.enter_context(client) for client in clients]

    def round(self, contenders: int, number: int, rng: Random) -> list[Attempt]:
        """Make one round: an attempt of each of the `contenders`.

        Raises EnvironmentNotReadyError.
        """
        start_ns = monotonic_ns()
        instances = len(self._servers)
        turns = [(seat, index) for seat in range(contenders) for index in range(instances)]
        rng.shuffle(turns)
        try:
            votes = [
                self._votes(
                    server,
                    f"calibration-{contenders}-{number}",
                    [seat for seat, at in turns if at == index],
                )
                for index, server in enumerate(self._servers)
            ]
        except RedisError as error:
            raise EnvironmentNotReadyError(
                f"a server did not answer a round of the calibration: {error}"
            ) from error
        decided_ns = monotonic_ns()
        attempts = []
        for seat in range(contenders):
            own = [of_it[seat] for of_it in votes]
            outcome = outcome_of(
                own.count(Vote.GRANTED), own.count(Vote.REFUSED), quorum_of(instances)
            )
            cast = tuple(CastVote(vote, start_ns, decided_ns) for vote in own)
            until_ns = start_ns + TTL_MS * NS_PER_MS if outcome is Outcome.ACQUIRED else 0
            attempts.append(Attempt(seat, start_ns, decided_ns, outcome, cast, until_ns))
        return attempts

    def _votes(self, server: Redis, resource: str, seats: Sequence[int]) -> dict[int, Vote]:
        key = self._prefix + resource
        commands = server.pipeline(transaction=False)
        for seat in seats:
            commands.set(key, seat, nx=True, px=TTL_MS)
        commands.delete(key)
        replies = commands.execute()[:-1]
        return {
            seat: Vote.GRANTED if reply else Vote.REFUSED
            for seat, reply in zip(seats, replies, strict=True)
        }
