"""The claims of the safety matrix: that each is there, what it comes to, and that a wrong one would
be noticed."""

import pytest

from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.experiment import ELSEWHERE, all_cases
from bench.experiments.safety_matrix.leases import confirmed, double_grant
from bench.experiments.safety_matrix.result import Finding
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from lockcore import Denied, Lease, Outcome, Tally

CASES = {case.fault: case for case in all_cases() if case.part == "claim"}


def lease(granted_ns: int, valid_until_ns: int) -> Lease:
    return Lease("r", b"t", 100, granted_ns, granted_ns, valid_until_ns, 1, 0, Tally)


def test_claims_that_another_command_measures_are_listed_with_it() -> None:
    elsewhere = {name: case.look for name, case in CASES.items() if isinstance(case.look, Finding)}
    assert {finding.verdict for finding in elsewhere.values()} == {ELSEWHERE}
    assert "`lockbench split-votes`" in (elsewhere["split-vote-window"].reason or "")
    assert "power cuts" in (elsewhere["everysec-loses"].reason or "")
    restarts = ("restart-margin", "clean-shutdown", "delayed-restart")
    assert all("`lockbench crash`" in (elsewhere[name].reason or "") for name in restarts)


@pytest.mark.parametrize(
    "holds, broken, verdict",
    [
        (True, False, AS_EXPECTED),
        (False, False, NOT_SHOWN),
        (True, True, VIOLATED),
        (False, True, VIOLATED),
    ],
)
def test_a_broken_exclusion_is_violated_whatever_was_claimed(
    holds: bool, broken: bool, verdict: str
) -> None:
    assert confirmed(holds, {}, {}, broken=broken).verdict == verdict
    unmet = {"somebody was granted": False}
    assert confirmed(holds, {}, unmet, broken=broken).verdict == (verdict if broken else NOT_KNOWN)


def test_two_leases_are_double_only_while_the_first_is_valid() -> None:
    first = lease(0, 100)
    assert double_grant(first, lease(99, 200))
    assert not double_grant(first, lease(100, 200))
    assert not double_grant(first, Denied("r", Outcome.CONTENDED, Tally(), 1, 0, 0, 1))


def test_an_overlap_is_not_looked_for_after_its_time() -> None:
    assert leases.asked_in_time(1.1, 1000, 1000 / 1.1 + 20)
    assert not leases.asked_in_time(1.1, 1000, 1000 / 1.1 + 60)
    assert leases.asked_in_time(0.9, 1000, 5000.0)
