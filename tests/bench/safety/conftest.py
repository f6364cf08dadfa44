"""Small histories written by hand, and large legal ones."""

import json
from pathlib import Path

import pytest

from bench.measure.history import History
from bench.measure.record import records_of
from tests.doubles.records import legal_records, record_of

HISTORIES = Path(__file__).parents[2] / "histories"


def history_of(operations: list[dict]) -> History:
    """The history of operations as the files write them: times in ms, what is not said did not
    happen."""
    rows = []
    for number, one in enumerate(operations, 1):
        said = {"ended": one.get("granted", one["start"]), "release": "none", **one}
        silent = said.pop("silent", 0)
        vote = "granted" if one["outcome"] == "acquired" else "refused"
        rows.append(record_of(number, votes={vote: 5 - silent, "silent": silent}, **said))
    return History(records_of(rows), torn=0, missing_segments=0)


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
    """A correct lock's history."""
    return legal_records
