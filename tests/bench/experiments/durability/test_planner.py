"""The planner's page: its words follow from its figures, and what was not measured is not
invented."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from bench.experiments.durability.advice import choices, key_figures
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.planner import plan_page
from bench.experiments.durability.price_result import (
    FsyncRow,
    PlannerOption,
    PlannerPage,
    Setup,
    Spread,
)
from tests.doubles.fsync_visits import crash_of, cut, turns, visit
from tests.doubles.fsync_visits import rows_of as rows_of_visits

SHAPE = (16, 4)


def rows_of(visits: list[dict[str, Any]]) -> list[FsyncRow]:
    return rows_of_visits(turns(visits))


def rows() -> list[FsyncRow]:
    return rows_of(
        [
            *(visit("none", 9000, instances=n, shape=SHAPE) for n in (1, 3, 5)),
            *(visit("everysec", 8000, instances=n, shape=SHAPE) for n in (1, 3, 5)),
            *(visit("always", 2000, instances=n, shape=SHAPE) for n in (1, 3, 5)),
            visit("everysec", 4400, shape=(1, 1), ms=10.0),
            visit("always", 50, shape=(1, 1), ms=10.0),
        ]
    )


def cells() -> list[dict[str, Any]]:
    return [
        *(cut("everysec", "delayed", instances=n) for n in (1, 3, 5)),
        *(cut("everysec", "at-once", instances=n, grants=31, lost=900) for n in (1, 3, 5)),
        *(cut("always", "at-once", instances=n) for n in (1, 3, 5)),
        cut("none", "at-once", grants=400, lost=5000),
    ]


def healthy() -> CrashResult:
    return crash_of(*cells())


def option(
    page: PlannerPage, instances: int, policy: str, restart: str | None, *, abstention: bool = False
) -> PlannerOption:
    wanted = (instances, policy, restart, abstention)
    found = [
        one
        for one in page.options
        if (one.instances, one.policy, one.restart, one.abstention) == wanted
    ]
    assert len(found) == 1
    return found[0]


def test_the_answer_comes_first_with_its_bound_and_its_price() -> None:
    page = plan_page(rows(), healthy())
    assert (
        page.advice[0]
        == "appendfsync everysec, and start a crashed server only when your longest TTL is over"
    )
    assert key_figures(page) == [
        ("granted twice", "0 of 1,200 locks", "95 % sure: fewer than 1 crash in 40"),
        (
            "no new locks",
            "at most your longest TTL plus 0.2 s",
            "after a crash of most servers, measured at a TTL of 2 s",
        ),
        (
            "always costs",
            "4.0× (4.0–4.0)",
            "everysec's acquires/s ÷ always's, N=3, 64 callers on 16 connections, +2 ms; "
            "over all loads between "
            "4.0× (4.0–4.0) and 88× (88–88)",
        ),
    ]


@pytest.mark.parametrize(
    ("ttl_ms", "wait", "sleep"),
    [
        (10_000, "10.2 s", "11."),
        (50, "0.3 s", "1."),
        (95_000, "95.2 s", "96, with a longer TimeoutStartSec."),
    ],
)
def test_the_price_of_a_wait_is_that_of_the_users_longest_ttl(
    ttl_ms: float, wait: str, sleep: str
) -> None:
    page = plan_page(rows(), healthy(), ttl_ms)
    assert ("no new locks", f"at most {wait}") in [figure[:2] for figure in key_figures(page)]
    assert f"ExecStartPre=/bin/sleep {sleep}" in page.advice[1]
    assert f"no lock is granted for up to {wait}" in page.advice[1]
    (told,) = [text for text in page.unmeasured if "your TTL" in text]
    assert "with a TTL of 2 s" in told


def test_clients_that_abstain_are_a_choice_and_so_is_always() -> None:
    cells_abstaining = [cut("everysec", "at-once", instances=n, abstention=True) for n in (1, 3, 5)]
    told = choices(plan_page(rows(), crash_of(*cells(), *cells_abstaining)))
    assert [label for label, _ in told] == ["choose", "or", "or"]
    (_, delayed), (_, abstaining), (_, always) = told
    assert delayed.startswith("everysec, delayed restart: ")
    assert "each client does this if it sets max_ttl_ms" in abstaining
    assert (
        "The servers need no change. 0 of 1,200 locks granted twice in 120 crashes (95 % sure"
        in abstaining
    )
    assert always.startswith("always, restart at once. The servers and the clients need no change")
    assert (
        "Always costs between 4.0× (4.0–4.0) and 88× (88–88), everysec's acquires/s ÷ always's"
        in always
    )


def test_clients_that_abstain_and_still_got_a_lock_twice_are_no_choice() -> None:
    page = plan_page(
        rows(), crash_of(*cells(), cut("everysec", "at-once", abstention=True, grants=1))
    )
    assert not any("abstain" in text for _, text in choices(page))


def test_why_not_none_with_a_delayed_restart_is_answered_if_that_was_crashed() -> None:
    assert "why not none?" not in dict(choices(plan_page(rows(), healthy())))
    page = plan_page(rows(), crash_of(*cells(), cut("none", "delayed")))
    told = dict(choices(page))["why not none?"]
    assert told.startswith(
        "The policy none is safe, too, if every restart is delayed: 0 of 400 locks"
    )
    assert (
        "A server that starts without this delay has forgotten all its locks: 400 of 400 locks "
        "were granted twice." in told
    )
    assert "Under everysec a power cut loses the locks of the last second (93 of 1,200)" in told


def crashed_at(fdatasync_ms: float, latency_ms: float) -> CrashResult:
    crash = healthy()
    assert crash.fleet.fdatasync_s is not None
    disk = dataclasses.replace(crash.fleet.fdatasync_s, p50_s=fdatasync_ms / 1000)
    conditions = replace(crash.conditions, latency_ms=latency_ms)
    return replace(crash, fleet=replace(crash.fleet, fdatasync_s=disk), conditions=conditions)


def test_losses_on_a_disk_that_was_several_times_as_quick_are_unknown_too() -> None:
    slow = rows_of([visit("everysec", ms=0.0, disk_s=0.004), visit("always", ms=0.0, disk_s=0.004)])
    (told,) = [
        text
        for text in plan_page(slow, crashed_at(1.2, 0.0)).unmeasured
        if "on the disk of the cost" in text
    ]
    assert (
        "(raw disk, fdatasync p50 4 ms), because lockbench made the crashes at another "
        "disk speed (raw disk, fdatasync "
        "p50 1.2 ms" in told
    )
    assert not any(
        "on the disk of the cost" in text
        for text in plan_page(slow, crashed_at(2.0, 0.0)).unmeasured
    )


@pytest.mark.parametrize(
    ("crashed_ms", "priced_ms", "told"),
    [
        (
            0.0,
            2.0,
            "(+2 ms, fdatasync p50 0.1 ms), because lockbench made the crashes at another "
            "disk speed (raw disk, fdatasync "
            "p50",
        ),
        (2.0, 2.0, ""),
        (
            2.0,
            0.0,
            "(raw disk, fdatasync p50 0.1 ms), because lockbench made the crashes at another "
            "disk speed (+2 ms, fdatasync "
            "p50",
        ),
        (0.0, 0.0, ""),
    ],
)
def test_losses_at_another_fsync_latency_than_the_prices_are_unknown(
    crashed_ms: float, priced_ms: float, told: str
) -> None:
    crash = crashed_at(0.1, crashed_ms)
    page = plan_page(
        rows_of([visit("everysec", ms=priced_ms), visit("always", ms=priced_ms)]), crash
    )
    found = [text for text in page.unmeasured if "the losses of everysec on the disk" in text]
    assert len(found) == bool(told)
    assert all(told in text for text in found)
    assert all(text.endswith(f"--quick{' --latency 2ms' * bool(priced_ms)}") for text in found)


@pytest.mark.parametrize(
    "conditions, doubt",
    [
        ({"cuts_per_cell": 2}, "only 2 cuts per cell; 20 cuts"),
        ({"instances": (2, 3)}, "lockbench made no crash at N=1, 5, so"),
    ],
)
def test_a_recommendation_of_few_cuts_or_of_other_fleets_is_in_doubt(
    conditions: dict[str, Any], doubt: str
) -> None:
    crash = replace(healthy(), conditions=replace(healthy().conditions, **conditions))
    (told,) = plan_page(rows(), crash).warnings
    assert doubt in told


def test_a_delayed_restart_that_led_to_double_grants_is_not_recommended() -> None:
    grave = cells()
    grave[1] = cut("everysec", "delayed", grants=1)
    page = plan_page(rows(), crash_of(*grave))
    assert not option(page, 3, "everysec", "delayed").crash.is_safe
    assert page.advice[0] == "appendfsync always, and you may start a crashed server again at once"
    assert not any(text.startswith("everysec") for _, text in choices(page))


def test_where_nothing_is_safe_nothing_is_recommended() -> None:
    page = plan_page(
        rows(), crash_of(cut("always", "at-once", grants=1), cut("none", "delayed", grants=2))
    )
    assert (
        page.advice[0] == "no tested choice is safe, because locks were granted twice under every "
        "policy"
    )


def test_without_a_crash_result_speed_alone_chooses_nothing() -> None:
    page = plan_page(rows(), None)
    assert "run lockbench crash" in page.advice[0]
    assert {option.crash for option in page.options} == {None}
    assert page.ttl_ms is None
    assert (
        "the cost of no, waitaof; to measure this cost, run lockbench fsync --fsync no,waitaof"
        in page.unmeasured
    )
    assert any(
        "lockbench crash --quick, then lockbench planner" in text for text in page.unmeasured
    )


def test_a_bound_and_a_ratio_without_an_interval_are_never_a_price() -> None:
    limited = [visit("everysec", 8000, cpu=0.99), visit("always", 2000)]
    page = plan_page(rows_of(limited), healthy())
    assert page.always_costs is None
    assert ("always costs", "not known") in [figure[:2] for figure in key_figures(page)]
    assert any(
        "The cost of the policy always is unknown on this machine" in text for text in page.advice
    )
    assert any("the load process reached its limit" in text for text in page.unmeasured)
    once = rows_of_visits([visit("everysec", 8000), visit("always", 2000)])
    page = plan_page(once, healthy())
    assert page.always_costs is None
    assert any("fewer than six pairs" in text for text in page.unmeasured)


def test_what_was_not_measured_is_null() -> None:
    page = plan_page(
        rows_of([visit("everysec", instances=3, shape=SHAPE)]), crash_of(cut("always", "at-once"))
    )
    assert option(page, 3, "always", "at-once").acquired_per_s is None
    assert option(page, 3, "everysec", None).crash is None
    assert page.always_costs is None


def test_the_reference_is_the_load_that_most_options_share() -> None:
    page = plan_page(rows(), None)
    assert page.reference == Setup(clients=16, pipeline=4, injected_ms=2.0)
    assert option(page, 5, "none", None).acquired_per_s == Spread(
        median=9000, low=9000, high=9000
    ), "in memory no latency is added"


def test_margins_and_abstention_share_their_cuts() -> None:
    cells = [
        cut("everysec", "at-once", margin=0, grants=5),
        cut("everysec", "at-once", margin=1),
        cut("everysec", "at-once", abstention=True, grants=1),
        cut("everysec", "at-once", kind="power-cut-torn", grants=2),
        cut("everysec", "at-once", kind="kill", lost=1_000_000),
    ]
    page = plan_page(rows(), crash_of(*cells))
    losses = option(page, 3, "everysec", "at-once").crash
    assert losses.cuts == 80, "40 whole and 40 torn"
    assert losses.double_grants == 7, "of clients that trust"
    assert losses.asked == 1_200
    assert losses.lost_per_cut.max == 0, "a kill is no power cut"
    abstaining = option(page, 3, "everysec", "at-once", abstention=True).crash
    assert (abstaining.cuts, abstaining.double_grants) == (40, 1)


def test_a_crash_loses_the_locks_of_all_margins() -> None:
    """Each cell knows those of its own margin only."""
    cells = [cut("everysec", "at-once", margin=margin, lost=100) for margin in (0, 1)]
    named = ("instances", "policy", "kind", "crashed", "restart")
    group = {
        **{name: cells[0][name] for name in named},
        "lost_per_cut": {"median": 150, "max": 200},
    }
    losses = option(
        plan_page(rows(), crash_of(*cells, groups=[group])), 3, "everysec", "at-once"
    ).crash
    assert losses.lost_per_cut.max == 200


def test_a_latency_of_a_growing_queue_is_not_offered() -> None:
    behind = visit("everysec", 8000, instances=3, shape=SHAPE)
    behind["loads"]["80%"]["granted"] //= 2
    assert option(plan_page(rows_of([behind]), None), 3, "everysec", None).p99_s is None


@pytest.mark.parametrize("late_ns, is_told", [(1000, True), (900_000, False)])
def test_a_latency_that_the_timer_made_is_not_offered(late_ns: int, is_told: bool) -> None:
    """As in the table of what was measured, which says late."""
    kept = visit("everysec", 8000, instances=3, shape=SHAPE)
    kept["loads"]["80%"]["lateness_p99_ns"] = late_ns
    found = option(plan_page(rows_of([kept]), None), 3, "everysec", None)
    assert (found.sustained, found.p99_s is not None) == (True, is_told)


@pytest.mark.parametrize(
    "everysec, always, advice",
    [
        (4000, 2000, "2.0× (2.0–2.0)"),
        (4000, 50, "80× (80–80)"),
        (900, 1000, "nothing measurable (0.90–0.90)"),
    ],
)
def test_costs_keep_two_digits_and_one_below_the_noise_is_called_that(
    everysec: int, always: int, advice: str
) -> None:
    page = plan_page(rows_of([visit("everysec", everysec), visit("always", always)]), None)
    assert key_figures(page) == [
        ("always costs", advice, "everysec's acquires/s ÷ always's, N=1, 1 caller, +2 ms")
    ]
