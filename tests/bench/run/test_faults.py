"""The timeline: what is due begins, what has begun is undone, and what happened is what is
recorded."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.measure.section import builtins_of
from bench.run.faults import NOT_BEGUN, TOO_LATE, FaultTimeline
from bench.topology.faults.injection import FaultKind, FaultOrder, Injection

MS = 1_000_000
LONG_MS = 600_000.0
DEADLINE_S = 10.0


class Acted(Injection):
    """A fault that only notes what was asked of it."""

    refused: BenchError | None = None
    begins: Callable[[], None] = staticmethod(lambda: None)
    ends: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, order: FaultOrder) -> None:
        super().__init__(None, order, FaultKind(lambda _fault: None))
        self.calls: list[tuple[str, int]] = []
        self.begun = threading.Event()
        self.ended = threading.Event()

    def refusal(self) -> BenchError | None:
        return self.refused

    def begin(self) -> None:
        self.calls.append(("begin", time.monotonic_ns()))
        self.detail["seen"] = 1
        self.begun.set()
        self.begins()

    def end(self) -> None:
        self.calls.append(("end", time.monotonic_ns()))
        self.ended.set()
        self.ends()


class Stage:
    """A timeline over acted faults, its window starting `lead_ms` from now."""

    def __init__(
        self,
        *orders: FaultOrder,
        lasts_ms: float = LONG_MS,
        lead_ms: float = 0.0,
        allow_skipped: bool = False,
        **acts: Any,
    ) -> None:
        self.start_ns = time.monotonic_ns() + round(lead_ms * MS)
        self.span: tuple[int, int] | None = (self.start_ns, self.start_ns + round(lasts_ms * MS))
        self.acted = [Acted(order) for order in orders]
        for acted in self.acted:
            for name, value in acts.items():
                setattr(acted, name, value)
        self.timeline = FaultTimeline(self.acted, lambda: self.span, allow_skipped=allow_skipped)


def order(at_ms: float = 0.0, lasts_ms: float | None = None, index: int = 0) -> FaultOrder:
    return FaultOrder("stop", "instance", index, at_ms, lasts_ms, {"a": 1.0}, {"a": "1"})


def fail(text: str) -> Callable[[], None]:
    def failing() -> None:
        raise EnvironmentNotReadyError(text)

    return failing


def test_a_fault_begins_when_it_is_due_and_lasts_as_long_as_ordered() -> None:
    stage = Stage(order(30, 40), lead_ms=20)
    with stage.timeline:
        assert stage.acted[0].ended.wait(DEADLINE_S)
    (entry,) = builtins_of(stage.timeline.section())
    (_, begun_ns), (_, ended_ns) = stage.acted[0].calls
    assert stage.start_ns + 30 * MS <= entry["begun_ns"] <= begun_ns <= entry["in_force_ns"]
    assert entry["in_force_ns"] + 40 * MS <= ended_ns <= entry["ended_ns"]
    assert entry["begun_s"] == pytest.approx((entry["begun_ns"] - stage.start_ns) / 1e9)
    assert 0.03 <= entry["begun_s"] < entry["ended_s"]
    expected = {
        "kind": "stop",
        "target": "instance:0",
        "params": {"a": "1"},
        "phase": "fixed",
        "at_s": 0.03,
    }
    assert (
        entry.items()
        >= {
            **expected,
            "for_s": 0.04,
            "skipped": None,
            "failed": None,
            "detail": {"seen": 1},
        }.items()
    )
    assert stage.timeline.spans_ns() == ((entry["begun_ns"], entry["ended_ns"]),)
    assert stage.timeline.absences(allowed=True) == stage.timeline.absences() == []


def test_a_fault_without_an_end_lasts_to_the_end_of_the_window_and_no_fault_longer() -> None:
    stage = Stage(order(0, None), order(0, LONG_MS, 1), lasts_ms=800)
    with stage.timeline:
        assert all(acted.ended.wait(DEADLINE_S) for acted in stage.acted)
    assert all(
        event.ended_ns >= stage.start_ns + 800 * MS
        for event in stage.timeline.faults
        if event.ended_ns
    )
    assert [event.failed for event in stage.timeline.faults] == [None, None]


def test_nothing_begins_before_the_window_is_known() -> None:
    stage = Stage(order(0))
    span = stage.span
    stage.span = None
    with stage.timeline:
        assert not stage.acted[0].begun.wait(0.1)
        stage.span = span
        assert stage.acted[0].begun.wait(DEADLINE_S)


def test_faults_do_not_wait_for_each_other() -> None:
    """The first one's begin takes until the second has ended."""
    stage = Stage(order(0, LONG_MS), order(10, 10, 1))
    stage.acted[0].begins = lambda: (
        stage.acted[1].ended.wait(DEADLINE_S) or fail("waited in vain")()
    )  # type: ignore[func-returns-value]
    with stage.timeline:
        assert stage.acted[1].ended.wait(DEADLINE_S)
    assert [event.failed for event in stage.timeline.faults] == [None, None]


def test_stopping_undoes_what_has_begun_and_begins_nothing_more() -> None:
    stage = Stage(order(0, LONG_MS), order(LONG_MS / 2, None, 1))
    stage.timeline.__enter__()
    assert stage.acted[0].begun.wait(DEADLINE_S)
    deadline_s = time.monotonic() + DEADLINE_S
    while not stage.timeline.active():
        assert time.monotonic() < deadline_s
    assert stage.timeline.active() == ["stop instance:0"]
    stage.timeline.stop()
    stage.timeline.stop()
    assert [[name for name, _ in acted.calls] for acted in stage.acted] == [["begin", "end"], []]
    assert stage.timeline.active() == []
    assert [event.skipped for event in stage.timeline.faults] == [None, NOT_BEGUN]
    assert stage.timeline.absences() == [f"the fault stop on instance:1 was skipped: {NOT_BEGUN}"]


def test_a_run_that_never_came_to_its_window_has_nothing_to_undo() -> None:
    stage = Stage(order(0))
    stage.span = None
    with stage.timeline:
        pass
    assert stage.acted[0].calls == []
    (entry,) = stage.timeline.section()
    assert (entry["skipped"], entry["begun_s"]) == (NOT_BEGUN, None)


@pytest.mark.parametrize(
    "kind", [EnvironmentNotReadyError, UsageError], ids=["the machine", "the order"]
)
def test_what_cannot_be_done_is_refused_before_the_load_by_what_is_at_fault(
    kind: type[BenchError],
) -> None:
    with pytest.raises(
        kind, match="the fault stop on instance:0 is not possible: it .*--allow-skipped"
    ) as caught:
        Stage(order(0), order(0, None, 1), refused=kind("it needs root"))
    assert caught.type is kind


def test_what_cannot_be_done_here_is_skipped_where_that_is_allowed() -> None:
    stage = Stage(
        order(0, 10), allow_skipped=True, refused=EnvironmentNotReadyError("it needs root")
    )
    with stage.timeline:
        pass
    assert stage.acted[0].calls == []
    assert stage.timeline.section()[0]["skipped"] == "it needs root"
    assert stage.timeline.absences(allowed=True) == [
        "the fault stop on instance:0 was skipped: it needs root"
    ]
    assert stage.timeline.spans_ns() == ()


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    ("acts", "why"),
    [
        ({"begins": fail("it burnt down")}, "the fault did not begin: it burnt down"),
        ({"begins": lambda: {}["nowhere"]}, "the fault did not begin: 'nowhere'"),
        ({"ends": fail("it is stuck")}, "lockbench could not undo the fault: it is stuck"),
    ],
)
def test_a_fault_that_fails_is_undone_and_an_absence_unless_that_is_allowed(
    acts: dict[str, Any], why: str, allowed: bool
) -> None:
    stage = Stage(order(0, 0.0), allow_skipped=allowed, **acts)
    with stage.timeline:
        assert stage.acted[0].ended.wait(DEADLINE_S)
    assert [name for name, _ in stage.acted[0].calls] == ["begin", "end"]
    entry = stage.timeline.section()[0]
    said = [f"the fault stop on instance:0 failed: {why}"]
    assert entry["failed"] == why
    assert (entry["in_force_ns"] is None) == why.startswith("the fault did not begin")
    assert stage.timeline.absences() == ([] if allowed else said)
    assert stage.timeline.absences(allowed=True) == (said if allowed else [])
    # it may have been there
    assert len(stage.timeline.spans_ns()) == 1


def test_a_fault_for_which_it_is_too_late_is_none() -> None:
    """A machine so busy that the window is over when its threads get to run: the load has met no
    fault."""
    stage = Stage(order(0), lasts_ms=30, lead_ms=-60)
    stage.timeline.__enter__()
    deadline_s = time.monotonic() + DEADLINE_S
    while stage.timeline.faults[0].skipped is None:
        assert time.monotonic() < deadline_s
    stage.timeline.stop()
    assert stage.acted[0].calls == []
    assert stage.timeline.absences() == [f"the fault stop on instance:0 was skipped: {TOO_LATE}"]


def test_a_worker_that_a_fault_killed_is_known_and_no_other() -> None:
    orders = (
        FaultOrder("kill", "worker", 1, 0.0, 0.0),
        FaultOrder("stop", "worker", 0, 0.0, 0.0),
        FaultOrder("kill", "instance", 2, 0.0, 0.0),
        FaultOrder("kill", "worker", 3, LONG_MS / 2, 0.0),
    )
    stage = Stage(*orders)
    for number, acted in enumerate(stage.acted):
        acted.detail["pid"] = 100 + number
    with stage.timeline:
        assert all(acted.ended.wait(DEADLINE_S) for acted in stage.acted[:3])
    assert stage.timeline.killed_workers() == {1: 100}
