"""The oracle finds what is illegal, accepts what is legal, and does not claim what it cannot
know."""

import dataclasses

import numpy as np
import pytest

from bench.measure.history import History
from bench.measure.record import LATE_VOTES, OUTCOME_CODES, READER, RECORD_DTYPE, records_of
from bench.safety import judge as judge_module
from bench.safety.judge import Circumstances, Judge, judge
from bench.safety.rules import trace_end_ns
from tests.doubles.records import granted_earlier

MS = 1_000_000
TTL_MS = 100
COUNTS = (
    "service_faults",
    "client_overstays",
    "granted_invalid",
    "foreign_deletes",
    "spurious_refusals",
)


def counts_of(report):
    return {name: getattr(report, name) for name in COUNTS}


def complete(records):
    return History(records, torn=0, missing_segments=0, lost=first_attempts(records))


def first_attempts(records):
    """Each acquire's own first attempt, sent at its start, which lost."""
    return np.stack([records["resource"], records["start_ns"]], axis=1)


def test_every_history_file_gets_its_verdict(told):
    document, history = told
    report = judge(history, document["ttl_ms"])
    assert {"verdict": report.verdict, **counts_of(report)} == document["expected"], document[
        "claim"
    ]


def test_each_finding_names_the_operations_involved(told):
    document, history = told
    report = judge(history, document["ttl_ms"])
    assert len(report.examples) == sum(counts_of(report).values())
    for example in report.examples:
        alone = example["kind"] in ("granted_invalid", "spurious_refusal")
        assert len(example["operations"]) == (1 if alone else 2)
        assert len({operation["sequence"] for operation in example["operations"]}) == len(
            example["operations"]
        )
        assert len({operation["resource"] for operation in example["operations"]}) == 1


def test_a_large_legal_history_is_safe_with_its_bound(legal):
    report = judge(complete(legal(100_000, 50)), TTL_MS)
    assert (report.verdict, report.reason) == ("SAFE", None)
    assert counts_of(report) == dict.fromkeys(COUNTS, 0)
    assert report.contested_leases >= report.tested_leases > 20_000
    assert report.upper_bound_95 == 3 / report.tested_leases


# ---------------------------------------------------------------- negative controls: one planted
# fault per rule


def plant_service_fault(records, row, following):
    granted_earlier(records, following, records["release_sent_ns"][row] - 1)
    return "service_faults"


def plant_overstay(records, row, following):
    records["valid_until_ns"][row] = records["granted_ns"][row] + 1
    records["work_end_ns"][row] = records["granted_ns"][following] + 1
    records["release_sent_ns"][row] = records["release_replied_ns"][row] = (
        records["granted_ns"][following] + 2
    )
    records["outcome"][row] = OUTCOME_CODES["acquired"] | OUTCOME_CODES["gone"] << 8
    return "client_overstays"


def plant_late_grant(records, row, _following):
    records["valid_until_ns"][row] = records["granted_ns"][row]
    return "granted_invalid"


def plant_foreign_delete(records, row, following):
    records["valid_until_ns"][row] = records["release_sent_ns"][row]
    records["release_sent_ns"][row] = records["granted_ns"][following]
    records["release_replied_ns"][row] = records["release_sent_ns"][following]
    return "foreign_deletes"


def plant_spurious_refusal(records, row, _following):
    records[row] = 0
    records["outcome"][row] = OUTCOME_CODES["contended"]
    records["resource"][row] = 1_000_000
    records["start_ns"][row] = records["ended_ns"][row] = 10**15
    return "spurious_refusals"


PLANTS = [
    plant_service_fault,
    plant_overstay,
    plant_late_grant,
    plant_foreign_delete,
    plant_spurious_refusal,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("seed", range(5))
def test_one_planted_fault_among_a_hundred_thousand_operations_is_found(legal, plant, seed):
    resources = 50
    records = legal(100_000, resources, seed)
    row = int(np.random.default_rng(seed).integers(0, len(records) - resources))
    rule = plant(records, row, row + resources)
    assert counts_of(judge(complete(records), TTL_MS)) == {**dict.fromkeys(COUNTS, 0), rule: 1}


def test_an_oracle_blind_on_one_resource_would_be_noticed(legal):
    records = legal(20_000, 100)
    for resource in range(100):
        plant_service_fault(records, resource, resource + 100)
    report = judge(complete(records), TTL_MS)
    assert (report.service_faults, len(report.examples)) == (100, 5), (
        "so many of a kind are told one by one"
    )
    parts = Judge(TTL_MS)
    for resource in reversed(range(100)):
        parts.add(History(records[records["resource"] == resource], 0, 0))
    times = [one.at_ns for one in report.examples]
    assert [one.at_ns for one in parts.report().examples] == times == sorted(times), (
        "the earliest, however they come"
    )


# ---------------------------------------------------------------- a reference without cleverness


def reference(records):
    """The same rules, each operation against each other."""
    leases = [
        row
        for row in records
        if row["outcome"] & 255 == 1 and row["granted_ns"] < row["valid_until_ns"]
    ]
    leases.sort(key=lambda row: (row["resource"], row["granted_ns"], end_of(row)))
    return {
        "service_faults": sum(
            any(
                earlier["resource"] == later["resource"]
                and conflict(earlier, later)
                and later["granted_ns"] < end_of(earlier)
                for earlier in leases[:position]
            )
            for position, later in enumerate(leases)
        ),
        "client_overstays": sum(
            any(overstayed(lease, other) for other in leases) for lease in leases
        ),
        "granted_invalid": sum(
            r["outcome"] & 255 == 1 and r["granted_ns"] >= r["valid_until_ns"] for r in records
        ),
        "foreign_deletes": sum(
            deleted_foreign(leases, position) for position in range(len(leases))
        ),
        "spurious_refusals": sum(
            row["outcome"] & 255 == 2
            and not any(may_hold(other, row) for other in records if other is not row)
            for row in records
        ),
    }


def conflict(one, other):
    """Whether the two may not hold a resource together: one of them is a writer."""
    return not (one["outcome"] & other["outcome"] & READER)


def release_of(lease):
    return lease["outcome"] >> 8 & 255


def end_of(lease):
    return min(lease["valid_until_ns"], lease["release_sent_ns"] or lease["valid_until_ns"])


def overstayed(lease, other):
    worked = min(lease["work_end_ns"], lease["release_sent_ns"] or lease["work_end_ns"])
    return (
        other["resource"] == lease["resource"]
        and conflict(lease, other)
        and lease["valid_until_ns"] <= other["granted_ns"] < worked
    )


def deleted_foreign(leases, position):
    lease = leases[position]
    later = [other for other in leases[position + 1 :] if other["resource"] == lease["resource"]]
    if release_of(lease) != OUTCOME_CODES["released"] or not lease["release_sent_ns"]:
        return False
    granted = [other for other in later if other["granted_ns"] <= lease["release_sent_ns"]][-1:]
    if any(
        lease["valid_until_ns"] <= other["granted_ns"] and conflict(lease, other)
        for other in granted
    ) and (end_of(granted[0]) >= lease["release_replied_ns"] > 0):
        return True
    victim = later[0] if later else None
    return bool(
        victim is not None
        and conflict(lease, victim)
        and victim["granted_ns"] >= lease["valid_until_ns"]
        and release_of(victim) == OUTCOME_CODES["gone"]
        and 0 < victim["release_replied_ns"] < victim["valid_until_ns"]
        and lease["release_replied_ns"] > lease["valid_until_ns"]
        and lease["release_sent_ns"] <= victim["release_sent_ns"]
    )


def may_hold(other, refused):
    over = max(other["ended_ns"], other["release_replied_ns"])
    acquired = other["outcome"] & 255 == 1
    released = release_of(other) == OUTCOME_CODES["released"]
    if acquired and not released:
        over = max(over, other["valid_until_ns"])
    sure = released or (not acquired and other["attempts"] <= 1 and not other["votes"] >> 24 & 255)
    traces = over + 50 * MS + (0 if sure else TTL_MS * MS)
    return (
        other["resource"] == refused["resource"]
        and other["start_ns"] <= refused["ended_ns"]
        and traces >= refused["start_ns"]
    )


def random_history(rng):
    count = int(rng.integers(1, 9))
    records = records_of(np.zeros(count, RECORD_DTYPE))
    records["resource"] = rng.integers(0, 2, count)
    records["start_ns"] = rng.integers(1, 30, count)
    records["granted_ns"] = records["ended_ns"] = records["start_ns"] + rng.integers(0, 8, count)
    records["valid_until_ns"] = records["granted_ns"] + rng.integers(-1, 12, count)
    records["work_end_ns"] = records["granted_ns"] + rng.integers(0, 20, count)
    has_release = rng.random(count) < 0.8
    records["release_sent_ns"] = np.where(
        has_release, records["granted_ns"] + rng.integers(0, 20, count), 0
    )
    records["release_replied_ns"] = np.where(
        has_release, records["release_sent_ns"] + rng.integers(0, 6, count), 0
    )
    records["outcome"] = np.where(has_release, rng.choice([7, 8, 4], count) << 8, 0) | 1
    failed = rng.random(count) < 0.2
    for name in (
        "granted_ns",
        "valid_until_ns",
        "work_end_ns",
        "release_sent_ns",
        "release_replied_ns",
    ):
        records[name][failed] = 0
    records["outcome"][failed] = rng.choice([2, 3, 4], int(failed.sum()))
    records["attempts"] = rng.integers(1, 3, count)
    records["votes"] = rng.integers(0, 2, count) << 24
    # some refusals long after everything: only those can be spurious
    late = rng.random(count) < 0.5
    shift = int(rng.integers(100, 400)) * MS
    for name in ("start_ns", "ended_ns"):
        records[name][failed & late] += shift
    records["sequence"] = np.arange(count) + 1
    return records


@pytest.mark.parametrize("histories", [800, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("readers", [0.0, 0.5])
def test_random_histories_are_judged_as_by_the_reference(histories, readers):
    """Without readers the reference is that of a mutex."""
    rng = np.random.default_rng(7)
    seen = dict.fromkeys(COUNTS, 0)
    for number in range(histories):
        records = random_history(rng)
        records["outcome"][rng.random(len(records)) < readers] |= READER
        expected = reference(list(records))
        assert counts_of(judge(complete(records), TTL_MS)) == expected, (
            f"history {number}: {records}"
        )
        seen = {name: seen[name] + expected[name] for name in COUNTS}
    assert min(seen.values()) > 20, f"the rng must show every rule often: {seen}"


# ---------------------------------------------------------------- readers and a writer


def readers_together(legal):
    """A history in which each two readers of a resource that follow each other overlap."""
    records = legal(10_000, 50)
    records["outcome"] |= READER
    for row in range(0, 9_900, 200):
        plant_service_fault(records, row, row + 50)
    return records


def test_readers_may_hold_a_resource_together(legal):
    assert counts_of(judge(complete(readers_together(legal)), TTL_MS)) == dict.fromkeys(COUNTS, 0)


@pytest.mark.parametrize("writers", [[400], [450], [400, 450]])
def test_a_reader_beside_a_writer_is_found_whoever_came_first(legal, writers):
    records = readers_together(legal)
    records["outcome"][writers] &= ~READER
    report = judge(complete(records), TTL_MS)
    assert counts_of(report) == {**dict.fromkeys(COUNTS, 0), "service_faults": 1}
    (example,) = report.examples
    assert [operation["sequence"] for operation in example["operations"]] == [401, 451]
    assert [operation["reader"] for operation in example["operations"]] == [
        row not in writers for row in (400, 450)
    ]


def test_a_writer_behind_a_later_reader_is_found(history):
    """A long reader hides no writer, and a long writer is not hidden by a shorter reader."""
    lease = {"outcome": "acquired", "release": "released", "valid_until": 98, "start": 0}
    times = [(1, 90), (2, 50), (3, 10), (40, 60)]
    made = history(
        [
            {
                **lease,
                "caller": caller,
                "granted": granted,
                "work_end": end,
                "release_sent": end,
                "release_replied": end + 1,
            }
            for caller, (granted, end) in enumerate(times)
        ]
    )
    made.records["outcome"][[0, 2, 3]] |= READER
    report = judge(made, TTL_MS)
    assert report.service_faults == 3
    assert {
        tuple(one["sequence"] for one in example["operations"]) for example in report.examples
    } == {(1, 2), (2, 3), (2, 4)}


# ---------------------------------------------------------------- contention and its bound


def valid(lease):
    return lease["granted_ns"] < lease["valid_until_ns"]


def grants_beside(records, least):
    """The leases that were granted while at least so many others of the resource were valid."""
    leases = [
        one
        for one in records
        if one["granted_ns"] and valid(one) and end_of(one) >= one["granted_ns"]
    ]
    order = sorted(leases, key=lambda one: (one["granted_ns"], end_of(one)))
    return [
        lease
        for number, lease in enumerate(order)
        if sum(
            other["resource"] == lease["resource"] and end_of(other) > lease["granted_ns"]
            for other in order[:number]
        )
        >= least
    ]


def overstays_of(records, capacity):
    """The leases whose client worked on when the last place was taken, one by one."""
    filling = grants_beside(records, capacity - 1)
    leases = [one for one in records if one["granted_ns"] and valid(one)]
    return sum(any(overstayed(lease, other) for other in filling) for lease in leases)


@pytest.mark.parametrize("capacity", [2, 3])
def test_more_holders_than_may_be_are_counted_as_one_by_one(capacity):
    rng = np.random.default_rng(capacity)
    faults = overstays = 0
    for _ in range(800):
        records = random_history(rng)
        report = judge(complete(records), TTL_MS, Circumstances(capacity=capacity))
        expected = len(grants_beside(list(records), capacity))
        assert report.service_faults == expected, records
        faults += expected
        late = overstays_of(list(records), capacity)
        assert report.client_overstays == late, records
        overstays += late
        assert not report.foreign_deletes
    assert faults
    assert overstays


def test_a_late_client_overstays_a_semaphore_only_when_every_place_is_taken(history):
    late = {
        "caller": 0,
        "outcome": "acquired",
        "release": "gone",
        "start": 0,
        "granted": 1,
        "valid_until": 10,
        "work_end": 90,
        "release_sent": 90,
        "release_replied": 91,
    }
    second, third = (
        late | {"caller": n, "start": 20 + n, "granted": 30 + n, "valid_until": 99} for n in (1, 2)
    )
    for holders, expected in (([second], 0), ([second, third], 1)):
        report = judge(history([late, *holders]), TTL_MS, Circumstances(capacity=2))
        assert (report.client_overstays, report.service_faults) == (expected, 0)


def test_contested_means_that_another_asked_while_the_lease_was_valid(history):
    holder = {
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
    asked = {"caller": 1, "outcome": "contended"}
    for start, ended, contested in (
        (20, 30, 1),
        (0, 200, 1),
        (49, 60, 1),
        (0, 0.5, 0),
        (60, 70, 0),
    ):
        report = judge(history([holder, {**asked, "start": start, "ended": ended}]), TTL_MS)
        assert report.contested_leases == contested, (start, ended)
    elsewhere = {**asked, "start": 20, "ended": 30, "resource": 1}
    assert judge(history([holder, elsewhere]), TTL_MS).contested_leases == 0


# ---------------------------------------------------------------- what cannot be known


@pytest.mark.parametrize(
    "circumstances, torn, missing_segments, reason",
    [
        (Circumstances(), 1, 0, "1 damaged records"),
        (Circumstances(), 0, 2, "2 missing files"),
        (
            Circumstances(clock=((0, 5), (10**9, 5 + 50 * MS))),
            0,
            0,
            "the wall clock stepped by 50.0 ms",
        ),
        (
            Circumstances(clock=((0, 5), (10**9, 5 - 50 * MS))),
            0,
            0,
            "the wall clock stepped by 50.0 ms",
        ),
        (Circumstances(missing=("worker 1 was killed",)), 0, 0, "worker 1 was killed"),
    ],
)
def test_a_legal_history_is_unknown_when_something_is_missing(
    legal, circumstances, torn, missing_segments, reason
):
    whole = complete(legal(10_000, 10))
    report = judge(
        dataclasses.replace(whole, torn=torn, missing_segments=missing_segments),
        TTL_MS,
        circumstances,
    )
    assert report.verdict == "UNKNOWN"
    assert reason in report.reason
    assert report.upper_bound_95 is None


def test_slewing_of_the_clock_is_no_step(legal):
    slewed = tuple((second * 10**9, second * 500_000) for second in range(20))
    assert judge(complete(legal(10_000, 10)), TTL_MS, Circumstances(clock=slewed)).verdict == "SAFE"


def test_an_empty_history_is_unknown():
    report = judge(complete(records_of([])), TTL_MS)
    assert (report.verdict, report.reason) == ("UNKNOWN", "no operation was recorded")


def test_a_checker_that_fails_says_unknown(legal, monkeypatch):
    monkeypatch.setattr(judge_module.rules, "contested", lambda *_: 1 // 0)
    report = judge(complete(legal(10_000, 10)), TTL_MS)
    assert report.verdict == "UNKNOWN"
    assert report.reason.startswith("the checker failed: ZeroDivisionError")


def test_what_was_seen_stays_seen_in_an_incomplete_history(legal):
    records = legal(10_000, 10)
    plant_service_fault(records, 100, 110)
    report = judge(History(records, torn=1, missing_segments=0), TTL_MS)
    assert report.verdict == "VIOLATED"
    said = (
        "1 × service fault; besides, the history is incomplete: 1 damaged records, 0 missing "
        "files; "
    )
    assert str(report.reason).startswith(said)


# ---------------------------------------------------------------- blame


@pytest.mark.parametrize(
    "circumstances, cause, unexplained",
    [
        (Circumstances(), "unexplained", 1),
        (Circumstances(unsafe_recipe="deletes blindly"), "unsafe recipe", 0),
        (Circumstances(fault_spans_ns=((10 * MS, 15 * MS),)), "injected fault", 0),
        (Circumstances(fault_spans_ns=((21 * MS, 30 * MS),)), "unexplained", 1),
        (Circumstances(fault_spans_ns=((-200 * MS, -90 * MS),)), "unexplained", 1),
        (Circumstances(fault_spans_ns=((-200 * MS, -70 * MS),)), "injected fault", 0),
    ],
)
def test_a_violation_is_blamed_on_what_could_have_caused_it(
    history, circumstances, cause, unexplained
):
    lease = {
        "outcome": "acquired",
        "release": "released",
        "valid_until": 98,
        "work_end": 50,
        "release_sent": 50,
    }
    both = history(
        [
            {**lease, "caller": 0, "start": 0, "granted": 1},
            {**lease, "caller": 1, "start": 2, "granted": 20},
        ]
    )
    report = judge(both, TTL_MS, circumstances)
    assert (report.verdict, report.unexplained) == ("VIOLATED", unexplained)
    assert [example["blame"] for example in report.examples] == [cause]


def test_overstays_and_spurious_refusals_are_not_blamed(told):
    document, history = told
    report = judge(history, document["ttl_ms"])
    assert (
        report.unexplained
        == report.service_faults + report.granted_invalid + report.foreign_deletes
    )


# ---------------------------------------------------------------- parts, size, form


def test_parts_by_resource_are_judged_as_the_whole(legal):
    records = legal(20_000, 100)
    for resource in range(0, 100, 3):
        plant_service_fault(records, resource, resource + 100)
    whole = judge(complete(records), TTL_MS)
    oracle = Judge(TTL_MS)
    lost = first_attempts(records)
    for part in range(7):
        oracle.add(
            History(records[records["resource"] % 7 == part], 0, 0, lost[lost[:, 0] % 7 == part])
        )
    assert oracle.report().tested_leases == whole.tested_leases > 1_000
    assert {**counts_of(oracle.report()), "contested": oracle.report().contested_leases} == {
        **counts_of(whole),
        "contested": whole.contested_leases,
    }


def test_a_denied_acquire_whose_vote_came_late_may_have_kept_its_key_for_a_whole_ttl():
    """Such a vote is in its record, once it is patched, and so is that it came late: nobody knows
    when the key went."""
    records = records_of(np.zeros(3, RECORD_DTYPE))
    records["ended_ns"] = 10 * MS
    records["attempts"] = 1
    records["outcome"] = OUTCOME_CODES["contended"]
    # in time, late, still out
    records["votes"] = [1 | 2 << 8, 1 | 2 << 8 | LATE_VOTES, 2 << 8 | 1 << 40]
    early, *lasting = (trace_end_ns(records, TTL_MS) // MS).tolist()
    assert lasting == [early + TTL_MS] * 2
