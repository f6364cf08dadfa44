"""The files a command writes for others: *a summary and cases → Markdown, JUnit XML, the step summary of a CI job*.

Rules: a file that cannot be written is refused before the work (`require_writable`), not after it; what GitHub names in
GITHUB_STEP_SUMMARY is appended to, whatever else is asked for. Source: README, "Gate your CI".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from bench.errors import EnvironmentNotReadyError
from bench.report.junit import Suite, junit_xml

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """Give a click command --markdown and --junit."""
    junit = click.option(
        "--junit", metavar="FILE", type=click.Path(path_type=Path), help="write the verdict as JUnit XML, too"
    )
    markdown = click.option(
        "--markdown", metavar="FILE", type=click.Path(path_type=Path), help="write the summary as Markdown, too"
    )
    return markdown(junit(command))


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the Markdown and the JUnit XML go; None = not asked for. `step_summary`: of the CI job, if there is one."""

    markdown: Path | None
    junit: Path | None
    step_summary: Path | None

    @classmethod
    def of(cls, values: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Self:
        """From a command's options and the environment."""
        step = environ.get(STEP_SUMMARY)
        return cls(values["markdown"], values["junit"], Path(step) if step else None)

    def require_writable(self) -> None:
        """Raise EnvironmentNotReadyError for a file that cannot be written."""
        for path in (self.markdown, self.junit, self.step_summary):
            if path is not None:
                _write(path, "", "a")

    def write(self, markdown: str, suite: Suite) -> None:
        """Write what was asked for. Raises EnvironmentNotReadyError."""
        for path, text, mode in (
            (self.markdown, markdown, "w"),
            (self.junit, junit_xml(suite), "w"),
            (self.step_summary, markdown + "\n", "a"),
        ):
            if path is not None:
                _write(path, text, mode)


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); name another file") from None
