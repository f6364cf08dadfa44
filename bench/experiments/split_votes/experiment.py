"""How often nobody wins, and how long that lasts: *N, K, spreads, orders, retry policies → a judged, written result*.

    calibration   one driver, votes shared out by chance     must be within ± 0.05 of the closed form
    contention    K processes released together, one attempt each; orders and spreads side by side, block by block
    retries       the same, until somebody wins; policies side by side

Rules: own servers on loopback, in memory; blocks of all rows are interleaved in random order, so that what else the
machine does hits all alike; a time budget ends a section early, after whole passes, and says so; a signal ends it all,
and what was measured until then is kept. Two valid leases at once are a violation whatever was asked.
Source: bench.experiments.split_votes.trial; README, "Split votes".
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from msgspec.structs import asdict

from bench.experiments.split_votes.calibration import Driver, names_holders
from bench.experiments.split_votes.contenders import Crew
from bench.experiments.split_votes.judge import ContestFigures, calibration_row, judge_split_votes
from bench.experiments.split_votes.plan import Block, Contest, SplitVotesPlan, resource_of
from bench.experiments.split_votes.result import (
    CalibrationRow,
    Conditions,
    OwnFleet,
    SplitVotesResult,
)
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.servers import ask
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.probe import LeakCount, leaked_keys
from bench.topology.server import find_server

CALIBRATION_ROUNDS = 2000
BLOCK = 20  # trials
WINDOW_PER_ATTEMPT = 5  # the advice of lockcore.retry


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
        self._dice = Random(f"{self._plan.seed} split votes")
        self._keys: list[str] = []
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
        with Crew(fleet.urls, seats, folder, self._prefix, plan.seed) as crew, experiment.cuttable():
            self._calibrate(calibration)
            began_s = time.monotonic()
            self._contend(crew, "contention", contests, began_s + plan.budget_s / 2)
            self._contend(crew, "retries", retried, began_s + plan.budget_s)
        if experiment.cut:
            experiment.require(calibration)
            self._warnings.append("interrupted: what is missing was not measured, what is here may be less than asked")
        contests, retried = ([figures for figures in rows if figures.trials] for rows in (contests, retried))
        self._qualify([*contests, *retried])
        leaks = self._leaks()
        contention = tuple(figures.contention_row(plan.instances) for figures in contests)
        retries = tuple(figures.retry_row() for figures in retried)
        return SplitVotesResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            fleet=OwnFleet(server=fleet.server, fsync=fleet.fsync, instances=facts),
            conditions=Conditions(**asdict(plan), seats=seats, usable_cores=len(os.sched_getaffinity(0))),
            calibration=tuple(calibration),
            contention=contention,
            retries=retries,
            leaks=leaks,
            warnings=tuple(self._warnings),
            verdict=judge_split_votes(calibration, contention, retries, interrupted=experiment.cut),
        )

    def _calibrate(self, rows: list[CalibrationRow]) -> None:
        """Append a row per number of contenders."""
        named = names_holders(self._fleet.server.version)
        count = max(CALIBRATION_ROUNDS, self._plan.rounds)
        with Driver(self._fleet.urls, self._prefix, named=named) as driver:
            for contenders in self._plan.contenders:
                self._keys += [driver.key(contenders, number) for number in range(count)]
                rounds = []
                for number in range(count):
                    if number % 100 == 0:
                        self._show(f"calibration: round {number:,} of {count:,}, K={contenders}")
                    rounds.append(driver.round(contenders, number, self._dice))
                rows.append(calibration_row(self._plan.instances, contenders, rounds, named=named))

    def _contend(self, crew: Crew, section: str, rows: Sequence[ContestFigures], until_s: float) -> None:
        """Pass after pass over all rows, a block each, until every row has its trials or the time is up."""
        while wanting := [figures for figures in rows if figures.missing]:
            if self._experiment.is_over:
                raise KeyboardInterrupt
            if time.monotonic() > until_s:
                missing = sum(figures.missing for figures in wanting)
                self._warnings.append(f"{section}: the time was up with {missing:,} trials still to do; ask for fewer")
                return
            for figures in self._dice.sample(wanting, len(wanting)):
                contest = figures.contest
                what = f"trial {figures.trials:,} of {contest.trials:,}, K={contest.contenders} {contest.order}"
                self._show(f"{section}: {what}")
                figures.take(crew.run(self._block(contest, min(BLOCK, figures.missing))))

    def _block(self, contest: Contest, count: int) -> Block:
        block = Block(self._next_trial, count, contest)
        self._next_trial += count
        self._keys += [self._prefix + resource_of(trial) for trial in block.trials]
        return block

    def _qualify(self, rows: Sequence[ContestFigures]) -> None:
        if unreachable := sum(figures.unreachable for figures in rows):
            self._warnings.append(f"in {unreachable:,} rounds fewer than a quorum answered: they are no split votes")
        cores, most = len(os.sched_getaffinity(0)), max((one.contest.contenders for one in rows), default=0)
        if most and most + self._plan.instances > cores:
            self._warnings.append(
                f"up to {most} contenders and {self._plan.instances} servers share {cores} cores: they act when the "
                "kernel lets them; how far apart they started stands in each row"
            )

        short = []
        for figures in rows:
            contest, attempt_ms = figures.contest, figures.attempt_ms
            window_ms = contest.retry.window_ms
            if contest.retry.policy == "full-jitter" and attempt_ms and window_ms < WINDOW_PER_ATTEMPT * attempt_ms:
                short.append(f"{window_ms:g} ms for {attempt_ms:.1f} ms (K={contest.contenders} {contest.order})")
        if short:
            self._warnings.append(
                f"full-jitter windows below {WINDOW_PER_ATTEMPT} times an attempt, so that contenders meet again: "
                + ", ".join(short)
            )

    def _leaks(self) -> tuple[LeakCount, ...]:
        leaks = leaked_keys(self._fleet.urls, self._keys)
        if left := sum(leak.found or 0 for leak in leaks):
            self._warnings.append(f"{left:,} keys were left on the servers and have been removed")
        return leaks
