"""The table of faults, and a scenario's faults read against it."""

import re
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.scenario import Fault
from bench.scenario.quantity import parse_fault
from bench.topology.faults import kinds
from bench.topology.faults.injection import NOT_OURS, read_params
from bench.topology.faults.kinds import KINDS, WORKER_KINDS, injection, read_faults

README = Path(kinds.__file__).parents[1] / "README.md"
NEEDED = {"clock-jump": {"by": "5s"}, "clock-rate": {"rate": 1.1}, "proxy": {"delay": "5ms"}}
BOUNDED = {"loading"}


def fault(
    kind: str, target: str = "instance:0", for_ms: float | None = None, **params: object
) -> Fault:
    given = {
        **NEEDED.get(kind, {}),
        **{name.replace("_", "-"): value for name, value in params.items()},
    }
    return Fault(
        kind, 100.0, for_ms or (50.0 if kind in BOUNDED else None), (target,), "fixed", given
    )


def test_a_kind_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UsageError,
        match=r"1 \(stopp\): there is no such kind of fault \(the kinds are kill, .*mean stop\?$",
    ):
        read_faults([fault("stopp")])


def test_every_kind_is_documented_with_its_params() -> None:
    """README's table of kinds: one row each, naming every param."""
    rows = {
        match[1]: match[0]
        for match in re.finditer(r"^\| `([a-z-]+)` \|.*$", README.read_text(), re.MULTILINE)
    }
    for name, kind in KINDS.items():
        assert name in rows
        assert [param for param in kind.params if f"`{param}`" not in rows[name]] == []


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_can_be_ordered_and_says_that_foreign_servers_are_not_ours(name: str) -> None:
    (order,) = read_faults([fault(name)])
    assert (order.kind, order.target, order.at_ms) == (name, "instance:0", 100.0)
    refusal = injection(None, order).refusal()
    assert isinstance(refusal, UsageError)
    assert str(refusal) == NOT_OURS


@pytest.mark.parametrize("name", WORKER_KINDS)
def test_what_strikes_workers_needs_no_server_of_ours(name: str) -> None:
    (order,) = read_faults([fault(name, "worker:1")])
    assert injection(None, order).refusal() is None


@pytest.mark.parametrize(
    "written, why",
    [
        (
            fault("fsync-latency", dely="5ms"),
            r"fault 1 \(fsync-latency\): there is no param 'dely' .*mean delay\?",
        ),
        (
            fault("proxy", "worker:0"),
            "the fault proxy is only possible on an instance, not on a worker",
        ),
        (fault("script-flush", for_ms=5), "because it has no length; remove `for`"),
        (fault("restart", for_ms=5), "because the param `delay` sets its length; remove `for`"),
        (
            Fault("clock-jump", 0, None, ("instance:0",), "fixed", {}),
            r'it needs a value for by, for example params = \{by = "5s"\}',
        ),
        (
            Fault("loading", 0, None, ("instance:0",), "fixed", {}),
            "this fault must end before the run ends; set `for`",
        ),
        (
            Fault("proxy", 0, None, ("instance:0",), "fixed", {}),
            "mode delay needs a delay or a jitter",
        ),
        (fault("proxy", mode="reset"), "every other mode allows neither"),
    ],
)
def test_what_does_not_fit_is_a_usage_error_that_names_the_fault(written: Fault, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_faults([written])


def test_one_order_for_each_target_all_at_the_same_time() -> None:
    written = parse_fault(
        {"at": "5s", "for": "2s", "kind": "stop", "target": ["instance:0", "worker:1"]}
    )
    orders = read_faults([written])
    assert [(order.target, order.at_ms, order.lasts_ms) for order in orders] == [
        ("instance:0", 5000.0, 2000.0),
        ("worker:1", 5000.0, 2000.0),
    ]


def test_a_random_phase_is_drawn_from_the_seed_and_shared_by_the_targets() -> None:
    written = Fault("stop", 5000.0, None, ("instance:0", "instance:1"), "random", {})

    def times(seed: int) -> list[float]:
        return [
            order.at_ms for order in read_faults([written, written], seed=seed, duration_ms=20_000)
        ]

    first = times(1)
    assert first == times(1)
    assert first != times(2)
    assert first[0] == first[1] != first[2] == first[3]
    assert all(5000 <= at_ms < 6000 for seed in range(50) for at_ms in times(seed))
    assert {int(at_ms // 100) for seed in range(200) for at_ms in times(seed)} == set(range(50, 60))
    assert read_faults([written], seed=1, duration_ms=5001)[0].at_ms < 5001


def test_a_fixed_phase_is_exact_and_no_fault_outlasts_the_window() -> None:
    (order,) = read_faults(
        [Fault("stop", 900.0, 500.0, ("instance:0",), "fixed", {})], duration_ms=1000
    )
    assert (order.at_ms, order.lasts_ms) == (900.0, 100.0)
    (order,) = read_faults(
        [Fault("stop", 900.0, None, ("instance:0",), "fixed", {})], duration_ms=1000
    )
    assert order.lasts_ms is None


def test_a_moment_lasts_no_time_and_a_delay_as_long_as_it_says() -> None:
    lasting = {
        "script-flush": 0.0,
        "client-kill": 0.0,
        "restart": 0.0,
        "power-cut": 0.0,
        "kill": None,
        "misconf": None,
    }
    assert {name: read_faults([fault(name)])[0].lasts_ms for name in lasting} == lasting
    assert read_faults([fault("restart", delay="3s")])[0].lasts_ms == 3000.0


# -- params ----------------------------------------------------------------------------------------

TABLE = {**KINDS["clock-jump"].params, **KINDS["power-cut"].params}


def test_every_param_is_there_resolved_and_the_defaults_too() -> None:
    assert read_params(TABLE, {"by": "-5s"}) == {"delay": 0.0, "by": -5000.0}
    assert read_params(TABLE, {"by": "--5s", "delay": "1s"}) == {"delay": 1000.0, "by": -5000.0}


@pytest.mark.parametrize(
    "given, why",
    [
        ({"by": "1s", "delay": "2d"}, "param 'delay': '2d' is not a duration"),
        ({"by": "0"}, "param 'by': '0' is not a time of at most 24h, forward or back"),
    ],
)
def test_what_is_wrong_with_a_param_is_named(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_params(TABLE, given)


@pytest.mark.parametrize("wrong", [0, 11, True, "1", float("nan")])
def test_a_rate_is_a_number_within_its_limits(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a number from 0.1 to 10"):
        read_params(KINDS["clock-rate"].params, {"rate": wrong})
