"""The timeline of the faults of a run: *orders and the measured window → faults that begin and end
in this window*.

Rules
- Each fault has its own thread, so no fault waits for another fault.
- `stop` undoes every fault that has begun. The end of the `with` block also undoes every fault. No
  fault lasts longer than the measured window.
- Without one of its faults, a run does not measure what the user wants to measure. So if a fault is
  impossible from the start, lockbench refuses the run. If a fault fails later, `absences` reports
  the failure. With `--allow-skipped`, lockbench only gives a warning for an impossible or failed
  fault.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from bench.measure.run_result import InjectedFault
from bench.topology.faults.injection import Injection
from lockcore.clock import NS_PER_MS, NS_PER_S

Span = tuple[int, int]
NOT_BEGUN = "the run ended before the fault began"
TOO_LATE = "the measured time ended before the fault could begin"
_LOOK_S = 0.01
_UNDO_S = 30.0


def _entry(fault: Injection, start_ns: int | None) -> InjectedFault:
    """Return the entry of a fault in the result.

    The times in the entry are in seconds after `start_ns`, which is the start of the measured
    window.
    """
    order = fault.order

    def since_start(at_ns: int | None) -> float | None:
        return None if at_ns is None or start_ns is None else (at_ns - start_ns) / NS_PER_S

    for_s = None if order.lasts_ms is None else order.lasts_ms / 1000
    return InjectedFault(
        kind=order.kind,
        target=order.target,
        params=dict(order.written),
        phase="random" if order.phase == "random" else "fixed",
        at_s=order.at_ms / 1000,
        for_s=for_s,
        begun_s=since_start(fault.begun_ns),
        ended_s=since_start(fault.ended_ns),
        begun_ns=fault.begun_ns,
        in_force_ns=fault.in_force_ns,
        ended_ns=fault.ended_ns,
        skipped=fault.skipped,
        failed=fault.failed,
        detail=dict(fault.detail),
    )


class FaultTimeline:
    """A timeline that injects faults at their times, beside the load.

    Create the timeline before the load starts. Enter the `with` block of the timeline when the load
    starts.
    """

    def __init__(
        self,
        faults: Sequence[Injection],
        window: Callable[[], Span | None],
        *,
        allow_skipped: bool = False,
    ) -> None:
        """Create the timeline and check that every fault can be injected in this run.

        `window`: a function that returns the start and the end of the measured window (ns). These
        times may be in the future. The function returns None until every worker has spawned its
        users. `allow_skipped`: true if faults may be skipped. Raises UsageError or
        EnvironmentNotReadyError if a fault is impossible and may not be skipped.
        """
        self._window = window
        self._allow_skipped = allow_skipped
        self._span: Span | None = None
        self._stopping = threading.Event()
        self._shown_ns = 0
        self.faults = faults
        for fault in self.faults:
            if (refusal := fault.refusal()) is None:
                continue
            if not allow_skipped:
                what = f"the fault {fault.order.kind} on {fault.order.target} is not possible"
                raise type(refusal)(
                    f"{what}: {refusal}; use --allow-skipped to run without this fault"
                )
            fault.skipped = str(refusal)
        self._leader = threading.Thread(target=self._lead, daemon=True)

    def stop(self) -> None:
        """Undo all faults now. Return when all faults are undone, or after 30 s at the latest.

        The method may be called more than once.
        """
        self._stopping.set()
        if self._leader.is_alive():
            self._leader.join(_UNDO_S)
        for fault in self.faults:
            if fault.begun_ns is None and fault.skipped is None and fault.failed is None:
                fault.skipped = NOT_BEGUN
            if fault.begun_ns is not None and fault.ended_ns is None:
                fault.failed = f"the fault could not be undone within {_UNDO_S:g} s"

    def __enter__(self) -> Self:
        if self.faults:
            self._leader.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def section(self) -> tuple[InjectedFault, ...]:
        """Return the section `faults` of a result."""
        start_ns = self._span[0] if self._span else None
        return tuple(_entry(fault, start_ns) for fault in self.faults)

    def absences(self, *, allowed: bool = False) -> list[str]:
        """Return one sentence for each fault that was skipped or that failed.

        If `allowed` is True, the list has only the faults that the run may skip. If `allowed` is
        False, the list has only the faults that the run must not skip. A run may skip either all of
        its faults or none of its faults. So for one of the two values of `allowed`, the list is
        always empty.
        """
        if self._allow_skipped is not allowed:
            return []
        ends = (
            (fault.order, fault.skipped, fault.failed)
            for fault in self.faults
            if fault.skipped or fault.failed
        )
        return [
            f"the fault {order.kind} on {order.target} "
            f"{f'was skipped: {skipped}' if skipped else f'failed: {failed}'}"
            for order, skipped, failed in ends
        ]

    def spans_ns(self) -> tuple[Span, ...]:
        """Return the start and the end (ns) of each fault that has begun. The judge uses these
        times to decide whether a fault caused a violation.

        If a fault is not undone yet, the present time is used as its end.
        """
        now_ns = time.monotonic_ns()
        return tuple(
            (fault.begun_ns, fault.ended_ns or now_ns)
            for fault in self.faults
            if fault.begun_ns is not None
        )

    def killed_workers(self) -> dict[int, int]:
        """Return a mapping from worker indices to pids.

        The mapping has each load worker that a fault killed. These deaths are planned.
        """
        return {
            fault.order.index: fault.detail["pid"]
            for fault in self.faults
            if fault.begun_ns
            and fault.order.target.startswith("worker")
            and fault.order.kind == "kill"
            if "pid" in fault.detail
        }

    def active(self) -> list[str]:
        """Return the kind and target of each fault in force now."""
        there = (fault.order for fault in self.faults if fault.begun_ns and not fault.ended_ns)
        return [f"{order.kind} {order.target}" for order in there]

    def shown(self) -> list[tuple[str, str, bool]]:
        """Return three facts about each fault.

        The facts are the kind of the fault, its target, and a bool. The bool is true if the fault
        was in force at any time since the last call. Because of this rule, a fault that began and
        ended between two calls is also visible.
        """
        since_ns = self._shown_ns
        self._shown_ns = time.monotonic_ns()
        return [
            (
                fault.order.kind,
                fault.order.target,
                bool(fault.begun_ns and (fault.ended_ns or since_ns) >= since_ns),
            )
            for fault in self.faults
        ]

    def _lead(self) -> None:
        while (span := self._window()) is None:
            if self._stopping.wait(_LOOK_S):
                return
        self._span = span
        threads = [
            threading.Thread(target=self._inject, args=(fault, span), daemon=True)
            for fault in self.faults
            if fault.skipped is None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _inject(self, fault: Injection, span: Span) -> None:
        start_ns, end_ns = span
        if self._stopped_before(start_ns + round(fault.order.at_ms * NS_PER_MS)):
            return
        if (now_ns := time.monotonic_ns()) >= end_ns:
            fault.skipped = TOO_LATE
            return
        fault.begun_ns = now_ns
        try:
            fault.begin()
            fault.in_force_ns = time.monotonic_ns()
            lasts_ms = fault.order.lasts_ms
            until_ns = (
                end_ns
                if lasts_ms is None
                else min(end_ns, fault.in_force_ns + round(lasts_ms * NS_PER_MS))
            )
            self._stopped_before(until_ns)
        except Exception as error:  # noqa: BLE001 - the result reports every error
            fault.failed = f"the fault did not begin: {error}"
        try:
            fault.end()
        except Exception as error:  # noqa: BLE001 - as above
            fault.failed = "; ".join(
                filter(None, (fault.failed, f"lockbench could not undo the fault: {error}"))
            )
        fault.ended_ns = time.monotonic_ns()

    def _stopped_before(self, at_ns: int) -> bool:
        """Wait until `at_ns`, or until `stop` is called. Return True if `stop` was called."""
        while (left_ns := at_ns - time.monotonic_ns()) > 0:
            if self._stopping.wait(left_ns / NS_PER_S):
                return True
        return self._stopping.is_set()
