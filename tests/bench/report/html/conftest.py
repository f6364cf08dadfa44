"""A whole result from operations made by rng: folded, judged and assembled as a run's is, without
servers."""

from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs

from bench.gates.run_verdict import judge_run
from bench.measure.environment import describe_environment
from bench.measure.facts import Window
from bench.measure.fold import Fold
from bench.measure.histogram import Histogram
from bench.measure.history import History
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, records_of
from bench.measure.run_result import fields_of
from bench.safety.holders import Holders
from bench.safety.judge import Judge
from tests.bench.whole_run import SAMPLE, run_of
from tests.doubles.records import scenario_of

S = 1_000_000_000
MS = 1_000_000
WINDOW = Window(100 * S, 106 * S)


def operations(count, *, resources=20, seed=1):
    """Cycles of a correct lock, some of them refused, from 1 s before the window to its end."""
    rng = np.random.default_rng(seed)
    records = records_of(np.zeros(count, RECORD_DTYPE))
    start = WINDOW.start_ns - S + np.sort(rng.integers(0, 7 * S - 60 * MS, count))
    took = rng.lognormal(np.log(0.6 * MS), 0.7, count).astype(np.int64)
    resource = np.arange(count) % resources
    won = rng.random(count) < 0.97
    granted = np.where(won, start + took, 0)
    held = np.minimum(
        rng.integers(1 * MS, 9 * MS, count), np.roll(start, -resources) - start - took - 10
    )
    sent = np.where(won, granted + np.maximum(held, 1), 0)
    records["resource"] = resource
    records["caller"] = np.arange(count) % 16
    records["start_ns"] = records["intended_ns"] = records["attempt_ns"] = start
    records["ended_ns"] = start + took
    records["granted_ns"] = granted
    records["valid_until_ns"] = np.where(won, start + 10 * S, 0)
    records["work_end_ns"] = sent
    records["release_sent_ns"] = sent
    records["release_replied_ns"] = np.where(won, sent + took // 2, 0)
    code = OUTCOME_CODES["acquired"]
    released = OUTCOME_CODES["released"] << 8
    records["outcome"] = np.where(won, code | released, OUTCOME_CODES["contended"])
    granted_votes = rng.choice([5, 5, 5, 4, 3], count)
    records["votes"] = np.where(won, granted_votes | (5 - granted_votes) << 24, 2 | 3 << 8)
    records["attempts"] = 1
    records["owner"] = np.arange(count) + 1
    records["sequence"] = np.arange(count) + 1
    return records


def asked_in(records):
    """Attempts that lost, one in the middle of each lease."""
    leases = records[records["granted_ns"] > 0]
    return np.stack(
        [leases["resource"], (leases["granted_ns"] + leases["release_sent_ns"]) // 2], axis=1
    )


def broken(records, at=700):
    """The same with one lease granted in the middle of another of its resource."""
    mates = np.flatnonzero(
        (records["resource"] == records["resource"][at]) & (records["granted_ns"] > 0)
    )
    first, second = next((a, b) for a, b in pairwise(mates) if a >= at)
    records["release_sent_ns"][first] = records["work_end_ns"][first] = (
        records["granted_ns"][second] + 2 * MS
    )
    records["release_replied_ns"][first] = records["release_sent_ns"][first] + MS
    return records


def fault(kind, target, begun_s, ended_s):
    return {
        "kind": kind,
        "target": target,
        "params": {},
        "phase": "fixed",
        "at_s": begun_s,
        "for_s": ended_s - begun_s,
        "begun_s": begun_s,
        "ended_s": ended_s,
        "begun_ns": 1,
        "in_force_ns": 2,
        "ended_ns": 3,
        "skipped": None,
        "failed": None,
        "detail": {},
    }


def result_of(records, *, faults=(), rate=None, window=WINDOW):
    fold = Fold(scenario_of(4, rate_per_s=rate, warmup_ms=1_000.0), window)
    oracle = Judge(10_000)
    fold.add(records)
    oracle.add(History(records, 0, 0, asked_in(records)))
    holders = Holders(window)
    holders.add(records, oracle.violated_resources)
    safety = structs.replace(oracle.report(), holders=holders.section())
    measured = fold.sections(safety=safety).values
    replies = [
        Histogram.of(np.random.default_rng(n).integers(100_000, 900_000, 2_000)) for n in range(5)
    ]
    histograms = {
        **measured.histograms,
        **{f"reply_{n}": reply.encode() for n, reply in enumerate(replies)},
    }
    instances = [
        {
            **entry,
            "commands": 1000,
            "leaked_keys": 0,
            "reply_s": {**entry["reply_s"], "count": 2_000, "max": 0.0009},
        }
        for entry in SAMPLE["instances"]
    ]
    return run_of(
        fields_of(measured),
        command=["lockbench", "run", "hot key.toml"],
        scenario={"rate_per_s": rate, "hold": {"kind": "exp", "ms": 5.0, "sigma": 0.0}},
        environment=describe_environment(),
        histograms=histograms,
        instances=instances,
        faults=list(faults),
        verdict=judge_run(measured, ()),
    )


@pytest.fixture(scope="module")
def safe():
    return result_of(
        operations(12_000), faults=[fault("stop", f"instance:{n}", 2.0, 3.5) for n in (1, 2)]
    )


@pytest.fixture(scope="module")
def violated():
    return result_of(broken(operations(4_000)), rate=700.0)


@pytest.fixture(scope="module")
def cut():
    """A run that was interrupted in the very moment its measured window began."""
    return result_of(operations(500), window=Window(WINDOW.start_ns, WINDOW.start_ns))
