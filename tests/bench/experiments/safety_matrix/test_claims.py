"""The claims of the safety matrix: that each is there, what it comes to, and that a wrong one would be noticed."""

from __future__ import annotations

import pytest

from bench.experiments.safety_matrix import claims, leases, servers
from bench.experiments.safety_matrix.command import CLAIMS
from bench.experiments.safety_matrix.leases import confirmed, double_grant
from bench.experiments.safety_matrix.row import ELSEWHERE
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from lockcore import Denied, Lease, Outcome, Tally
from tests.doubles.attributes import attributes

CASES = {case.fault: case for case in claims.claim_cases()}


def lease(granted_ns: int, valid_until_ns: int) -> Lease:
    return Lease("r", b"t", 100, granted_ns, granted_ns, valid_until_ns, 1, 0, Tally)


def split_votes(status: str, count: int = 40, **dead_time_ms: float) -> object:
    retries = [
        {
            "order": "random",
            "retry": {"policy": name.replace("_", "-")},
            "first_grant_s": {"p50": 0.004},
            "dead_time_s": {"mean": ms / 1000, "count": count},
            "attempts_per_grant": 2.0,
        }
        for name, ms in dead_time_ms.items()
    ]
    return attributes({"verdict": {"status": status, "reasons": []}, "retries": retries})


def test_claims_that_need_power_cuts_are_listed_with_the_reason() -> None:
    for name in ("everysec-loses", "always-is-slow"):
        finding = CASES[name].look
        assert finding.verdict == ELSEWHERE
        assert finding.reason is not None
        assert "power cuts" in finding.reason


def test_the_help_names_every_claim() -> None:
    assert tuple(CASES) == CLAIMS


@pytest.mark.parametrize(
    "holds, broken, verdict", [(True, 0, AS_EXPECTED), (False, 0, NOT_SHOWN), (True, 1, VIOLATED), (False, 1, VIOLATED)]
)
def test_a_broken_exclusion_is_violated_whatever_was_claimed(holds: bool, broken: int, verdict: str) -> None:
    assert confirmed(holds, {}, {}, broken=broken).verdict == verdict
    unmet = {"somebody was granted": False}
    assert confirmed(holds, {}, unmet, broken=broken).verdict == (verdict if broken else NOT_KNOWN)


def test_two_leases_are_double_only_while_the_first_is_valid() -> None:
    first = lease(0, 100)
    assert double_grant(first, lease(99, 200))
    assert not double_grant(first, lease(100, 200))
    assert not double_grant(first, Denied("r", Outcome.CONTENDED, Tally(), 1, 0, 0, 1))


@pytest.mark.parametrize(
    "status, jitter_ms, fixed_ms, verdict",
    [
        ("pass", 1.0, 150.0, AS_EXPECTED),
        ("pass", 150.0, 1.0, NOT_SHOWN),
        ("pass", 100.0, 150.0, NOT_KNOWN),  # nearer to each other than what is noise
        ("inconclusive", 1.0, 150.0, NOT_KNOWN),
        ("violated", 1.0, 150.0, VIOLATED),
    ],
)
def test_retry_policies_are_told_apart(
    status: str, jitter_ms: float, fixed_ms: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = split_votes(status, full_jitter=jitter_ms, fixed=fixed_ms)
    monkeypatch.setattr(claims, "_split_votes", lambda _ground: measured)
    assert claims.retry_delay(None).verdict == verdict  # type: ignore[arg-type]


def test_dead_times_that_hardly_anybody_had_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = split_votes("pass", count=3, full_jitter=1.0, fixed=150.0)
    monkeypatch.setattr(claims, "_split_votes", lambda _ground: measured)
    assert claims.retry_delay(None).verdict == NOT_KNOWN  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parallel, at_random, verdict",
    [
        ((0.0, 0.1), (0.3, 0.6), AS_EXPECTED),
        ((0.3, 0.6), (0.0, 0.1), NOT_SHOWN),
        ((0.0, 0.4), (0.3, 0.6), NOT_KNOWN),
        ((None, None), (0.3, 0.6), NOT_KNOWN),
    ],
)
def test_how_often_nobody_wins_is_told_apart_by_intervals(
    parallel: tuple[float | None, float | None],
    at_random: tuple[float | None, float | None],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {
        "verdict": {"status": "pass", "reasons": []},
        "calibration": [{"split_rate": {"rate": 0.4}, "closed_form": 0.4}],
        "contention": [
            {"order": order, "nobody_won_rate": {"rate": low, "low": low, "high": high}, "attempt_s": {"p50": 0.001}}
            for order, (low, high) in {"parallel": parallel, "random": at_random}.items()
        ],
    }
    monkeypatch.setattr(claims, "_split_votes", lambda _ground: attributes(measured))
    assert claims.split_vote_window(None).verdict == verdict  # type: ignore[arg-type]


def test_an_overlap_is_not_looked_for_after_its_time() -> None:
    assert all(servers.came_about(1.1, 1000, 1000 / 1.1 + 20).values())
    assert not any(servers.came_about(1.1, 1000, 1000 / 1.1 + 60).values())
    assert not servers.came_about(0.9, 1000, 5000.0)


@pytest.mark.parametrize(
    "granted, late, verdict",
    [(169, 131, AS_EXPECTED), (0, 131, NOT_KNOWN), (29, 131, NOT_KNOWN), (300, 0, NOT_KNOWN)],
)
def test_votes_are_known_only_where_some_were_granted_and_some_came_too_late(
    granted: int, late: int, verdict: str
) -> None:
    assert confirmed(True, {}, leases.came_about(granted, late)).verdict == verdict
