"""The live verdict: what the oracle finds at the end is seen while it happens, and nothing that is
not there."""

import numpy as np
import pytest

from bench.measure.history import History
from bench.measure.record import READER
from bench.safety import rules
from bench.safety.judge import FEWEST_RESOURCES, MOST_FRESH, MOST_KEPT, LiveJudge, judge
from tests.doubles.records import granted_earlier

TTL_MS = 100
NOTHING = {"service_fault": 0, "foreign_delete": 0, "granted_invalid": 0, "client_overstay": 0}
LIVE = ("service_fault", "foreign_delete", "granted_invalid", "client_overstay")


def looks_of(records, every_ns=50_000_000):
    """The records as they would come, in the order in which they were written, a look every
    `every_ns`."""
    ended = np.maximum(records["ended_ns"], records["release_replied_ns"])
    look = ended // every_ns
    for number in np.unique(look):
        yield records[look == number]


def seen_live(records, ttl_ms=TTL_MS, **how):
    oracle = LiveJudge(ttl_ms)
    for look in looks_of(records, **how):
        oracle.add(look)
    return oracle.verdict


def test_every_history_file_is_seen_live_as_at_the_end(told):
    document, history = told
    expected = {
        kind: document["expected"][f"{kind}s" if kind != "granted_invalid" else kind]
        for kind in LIVE
    }
    verdict = seen_live(history.records, document["ttl_ms"], every_ns=1_000_000)
    assert {kind: verdict.counts.get(kind, 0) for kind in LIVE} == expected, document["claim"]
    assert verdict.verdict == (
        "VIOLATED" if document["expected"]["verdict"] == "VIOLATED" else None
    )


def test_a_legal_history_gives_no_alarm_however_it_is_cut(legal):
    records = legal(8_000, 50)
    for every_ns in (2_000_000, 50_000_000, 10**12):
        verdict = seen_live(records, every_ns=every_ns)
        assert (dict(verdict.counts), verdict.leases, verdict.verdict) == (NOTHING, 8_000, None)


def test_two_leases_at_once_are_seen_at_the_next_look_even_if_they_end_in_different_ones(history):
    one = {
        "caller": 1,
        "outcome": "acquired",
        "release": "released",
        "start": 0,
        "granted": 1,
        "valid_until": 98,
    }
    first = one | {"work_end": 10, "release_sent": 10, "release_replied": 11}
    second = one | {
        "caller": 2,
        "granted": 5,
        "work_end": 90,
        "release_sent": 90,
        "release_replied": 91,
    }
    records = history([first, second]).records
    oracle = LiveJudge(TTL_MS)
    assert oracle.add(records[:1]).verdict is None
    assert oracle.add(records[:0]).verdict is None
    found = oracle.add(records[1:])
    assert (found.verdict, found.violations) == ("VIOLATED", {"service_fault": 1})
    assert oracle.add(records[:0]).violations == {"service_fault": 1}, (
        "what was seen stays seen, once"
    )


def test_random_histories_are_counted_as_at_the_end(legal):
    records = legal(20_000, 20)
    rng = np.random.default_rng(3)
    for row in rng.choice(len(records) - 20, 40, replace=False):
        granted_earlier(records, row + 20, records["release_sent_ns"][row] - 1)
    report = judge(History(records, 0, 0), TTL_MS)
    assert seen_live(records).counts["service_fault"] == report.service_faults >= 35


def test_a_writer_beside_a_reader_is_seen_and_readers_together_are_not(legal):
    records = legal(1000, 10)
    records["outcome"] |= READER
    granted_earlier(records, 20, records["release_sent_ns"][10] - 1)
    assert seen_live(records).verdict is None
    records["outcome"][20] &= ~READER
    assert seen_live(records).violations == {"service_fault": 1}


def test_a_blind_rule_would_be_noticed(legal, monkeypatch):
    """The negative control: with the rule blinded the planted fault is not seen, so it is the rule
    that sees it."""
    records = legal(1000, 10)
    granted_earlier(records, 20, records["release_sent_ns"][10] - 1)
    assert seen_live(records).violations == {"service_fault": 1}
    none = np.empty(0, np.int64)
    monkeypatch.setattr(rules, "service_faults", lambda _leases, _capacity: (none, none))
    assert seen_live(records).verdict is None


@pytest.mark.parametrize(("capacity", "violations"), [(1, 2), (2, 1), (3, 0)])
def test_more_holders_than_may_be_are_seen_across_looks(history, capacity, violations):
    lease = {"outcome": "acquired", "release": "released", "start": 0, "valid_until": 98}
    ended = [
        lease
        | {"caller": at, "granted": at, "work_end": end, "release_sent": end}
        | {"release_replied": end + 1}
        for at, end in ((1, 30), (2, 50), (3, 70))
    ]
    oracle = LiveJudge(TTL_MS, capacity)
    for number in range(3):
        oracle.add(history(ended).records[number : number + 1])
    assert oracle.verdict.counts["service_fault"] == violations
    assert not oracle.verdict.counts.get("client_overstay")


def test_only_so_much_is_kept(legal):
    oracle = LiveJudge(10_000_000)
    oracle.add(legal(3 * MOST_KEPT, 50))
    assert len(oracle._kept) == MOST_KEPT


@pytest.mark.parametrize(
    ("resources", "every"), [(1, 1), (FEWEST_RESOURCES, 1), (4 * FEWEST_RESOURCES, 4), (10_000, 4)]
)
def test_of_many_leases_those_of_some_resources_are_judged_whole(legal, resources, every):
    records = legal(8 * MOST_FRESH, resources)
    oracle = LiveJudge(TTL_MS)
    for part in np.array_split(np.arange(len(records)), 2):
        oracle.add(records[part][: 4 * MOST_FRESH])
    assert oracle._every == every
    judged = records["resource"] % every == 0
    assert oracle.verdict.leases == np.count_nonzero(judged)
    assert oracle.verdict.verdict is None
    for resource in (0, 1) if every > 1 else (0,):
        broken = records[: 4 * MOST_FRESH].copy()
        live = LiveJudge(TTL_MS)
        first, second = np.flatnonzero(broken["resource"] == resource)[:2]
        broken["granted_ns"][second] = broken["release_sent_ns"][first] - 1
        assert bool(live.add(broken).violations) == (resource == 0)


def test_where_no_lease_is_of_a_second_resource_all_are_judged(legal):
    records = legal(2 * MOST_FRESH, 500)
    records["resource"] = records["resource"] * 2 + 1
    assert LiveJudge(TTL_MS).add(records).leases == 2 * MOST_FRESH


def test_a_checker_that_fails_is_unknown_and_what_it_saw_stays(history, monkeypatch):
    oracle = LiveJudge(TTL_MS)
    bad = {"caller": 1, "outcome": "acquired", "start": 0, "granted": 5, "valid_until": 5}
    assert oracle.add(history([bad]).records).violations == {"granted_invalid": 1}
    monkeypatch.setattr(rules, "order_leases", lambda *_: 1 / 0)
    clean = LiveJudge(TTL_MS)
    assert clean.add(history([bad]).records).verdict == "UNKNOWN"
    assert "ZeroDivisionError" in (clean.verdict.failure or "")
    assert oracle.add(history([bad]).records).verdict == "VIOLATED"
