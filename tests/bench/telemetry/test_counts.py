"""What records add up to: equal to the fold of bench.measure, whatever the order and the parts they
come in."""

from typing import Any

import numpy as np
import pytest

from bench.measure.facts import Window
from bench.measure.fold import fold
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, records_of
from bench.measure.section import builtins_of
from bench.telemetry.looks import ALL_TIME
from bench.telemetry.points import point
from bench.telemetry.run import OperationCounts
from tests.doubles.records import scenario_of

MS = 1_000_000
S = 1_000 * MS
NAMES = ("acquired", "contended", "split_vote", "unreachable", "too_late")


def history(number: int, seed: int) -> np.ndarray:
    """A made-up contended history of ten resources over two seconds."""
    rng = np.random.default_rng(seed)
    records = records_of(np.zeros(number, RECORD_DTYPE))
    start = np.sort(rng.integers(10 * S, 12 * S, number))
    won = rng.random(number) < 0.7
    codes = np.where(
        won,
        OUTCOME_CODES["acquired"],
        rng.choice([OUTCOME_CODES[name] for name in NAMES[1:]], number),
    )
    ended = start + rng.integers(10_000, 50 * MS, number)
    records["intended_ns"] = start - 5_000
    records["start_ns"] = start
    records["attempt_ns"] = start + 1_000
    records["ended_ns"] = ended
    for name, value in (
        ("granted_ns", ended),
        ("valid_until_ns", ended + S),
        ("release_sent_ns", ended + 3 * MS),
    ):
        records[name] = np.where(won, value, 0)
    records["release_replied_ns"] = np.where(won, ended + 4 * MS, 0)
    released = rng.choice(
        [OUTCOME_CODES["released"], OUTCOME_CODES["gone"], OUTCOME_CODES["unreachable"]], number
    )
    records["outcome"] = codes | np.where(won, released, 0) << 8
    records["votes"] = np.where(won, 3 | 2 << 8, 2 | 2 << 8 | 1 << 24)
    records["attempts"] = rng.integers(1, 9, number) | rng.integers(0, 2, number) << 32
    records["resource"] = rng.integers(0, 10, number)
    records["sequence"] = np.arange(1, number + 1)
    return records


def values_of(counts: OperationCounts) -> dict[tuple[str, str], float]:
    """Numbers, and counts of histograms, by metric and attribute."""
    return {
        (one.instrument.name, " ".join(str(value) for _, value in one.attributes)): getattr(
            one.value, "count", one.value
        )
        for one in counts.points({})
    }


@pytest.mark.parametrize("seed", range(3))
def test_counts_equal_the_fold_of_the_same_operations(seed: int) -> None:
    records = history(3_000, seed)
    facts = scenario_of(9)
    expected = builtins_of(fold(records, Window(0, 1 << 62), facts).values)
    counts = OperationCounts(3)
    for part in np.array_split(records, 7):
        counts.add(part)
        counts.add_votes(part)
    counts.add_handoffs(records, ALL_TIME)
    values = values_of(counts)
    for name, number in expected["totals"].items():
        assert values["redlock.acquire.outcomes", name] == number
        assert values["redlock.acquire.duration", name] == number
    for name, number in expected["releases"].items():
        assert values["redlock.release.duration", name] == number
    for kind in ("granted", "refused", "errored", "silent", "absent", "undecided"):
        assert values["redlock.votes", kind] == expected["votes"][kind]
    assert values["redlock.vote.margin", ""] == sum(expected["votes"]["margin"].values())
    assert values["redlock.split_votes", ""] == expected["split_votes"]["count"]
    assert values["redlock.handoff.duration", ""] == expected["latency_s"]["handoff"]["count"]
    assert values["redlock.hold.duration", ""] == expected["latency_s"]["hold"]["count"]
    assert values["redlock.leases.gone", ""] == expected["releases"]["gone"]
    assert counts.operations == len(records)


def test_a_split_vote_costs_from_the_first_attempt_to_the_one_that_won(records) -> None:
    counts = OperationCounts(3)
    counts.add(
        records(
            {"start": 10, "attempt": 17, "ended": 18, "attempts": 3, "split": 2},
            {"start": 10, "attempt": 90, "ended": 91, "attempts": 3},
        )
    )
    (dead,) = [
        one for one in counts.points({}) if one.instrument.name == "redlock.split_vote.dead_time"
    ]
    assert (dead.value.count, dead.value.sum) == (1, 0.007)


def test_handoffs_are_the_same_look_by_look_as_all_at_once(records) -> None:
    """Holder after holder on one resource, each asking before the last has released."""
    chain = [
        {
            "start": 100 * number,
            "ended": 100 * number + 150,
            "release_sent": 100 * number + 240,
            "release_replied": 100 * number + 241,
        }
        for number in range(100)
    ]
    whole = records(*chain)
    at_once = OperationCounts(3)
    growing = OperationCounts(3)
    seen = 0
    at_once.add_handoffs(whole, ALL_TIME)
    for second in range(1, 16):
        known = whole[seen:][whole["release_replied_ns"][seen:] <= second * S]
        seen += len(known)
        growing.look(known, second * S)
    name = ("redlock.handoff.duration", "")
    assert values_of(at_once)[name] == 99
    assert values_of(growing)[name] == 99


def test_who_asks_and_is_not_releasing_waits(records, report: Any) -> None:
    counts = OperationCounts(3)
    counts.look(
        records({"start": 100, "ended": 200, "release_sent": 300, "release_replied": 800}), S
    )
    notes = [
        report(callers=9, idle=2, holding=3, phase="running"),
        report(callers=9, phase="stopped"),
    ]
    values = {one.instrument.name: one.value for one in counts.points({}, notes, notes)}
    assert values["redlock.leases.held"] == 3
    assert values["redlock.callers.waiting"] == pytest.approx(3.5), "of four half a caller releases"
    assert values["redlock.load.achieved"] == 1
    names = {one.instrument.name for one in counts.points({}, notes, notes[1:])}
    assert not names & {"redlock.leases.held", "redlock.callers.waiting"}, (
        "who works has not spoken lately"
    )
    counts.rest()
    values = {one.instrument.name: one.value for one in counts.points({}, [])}
    assert values["redlock.callers.waiting"] == values["redlock.load.achieved"] == 0


@pytest.mark.parametrize(
    "name, value, attributes",
    [
        ("redlock.acquire.time", 1, {}),
        ("redlock.votes", 1, {"redlock_vote": "perhaps"}),
        ("redlock.votes", 1, {"redlock_vote": "granted", "resource": "r1"}),
        ("redlock.hold.duration", 1, {}),
    ],
)
def test_what_is_not_in_the_table_cannot_be_exported(
    name: str, value: float, attributes: dict[str, str]
) -> None:
    with pytest.raises((KeyError, ValueError)):
        point(name, value, **attributes)


def waiting_in(counts: OperationCounts, notes: list[Any]) -> dict[str, Any]:
    names = ("handoff.turns", "acquire.polls", "acquire.longest", "callers.fairness")
    points = {one.instrument.name: one.value for one in counts.points({}, notes)}
    return {
        f"redlock.{name}": points[f"redlock.{name}"]
        for name in names
        if f"redlock.{name}" in points
    }


def test_waiting_is_that_of_the_result_of_a_whole_run(report: Any) -> None:
    records = history(3_000, 1)
    notes = [report(figures={"wakeups": 2, "polls": 5})]
    records["caller"] = np.arange(3_000) % 7 % 4
    expected = builtins_of(fold(records, Window(0, 1 << 62), scenario_of(4), notes).values)[
        "waiting"
    ]
    counts = OperationCounts(3)
    assert set(waiting_in(counts, notes)) == {"redlock.handoff.turns", "redlock.acquire.polls"}
    for part in np.array_split(records, 7):
        counts.add(part)
    assert waiting_in(counts, notes) == {
        "redlock.handoff.turns": expected["wakeups"],
        "redlock.acquire.polls": expected["polls"],
        "redlock.acquire.longest": expected["longest_s"],
        "redlock.callers.fairness": expected["jain"],
    }
    assert 0.5 < expected["jain"] < 1
