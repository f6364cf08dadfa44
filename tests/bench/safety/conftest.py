"""Small histories written by hand, and large legal ones made by dice."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, History
from tests.doubles.records import record_of

HISTORIES = Path(__file__).parents[2] / "histories"
MS = 1_000_000


def history_of(operations: list[dict]) -> History:
    """The history of operations as the files write them: times in ms, what is not said did not happen."""
    rows = []
    for number, one in enumerate(operations, 1):
        said = {"ended": one.get("granted", one["start"]), "release": "none", **one}
        silent, vote = said.pop("silent", 0), "granted" if one["outcome"] == "acquired" else "refused"
        rows.append(record_of(number, votes={vote: 5 - silent, "silent": silent}, **said))
    return History(np.array(rows, dtype=RECORD_DTYPE), torn=0, missing_segments=0)


@pytest.fixture(params=sorted(HISTORIES.glob("*.json")), ids=lambda path: path.stem)
def told(request):
    """Each history file in turn: its JSON and its history."""
    document = json.loads(request.param.read_text("utf-8"))
    return document, history_of(document["operations"])


@pytest.fixture
def history():
    """Builds a history from operations written like those of the files."""
    return history_of


@pytest.fixture
def legal():
    """A correct lock's history: `legal(count, resources, seed)`; 100 leases or more of a resource follow each other."""

    def make(count: int, resources: int, seed: int = 1) -> np.ndarray:
        dice = np.random.default_rng(seed)
        records = np.zeros(count, RECORD_DTYPE)
        resource = np.arange(count) % resources
        turn = np.arange(count) // resources
        length = 10 * MS
        granted = 10**15 + turn * length + dice.integers(0, length // 4, count)
        sent = granted + dice.integers(1, length // 2, count)
        records["resource"] = resource
        records["granted_ns"], records["ended_ns"] = granted, granted + 1_000
        records["start_ns"] = records["intended_ns"] = granted - dice.integers(1_000, length, count)
        records["attempt_ns"] = granted - 900
        records["valid_until_ns"] = records["attempt_ns"] + 98 * MS
        records["work_end_ns"], records["release_sent_ns"], records["release_replied_ns"] = sent - 1, sent, sent + 500
        records["outcome"] = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
        records["votes"], records["attempts"], records["caller"] = 5, 1, dice.integers(0, 64, count)
        records["owner"] = records["sequence"] = np.arange(count) + 1
        return records

    return make
