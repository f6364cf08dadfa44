"""This is the locustfile that Locust loads for plain `locust` and for `lockbench run`: *Locust's
events → a Conductor, a Member, or both*.

When this file is imported, it opens nothing except the plan. The file works with the web UI,
headless, with `--processes`, and with a master and workers on several hosts. This package must be
on each host. Source: Locust's documentation, "Event hooks".
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from flask import Response, jsonify, send_file
from gevent import get_hub
from locust import argument_parser, events
from locust.env import Environment
from locust.runners import STATE_INIT, LocalRunner, MasterRunner, WorkerRunner
from locust.web import WebUI

# The package may be a checkout that is not installed, and Locust may run in any folder.
if str(Path(__file__).parents[2]) not in sys.path:
    sys.path.append(str(Path(__file__).parents[2]))

from bench.errors import BenchError
from bench.measure.verdict import Kind
from bench.topology.child import PARENT_VARIABLE, die_with_parent
from bench.workloads.conductor import Conductor
from bench.workloads.ends import interrupt_main_only
from bench.workloads.launch import note_failure
from bench.workloads.member import LockUser, Member
from bench.workloads.plan import add_options, become, is_wanted, plan_of, words_of
from bench.workloads.table import keep_fractions

__all__ = ["LockUser"]

_COLOURS = {Kind.GOOD.value: "#1b7f3b", Kind.UNKNOWN.value: "#8a6100", Kind.BAD.value: "#b3261e"}

_loader_pid = os.getpid()
keep_fractions()
# When users are added, a worker calls this function once per option, and all other work stops for
# 0.1 s. The result is always the same, so a cache keeps it.
argument_parser.default_args_dict = cache(argument_parser.default_args_dict)
# Otherwise a worker whose parent has died would try to connect for minutes.
os.register_at_fork(after_in_child=lambda: die_with_parent(_loader_pid))
if os.environ.get(PARENT_VARIABLE):
    die_with_parent()


def _connect(
    environment: Environment,
    runner: LocalRunner | MasterRunner | WorkerRunner,
    web_ui: WebUI | None,
    **_: object,
) -> None:
    options = environment.parsed_options or Namespace()
    # Without this update, Locust's run time would also count the time of all imports.
    get_hub().loop.update_now()
    headless = web_ui is None and not isinstance(runner, WorkerRunner)
    interrupt_main_only(lambda: headless and runner.state == STATE_INIT)
    if isinstance(runner, WorkerRunner):
        # Only the master may write this file. If a worker wrote it, the file would have only the
        # worker's own part.
        options.json = options.json_file = None
        Member(environment, runner)
        return
    if web_ui is None:
        with _ending_when_wrong():
            plan_of(options)
    conductor = Conductor(environment, runner)
    if web_ui is not None:
        _show_verdict(web_ui, conductor)
    if not isinstance(runner, MasterRunner):
        Member(environment, runner, conductor.end_run)


def _show_verdict(web_ui: WebUI, conductor: Conductor) -> None:
    """Add the verdict and the report of the last run to Locust's page. The login of the page
    protects the verdict and the report.

    This function also hides the Host field, because lockbench asks for targets instead.
    """
    app = web_ui.app
    assert app is not None
    prefix = (getattr(web_ui.environment.parsed_options, "web_base_path", None) or "").rstrip("/")
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    added = '<style>.MuiFormControl-root:has(input[name="host"]){display:none}</style>'
    added += f"<script>{script}</script></head>"

    def add(response: Response) -> Response:
        if (
            response.mimetype == "text/html"
            and not response.is_streamed
            and not response.direct_passthrough
        ):
            response.set_data(response.get_data(as_text=True).replace("</head>", added, 1))
        return response

    def verdict() -> Response:
        judged = conductor.told
        if judged is None:
            return jsonify({"word": "", "colour": "", "text": "", "report": False})
        colour = _COLOURS[judged.colour]
        report = bool(judged.page)
        return jsonify(
            {"word": judged.word, "colour": colour, "text": judged.headline, "report": report}
        )

    def report() -> Response:
        judged = conductor.told
        return (
            send_file(judged.page) if judged and judged.page else Response("no report is kept", 404)
        )

    app.after_request(add)
    for name, answer in (("verdict", verdict), ("report", report)):
        app.add_url_rule(
            f"{prefix}/lockbench/{name}", name, web_ui.auth_required_if_enabled(answer)
        )


@contextmanager
def _ending_when_wrong() -> Iterator[None]:
    """End this process if the options are wrong. Without a web form, nobody can correct the
    options."""
    try:
        yield
    except BenchError as error:
        sys.stderr.write(f"lockbench: {error}\n")
        note_failure(error)
        sys.exit(error.exit_code)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(_connect)
if is_wanted(sys.argv[1:]):
    with _ending_when_wrong():
        become(*words_of(argument_parser.get_parser().parse_args(), os.environ))
