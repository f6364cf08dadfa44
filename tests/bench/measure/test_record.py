"""A record: its size, and the names of its outcomes."""

from bench.measure.record import OUTCOME_CODES, RECORD_BYTES, RECORD_FIELDS
from lockcore.facts.model import Outcome


def test_a_record_is_sixteen_int64_and_outcome_codes_are_the_names_of_design_md():
    assert RECORD_BYTES == 128
    assert len(RECORD_FIELDS) == 16
    assert OUTCOME_CODES["none"] == 0
    assert OUTCOME_CODES["acquired"] == 1
    assert set(OUTCOME_CODES) == {"none"} | {outcome.value for outcome in Outcome}
    assert sorted(OUTCOME_CODES.values()) == list(range(9))
