"""A record: its size, and the names of its outcomes."""

import numpy as np
import pytest

from bench.measure.outcomes import count_releases
from bench.measure.record import (
    OUTCOME_CODES,
    READER,
    RECORD_BYTES,
    RECORD_DTYPE,
    RECORD_FIELDS,
    OperationFacts,
    records_of,
    sound,
)
from lockcore.facts.model import Outcome


def test_a_record_is_sixteen_int64_and_outcome_codes_are_the_names_of_design_md():
    assert RECORD_BYTES == 128
    assert len(RECORD_FIELDS) == 16
    assert OUTCOME_CODES["none"] == 0
    assert OUTCOME_CODES["acquired"] == 1
    assert set(OUTCOME_CODES) == {"none"} | {outcome.value for outcome in Outcome}
    assert sorted(OUTCOME_CODES.values()) == list(range(9))


@pytest.mark.parametrize("side", [0, READER])
def test_the_side_changes_no_other_word_of_a_record(side):
    records = records_of(np.zeros(2, RECORD_DTYPE))
    records["start_ns"] = records["ended_ns"] = 1
    for name in ("granted_ns", "release_sent_ns", "release_replied_ns"):
        records[name][0] = 1
    acquired = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    records["outcome"] = np.array([acquired, OUTCOME_CODES["contended"]]) | side
    assert sound(records).tolist() == [True, True]
    words = [OperationFacts.of(record) for record in records]
    assert [(one.outcome, one.release_outcome) for one in words] == [
        ("acquired", "released"),
        ("contended", "none"),
    ]
    assert {one.reader for one in words} == {side == READER} == set(records.reader.tolist())
    assert count_releases(records)["released"] == 1
    assert records.release_code.tolist() == [OUTCOME_CODES["released"], OUTCOME_CODES["none"]]
    records["outcome"] |= READER << 1
    assert sound(records).tolist() == [False, False]
