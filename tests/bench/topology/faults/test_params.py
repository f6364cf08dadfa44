"""Params: resolved with their units, or refused with the nearest name."""

import errno

import pytest

from bench.topology.faults.params import (
    Param,
    choice,
    duration,
    error_number,
    flag,
    number,
    read_params,
    signed_duration,
)

TABLE = (
    Param("delay", duration(0, 1000), "2ms", "how long"),
    Param("by", signed_duration(60_000), None, "how far"),
    Param("torn", flag, False, "whether"),
)


def test_every_param_is_there_resolved_and_the_defaults_too() -> None:
    assert read_params(TABLE, {"by": "-5s"}) == {"delay": 2.0, "by": -5000.0, "torn": False}
    assert read_params(TABLE, {"by": "5s", "delay": "1s", "torn": True}) == {
        "delay": 1000.0,
        "by": 5000.0,
        "torn": True,
    }
    assert read_params((), {}) == {}


@pytest.mark.parametrize(
    "given, why",
    [
        ({"by": "1s", "dely": "2ms"}, r"no param 'dely' \(it has delay, by, torn\); did you mean delay\?"),
        ({}, "it needs the param 'by': how far"),
        ({"by": "1s", "delay": "2s"}, "param 'delay': '2s' is outside 0 to 1s"),
        ({"by": "1s", "delay": 2}, "param 'delay': 2 is not a duration"),
        ({"by": "0"}, "param 'by': '0' is not a time up to 1m, forward or back"),
        ({"by": "2m"}, "param 'by': '2m' is not a time up to 1m"),
        ({"by": "--1s"}, None),
        ({"by": "1s", "torn": 1}, "param 'torn': 1 is not true or false"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], why: str | None) -> None:
    if why is None:
        assert read_params(TABLE, given)["by"] == -1000.0
        return
    with pytest.raises(ValueError, match=why):
        read_params(TABLE, given)


def test_a_kind_without_params_says_so() -> None:
    with pytest.raises(ValueError, match=r"no param 'x' \(it has none\)"):
        read_params((), {"x": 1})


def test_words_numbers_and_errors() -> None:
    assert choice("all", "write")("write") == "write"
    with pytest.raises(ValueError, match="'wrte' is none of all, write; did you mean write"):
        choice("all", "write")("wrte")
    assert number(0.1, 10)(2) == 2.0
    for wrong in (0, 11, True, "1", float("nan")):
        with pytest.raises(ValueError, match="is not a number from 0.1 to 10"):
            number(0.1, 10)(wrong)
    assert error_number("EIO", "ENOSPC")("ENOSPC") == errno.ENOSPC
    with pytest.raises(ValueError, match="none of EIO"):
        error_number("EIO")("EPERM")
