"""Operations and worker reports as tests write them: in ms, what is not said did not happen."""

import numpy as np
import pytest

from bench.measure.histogram import Histogram
from bench.measure.record import records_of
from bench.measure.section import typed
from bench.measure.workers import WorkerNote
from tests.doubles.records import MS, record_of


@pytest.fixture
def records():
    """`records(dict, dict, …)`: a history array."""

    def make(*operations):
        return records_of([record_of(number + 1, **one) for number, one in enumerate(operations)])

    return make


def instance(**changes):
    facts = {
        "index": 0,
        "address": "127.0.0.1:7001",
        "state": "voting",
        "reason": "",
        "run_id": "a",
        "server": "valkey 9.1.2",
        "release_command": "delifeq",
        "commands": 0,
        "bytes_sent": 0,
        "bytes_received": 0,
        "writes": 0,
        "reads": 0,
        "late_replies": 0,
        "pending": 0,
        "owed_releases": 0,
        "reconnects": 0,
        "errors": {},
    }
    return facts | changes


@pytest.fixture
def report():
    """`report(key=…)`: what a worker that ended well wrote."""

    def make(**changes):
        note = {
            "worker": 0,
            "pid": 1,
            "phase": "stopped",
            "spawned_ns": 10**9,
            "stopped_ns": 11 * 10**9,
            "cpu_s": 5.0,
            "lag_histogram": Histogram.of(np.full(2_000, MS // 10)).encode(),
            "lateness_histogram": "",
            "late_starts": 0,
            "queued_starts": 0,
            "instances": [],
            "reply_histograms": [],
            "errors": {},
            "locust": {"acquire": [0, 0], "release": [0, 0]},
        } | changes
        return typed(note, WorkerNote)

    make.instance = instance
    return make
