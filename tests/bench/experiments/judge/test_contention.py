"""How many held a lock at once, and how many leases were tested."""

from bench.experiments.judge.contention import ContendedLoad, leases_tested, most_at_once
from bench.measure.record import OperationFacts


def lease(begun: int, granted: int, released: int, ends: int = 1000) -> OperationFacts:
    """An operation that had the lock from `granted` to `released` (0: never given back)."""
    return OperationFacts(
        start_ns=begun,
        attempt_ns=begun,
        ended_ns=granted,
        resource=0,
        caller=0,
        sequence=1,
        outcome="acquired",
        granted_ns=granted,
        valid_until_ns=ends,
        release_sent_ns=released,
    )


def test_leases_one_after_the_other_are_never_two_at_once() -> None:
    assert most_at_once([lease(0, 1, 5), lease(2, 5, 9), lease(6, 10, 12)]) == 1


def test_leases_that_overlap_are_counted() -> None:
    assert most_at_once([lease(0, 1, 5), lease(2, 4, 9), lease(3, 4, 8)]) == 3


def test_a_lease_that_was_not_given_back_counts_until_its_end() -> None:
    assert most_at_once([lease(0, 1, 0, ends=20), lease(2, 19, 30)]) == 2
    assert most_at_once([lease(0, 1, 0, ends=20), lease(2, 21, 30)]) == 1


def contention(*operations: list[OperationFacts]) -> ContendedLoad:
    """What these callers did."""
    return ContendedLoad([*operations], 1.0, 0, 0.0)


def test_a_lease_is_tested_if_another_process_asked_in_its_middle() -> None:
    assert leases_tested(contention([lease(0, 10, 20)], [lease(12, 25, 30)])) == 1


def test_a_lease_is_not_tested_by_its_own_process_or_at_another_time() -> None:
    assert leases_tested(contention([lease(0, 10, 20), lease(12, 25, 30)])) == 0
    assert leases_tested(contention([lease(0, 10, 20)], [lease(40, 50, 60)])) == 0
