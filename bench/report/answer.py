"""The reading, judging and presenting of stored results: *a stored result → its checked type → its
sheet, cases and page*.

Rules
- A result names its kind in the field `kind`. Each question exports an `Answer` for its results.
Code that reads results of any kind gets the table of all answers (`bench/questions.py`).
- All stored results enter through this module. The answer judges a result anew, with the function
that judged the result when it was written. A result that contradicts itself is refused. A result
whose verdict word does not follow from its sections is refused, too.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from bench.errors import UsageError
from bench.measure.earned import first_difference
from bench.measure.result import RESULT_NAME, Document, read_result
from bench.measure.section import contradictions_in, typed
from bench.report.html.chapters import Page, sheet_page
from bench.report.html.plot import Figure
from bench.report.junit import Case, Suite
from bench.report.sheet import Part, Sheet

Stored = TypeVar("Stored", bound=Document)
# Judging may raise these errors, if no command can have written the sections.
_BROKEN = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


def no_figures(_result: Document) -> Sequence[Figure]:
    """Return no pictures, for results that have none."""
    return ()


def no_evidence(_result: Document) -> Sequence[Part]:
    """Return no courses of events, for results that have none."""
    return ()


def alone(result: Stored, _folder: Path) -> Stored:
    """Return the result unchanged, because no other result adds to it."""
    return result


@dataclass(frozen=True, slots=True)
class Answer(Generic[Stored]):
    """The functions that read and present the results of one kind.

    `earned`: judges a result anew. `sheet`: returns the sheet of a result that is stored at a place
    ("": not stored). `suite`: returns the JUnit cases. `figures`: returns the pictures. `evidence`:
    returns courses of events, step by step. `beside`: adds the findings of other results below a
    folder. `whole_page`: returns the page, if the page is more than the sheet with pictures.
    `contradictions`: returns the places where the sections contradict each other.
    """

    kind: str
    result_type: type[Stored]
    earned: Callable[[Stored], Stored]
    sheet: Callable[[Stored, str], Sheet]
    suite: Callable[[Stored], Suite]
    figures: Callable[[Stored], Sequence[Figure]] = no_figures
    evidence: Callable[[Stored], Sequence[Part]] = no_evidence
    beside: Callable[[Stored, Path], Stored] = alone
    whole_page: Callable[[Stored, str], Page] | None = None
    contradictions: Callable[[Stored], Iterable[str]] = contradictions_in

    def read(self, document: Mapping[str, object], name: str) -> Stored:
        """Return the stored `document` called `name`, with the verdict that its sections earn.

        Raises UsageError if the document is incomplete, or for the reasons of `as_earned`."""
        return self.as_earned(typed(document, self.result_type, name), name)

    def as_earned(self, result: Stored, name: str) -> Stored:
        """Return the result called `name`, with the verdict that its sections earn.

        Raises UsageError if the result contradicts itself, or if its stored verdict differs from
        this verdict.
        """
        earned = result
        try:
            wrong = next(iter(self.contradictions(result)), "")
            if not wrong:
                earned = self.earned(result)
                wrong = first_difference(result, earned)
        except _BROKEN as error:
            wrong = f"its sections cannot be judged ({type(error).__name__}: {error})"
        if wrong:
            raise UsageError(
                f"{name} is refused, because {wrong}; the file was changed or is damaged, so make "
                "the result again"
            )
        return earned

    def read_file(self, place: Path) -> Stored:
        """Return the result in the file or folder `place`.

        Raises UsageError if there is no result, if its kind is another one, or for the reasons of
        `read`.
        """
        document = read_result(place)
        if document.get("kind") != self.kind:
            raise UsageError(
                f"{place} is not a result of lockbench {self.kind}; name a result of lockbench "
                f"{self.kind}"
            )
        return self.read(document, str(place))

    def newest(self, folder: Path) -> Stored | None:
        """Return the newest result of this kind in the folders directly below `folder`, or None.

        The newest result is the one that started last. Raises UsageError if this result is refused.
        An older result in its place would be a surprise.
        """
        candidates: list[tuple[str, Path]] = []
        for path in folder.glob(f"*/{RESULT_NAME}"):
            # A file that is not a result is skipped, because the user did not name it.
            with suppress(UsageError):
                document = read_result(path)
                if document.get("kind") == self.kind:
                    candidates.append((str(document.get("started_at")), path))
        return self.read_file(max(candidates)[1]) if candidates else None

    def cases(self, result: Stored) -> Suite:
        """Return `result` as JUnit cases.

        If the verdict is not a pass, at least one case is not a pass either. For example, all rows
        may be as expected, but too few of them were judged.
        """
        suite = self.suite(result)
        verdict = result.verdict
        if verdict.status == "pass" or any(case.status != "pass" for case in suite.cases):
            return suite
        whole = Case("the verdict", verdict.status, "; ".join(verdict.reasons) or str(verdict.word))
        return replace(suite, cases=(*suite.cases, whole))

    def page(self, result: Stored, place: str = "") -> Page:
        """Return the page of `result`, stored at `place`."""
        if self.whole_page is not None:
            return self.whole_page(result, place)
        sheet = self.sheet(result, place)
        started_at = result.started_at[:16].replace("T", " ")
        title = f"{sheet.verdict} · {self.kind} · {started_at}"
        return sheet_page(
            title, sheet, self.figures(result), self.evidence(result), shlex.join(result.command)
        )


# The module of each kind of result. It is imported when a result of its kind is read.
Answers = Mapping[str, Callable[[], Answer[Any]]]


def answer_to(document: Mapping[str, object], name: str, answers: Answers) -> Answer[Any]:
    """Return the answer that reads the stored `document` called `name`.

    Raises UsageError if the kind is unknown.
    """
    kind = str(document.get("kind", "an unknown kind"))
    if kind not in answers:
        raise UsageError(
            f"{name} is a result of lockbench {kind}, which this lockbench does not know"
        )
    return answers[kind]()
