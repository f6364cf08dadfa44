"""This module leads a run inside Locust: *Locust's events in a master or local runner → one start
and one end for all workers, and the first error*.

Rules
- When all users run, every worker gets the same start time. Each worker also gets its own part of
  the schedule.
- A planned run ends by itself. A run without a plan from `lockbench run` has its own judge process.
- When Locust quits, it loses the reports that have not arrived. So before Locust stops a
  distributed run, the conductor asks every worker to finish and waits for the last reports. The
  module bench/hosts/ending.py describes the states of a worker during this shutdown.
- Nothing interrupts the shutdown of a run. If Locust starts to quit during this shutdown, Locust
  first waits until the shutdown is complete.
- The first error that any worker reports ends the run. The run then reports the message and the
  exit code of this error.

Source: locust.runners, locust.main (shutdown).
"""

import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from pathlib import Path

import gevent
from gevent import getcurrent
from gevent.event import Event
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import STATE_INIT, STATE_STOPPING, LocalRunner, MasterRunner

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.hosts.ending import Ending, Progress
from bench.hosts.leader import Hosts
from bench.measure.environment import versions
from bench.measure.verdict import VIOLATED
from bench.measure.workers import note_ending
from bench.workloads.beside import JUDGE_S, JudgeBeside, ToldVerdict
from bench.workloads.ends import end_within
from bench.workloads.launch import WORKERS_S, error_of, note_failure, note_of
from bench.workloads.member import BEGIN, FAILED, FINISH, FINISHED, HERE, THERE
from bench.workloads.plan import PLAN, Plan, plan_of, planned
from bench.workloads.series import series_of
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# The origin lies this far in the future, so that workers learn the time of origin in advance.
LEAD_NS = 50 * NS_PER_MS
# A planned run lasts this much longer than planned, so that every worker sees its end.
TAIL_NS = 20 * NS_PER_MS
LOOK_S = 0.05
# The rest of Locust's shutdown may take this long.
END_S = 15.0
# All users should run within this time. After this time, the run begins with the users that already
# run.
THERE_S = 60.0
logger = logging.getLogger(__name__)


def in_order_of_users(ids: Iterable[str]) -> list[str]:
    """Return the workers in the sequence in which Locust assigns users to workers.

    The result begins with the first worker of each host, sorted by host name. The second worker of
    each host follows, and so on. So a worker never has fewer users than a later worker of the
    result.
    """
    hosts = [
        list(workers) for _, workers in groupby(sorted(ids), lambda worker: worker.split("_")[0])
    ]
    return [worker for turn in zip_longest(*hosts) for worker in turn if worker is not None]


@dataclass(eq=False, slots=True)
class ConductedRun:
    """The state of one run.

    `plan`: the plan of the run, or None. The plan stays the same, even if the web form changes
    Locust's options during the run. `there`: a dictionary that contains the number of running
    callers for each worker. `ending`: the progress of the shutdown of this run, or None before the
    shutdown begins. `over`: an event that is set when the shutdown is complete.
    """

    plan: Plan | None = None
    has_begun: bool = False
    has_failed: bool = False
    there: dict[str, int] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    stop_ns: int = 0
    ending: Ending | None = None
    over: Event = field(default_factory=Event)


class Conductor:
    """The object that listens to the events and messages of one master or local runner.

    With a local runner, create the Conductor before the Member, because the Conductor makes the
    plan of the run.
    """

    def __init__(self, environment: Environment, runner: LocalRunner | MasterRunner) -> None:
        self._environment = environment
        self._runner = runner
        self._run = ConductedRun()
        self._is_running = False
        self._judge = None if planned(os.environ) else JudgeBeside()
        # The verdict on the last run.
        self.told: ToldVerdict | None = None
        events = environment.events
        events.test_start.add_listener(self._start)
        events.test_stopping.add_listener(self._note_stop)
        events.quit.add_listener(self._quit)
        events.spawning_complete.add_listener(self._spawned)
        runner.register_message(HERE, self._note_here)
        runner.register_message(THERE, self._note_there)
        runner.register_message(FAILED, self._fail)
        runner.register_message(FINISHED, self._note_finished)
        self._hosts = Hosts(runner) if isinstance(runner, MasterRunner) else None
        self._series = series_of(os.environ, runner)
        if isinstance(runner, MasterRunner):
            events.test_stopping.add_listener(self._finish)
            self._apart(runner)
            if planned(os.environ) and environment.parsed_options is not None:
                gevent.spawn_later(
                    WORKERS_S, self._give_up, runner, environment.parsed_options.expect_workers
                )

    def _apart(self, runner: MasterRunner) -> None:
        """Let Locust call its methods `stop` and `quit` in separate greenlets. If the shutdown of a
        run has begun, the quit waits until the shutdown is complete.

        Locust quits at a signal, when the last worker has left, or when a worker has failed. To
        quit, Locust tells all workers to leave, and after that Locust reads no more messages.
        Without this method, Locust could quit during the shutdown of a run. All workers would then
        lose their histories. The greenlet that reads messages must not call `quit` itself, because
        `quit` waits for messages.
        """
        stop = runner.stop
        quit_now = runner.quit

        def quit_when_over() -> None:
            if self._run.ending is not None:
                self._run.over.wait()
            quit_now()

        def elsewhere(call: Callable[..., None]) -> Callable[..., None]:
            def called(*args: object, **kwargs: object) -> None:
                if getcurrent() in runner.greenlet:
                    gevent.spawn(call, *args, **kwargs)
                else:
                    call(*args, **kwargs)

            return called

        runner.stop = elsewhere(stop)  # type: ignore[method-assign]
        runner.quit = elsewhere(quit_when_over)  # type: ignore[method-assign]

    def _give_up(self, runner: MasterRunner, expected: int) -> None:
        """End the run if a worker of another host is still missing.

        If a worker has connected but is lost later, the worker counts as absent.
        """
        came = sorted(client.id.split("_")[0] for client in runner.clients.ready)
        if runner.state != STATE_INIT or len(came) >= expected:
            return
        error = EnvironmentNotReadyError(
            f"only {len(came)} of {expected} workers came within {WORKERS_S:.0f} s "
            f"({', '.join(came) or 'none'}); start lockbench worker --master with this host's "
            "address on the other hosts"
        )
        note_failure(error)
        if self._hosts is not None:
            self._hosts.dismiss(runner.clients, f"the leader stopped waiting: {error}")
        runner.quit()
        # gevent ends the process with this code.
        sys.exit(error.exit_code)

    def _start(self, **_: object) -> None:
        """Begin a new run. The workers get the plan of the run together with Locust's options."""
        run = ConductedRun()
        self._run = run
        self._is_running = True
        self.told = None
        environment = self._environment
        setattr(environment.parsed_options, PLAN, None)
        # The workers meet the same error and report it.
        with suppress(BenchError):
            run.plan = self._make_plan(environment.parsed_options or Namespace())
            environment.stop_timeout = environment.stop_timeout or run.plan.grace_s
        if self._hosts is not None:
            self._hosts.begin(run.plan.workdir if run.plan and run.plan.bind else None)

    def _make_plan(self, options: Namespace) -> Plan:
        """Return the plan of this run, and put it into Locust's options for the workers. Raises
        BenchError."""
        plan = plan_of(options)
        runner = self._runner
        fleet = in_order_of_users(runner.clients) if isinstance(runner, MasterRunner) else []
        plan = replace(plan, fleet=tuple(fleet))
        if plan.workdir is None:
            users = max(runner.target_user_count, 1)
            scenario = replace(plan.scenario, users=users, processes=len(fleet) or 1, warmup_ms=0.0)
            bind = (
                (options.master_bind_host, options.master_bind_port)
                if isinstance(runner, MasterRunner)
                else None
            )
            plan = replace(plan, scenario=scenario, bind=bind)
            self._judge = self._judge or JudgeBeside()
            folder = self._judge.begin(plan, options.result and Path(options.result).absolute())
            plan = replace(plan, workdir=folder, bind=bind if folder else None)
        # Workers of other hosts use their own folders, so their plan has no workdir.
        theirs = plan if plan.bind is None else replace(plan, workdir=None)
        setattr(options, PLAN, theirs.text.decode())
        return plan

    def _spawned(self, user_count: int, **_: object) -> None:
        """Begin the run, because Locust has created all users. In a planned run, the users wait
        until all users exist, but at most THERE_S seconds."""
        run = self._run
        if run.has_begun or run.has_failed or run.plan is None:
            return
        run.has_begun = True
        if not run.plan.timed:
            self._begin(run.plan)
        else:
            gevent.spawn(self._begin_when_there, run, run.plan, user_count)

    def _begin_when_there(self, run: ConductedRun, plan: Plan, users: int) -> None:
        hosts = self._hosts
        deadline_s = time.monotonic() + THERE_S
        while sum(run.there.values()) < users or (hosts is not None and not hosts.ready()):
            if run.has_failed or run.ending is not None:
                return
            if time.monotonic() >= deadline_s:
                break
            gevent.sleep(LOOK_S / 5)
        self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        runner = self._runner
        origin_ns = monotonic_ns()
        if isinstance(runner, MasterRunner) and self._hosts is not None:
            origin_ns += LEAD_NS + self._hosts.far_ns
            clients = sorted(runner.clients, key=runner.get_worker_index)
            for part, client in enumerate(clients):
                theirs_ns = self._hosts.origin(client, origin_ns)
                runner.send_message(
                    BEGIN, {"origin_ns": theirs_ns, "part": part, "parts": len(clients)}, client
                )
        else:
            runner.send_message(BEGIN, {"origin_ns": origin_ns, "part": 0, "parts": 1})
        end_ns = plan.window_ns[1]
        if end_ns is not None and plan.ring is None:
            gevent.spawn(self._end_at, origin_ns + end_ns + TAIL_NS)

    def _end_at(self, due_ns: int) -> None:
        # gevent counts the time of a sleep from the beginning of the current pass of its loop, so
        # the sleep may end too early.
        while (left_ns := due_ns - monotonic_ns()) > 0:
            gevent.sleep(left_ns / NS_PER_S)
        self.end_run()

    def end_run(self) -> None:
        """End the run after its planned time. Locust continues if another run may follow."""
        if self._series is None:
            self._runner.quit()
        else:
            self._series.go_on()

    def _finish(self, **_: object) -> None:
        """Carry out the steps of the shutdown of the run, because Locust is about to stop. The
        module bench/hosts/ending.py describes the steps."""
        hosts = self._hosts
        runner = self._runner
        run = self._run
        plan = run.plan
        if run.ending is not None or hosts is None or not isinstance(runner, MasterRunner):
            return
        nodes = {*runner.clients, *hosts.known}.difference(hosts.sent_away)
        run.ending = Ending(sorted(nodes))
        try:
            if plan is not None and plan.workdir is not None:
                note_ending(plan.workdir)
            # Without this state, Locust would move the users of a leaving worker to the other
            # workers.
            runner.update_state(STATE_STOPPING)
            self._await_reports(run, run.ending, hosts)
            if plan is not None:
                hosts.fetch(run.ending, plan.scenario, plan.window_ns, run.stop_ns)
            self._end()
        finally:
            run.over.set()

    def _await_reports(self, run: ConductedRun, ending: Ending, hosts: Hosts) -> None:
        """Ask every worker to finish. Wait until each worker has sent its last report or is
        lost."""
        for node in ending.at(Progress.WORKING):
            self._runner.send_message(FINISH, None, node)
        grace_s = 0.0
        if not run.has_failed:
            planned_s = run.plan.grace_s if run.plan else 0.0
            grace_s = self._environment.stop_timeout or planned_s
        deadline_s = time.monotonic() + grace_s + 5.0
        while True:
            for node in ending.at(Progress.WORKING):
                if node in run.finished:
                    ending.note(node, Progress.FINISHED)
                elif self._is_gone(hosts, node):
                    ending.note(node, Progress.LOST)
            working = ending.at(Progress.WORKING)
            if not working:
                return
            if time.monotonic() >= deadline_s:
                logger.error(
                    "a worker did not finish in time; its last operations are missing "
                    "from this table"
                )
                ending.lose(working)
                return
            gevent.sleep(LOOK_S)

    def _is_gone(self, hosts: Hosts, node: str) -> bool:
        """Return True if worker `node` is lost. A lost worker never reports its end.

        Locust notices a lost worker after 4 s. If the worker runs on this host, this method asks
        the kernel, so it notices the loss at once.
        """
        plan = self._run.plan
        all_here = plan is not None and plan.workdir is not None and plan.bind is None
        return hosts.is_gone(node) or (all_here and hosts.is_dead(node))

    def _note_here(self, msg: Message, **_: object) -> None:
        """Record that a worker has connected, or that it begins its part of the run. If a worker
        connects after the start of a planned run, send it away."""
        node = msg.node_id
        plan = self._run.plan
        if self._hosts is None or not self._is_running:
            return
        if plan and plan.timed and node not in plan.fleet:
            if self._hosts.send_away(node, f"{msg.data['host']} (pid {msg.data['pid']})"):
                logger.warning(
                    "the worker on %s connected after the run began and was sent away",
                    msg.data["host"],
                )
            return
        self._hosts.note_here(node, msg.data)
        theirs, ours = (about.partition(",")[0] for about in (msg.data["about"], versions()))
        if theirs != ours:
            host = msg.data["host"]
            error = EnvironmentNotReadyError(
                f"{host} has {theirs}, but the leader has {ours}; install the same versions on "
                "all hosts"
            )
            self._fail(Message(FAILED, note_of(error), node))

    def _note_there(self, msg: Message, **_: object) -> None:
        self._run.there[msg.node_id] = msg.data["callers"]

    def _note_finished(self, msg: Message, **_: object) -> None:
        if msg.node_id in self._run.finished:
            return
        self._run.finished.add(msg.node_id)
        if isinstance(self._runner, LocalRunner):
            self._end()

    def _note_stop(self, **_: object) -> None:
        self._run.stop_ns = self._run.stop_ns or monotonic_ns()

    def _end(self) -> None:
        """Let the judge start its work, because all data of the run has arrived. If the run has
        failed, do not judge it."""
        judge = self._judge
        self._judge = None
        self._is_running = False
        if judge is None:
            return
        if self._run.has_failed:
            judge.close()
        elif self._environment.web_ui is not None:
            gevent.spawn(self._conclude, judge, self._run)
        else:
            # Judging may take longer than the limit for Locust's shutdown.
            end_within(JUDGE_S + END_S)
            self._conclude(judge, self._run)
            end_within(END_S)

    def _conclude(self, judge: JudgeBeside, run: ConductedRun) -> None:
        """Judge a run. The web page shows the verdict, unless the next run has already begun."""
        verdict = judge.judge(run.stop_ns)
        if verdict.exit_code == VIOLATED.exit_code:
            self._environment.process_exit_code = VIOLATED.exit_code
        if self._environment.web_ui is not None:
            _tell(verdict)
        if self._run is run:
            self.told = verdict

    def _quit(self, **_: object) -> None:
        """Log the verdict as the last line, after the tables of Locust."""
        if self._judge is not None:
            self._judge.close()
        if self._environment.web_ui is None:
            _tell(self.told)

    def _fail(self, msg: Message, **_: object) -> None:
        """End the run, because a process cannot continue. The error message of this process becomes
        the error message of the run."""
        if self._run.has_failed:
            return
        self._run.has_failed = True
        environment = self._environment
        error = error_of(**msg.data)
        environment.process_exit_code = error.exit_code
        logger.error(str(error))
        note_failure(error)
        options = environment.parsed_options
        gevent.spawn(
            self._runner.quit if options is not None and options.headless else self._runner.stop
        )


def _tell(verdict: ToldVerdict | None) -> None:
    if verdict is not None:
        place = verdict.page or verdict.unstored
        logger.info("%s   %s%s", verdict.word, verdict.headline, place and f"; {place}")
