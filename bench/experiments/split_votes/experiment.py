"""How often nobody wins, and how long that lasts: *N, K, spreads, orders, retry policies → a judged, written result*.

    calibration   one driver, votes shared out by chance     must be within ± 0.05 of the closed form
    contention    K processes released together, one attempt each; orders and spreads side by side, block by block
    retries       the same, until somebody wins; policies side by side

Rules: own servers on loopback, in memory; blocks of all rows are interleaved in random order, so that what else the
machine does hits all alike; a time budget ends a section early, after whole passes, and says so; a signal ends it all,
and what was measured until then is kept. Two valid leases at once are a violation whatever was asked.
Source: bench.experiments.split_votes.judge; README, "Split votes".
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypedDict

from msgspec.structs import asdict

from bench.experiments.split_votes.calibration import Driver, names_holders
from bench.experiments.split_votes.contenders import Crew
from bench.experiments.split_votes.plan import Block, Contest, SplitVotesPlan, resource_of
from bench.experiments.split_votes.result import (
    CalibrationRow,
    Conditions,
    ContentionRow,
    OwnFleet,
    RetryRow,
    SplitVotesResult,
)
from bench.experiments.split_votes.rows import ContestFigures, calibration_row, judge_split_votes
from bench.run.experiment import Experiment, ExperimentOrder, Show
from bench.run.interrupt import Interrupts
from bench.run.servers import ask
from bench.run.verdict import Done
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.probe import LeakCount, leaked_keys
from bench.topology.server import find_server

CALIBRATION_ROUNDS = 2000
BLOCK = 20  # trials
WINDOW_PER_ATTEMPT = 5  # the advice of lockcore.retry
PATIENCE_MS = 5000.0  # for a first grant


class SplitVotesSections(TypedDict):
    """What was measured, for the result's constructor."""

    fleet: OwnFleet
    conditions: Conditions
    calibration: tuple[CalibrationRow, ...]
    contention: tuple[ContentionRow, ...]
    retries: tuple[RetryRow, ...]
    leaks: tuple[LeakCount, ...]
    warnings: tuple[str, ...]


def run_split_votes(order: ExperimentOrder[SplitVotesPlan], show: Show) -> Done[SplitVotesResult]:
    """Measure `order`, showing progress, and return its result, which is written by then, if it can be.

    Raises BenchError when it cannot be measured here, KeyboardInterrupt when it was cut before anything was measured.
    """
    plan = order.plan
    with Experiment(order) as experiment:
        with start_fleet(plan.instances, "none", server=find_server(order.server)) as fleet:
            sections = _Measurement(plan, fleet, f"lockbench:{order.run_id}:", experiment, show).sections()
        cut = experiment.cut
        verdict = judge_split_votes(
            sections["calibration"], sections["contention"], sections["retries"], interrupted=cut
        )
        header = experiment.header(seed=plan.seed, interrupted=cut)
        return experiment.store(SplitVotesResult(**header, **sections, verdict=verdict))


class _Measurement:
    """One run on a fleet that stands."""

    def __init__(self, plan: SplitVotesPlan, fleet: Fleet, key_prefix: str, experiment: Experiment, show: Show) -> None:
        self._plan, self._fleet, self._prefix, self._experiment, self._show = plan, fleet, key_prefix, experiment, show
        self._dice = Random(f"{plan.seed} split votes")
        self._keys: list[str] = []
        self._next_trial = 1
        self._warnings: list[str] = []

    def sections(self) -> SplitVotesSections:
        """Everything that is measured. Raises KeyboardInterrupt if that is nothing."""
        plan, calibration = self._plan, list[CalibrationRow]()
        facts = ask(self._fleet.urls, allow_missing=False)
        contests = [ContestFigures(contest) for contest in plan.contests]
        retried = [ContestFigures(contest) for contest in plan.retried]
        seats = max(figures.contest.contenders for figures in [*contests, *retried])
        with self._experiment.cuttable():
            self._calibrate(calibration)
            self._compete(seats, contests, retried)
        if self._experiment.cut:
            self._experiment.require(calibration)
            self._warnings.append("interrupted: what is missing was not measured, what is here may be less than asked")
        contests, retried = ([figures for figures in rows if figures.trials] for rows in (contests, retried))
        self._qualify([*contests, *retried])
        leaks = self._leaks()
        return SplitVotesSections(
            fleet=OwnFleet(server=self._fleet.server, fsync=self._fleet.fsync, instances=facts),
            conditions=Conditions(**asdict(plan), seats=seats, usable_cores=len(os.sched_getaffinity(0))),
            calibration=tuple(calibration),
            contention=tuple(figures.contention_row(plan.instances) for figures in contests),
            retries=tuple(figures.retry_row() for figures in retried),
            leaks=leaks,
            warnings=tuple(self._warnings),
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

    def _compete(self, seats: int, contests: Sequence[ContestFigures], retried: Sequence[ContestFigures]) -> None:
        """Have processes contend until every row has its trials, or the time is up."""
        self._show(f"starting {seats} contenders")
        folder = Path(tempfile.mkdtemp(prefix="contenders-", dir=self._fleet.folder))
        crew = Crew(self._fleet.urls, seats, folder, self._prefix, self._plan.seed)
        with crew, _calm_end(self._experiment.interrupts):
            began_s = time.monotonic()
            self._contend(crew, "contention", contests, began_s + self._plan.budget_s / 2)
            self._contend(crew, "retries", retried, began_s + self._plan.budget_s)

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
        first, self._next_trial = self._next_trial, self._next_trial + count
        self._keys += [self._prefix + resource_of(trial) for trial in range(first, first + count)]
        patience_ms = PATIENCE_MS if contest.retry.policy != "none" else 0.0
        return Block(first, count, contest.contenders, contest.order, contest.spread_ms, contest.retry, patience_ms)

    def _qualify(self, rows: Sequence[ContestFigures]) -> None:
        unreachable = sum(figures.unreachable for figures in rows)
        if unreachable:
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
        left = sum(leak.found or 0 for leak in leaks)
        if left:
            self._warnings.append(f"{left:,} keys were left on the servers and have been removed")
        return leaks


@contextmanager
def _calm_end(interrupts: Interrupts) -> Iterator[None]:
    """From the end of the body on, signals are only counted: what ends processes is not torn in the middle."""
    try:
        yield
    finally:
        interrupts.raising = False
