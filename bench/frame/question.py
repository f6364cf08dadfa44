"""A question as a value: *options → measurements → the displayed answer*.

Each folder below `bench/experiments` exports its questions in `question.py`, and
`bench/questions.py` lists them. The program receives this list. Neither the frame nor the report
names a question.
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

    `name`: the name of its command, and the `kind` of its results. `ask`: the function that
    measures. It receives the `Outputs`, then the options of the command. Click decorators on `ask`
    define these options, and the docstring of `ask` is the help text. `answer`: returns the object
    that reads results, judges them again and describes them. Its module is imported only when there
    is a result. `examples`, `note`: the end of the help text.
    """

    name: str
    ask: Callable[..., Done[Stored]]
    answer: Callable[[], Answer[Stored]]
    examples: tuple[str, ...]
    note: str = ""

    def command(self) -> click.Command:
        """Return the command that asks this question and shows the answer."""

        @wraps(self.ask)
        def asked(**values: object) -> int:
            outputs = Outputs.taken_from(values)
            return show(self.ask(outputs, **values), self.answer(), outputs)

        epilog = ending(*self.examples, note=self.note)
        return click.command(self.name, cls=Grouped, epilog=epilog)(asked)
