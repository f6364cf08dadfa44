"""The process that judges a run of plain `locust`: *the plan of a run, the time at which its load
ended → the result*.

Rules: Locust decides how long a run lasts. At the end of the run, Locust sends a message with the
end time. The run is judged like every other run. If Locust ends without a message, there is no
result.
"""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.errors import BenchError, InconclusiveError
from bench.measure.run_result import RunResult
from bench.report.html.page import write_report
from bench.report.html.run_page import run_page
from bench.report.summary import in_one_line, sheet
from bench.run.conclude import RunEvidence, conclude
from bench.run.experiment import Done, now_text, store
from bench.run.faults import FaultTimeline
from bench.run.follow import LOOK_S, Course, lost_workers, unreported
from bench.run.follower import Follower
from bench.run.servers import counted, open_servers
from bench.topology.child import orders, say
from bench.topology.probe import info_snapshot
from bench.workloads.beside import READY, JudgeOrder, ToldVerdict
from bench.workloads.plan import Plan, plan_from


def main() -> int:
    """Judge one run, and return an exit code."""
    say(READY)
    order = next(orders(JudgeOrder), None)
    if order is None:
        return 0
    try:
        result = _judged(plan_from(order.plan, "Locust's plan"), order.workdir, order.command)
        if result is not None:
            say(_told(result, order.folder))
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _judged(plan: Plan, workdir: Path, command: Sequence[str]) -> RunResult | None:
    """Wait for the end of the run and judge it.

    Return None if Locust ended without a message. Raises BenchError.
    """
    # The scenario in the plan shows its targets without passwords. The plan itself has the complete
    # targets.
    scenario = replace(plan.scenario, targets=plan.targets)
    started = now_text()
    with open_servers(scenario, server=None, allow_missing=False) as servers:
        before = info_snapshot(servers.urls)
        say(READY)
        follower = Follower(workdir, replace(scenario, warmup_ms=0.0, duration_ms=0.0))
        timeline = FaultTimeline((), follower.find_window)
        course, stop_ns = _watched(follower)
        if stop_ns is None:
            return None
        if (window := follower.until(stop_ns)) is None:
            raise InconclusiveError(
                "the run ended before all its users had started; use a longer run (-t) or a "
                "faster start (-r)"
            )
        course.window = window
        course.deaths = lost_workers(follower, timeline) or unreported(follower, timeline)
        evidence = RunEvidence(
            replace(scenario, duration_ms=window.duration_s * 1000),
            servers,
            workdir,
            plan.key_prefix,
            course,
            window,
            timeline,
            *counted(servers.urls, before),
        )
        return conclude(evidence, run_id=plan.run_id, command=command, started_at=started)


def _watched(follower: Follower) -> tuple[Course, int | None]:
    """Record the clock once a second until Locust sends the time at which the run ended.

    Return the clock samples and the time (ns) at which the run ended. This time is None if Locust
    ended without a message.
    """
    course = Course()
    heard = list[int | None]()
    listener = threading.Thread(target=lambda: heard.append(next(orders(int), None)), daemon=True)
    listener.start()
    while listener.is_alive():
        listener.join(LOOK_S)
        course.note(time.monotonic_ns(), running=follower.find_window() is not None)
    return course, heard[0] if heard else None


def _told(result: RunResult, folder: Path | None) -> ToldVerdict:
    """Store the result in `folder`, and return a summary of the result. If `folder` is None, the
    result is not stored."""
    done = Done(result, None, 0) if folder is None else store(result, folder / result.id, 0)
    path = done.path
    page = None if path is None else str(write_report(run_page(result, str(path)), path))
    summary = sheet(result)
    code = result.verdict.exit_code or 0
    return ToldVerdict(
        summary.verdict, summary.style, in_one_line(result), code, page, done.unstored
    )


if __name__ == "__main__":
    sys.exit(main())
