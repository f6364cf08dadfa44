"""What makes a lease tested, and how many it takes: the evidence that SAFE rests on."""

import dataclasses

import numpy as np
import pytest

from bench.measure.history import History
from bench.measure.record import READER
from bench.safety.judge import Circumstances, judge
from tests.bench.safety.conftest import history_of
from tests.doubles.records import granted_earlier

MS = 1_000_000
TTL_MS = 100


def asked_often(records):
    """The history of these records, with an attempt in the middle of each lease that lost."""
    middle = (records["granted_ns"] + records["release_sent_ns"]) // 2
    return History(
        records, torn=0, missing_segments=0, lost=np.stack([records["resource"], middle], axis=1)
    )


TIMES = ("granted", "work_end", "release_sent", "release_replied")
HELD = {
    "caller": 0,
    "outcome": "acquired",
    "release": "released",
    "start": 0,
    "granted": 1,
    "valid_until": 98,
    "work_end": 50,
    "release_sent": 50,
    "release_replied": 51,
}


@pytest.mark.parametrize(
    "asked, tested",
    [
        ({"start": 20, "ended": 30}, 1),
        # sent at the very moment of the grant
        ({"start": 1, "ended": 30}, 0),
        # … of the release
        ({"start": 50, "ended": 60}, 0),
        ({"start": 60, "ended": 70}, 0),
        ({"start": 20, "ended": 30, "resource": 1}, 0),
    ],
)
def test_tested_means_that_an_attempt_was_sent_while_the_lease_was_held(history, asked, tested):
    assert (
        judge(history([HELD, {**asked, "caller": 1, "outcome": "contended"}]), TTL_MS).tested_leases
        == tested
    )


@pytest.mark.parametrize("readers, tested", [([0, 1], 0), ([0], 1), ([1], 1), ([], 1)])
def test_a_reader_does_not_test_a_reader(history, readers, tested):
    made = history([HELD, {"start": 20, "ended": 30, "caller": 1, "outcome": "contended"}])
    made.records["outcome"][readers] |= READER
    assert judge(made, TTL_MS).tested_leases == tested


def test_an_earlier_attempt_of_an_unknown_side_does_not_test_a_reader(history):
    made = dataclasses.replace(history([HELD]), lost=np.array([[0, 40 * MS]]))
    assert judge(made, TTL_MS).tested_leases == 1
    made.records["outcome"] |= READER
    assert judge(made, TTL_MS).tested_leases == 0


def test_who_waits_in_his_own_line_tests_nothing_until_he_sends_something(history):
    """An acquire that spans the whole lease contests it; what tests it is an attempt, be it one
    that lost."""
    waiting = {"caller": 1, "outcome": "contended", "start": 0.5, "ended": 90, "attempt": 70}
    made = history([HELD, waiting])
    report = judge(made, TTL_MS)
    assert (report.contested_leases, report.tested_leases) == (1, 0)
    lost = dataclasses.replace(made, lost=np.array([[0, 40 * MS], [1, 40 * MS]]))
    assert judge(lost, TTL_MS).tested_leases == 1


def test_nothing_is_tested_that_was_not_held_for_a_time(history):
    """The hole: an interval of no length overlaps nothing, so a lock that always says yes looked
    safe."""
    held_0 = {**HELD, "work_end": 1, "release_sent": 1}
    always_yes = [
        {**held_0, "caller": caller, **{name: held_0[name] + shift for name in TIMES}}
        for caller, shift in enumerate(np.arange(0, 40, 0.1))
    ]
    report = judge(history(always_yes), TTL_MS)
    assert report.contested_leases > 100
    assert (report.verdict, report.tested_leases, report.upper_bound_95) == ("NOT TESTED", 0, None)
    assert report.reason == "no caller held its lease for any time; set --hold"


def test_a_lock_that_invents_attempts_has_not_asked_its_servers(legal):
    """Each lease and each attempt that lost is a command at least; each release that found its lock
    is one more."""
    records = legal(10_000, 10)
    for commands, verdict in ((19_999, "NOT TESTED"), (20_000, "SAFE"), (None, "SAFE")):
        report = judge(asked_often(records), TTL_MS, Circumstances(commands=commands))
        assert (report.verdict, report.tested_leases > 0) == (verdict, verdict == "SAFE"), commands
    # of which the history has only some
    share = Circumstances(commands=20_000, leases=20_001)
    assert judge(asked_often(records), TTL_MS, share).verdict == "NOT TESTED"
    for commands, verdict in ((29_999, "NOT TESTED"), (30_000, "SAFE")):
        asked = Circumstances(commands=commands, releases_ask=True)
        assert judge(asked_often(records), TTL_MS, asked).verdict == verdict, commands
    granted_earlier(records, 110, records["release_sent_ns"][100] - 1)
    assert judge(asked_often(records), TTL_MS, Circumstances(commands=0)).verdict == "VIOLATED"


@pytest.mark.parametrize("tested, bound", [(99, None), (100, 0.03), (300, 0.01)])
def test_the_bound_is_three_over_n_from_a_hundred_tested_leases_on(history, tested, bound):
    pairs = []
    for number in range(tested):
        at = 1000 * number
        pairs += [
            {
                "caller": 0,
                "outcome": "acquired",
                "release": "released",
                "start": at,
                "granted": at + 1,
                "valid_until": at + 98,
                "work_end": at + 50,
                "release_sent": at + 50,
                "release_replied": at + 51,
            },
            {"caller": 1, "outcome": "contended", "start": at + 10, "ended": at + 11},
        ]
    report = judge(history(pairs), TTL_MS)
    assert (report.tested_leases, report.upper_bound_95) == (tested, bound)
    assert (report.verdict, report.reason is None) == (
        ("NOT TESTED", False) if bound is None else ("SAFE", True)
    )


def three_times_held(starts):
    """A lease per start, held for 30 ms, with an attempt of a fourth caller 5 ms after each."""
    rows = []
    for number, at in enumerate(starts):
        times = {"start": at, "granted": at + 1, "valid_until": at + 98, "work_end": at + 31}
        freed = {"release_sent": at + 31, "release_replied": at + 32}
        rows.append({**HELD, **times, **freed, "caller": number % 3})
        rows.append({"caller": 3, "outcome": "contended", "start": at + 5, "ended": at + 6})
    return rows


@pytest.mark.parametrize("capacity, tested", [(1, 400), (2, 400), (3, 0), (8, 0)])
def test_an_attempt_tests_a_lease_only_when_every_place_is_taken(history, capacity, tested):
    """The hole: a semaphore of eight looked safe although never more than two held it."""
    starts = [at for pair in range(200) for at in (1000 * pair, 1000 * pair + 10)]
    late = [
        {"caller": 3, "outcome": "contended", "start": 1000 * pair + 20, "ended": 1000 * pair + 21}
        for pair in range(200)
    ]
    made = history([*three_times_held(starts), *late])
    report = judge(made, TTL_MS, Circumstances(capacity=capacity))
    assert report.tested_leases == tested
    if capacity > 2:
        assert report.verdict == "NOT TESTED"
        assert report.reason.startswith("only 0 of 400 held leases were tested")
        assert f"if all {capacity} places are taken and another" in report.reason


def test_three_leases_at_once_are_tested_by_an_attempt_between_them(history):
    made = history(three_times_held([0, 1, 2]))
    assert judge(made, TTL_MS, Circumstances(capacity=3)).tested_leases == 3
    # Each attempt is sent before the third grant, or after the first release.
    made = history(three_times_held([0, 26, 27]))
    assert judge(made, TTL_MS, Circumstances(capacity=3)).tested_leases == 0


def test_with_several_places_tested_leases_are_counted_as_one_by_one():
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(300):
        count = 12
        rows = []
        for number in range(count):
            start = float(rng.integers(0, 60))
            end = start + 1 + float(rng.integers(0, 30))
            times = {"start": start, "granted": start + 1, "valid_until": start + 98}
            freed = {"work_end": end, "release_sent": end, "release_replied": end + 1}
            rows.append({**HELD, **times, **freed, "resource": number % 2, "caller": number})
        made = history_of(rows)
        held = [(row["resource"], row["granted"], row["release_sent"]) for row in rows]
        asked = [(row["resource"], row["start"]) for row in rows]
        for capacity in (1, 2, 3):
            expected = 0
            for lease in held:
                sent = [
                    at
                    for resource, at in asked
                    if resource == lease[0] and lease[1] < at < lease[2]
                ]
                expected += any(
                    sum(other[0] == lease[0] and other[1] < at < other[2] for other in held)
                    >= capacity
                    for at in sent
                )
            report = judge(made, TTL_MS, Circumstances(capacity=capacity))
            assert report.tested_leases == expected
            found += capacity > 1 and expected
    assert found > 300
