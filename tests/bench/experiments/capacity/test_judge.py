"""What a capacity rests on: an interval with evidence on both sides, and no word that probes or
loops contradict."""

from typing import Any

import pytest
from msgspec import structs

from bench.experiments.capacity import judge, search
from bench.experiments.capacity.judge import (
    CapacityPlan,
    SweepPoint,
    agreement,
    judge_capacity,
    mean_latency,
    point_of,
)
from bench.experiments.capacity.probe import GAVE_OUT, GENERATOR, read_slo
from bench.experiments.capacity.result import (
    Capacity,
    CapacityPoint,
    ClosedLoop,
    Probe,
    Seen,
    at_capacity,
)
from bench.experiments.capacity.search import Findings, loops_within
from bench.measure.fleet_facts import FleetFacts
from bench.measure.section import typed
from bench.scenario import load
from tests.bench.whole_run import SAMPLE
from tests.doubles.capacity_points import ACQUIRE, probe
from tests.doubles.capacity_points import point as capacity_point

HELD = Seen.HELD
MISSED = Seen.MISSED
SPOILT = Seen.SATURATED
PAUSED = Seen.PAUSED
Look = tuple[float, Seen]
SLO = read_slo(["acquire.p99 < 10ms"])
PROBE = typed(probe(1.0), Probe)


def capacity(low: float | None, high: float | None) -> Capacity:
    return Capacity(low=low, high=high, at_least=low is not None and high is None)


def loop(rate: float, p99: float = 0.003, users: int = 16) -> ClosedLoop:
    figures = {"users": users, "achieved_per_s": rate, "generator_cpu_ratio": 0.5}
    return typed({**figures, "acquire_s": {**ACQUIRE, "p99": p99}}, ClosedLoop)


def found(
    *looks: Look,
    target: float | None = None,
    closed: ClosedLoop | None = None,
    fleet: FleetFacts | None = None,
) -> CapacityPoint:
    """What a point comes to whose probes showed this."""
    probes = [structs.replace(PROBE, rate_per_s=rate, seen=seen) for rate, seen in looks]
    asked = SweepPoint(load(None, {"rate": "1"}), {})
    plan = CapacityPlan((asked,), SLO, target, fixed_users=False, budget_s=60)
    return point_of(asked, Findings(probes, [closed or loop(1_100.0)], fleet), plan)


BELOW = tuple((rate, HELD) for rate in (700.0, 800.0, 850.0, 900.0, 930.0, 950.0))
ABOVE = tuple((rate, MISSED) for rate in (1_050.0, 1_080.0, 1_100.0, 1_200.0))
GIVEN_OUT = tuple((rate, SPOILT) for rate, _ in ABOVE)


def test_the_interval_lies_between_what_held_and_what_missed() -> None:
    point = found(*BELOW, *ABOVE)
    low = point.capacity.low
    high = point.capacity.high
    assert low is not None
    assert high is not None
    assert 850 < low < 1_000 < high < 1_150
    assert (point.status, point.capacity.at_least, point.capacity.sure) == ("pass", False, 0.95)


@pytest.mark.parametrize(
    ("looks", "status", "said"),
    [
        (
            (*BELOW, *GIVEN_OUT),
            "inconclusive",
            "the load generator reached its limit first (its timer woke 3.10 ms late at 1,050/s)",
        ),
        (
            BELOW,
            "inconclusive",
            "at higher rates, too few probes missed the SLO to show an upper end",
        ),
        (
            (*BELOW[-1:], *ABOVE[:1]),
            "inconclusive",
            "the capacity is at least|it is not certain that a tested rate keeps the SLO",
        ),
        (
            ((0.7, MISSED), (0.6, MISSED), (440.0, MISSED), (660.0, MISSED), (880.0, MISSED)),
            "fail",
            "neither 0.60/s nor 880/s did",
        ),
        (
            ((0.7, MISSED), (0.6, MISSED), (440.0, MISSED), (880.0, MISSED)),
            "inconclusive",
            "0.60/s missed the SLO",
        ),
        # perhaps a slow start
        (((0.7, MISSED), (0.6, MISSED), (0.9, MISSED)), "inconclusive", "0.60/s missed the SLO"),
        (((5_000.0, MISSED),), "inconclusive", "the search tried too few lower rates"),
        (((0.7, HELD), (0.6, MISSED), (0.9, MISSED)), "inconclusive", "0.60/s missed the SLO"),
        (((0.7, SPOILT),), "inconclusive", "even at 0.70/s, the lowest tested rate, the load"),
        ((), "inconclusive", "no probe was finished"),
        (
            (
                (500.0, HELD),
                (400.0, MISSED),
                (700.0, HELD),
                (600.0, MISSED),
                (1_000.0, HELD),
                (900.0, MISSED),
                (1_300.0, HELD),
                (1_200.0, MISSED),
            ),
            "inconclusive",
            "but an answer needs ±25 % or less",
        ),
    ],
)
def test_without_evidence_on_both_sides_and_near_there_is_no_answer(
    looks: tuple[Look, ...], status: str, said: str
) -> None:
    point = found(*looks, closed=loop(1_100.0, p99=0.05))
    assert point.status == status
    assert any(one in "".join(point.reasons) for one in said.split("|"))


def test_what_the_generator_spoilt_says_nothing_of_the_servers() -> None:
    plain = found(*BELOW, *ABOVE)
    spoilt = found(*BELOW, *ABOVE, *((rate, SPOILT) for rate, _ in BELOW))
    assert plain.capacity == spoilt.capacity
    limit = found(*BELOW, *GIVEN_OUT).next_limit
    assert (limit.name, limit.text) == (
        GENERATOR,
        GAVE_OUT.format("its timer woke 3.10 ms late at 1,050/s"),
    )


def test_where_only_spoilt_probes_make_it_narrow_the_capacity_is_at_least() -> None:
    """A real search (2026-11-23): between 19,700 and 55,000/s by the servers' probes, yet the
    generator gave out."""
    held = (6_460.0, 19_200.0, 19_500.0, 19_700.0, 19_900.0, 20_100.0, 21_100.0)
    missed = (20_300.0, 20_800.0, 28_800.0)
    spoilt = (20_400.0, 20_400.0, 21_500.0, 22_200.0, 22_700.0, 23_800.0)
    groups = ((held, HELD), (missed, MISSED), (spoilt, SPOILT))
    point = found(
        *((rate, seen) for rates, seen in groups for rate in rates), closed=loop(46_935.0)
    )
    assert point.capacity.at_least
    assert 17_000 < (point.capacity.low or 0) < 21_100
    assert "the load generator reached its limit first" in "".join(point.reasons)


def test_no_end_lies_beyond_every_probe_that_bears_it_out() -> None:
    """The closed loop alone would have it higher, or lower."""
    held = [(16_500.0 + 100 * number, HELD) for number in range(6)]
    spoilt = [(17_700.0, SPOILT), (20_000.0, SPOILT)]
    assert found(*held, *spoilt, closed=loop(60_000.0)).capacity.low == 17_000.0
    high = found(
        *((rate, MISSED) for rate, _ in ABOVE * 3), *BELOW, closed=loop(500.0)
    ).capacity.high
    assert (high or 0) >= 1_050.0


def test_a_generator_without_a_core_to_spare_gave_out_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "is_busy", lambda _ratio: True)
    assert found(*BELOW, *GIVEN_OUT).next_limit.text == GAVE_OUT.format("71 % of a core at 1,050/s")


def test_held_or_missed_below_or_above_widens_the_interval_and_never_claims_more() -> None:
    sure = found(*BELOW, *ABOVE).capacity
    torn = found(*BELOW, *ABOVE, (800.0, MISSED), (1_100.0, HELD)).capacity
    assert torn.width > sure.width


def test_what_did_not_hold_surely_is_no_knee() -> None:
    knee = found(*BELOW, *ABOVE, (1_150.0, HELD)).knee
    assert knee is not None
    assert knee.rate_per_s <= 950.0


def test_headroom_is_the_capacity_beyond_the_target() -> None:
    near, far = (found(*BELOW, *ABOVE, target=target).headroom for target in (800.0, 2_000.0))
    assert near is not None
    assert far is not None
    assert (near.ratio, far.ratio) == pytest.approx((0.25, -0.5), abs=0.06)


def test_the_latency_at_the_target_has_the_interval_of_student_s_t() -> None:
    found = mean_latency([0.005, 0.006, 0.0072])
    assert found is not None
    # by hand
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.006, 0.0038145, 0.0094377), rel=1e-3
    )
    assert mean_latency([0.006]) is None


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (1_000.0, "they agree"),
        (
            1_700.0,
            "callers in closed loop reached 1,700/s within the SLO, which is more than in open "
            "loop. The cause is that operations can queue",
        ),
        (400.0, "less than in open loop"),
    ],
)
def test_open_and_closed_loop_agree_or_a_sentence_says_why_not(rate: float, said: str) -> None:
    assert said in (found(*BELOW, *ABOVE, closed=loop(rate)).agreement or "")
    assert found(*BELOW, *ABOVE, closed=loop(rate, p99=0.02)).agreement is None


@pytest.mark.parametrize(
    "closed, contradicted",
    [
        ([(17_536.0, 16)], True),
        # callers that wait for each other make no queue
        ([(1900.0, 16)], False),
        ([], False),
    ],
)
def test_a_closed_loop_that_is_far_faster_within_the_slo_contradicts_the_interval(
    closed: list[tuple[float, int]], contradicted: bool
) -> None:
    assert agreement(capacity(950.0, 1_020.0), closed)[1] == contradicted
    assert agreement(capacity(979.0, None), closed)[1] == contradicted


def test_no_rate_holds_is_contradicted_by_any_closed_loop_that_kept_the_slo() -> None:
    assert agreement(capacity(None, 0.7), [(300.0, 16)])[1]
    assert agreement(capacity(None, None), [(300.0, 16)])[1]


def test_a_closed_loop_that_missed_the_slo_is_none_within_it() -> None:
    fast = loop(17_536.0)
    slow = loop(17_536.0, p99=0.02)
    assert loops_within(Findings([], [fast, slow]), SLO) == [(17_536.0, 16)]


def point(status: str, probes: int = 8) -> CapacityPoint:
    return capacity_point(
        status=status, reasons=[f"it was {status}"], probes=[probe(1_000.0)] * probes
    )


@pytest.mark.parametrize(
    "points, changes, word, code",
    [
        ([point("pass")], {}, "FOUND", 0),
        ([], {}, "INCONCLUSIVE", 4),
        ([point("pass", probes=7)], {}, "INCONCLUSIVE", 4),
        ([point("pass"), point("inconclusive")], {}, "INCONCLUSIVE", 4),
        ([point("fail"), point("inconclusive")], {}, "NOT KEPT", 1),
        ([point("fail"), point("violated")], {}, "VIOLATED", 5),
        ([point("pass")], {"stopped": "a server ended"}, "INCONCLUSIVE", 4),
        ([point("pass")], {"interrupted": True}, "INTERRUPTED", 130),
        ([point("violated")], {"interrupted": True}, "VIOLATED", 130),
    ],
)
def test_the_word_over_all_points(
    points: list[CapacityPoint], changes: dict[str, Any], word: str, code: int
) -> None:
    verdict = judge_capacity(points, **changes)
    assert (verdict.word, verdict.exit_code) == (word, code)


TARGET = 500.0


def beside(*seen: Seen, target: float = TARGET) -> CapacityPoint:
    """A point whose search found about 1,000/s, beside these probes at the target."""
    return found(*BELOW, *ABOVE, *((target, one) for one in seen), target=target)


@pytest.mark.parametrize("seen", [(MISSED,) * 3, (MISSED,) * 4, (HELD, MISSED, MISSED, MISSED)])
def test_nothing_is_found_beside_a_target_that_missed_below_the_interval(
    seen: tuple[Seen, ...],
) -> None:
    point = beside(*seen)
    assert point.status == "inconclusive"
    assert "at rates below the interval (500/s) missed" in "".join(point.reasons)
    assert point.headroom is not None
    assert point.headroom.ratio is None


def test_one_bad_moment_at_the_target_contradicts_nothing() -> None:
    assert beside(HELD, MISSED, HELD, HELD).status == "pass"


def test_a_target_beyond_the_interval_that_missed_is_not_kept() -> None:
    point = beside(MISSED, MISSED, MISSED, MISSED, target=2_000.0)
    assert point.status == "fail"
    assert (
        "4 of 4 probes missed the SLO at the target rate of 2,000/s, because the fleet carries at "
        "most" in point.reasons[0]
    )


def test_a_target_inside_the_interval_that_missed_is_not_known() -> None:
    point = beside(MISSED, MISSED, HELD, MISSED, target=1_000.0)
    assert point.status == "inconclusive"
    assert "the target rate lies inside or below the interval" in point.reasons[0]


def test_rates_below_the_interval_that_mostly_missed_contradict_it_without_a_target() -> None:
    """A fleet that keeps 1,000/s and not 300/s is not what the model assumes."""
    point = found(*BELOW, *ABOVE, *BELOW, *((rate, MISSED) for rate in (300.0, 310.0, 320.0)))
    assert point.status == "inconclusive"
    assert "3 of 5 probes at rates below the interval (300 to 700/s) missed" in "".join(
        point.reasons
    )


def test_the_sentence_of_an_open_answer_names_a_rate_that_missed() -> None:
    """A probe that held is never quoted as one that did not."""
    point = found((5.78, HELD), (20.0, MISSED), closed=loop(1_100.0, p99=0.05))
    assert "5.78/s missed" not in "".join(point.reasons)
    assert "20.00/s missed the SLO" in "".join(point.reasons)


def test_a_server_that_answers_nothing_in_time_keeps_no_rate() -> None:
    looks = (
        (search.LOWEST, MISSED),
        (search.LOWEST, MISSED),
        (16.0, MISSED),
        (24.0, MISSED),
        (32.0, MISSED),
    )
    point = found(*looks, closed=loop(40.0, p99=0.2))
    assert (point.status, point.reasons) == (
        "fail",
        ("no rate keeps the SLO: neither 1.00/s nor 32/s did",),
    )


PAUSES = tuple(
    (rate, PAUSED) for rate in (980.0, 990.0, 1_000.0, 1_010.0, 1_020.0, 1_030.0, 1_060.0)
)


def fleet_here(*, started: bool) -> FleetFacts:
    return typed({**SAMPLE["fleet"], "started": started}, FleetFacts)


def test_a_few_pauses_of_the_machine_say_nothing_of_the_servers() -> None:
    plain = found(*BELOW, *ABOVE)
    paused = found(*BELOW, *ABOVE, *PAUSES)
    assert plain.capacity == paused.capacity
    assert not paused.capacity.as_it_is


def test_where_most_probes_met_pauses_the_capacity_is_of_the_machine_as_it_is_now() -> None:
    point = found(*BELOW, *PAUSES, (1_080.0, PAUSED), fleet=fleet_here(started=True))
    assert point.capacity.as_it_is
    assert point.capacity.high is not None
    assert point.status == "pass"


def test_a_target_that_a_busy_machine_misses_does_not_hold_as_it_is_now() -> None:
    looks = (
        *((900.0, PAUSED),) * 5,
        *((rate, HELD) for rate in (300.0, 310.0, 320.0)),
        *((400.0, PAUSED),) * 5,
    )
    point = found(*looks, target=900.0, closed=loop(350.0), fleet=fleet_here(started=True))
    assert point.capacity.as_it_is
    assert point.headroom is not None
    assert point.headroom.holds is False
    assert point.status == "fail"
    assert {probe.seen for probe in point.probes} == {HELD, PAUSED}


def test_servers_elsewhere_are_not_blamed_for_pauses_here() -> None:
    point = found(*BELOW, *PAUSES, (1_080.0, PAUSED), fleet=fleet_here(started=False))
    assert (point.capacity.high, point.capacity.as_it_is) == (None, False)
    assert (
        "8 of 14 probes give no result, because this machine did not run the load in time"
        in point.reasons[0]
    )


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        ((HELD,) * 3, None),
        ((HELD,) * 4, True),
        ((HELD,) * 7 + (MISSED,), True),
        ((MISSED,) * 4, False),
        ((HELD, MISSED) * 4, None),
        ((HELD,) * 3 + (PAUSED,) * 2, None),
    ],
)
def test_whether_the_target_holds_is_told_by_the_probes_there(
    seen: tuple[Seen, ...], holds: bool | None
) -> None:
    probes = [structs.replace(PROBE, rate_per_s=TARGET, seen=one) for one in seen]
    assert judge.target_holds(Findings(probes), TARGET) is holds


def test_a_target_that_holds_is_an_answer_whatever_is_known_of_the_room_beyond() -> None:
    point = found(*BELOW, *((500.0, HELD),) * 4, target=500.0)
    assert (point.status, point.capacity.high) == ("pass", None)
    assert judge_capacity([point]).word == "FOUND"
    few = found(*((500.0, HELD),) * 4, target=500.0)
    assert judge_capacity([few]).word == "FOUND"


def test_student_s_t_beyond_the_table() -> None:
    assert judge._student(10) == pytest.approx(2.262, rel=0.005)
    assert judge._student(40) == pytest.approx(2.023, rel=0.005)


def test_the_next_limit_is_not_told_by_a_probe_far_from_the_capacity() -> None:
    """ "Generator's CPU, full at 273/s" once came from a probe at 10/s."""
    far = found((10.0, HELD), *ABOVE)
    near = found((600.0, HELD), *ABOVE)
    assert near.next_limit.ratio == PROBE.uses[0].ratio
    assert at_capacity([structs.replace(PROBE, rate_per_s=10.0)], far.capacity) is None
    assert (
        at_capacity([structs.replace(PROBE, rate_per_s=600.0)], capacity(1_000.0, 1_100.0))
        is not None
    )
    assert (
        at_capacity([structs.replace(PROBE, rate_per_s=500.0)], capacity(1_000.0, 1_100.0))
        is not None
    )
    assert (
        at_capacity([structs.replace(PROBE, rate_per_s=499.0)], capacity(1_000.0, 1_100.0)) is None
    )


def test_one_rate_that_missed_is_named_once() -> None:
    point = found((1.0, MISSED), (1.0, MISSED), closed=loop(1.0, p99=2.0))
    assert point.reasons == ("no rate keeps the SLO: 1.00/s did not",)


def test_a_target_that_surely_missed_is_not_kept_though_the_interval_reaches_it() -> None:
    """The first sentence says that it does not hold, and so does the word."""
    held = [(rate, HELD) for rate in (900.0, 920.0, 950.0, 980.0)]
    point = found(*held, *((1_050.0, MISSED),) * 6, (1_080.0, MISSED), target=1_050.0)
    assert point.headroom is not None
    assert point.headroom.holds is False
    assert (point.capacity.high or 0.0) >= 1_050.0
    assert point.status == "fail"
    assert (
        "6 of 6 probes missed the SLO at the target rate of 1,050/s, so fewer than half of all "
        "probes" in point.reasons[0]
    )


def test_a_rate_below_ten_is_not_rounded_to_one_that_was_not_measured() -> None:
    held = [(rate, HELD) for rate in (0.5, 0.55, 0.6, 0.6)]
    at_least = found(*held, (1.4, SPOILT), closed=loop(1.0))
    assert at_least.capacity.low is not None
    assert "the capacity is at least 0.6/s" in "".join(at_least.reasons)
    point = found(*held, *((0.9, MISSED),) * 3, *((4.5, MISSED),) * 4, target=4.5, closed=loop(1.0))
    assert (
        "4 of 4 probes missed the SLO at the target rate of 4.5/s, because the fleet carries at "
        "most" in point.reasons[0]
    )


def test_a_wide_interval_contradicts_nothing_so_the_headroom_is_told() -> None:
    """What makes an answer inconclusive is no contradiction of it."""
    seen = [(rate, HELD) for rate in (300.0, 310.0, 320.0, 400.0, 410.0, 420.0)]
    seen += [(rate, MISSED) for rate in (900.0, 910.0, 920.0, 1_000.0, 1_010.0, 1_020.0)]
    point = found(*seen, target=600.0)
    assert point.status == "inconclusive"
    assert "the interval is ±" in "".join(point.reasons)
    assert point.headroom is not None
    assert point.headroom.ratio is not None


def test_without_a_closed_loop_a_slow_target_does_not_show_that_no_rate_holds() -> None:
    """What is in the middle is not known then: the search was over before it began."""
    probes = [structs.replace(PROBE, rate_per_s=0.5, seen=MISSED)] * 3
    asked = SweepPoint(load(None, {"rate": "1"}), {})
    plan = CapacityPlan((asked,), SLO, 0.5, fixed_users=False, budget_s=60)
    assert point_of(asked, Findings(probes), plan).status == "inconclusive"
