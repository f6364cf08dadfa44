"""The claims of the safety matrix: that each is there, what it comes to, and that a wrong one would be noticed."""

from __future__ import annotations

import pytest

from bench.cli.safety import CLAIMS
from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments import safety_matrix_claims as claims
from bench.experiments.safety_matrix import choose_cases
from bench.experiments.safety_matrix_leases import confirmed, double_grant
from bench.experiments.safety_matrix_row import AS_EXPECTED, ELSEWHERE, NOT_SHOWN, VIOLATED, Finding, Ground
from lockcore import Denied, Lease, Outcome, Tally

CASES = {case.fault: case for case in claims.claim_cases()}


def lease(granted_ns: int, valid_until_ns: int) -> Lease:
    return Lease("r", b"t", 100, granted_ns, granted_ns, valid_until_ns, 1, 0, Tally)


def split_votes(status: str, **dead_time_ms: float) -> dict[str, object]:
    retries = [
        {
            "order": "random",
            "retry": {"policy": name.replace("_", "-")},
            "first_grant_s": {"p50": 0.004},
            "dead_time_s": {"mean": ms / 1000},
            "attempts_per_grant": 2.0,
        }
        for name, ms in dead_time_ms.items()
    ]
    return {"verdict": {"status": status, "reasons": []}, "retries": retries}


def test_claims_that_need_power_cuts_are_listed_with_the_reason() -> None:
    for name in ("everysec-loses", "always-is-slow"):
        finding = CASES[name].look(None)  # type: ignore[arg-type]
        assert finding.verdict == ELSEWHERE
        assert finding.reason is not None
        assert "power cuts" in finding.reason


def test_the_help_names_every_claim() -> None:
    assert tuple(CASES) == CLAIMS


def test_a_claim_selects_its_row_and_no_other() -> None:
    assert [(case.part, case.fault) for case in choose_cases(claims=["votes"])] == [("claim", "votes")]


def test_an_unknown_claim_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no claim 'partition'; did you mean partition-ttl?"):
        choose_cases(claims=["partition"])


@pytest.mark.parametrize(
    "holds, broken, verdict", [(True, 0, AS_EXPECTED), (False, 0, NOT_SHOWN), (True, 1, VIOLATED), (False, 1, VIOLATED)]
)
def test_a_broken_exclusion_is_violated_whatever_was_claimed(holds: bool, broken: int, verdict: str) -> None:
    assert confirmed(holds, {}, broken=broken).verdict == verdict


def test_two_leases_are_double_only_while_the_first_is_valid() -> None:
    first = lease(0, 100)
    assert double_grant(first, lease(99, 200))
    assert not double_grant(first, lease(100, 200))
    assert not double_grant(first, Denied("r", Outcome.CONTENDED, Tally(), 1, 0, 0, 1))


def test_what_goes_wrong_once_is_tried_again() -> None:
    findings = iter([None, Finding("confirmed", AS_EXPECTED)])

    def look(_ground: Ground) -> Finding:
        finding = next(findings)
        if finding is None:
            raise TimeoutError
        return finding

    assert claims.looked(look, None).verdict == AS_EXPECTED  # type: ignore[arg-type]


def test_what_always_goes_wrong_on_the_way_confirms_nothing() -> None:
    def look(_ground: Ground) -> Finding:
        raise EnvironmentNotReadyError("there is no server")

    finding = claims.looked(look, None)  # type: ignore[arg-type]
    assert (finding.verdict, finding.reason) == (NOT_SHOWN, "EnvironmentNotReadyError: there is no server")


@pytest.mark.parametrize(
    "status, jitter_ms, fixed_ms, verdict",
    [
        ("pass", 1.0, 150.0, AS_EXPECTED),
        ("pass", 150.0, 1.0, NOT_SHOWN),
        ("inconclusive", 1.0, 150.0, NOT_SHOWN),
        ("violated", 1.0, 150.0, VIOLATED),
    ],
)
def test_retry_policies_are_told_apart(
    status: str, jitter_ms: float, fixed_ms: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = split_votes(status, full_jitter=jitter_ms, fixed=fixed_ms)
    monkeypatch.setattr(claims, "_split_votes", lambda _ground: measured)
    assert claims.retry_delay(None).verdict == verdict  # type: ignore[arg-type]
