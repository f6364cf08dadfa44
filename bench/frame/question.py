"""Defines the class `Question`. A question has a command that measures the answer and displays it.

In each folder below `bench/experiments`, the file `question.py` defines the questions of the
folder. The file `bench/questions.py` lists all questions, and the program receives this list as an
argument. Therefore the frame and the report work for every question. Their code does not contain
the name of any question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from bench.frame.options import Grouped, ending
from bench.frame.outputs import Outputs
from bench.frame.showing import show

if TYPE_CHECKING:
    from bench.measure.result import Document
    from bench.report.answer import Answer
    from bench.run.experiment import Done

Stored = TypeVar("Stored", bound="Document")


@dataclass(frozen=True, slots=True)
class Question(Generic[Stored]):
    """One question that lockbench answers.

    `name` is the name of the question's command, and also the `kind` of its results. `ask` is the
    function that measures. The first argument of `ask` is an object of the class `Outputs`. The
    other arguments are the options of the command. Click decorators on `ask` define these options,
    and the docstring of `ask` is the help text. The function `answer` returns an object that reads
    results, judges them again and describes them. The code that describes results is imported only
    when `answer` is called. The help text ends with `examples` and `note`.
    """

    name: str
    ask: Callable[..., Done[Stored]]
    answer: Callable[[], Answer[Stored]]
    examples: tuple[str, ...]
    note: str = ""

    def command(self) -> click.Command:
        """Return the click command that measures the answer to this question and shows it."""

        @wraps(self.ask)
        def asked(**values: object) -> int:
            outputs = Outputs.taken_from(values)
            return show(self.ask(outputs, **values), self.answer(), outputs)

        epilog = ending(*self.examples, note=self.note)
        return click.command(self.name, cls=Grouped, epilog=epilog)(asked)
