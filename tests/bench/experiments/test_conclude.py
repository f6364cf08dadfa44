"""What is said of an instance that did not see the run through: each cause once."""

from __future__ import annotations

from typing import Any

import pytest

from bench.experiments.conclude import _instance_warnings

REFUSED = "connection refused: nothing listens there"
NO_COUNTERS = f"no counters: {REFUSED}"


def instance(state: str, left: int | None, silence: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 2, "address": "h:1", "state": state, "leaked_keys": left, "info": {"warning": silence}, **more}


@pytest.mark.parametrize(
    "seen, sentence",
    [
        (instance("down", None, NO_COUNTERS, reason=REFUSED), f"down at the end ({REFUSED}); neither its counters nor"),
        (instance("down", 0, reason=REFUSED), f"down at the end ({REFUSED})"),
        (instance("voting", None, NO_COUNTERS), f"{NO_COUNTERS}; whether keys were left could not be checked"),
        (instance("voting", 0, "no counters: it restarted in between"), "no counters: it restarted in between"),
        (instance("voting", 1), "1 key of this run was left, and has been unlinked"),
        (instance("voting", 2), "2 keys of this run were left, and have been unlinked"),
    ],
)
def test_a_warning_names_each_cause_once(seen: dict[str, Any], sentence: str) -> None:
    (said,) = _instance_warnings(seen)
    assert said.startswith(f"instance #2 (h:1): {sentence}")
    assert said.count("refused") == sentence.count("refused")


def test_an_instance_that_voted_to_the_end_is_no_warning() -> None:
    assert list(_instance_warnings(instance("voting", 0))) == []
