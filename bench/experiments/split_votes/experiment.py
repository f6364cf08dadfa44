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

import datetime
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.experiments.split_votes.calibration import Driver, names_holders
from bench.experiments.split_votes.contenders import Crew
from bench.experiments.split_votes.judge import Ending
from bench.experiments.split_votes.rows import Contest, ContestFigures, Row, calibration_row
from bench.experiments.split_votes.trial import Block, resource_of
from bench.measure.environment import describe_environment
from bench.measure.result import SCHEMA_VERSION, Result
from bench.measure.section import builtins_of
from bench.measure.verdict import (
    AS_EXPECTED,
    INTERRUPTED,
    NOT_AS_EXPECTED,
    NOT_KNOWN,
    VIOLATED,
    Evidence,
    conclude,
)
from bench.run.interrupt import Interrupts
from bench.run.servers import ask
from bench.run.verdict import Done, store
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.probe import leaked_keys
from bench.topology.server import find_server
from lockcore import RetryPolicy

LEAST_PROCESSES = 4  # in at least one row: one event loop alone never splits
RETRY_CONTENDERS = 20
CALIBRATION_ROUNDS = 2000
LEAST_ROUNDS = 1000  # of which a rate is off by 0.05 by chance less than 2 times in 1,000
BLOCK = 20  # trials
WINDOW_PER_ATTEMPT = 5  # the advice of lockcore.retry
PATIENCE_MS = 5000.0  # for a first grant

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SplitVotesPlan:
    """What is swept. `rounds`: trials per row (calibration: at least 2,000), `parallel_retry_rounds` of retry rows in
    parallel; `retry_contenders`: the K of the retry rows; `budget_s`: for contention and retries together."""

    instances: int
    contenders: tuple[int, ...]
    spreads_ms: tuple[float, ...]
    orders: tuple[str, ...]
    retries: tuple[RetryPolicy, ...]
    retry_contenders: tuple[int, ...]
    rounds: int
    parallel_retry_rounds: int
    budget_s: float
    seed: int

    @property
    def contests(self) -> list[Contest]:
        """The rows of the section contention."""
        contenders = sorted({*self.contenders, max(LEAST_PROCESSES, *self.contenders)})
        return [
            Contest(count, order, spread_ms, self.rounds)
            for count in contenders
            for spread_ms in self.spreads_ms
            for order in self.orders
        ]

    @property
    def retried(self) -> list[Contest]:
        """The rows of the section retries: all at once, and in random order, where nobody wins most often."""
        orders = [order for order in self.orders if order != "sequential"] or list(self.orders)
        return [
            Contest(count, order, 0.0, self.parallel_retry_rounds if order == "parallel" else self.rounds, retry)
            for count in self.retry_contenders
            for order in orders
            for retry in self.retries
        ]


@dataclass(frozen=True, slots=True)
class SplitVotesOrder:
    """A plan and where its result belongs. `command`: as typed; `folder`: can be made."""

    plan: SplitVotesPlan
    run_id: str
    command: Sequence[str]
    folder: Path
    server: str | None = None


def run_split_votes(order: SplitVotesOrder, show: Show) -> Done:
    """Measure `order`, showing progress, and return its result, which is written by then, if it can be.

    Raises BenchError when it cannot be measured here, KeyboardInterrupt when it was cut before anything was measured.
    """
    plan, started_s = order.plan, time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC)
    with Interrupts() as interrupts:
        with start_fleet(plan.instances, "none", server=find_server(order.server)) as fleet:
            measured = _Measurement(plan, fleet, f"lockbench:{order.run_id}:", interrupts, show)
            sections = measured.sections()
        result: Result = {
            "schema_version": SCHEMA_VERSION,
            "kind": "split-votes",
            "id": order.run_id,
            "command": list(order.command),
            "seed": plan.seed,
            "started_at": f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
            "duration_s": time.monotonic() - started_s,
            "interrupted": measured.cut,
            "environment": builtins_of(describe_environment()),
            **sections,
            "verdict": judge_split_votes(sections, interrupted=measured.cut),
        }
        return store(result, order.folder)


def judge_split_votes(sections: dict[str, Any], *, interrupted: bool) -> dict[str, Any]:
    """The section `verdict`: violated by two leases at once; not known where nobody contended or nobody was granted."""
    contention, retries = sections["contention"], sections["retries"]
    faults = sum(row["double_grants"] for row in [*contention, *retries])
    violated = [f"{faults} leases were granted while another on the same resource was valid"] if faults else []
    calibration = sections["calibration"]
    missed = [f"calibration, K={row['contenders']}: {miss}" for row in calibration for miss in row["misses"]]
    unknown = [
        f"contention, K={row['contenders']}, {row['order']}: released together, and no attempts overlapped"
        for row in contention
        if not row["spread_s"] and not row["contention_rounds"]
    ]
    unknown += [
        f"contention, K={row['contenders']}, {row['order']}: in most rounds fewer than a quorum answered"
        for row in contention
        if row["endings"][Ending.UNREACHABLE.value] * 2 > row["contention_rounds"] > 0
    ]
    unknown += [
        f"retries, K={row['contenders']}, {row['order']}, {row['retry']['policy']}: nobody was granted a lease"
        for row in retries
        if not row["granted"]
    ]
    evidence = [
        Evidence("rounds calibrated", sum(row["rounds"] for row in calibration), LEAST_ROUNDS),
        Evidence.none_in("contention rounds", sum(row["contention_rounds"] for row in contention)),
    ]
    cut = ["interrupted: what is missing was not measured"] if interrupted else []
    found = {VIOLATED: violated, NOT_AS_EXPECTED: missed, NOT_KNOWN: unknown, INTERRUPTED: cut}
    return conclude(AS_EXPECTED, evidence, found).to_json()


class _Measurement:
    """One run on a fleet that stands."""

    def __init__(self, plan: SplitVotesPlan, fleet: Fleet, key_prefix: str, interrupts: Interrupts, show: Show) -> None:
        self._plan, self._fleet, self._prefix, self._interrupts, self._show = plan, fleet, key_prefix, interrupts, show
        self._dice = Random(f"{plan.seed} split votes")
        self._keys: list[str] = []
        self._next_trial = 1
        self.cut = False
        self._warnings: list[str] = []

    def sections(self) -> dict[str, Any]:
        """Everything that is measured, as the sections of the result. Raises KeyboardInterrupt if that is nothing."""
        plan, calibration = self._plan, list[Row]()
        facts = ask(self._fleet.urls, allow_missing=False)
        contests = [ContestFigures(contest) for contest in plan.contests]
        retried = [ContestFigures(contest) for contest in plan.retried]
        seats = max(figures.contest.contenders for figures in [*contests, *retried])
        try:
            self._calibrate(calibration)
            self._compete(seats, contests, retried)
        except KeyboardInterrupt:
            if not calibration:
                raise
            self.cut = True
            self._warnings.append("interrupted: what is missing was not measured, what is here may be less than asked")
        finally:
            self._interrupts.raising = False
        contests, retried = ([figures for figures in rows if figures.trials] for rows in (contests, retried))
        self._qualify([*contests, *retried])
        return {
            "fleet": {
                "started": True,
                "server": asdict(self._fleet.server),
                "fsync": self._fleet.fsync,
                "instances": [asdict(fact) for fact in facts],
            },
            "conditions": {**asdict(plan), "seats": seats, "usable_cores": len(os.sched_getaffinity(0))},
            "calibration": calibration,
            "contention": [figures.contention_row(plan.instances) for figures in contests],
            "retries": [figures.retry_row() for figures in retried],
            "leaks": self._leaks(),
            "warnings": self._warnings,
        }

    def _calibrate(self, rows: list[Row]) -> None:
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
        with Crew(self._fleet.urls, seats, folder, self._prefix, self._plan.seed) as crew, _calm_end(self._interrupts):
            began_s = time.monotonic()
            self._contend(crew, "contention", contests, began_s + self._plan.budget_s / 2)
            self._contend(crew, "retries", retried, began_s + self._plan.budget_s)

    def _contend(self, crew: Crew, section: str, rows: Sequence[ContestFigures], until_s: float) -> None:
        """Pass after pass over all rows, a block each, until every row has its trials or the time is up."""
        while wanting := [figures for figures in rows if figures.missing]:
            if self._interrupts.count:
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
        retry = contest.retry
        return Block(
            first,
            count,
            contest.contenders,
            contest.order,
            contest.spread_ms,
            retry.policy,
            retry.window_ms,
            PATIENCE_MS if retry.policy != "none" else 0.0,
        )

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

    def _leaks(self) -> list[Row]:
        leaks = [asdict(leak) for leak in leaked_keys(self._fleet.urls, self._keys)]
        left = sum(leak["found"] or 0 for leak in leaks)
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
