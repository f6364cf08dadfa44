"""How many held a lock at once, and how many leases were tested."""

import pytest

from bench.experiments.judge.contention import ContendedLoad, holders_seen, leases_tested
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


def contention(*operations: list[OperationFacts]) -> ContendedLoad:
    """What these callers did."""
    return ContendedLoad([*operations], 1.0, 0, 0.0)


def most_at_once(*leases: OperationFacts) -> int:
    """The most holders of a mutex at any moment."""
    return len(holders_seen(contention([*leases]), 1, shared=False).worst)


def writers_beside(load: ContendedLoad) -> int:
    """The number of grants after which a writer held a shared lock beside another client."""
    return holders_seen(load, 1, shared=True).faults


def test_leases_one_after_the_other_are_never_two_at_once() -> None:
    assert most_at_once(lease(0, 1, 5), lease(2, 5, 9), lease(6, 10, 12)) == 1


def test_leases_that_overlap_are_counted() -> None:
    assert most_at_once(lease(0, 1, 5), lease(2, 4, 9), lease(3, 4, 8)) == 3


def test_a_lease_that_was_not_given_back_counts_until_its_end() -> None:
    assert most_at_once(lease(0, 1, 0, ends=20), lease(2, 19, 30)) == 2
    assert most_at_once(lease(0, 1, 0, ends=20), lease(2, 21, 30)) == 1


def test_a_lease_is_tested_if_another_process_asked_in_its_middle() -> None:
    assert leases_tested(contention([lease(0, 10, 20)], [lease(12, 25, 30)])) == 1


def test_a_lease_is_not_tested_by_its_own_process_or_at_another_time() -> None:
    assert leases_tested(contention([lease(0, 10, 20), lease(12, 25, 30)])) == 0
    assert leases_tested(contention([lease(0, 10, 20)], [lease(40, 50, 60)])) == 0


def shared(readers: int, *operations: list[OperationFacts]) -> ContendedLoad:
    """What these callers did, of whom so many read."""
    return ContendedLoad([*operations], 1.0, 0, 0.0, readers=readers)


def test_readers_may_hold_a_shared_lock_together() -> None:
    assert writers_beside(shared(2, [lease(0, 1, 9)], [lease(0, 2, 8)], [lease(0, 9, 12)])) == 0


@pytest.mark.parametrize(
    "others",
    [
        # a reader and a writer, in either order, and two writers
        ([lease(0, 1, 9)], [lease(0, 5, 12)]),
        ([lease(0, 5, 12)], [lease(0, 1, 9)]),
        ([], [lease(0, 1, 9), lease(0, 5, 12)]),
    ],
)
def test_a_writer_beside_another_holder_is_counted(
    others: tuple[list[OperationFacts], list[OperationFacts]],
) -> None:
    assert writers_beside(shared(1, *others)) == 1


def test_a_reader_does_not_test_a_reader() -> None:
    held = [lease(0, 10, 20)]
    asking = [lease(12, 25, 30)]
    assert leases_tested(shared(2, held, asking)) == 0
    assert leases_tested(shared(1, held, asking)) == 1


def test_one_holder_is_judged_as_ever_if_nobody_reads() -> None:
    """A lock without readers is a mutex: both rules count the same fault."""
    apart = shared(0, [lease(0, 1, 5)], [lease(2, 5, 9)])
    together = shared(0, [lease(0, 1, 5)], [lease(2, 4, 9)])
    for load, faults in ((apart, 0), (together, 1)):
        assert writers_beside(load) == faults
        assert holders_seen(load, 1, shared=False).faults == faults


def test_the_worst_moment_is_that_of_a_fault_before_that_of_most_readers() -> None:
    readers = [[lease(0, 30, 40)], [lease(0, 31, 40)], [lease(0, 32, 40)]]
    fine = holders_seen(shared(3, *readers), 1, shared=True)
    assert [one.side for one in fine.worst] == ["read"] * 3
    seen = holders_seen(shared(3, *readers, [lease(0, 1, 9), lease(0, 5, 12)]), 1, shared=True)
    assert [one.side for one in seen.worst] == ["write"] * 2
