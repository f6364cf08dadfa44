"""The program `lockbench`. The arguments of the program name a command. The program runs this
command and returns an exit code."""

from collections.abc import Sequence

import click
import cloup
from cloup.formatting import HelpSection

from bench.commands.first_steps import completion, doctor, init, recipes
from bench.commands.fleet import fleet
from bench.commands.observe import observe
from bench.commands.report import report
from bench.commands.run import run
from bench.commands.worker import worker
from bench.experiments.durability.command import planner
from bench.frame.execute import execute as execute_of
from bench.questions import QUESTIONS

JOBS: dict[str, list[click.Command]] = {
    "Load a lock": [run, worker, observe, recipes, init],
    **{job: [one.command() for one in questions] for job, questions in QUESTIONS.items()},
    "Around it": [report, doctor, fleet, completion],
}
# The planner is not a question. It gives advice from the results of fsync and crash.
JOBS["Choose an fsync policy"].append(planner)


class ByJob(cloup.Group):
    """A group of commands. Its help sorts the commands by the user's job, and shows one sentence
    for each command."""

    def make_commands_help_section(
        self, ctx: click.Context, section: cloup.Section
    ) -> HelpSection | None:
        """Return one section of the help, with the whole sentence of each command. This method
        replaces a method of cloup, which would show only the first line of the sentence."""
        rows = [(name, one.get_short_help_str(200)) for name, one in section.list_commands()]
        return HelpSection(section.title, rows)


@cloup.group(
    cls=ByJob,
    sections=[cloup.Section(job, commands) for job, commands in JOBS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="lockbench", message="lockbench %(version)s")
def lockbench() -> None:
    """Load distributed locks on Redis and Valkey, and judge what happened.

    \b
    Exit codes: 0 pass · 1 gate or threshold failed
                2 usage or scenario error · 3 environment not ready
                4 inconclusive or invalid · 5 safety violated · 130 interrupted
    """


def execute(arguments: Sequence[str]) -> int:
    """Run one command line of lockbench and return its exit code."""
    return execute_of(lockbench, arguments)
