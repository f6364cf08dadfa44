"""How often nobody wins, and how long that lasts: *N, K, spreads, orders, retry policies → a judged, written result*.

Rules: own servers on loopback, in memory; blocks of all rows are interleaved in random order, so that what else the
machine does hits all alike; a time budget ends a section early, after whole passes, and says so.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import asdict
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.contenders import Contenders
from bench.experiments.split_votes.judge import ContestFigures, Ending, calibration_row, judge_split_votes
from bench.experiments.split_votes.plan import TTL_MS, Attempt, Block, CastVote, SplitVotesPlan
from bench.experiments.split_votes.result import CalibrationRow, Conditions, SplitVotesResult
from bench.measure.run_result import OwnFleet
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.servers import ask
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore import Outcome, Vote
from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.quorum import outcome_of, quorum_of

CALIBRATION_ROUNDS = 2000
BLOCK = 20  # trials
REPLY_S = 5.0


def run_split_votes(order: ExperimentOrder[SplitVotesPlan], show: Show) -> Done[SplitVotesResult]:
    """Measure `order`, showing progress, and return its result, which is written by then, if it can be.

    Raises BenchError when it cannot be measured here, KeyboardInterrupt when it was cut before anything was measured.
    """
    with Experiment(order) as experiment:
        with start_fleet(order.plan.instances, "none", server=find_server(order.server)) as fleet:
            result = _Measurement(order, fleet, experiment, show).result()
        return experiment.store(result)


class _Measurement:
    """One run on a fleet that stands."""

    def __init__(
        self, order: ExperimentOrder[SplitVotesPlan], fleet: Fleet, experiment: Experiment, show: Show
    ) -> None:
        self._plan, self._fleet, self._experiment, self._show = order.plan, fleet, experiment, show
        self._prefix = f"lockbench:{order.run_id}:"
        self._rng = Random(f"{self._plan.seed} split votes")
        self._next_trial = 1
        self._warnings: list[str] = []

    def result(self) -> SplitVotesResult:
        """Measure everything and judge it. Raises KeyboardInterrupt if it was cut before anything was measured."""
        plan, fleet, experiment, calibration = self._plan, self._fleet, self._experiment, list[CalibrationRow]()
        facts = ask(fleet.urls, allow_missing=False)
        contests = [ContestFigures(contest) for contest in plan.contests]
        retried = [ContestFigures(contest) for contest in plan.retried]
        seats = max(figures.contest.contenders for figures in [*contests, *retried])
        self._show(f"starting {seats} contenders")
        folder = Path(tempfile.mkdtemp(prefix="contenders-", dir=fleet.folder))
        with Contenders(fleet.urls, seats, folder, self._prefix, plan.seed) as contenders, experiment.cuttable():
            self._calibrate(calibration)
            began_s = time.monotonic()
            self._contend(contenders, "contention", contests, began_s + plan.budget_s / 2)
            self._contend(contenders, "retries", retried, began_s + plan.budget_s)
        if experiment.cut:
            experiment.require(calibration)
        contests, retried = ([figures for figures in rows if figures.trials] for rows in (contests, retried))
        if unreachable := sum(figures.endings[Ending.UNREACHABLE] for figures in [*contests, *retried]):
            self._warnings.append(f"in {unreachable:,} rounds fewer than a quorum answered: they are no split votes")
        contention = tuple(figures.contention_row(plan.instances) for figures in contests)
        retries = tuple(figures.retry_row() for figures in retried)
        return SplitVotesResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            fleet=OwnFleet(server=fleet.server, fsync=fleet.fsync, instances=facts),
            conditions=Conditions(**asdict(plan), seats=seats),
            calibration=tuple(calibration),
            contention=contention,
            retries=retries,
            warnings=tuple(self._warnings),
            verdict=judge_split_votes(calibration, contention, retries, interrupted=experiment.cut),
        )

    def _calibrate(self, rows: list[CalibrationRow]) -> None:
        """Append a row per number of contenders."""
        count = max(CALIBRATION_ROUNDS, self._plan.rounds)
        with Driver(self._fleet.urls, self._prefix) as driver:
            for contenders in self._plan.contenders:
                rounds = []
                for number in range(count):
                    if number % 100 == 0:
                        self._show(f"calibration: round {number:,} of {count:,}, K={contenders}")
                    rounds.append(driver.round(contenders, number, self._rng))
                rows.append(calibration_row(self._plan.instances, contenders, rounds))

    def _contend(self, contenders: Contenders, section: str, rows: Sequence[ContestFigures], until_s: float) -> None:
        """Pass after pass over all rows, a block each, until every row has its trials or the time is up."""
        while wanting := [figures for figures in rows if figures.missing]:
            if self._experiment.is_over:
                raise KeyboardInterrupt
            if time.monotonic() > until_s:
                missing = sum(figures.missing for figures in wanting)
                self._warnings.append(f"{section}: the time was up with {missing:,} trials still to do; ask for fewer")
                return
            for figures in self._rng.sample(wanting, len(wanting)):
                contest = figures.contest
                what = f"trial {figures.trials:,} of {contest.trials:,}, K={contest.contenders} {contest.order}"
                self._show(f"{section}: {what}")
                block = Block(self._next_trial, min(BLOCK, figures.missing), contest)
                self._next_trial += block.count
                figures.take(contenders.run(block))


class Driver(ExitStack):
    """Votes shared out by pure chance, over one connection per instance. A context manager.

    A round's K · N SETs leave one by one in one uniformly shuffled order over (contender, instance); a connection keeps
    that order, and nothing is released before all have answered. So each instance falls to each contender with the
    chance 1/K, which is what the closed form assumes, and every vote is certain.
    """

    def __init__(self, urls: Sequence[str], key_prefix: str) -> None:
        super().__init__()
        self._prefix = key_prefix
        clients = [Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=REPLY_S) for url in urls]
        self._lines = [self.enter_context(client).connection_pool.get_connection() for client in clients]

    def round(self, contenders: int, number: int, rng: Random) -> list[Attempt]:
        """Make one round: an attempt of each of the `contenders`. Raises EnvironmentNotReadyError."""
        try:
            return self._round(contenders, f"{self._prefix}calibration-{contenders}-{number}", rng)
        except RedisError as error:
            raise EnvironmentNotReadyError(f"a server did not answer a round of the calibration: {error}") from error

    def _round(self, contenders: int, key: str, rng: Random) -> list[Attempt]:
        lines, start_ns = self._lines, monotonic_ns()
        turns = [(seat, index) for seat in range(contenders) for index in range(len(lines))]
        rng.shuffle(turns)
        sent_ns = {}
        for seat, index in turns:
            sent_ns[seat, index] = monotonic_ns()
            lines[index].send_command("SET", key, seat, "NX", "PX", TTL_MS)
        cast = {
            (seat, index): CastVote(_vote(lines[index]), sent_ns[seat, index], monotonic_ns()) for seat, index in turns
        }
        decided_ns = monotonic_ns()
        for line in lines:
            line.send_command("DEL", key)
        for line in lines:
            line.read_response()
        return [
            _attempt(seat, start_ns, decided_ns, tuple(cast[seat, index] for index in range(len(lines))))
            for seat in range(contenders)
        ]


def _vote(line: Any) -> Vote:
    """The next reply on a connection."""
    try:
        return Vote.REFUSED if line.read_response() is None else Vote.GRANTED
    except ResponseError:
        return Vote.ERRORED


def _attempt(seat: int, started_ns: int, decided_ns: int, cast: tuple[CastVote, ...]) -> Attempt:
    votes = [one.vote for one in cast]
    outcome = outcome_of(votes.count(Vote.GRANTED), votes.count(Vote.REFUSED), quorum_of(len(votes)))
    until_ns = started_ns + TTL_MS * NS_PER_MS if outcome is Outcome.ACQUIRED else 0
    return Attempt(seat, started_ns, decided_ns, outcome, cast, until_ns)
