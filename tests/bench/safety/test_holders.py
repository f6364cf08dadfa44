"""Which leases are kept for the picture: those that matter, as the oracle believes them, and not
too many."""

import numpy as np

from bench.measure.facts import Window
from bench.measure.history import History
from bench.measure.section import builtins_of
from bench.safety.holders import MOST_LEASES, MOST_RESOURCES, Holders
from bench.safety.judge import Judge

MS = 1_000_000
WINDOW = Window(1_000 * MS, 2_000 * MS)


def lease(granted, released, caller=1, resource=0, until=None):
    return {
        "caller": caller,
        "resource": resource,
        "outcome": "acquired",
        "release": "released",
        "start": granted - 1,
        "granted": granted,
        "valid_until": until or granted + 500,
        "work_end": released,
        "release_sent": released,
        "release_replied": released + 1,
    }


def section_of(history, *operations, violated=()):
    holders = Holders(WINDOW)
    holders.add(history(list(operations)).records, violated)
    return builtins_of(holders.section())


def test_a_lease_lasts_from_its_grant_to_its_release(history):
    (entry,) = section_of(history, lease(1_100, 1_150, caller=7))
    assert entry["rows"] == [[100_000, 150_000, 600_000, 150_000, 7, 0]]
    assert entry["spans_us"] == [[100_000, 150_000]]


def test_a_lease_ends_with_its_validity_when_the_release_comes_later(history):
    (entry,) = section_of(history, lease(1_100, 1_400, until=1_250))
    assert entry["rows"][0][:4] == [100_000, 250_000, 250_000, 400_000]


def test_two_valid_at_once_are_marked(history):
    (entry,) = section_of(
        history, lease(1_100, 1_200), lease(1_150, 1_190, caller=2), lease(1_300, 1_310)
    )
    assert [row[-1] for row in entry["rows"]] == [1, 1, 0]


def test_with_several_places_only_a_lease_too_many_is_marked(history):
    leases = [lease(1_100, 1_200), lease(1_110, 1_210), lease(1_120, 1_130), lease(1_140, 1_150)]
    for capacity, marks in ((1, [1, 1, 1, 1]), (2, [0, 1, 1, 1]), (3, [0, 0, 0, 0])):
        holders = Holders(WINDOW, capacity=capacity)
        holders.add(history(leases).records)
        (entry,) = holders.section()
        assert [row[-1] for row in entry.rows] == marks


def test_a_violated_resource_comes_before_hotter_ones(history):
    quiet = [lease(1_100, 1_200, resource=99), lease(1_150, 1_190, caller=2, resource=99)]
    hot = [
        lease(1_000 + 10 * n, 1_005 + 10 * n, resource=r)
        for r in range(MOST_RESOURCES + 3)
        for n in range(9 - r)
    ]
    records = history([*quiet, *hot]).records
    oracle = Judge(500)
    oracle.add(History(records, 0, 0))
    holders = Holders(WINDOW)
    holders.add(records, oracle.violated_resources)
    entries = holders.section()
    assert [entry["resource"] for entry in entries] == [99, 0, 1, 2, 3, 4]


def test_of_a_long_run_the_surroundings_of_the_violations_are_kept(legal):
    records = legal(20_000, 2)
    window = Window(int(records["granted_ns"].min()), int(records["granted_ns"].max()))
    at = 12_000
    # inside the lease before
    records["granted_ns"][at + 2] = records["granted_ns"][at] + 1_000
    records["start_ns"][at + 2] = records["attempt_ns"][at + 2] = records["granted_ns"][at] - 10
    holders = Holders(window)
    holders.add(records, {int(records["resource"][at])})
    entries = holders.section()
    assert sum(len(entry["rows"]) for entry in entries) <= MOST_LEASES
    first = entries[0]
    assert sum(row[-1] for row in first["rows"]) == 2
    assert first["leases"] == 10_000
    (span,) = first["spans_us"]
    assert all(span[0] <= row[0] <= span[1] for row in first["rows"])


def test_without_any_lease_there_is_nothing_to_show(history):
    refused = {"caller": 1, "outcome": "contended", "start": 1_100, "ended": 1_101}
    assert section_of(history, refused) == []
    assert section_of(history, refused, violated={0}) == [
        {"resource": 0, "leases": 0, "spans_us": [], "rows": []}
    ]


def test_parts_may_come_one_by_one(legal):
    records = legal(3_000, 12)
    whole = Holders(WINDOW)
    parts = Holders(WINDOW)
    whole.add(records)
    for resource in np.unique(records["resource"]):
        parts.add(records[records["resource"] == resource])
    assert sorted(map(str, whole.section())) == sorted(map(str, parts.section()))


def test_the_resource_that_was_violated_first_comes_first(history):
    early = [lease(1_100, 1_200, resource=5), lease(1_150, 1_190, caller=2, resource=5)]
    late = [lease(1_300 + 20 * n, 1_330 + 20 * n, caller=n % 2, resource=1) for n in range(9)]
    entries = section_of(history, *late, *early, violated={1, 5})
    assert [entry["resource"] for entry in entries] == [5, 1]


def test_without_violations_a_long_run_keeps_what_was_around_its_first_fault_or_its_slowest_acquire(
    legal,
):
    records = legal(20_000, 2)
    window = Window(int(records["granted_ns"].min()), int(records["granted_ns"].max()))
    records["intended_ns"] = records["start_ns"]
    slow = 15_000
    fault_ns = int(records["granted_ns"][4_000])
    records["intended_ns"][slow] -= 50 * MS
    for faults, at_ns in (
        ((), int(records["intended_ns"][slow])),
        ([fault_ns + 9 * MS, fault_ns], fault_ns),
    ):
        holders = Holders(window, faults)
        holders.add(records)
        for entry in holders.section():
            (span,) = entry.spans_us
            assert span[0] <= (at_ns - window.start_ns) // 1_000 <= span[1]
