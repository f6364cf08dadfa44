"""The file Locust loads, alone or for `lockbench run`: *Locust's events → the two sides of a run*.

Rules: importing opens nothing but the plan. Works with web UI, headless, `--processes`, and master and workers on
other hosts, where the package must be installed. Source: Locust's documentation, "Event hooks".
"""

import os
import sys
from argparse import Namespace
from pathlib import Path

from gevent import get_hub
from locust import events
from locust.argument_parser import get_parser
from locust.env import Environment
from locust.runners import STATE_INIT, LocalRunner, MasterRunner, WorkerRunner
from locust.web import WebUI

if str(Path(__file__).parents[2]) not in sys.path:  # run from a checkout that is not installed, from any folder
    sys.path.append(str(Path(__file__).parents[2]))

from bench.errors import BenchError
from bench.topology.child import PARENT_VARIABLE, die_with_parent
from bench.workloads.conductor import Conductor
from bench.workloads.judged import become, is_wanted, words_of
from bench.workloads.launch import note_failure
from bench.workloads.member import LockUser, Member, interrupt_main_only
from bench.workloads.page import show_verdict
from bench.workloads.plan import add_options, plan_of, take_plan
from bench.workloads.table import keep_fractions

__all__ = ["LockUser"]

AnyRunner = LocalRunner | MasterRunner | WorkerRunner

_loader_pid = os.getpid()
keep_fractions()
take_plan()
os.register_at_fork(after_in_child=lambda: die_with_parent(_loader_pid))  # it tries to connect for minutes
if os.environ.get(PARENT_VARIABLE):
    die_with_parent()


def _connect(environment: Environment, runner: AnyRunner, web_ui: WebUI | None, **_: object) -> None:
    options = environment.parsed_options or Namespace()
    get_hub().loop.update_now()  # else Locust's run time counts from before all imports
    headless = web_ui is None and not isinstance(runner, WorkerRunner)
    interrupt_main_only(lambda: headless and runner.state == STATE_INIT)
    if isinstance(runner, WorkerRunner):
        options.json = options.json_file = None  # the master's to write; a worker would put its rest over it
        Member(environment, runner)
        return
    if web_ui is None:
        _check(options)
    conductor = Conductor(environment, runner)
    if web_ui is not None:
        show_verdict(web_ui, conductor)
    if not isinstance(runner, MasterRunner):
        Member(environment, runner)


def _check(options: Namespace) -> None:
    """A run that nobody can correct in a form ends here when its options are wrong."""
    try:
        plan_of(options)
    except BenchError as error:
        sys.exit(_complain(error))


def _complain(error: BenchError) -> int:
    sys.stderr.write(f"lockbench: {error}\n")
    note_failure(error)
    return error.exit_code


def _become_judged() -> None:
    try:
        become(*words_of(get_parser().parse_args(), os.environ))
    except BenchError as error:
        sys.exit(_complain(error))


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(_connect)
if is_wanted(sys.argv[1:]):
    _become_judged()
