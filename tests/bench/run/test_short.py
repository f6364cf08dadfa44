"""What makes a short run unusable for capacity, compare and gate, and what does not."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import InconclusiveError, UsageError
from bench.measure.run_result import RunResult
from bench.run import short
from bench.run.interrupt import Interrupts
from bench.run.run import Order
from bench.run.short import TornError, is_disturbed, require_earned, require_whole, run_short
from bench.scenario import load
from bench.workloads.plan import Ring
from tests.bench.whole_run import SAMPLE, run_of


def run_with(
    *, status: str = "pass", generator: str = "VALID", offered: float | None = None, **changes: Any
) -> RunResult:
    result = copy.deepcopy(SAMPLE)
    result |= changes
    result["verdict"] |= {"status": status, "reasons": ["why"]}
    result["generator"]["verdict"] = generator
    result["rate"]["offered_per_s"] = offered
    return run_of(result)


def ended_with(
    result: RunResult, monkeypatch: pytest.MonkeyPatch, *, ring: Ring | None = None, wishes: int = 0
) -> RunResult:
    """What a short run that came to `result` returns, after so many wishes to end it."""
    orders: list[Order] = []

    def run_on(_servers: Any, order: Order, *_more: Any, **_options: Any) -> Any:
        orders.append(order)
        return SimpleNamespace(result=result)

    monkeypatch.setattr(short, "run_on", run_on)
    interrupts = Interrupts()
    interrupts.count = wishes
    order = Order(load(None, {}), "7f3a", (), None, ring=ring)
    servers: Any = None
    returned = run_short(servers, order, interrupts)
    assert orders[0].more, "its Locust serves another run"
    return returned


def test_a_run_that_ended_in_its_time_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with()
    assert ended_with(result, monkeypatch) is result


@pytest.mark.parametrize(("interrupted", "wishes"), [(True, 0), (False, 1)])
def test_half_a_run_is_no_measurement(
    interrupted: bool, wishes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ended_with(run_with(interrupted=interrupted), monkeypatch, wishes=wishes)


def test_a_run_in_turns_whose_load_ended_early_is_torn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with pytest.raises(TornError, match="ended early: why"):
        ended_with(run_with(duration_s=0.1), monkeypatch, ring=Ring(tmp_path, 0, 2))


@pytest.mark.parametrize(
    ("run", "disturbed"),
    [
        (run_with(), False),
        (run_with(status="invalid"), True),
        (run_with(generator="LATE"), False),
        (run_with(generator="LATE", offered=100.0), True),
        (run_with(generator="UNKNOWN", offered=100.0), True),
        (run_with(status="violated"), False),
    ],
)
def test_a_late_generator_disturbs_an_open_loop_alone(run: RunResult, disturbed: bool) -> None:
    assert is_disturbed(run) is disturbed


def test_an_invalid_run_whose_generator_did_well_is_broken() -> None:
    require_whole(run_with(status="invalid", generator="INVALID"))
    require_whole(run_with())
    with pytest.raises(InconclusiveError, match="ended early: why"):
        require_whole(run_with(status="invalid"))


def test_a_side_that_was_not_tested_counts_only_beside_others_of_its_kind() -> None:
    untested = run_with(verdict={"status": "pass", "word": "NOT TESTED", "reasons": []})
    safe = run_with(verdict={"status": "pass", "word": "SAFE", "reasons": []})
    require_earned("gate", [[untested], [untested]], ["a", "b"])
    with pytest.raises(UsageError, match="b, run .*NOT TESTED"):
        require_earned("gate", [[safe], [untested]], ["a", "b"])
