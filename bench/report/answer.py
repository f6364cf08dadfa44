"""How lockbench reads, judges and shows stored results.

First, a stored result is converted to an object of its type. Then this object is converted to a
sheet, to test cases or to a page.

Rules
- The field `kind` of a result shows which question made the result. Each question has an `Answer`,
  which reads and shows the results of the question. Code that must read results of any kind uses
  the table of all answers (`bench/questions.py`).
- lockbench reads every stored result with this module. The `Answer` judges each stored result again
  with the function that made the first verdict. lockbench refuses a result that contradicts itself.
  lockbench also refuses a result if the verdict word does not follow from the sections.
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
# Judging may raise these errors if the sections contradict each other so much that no command can
# have written them.
_BROKEN = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


def no_figures(_result: Document) -> Sequence[Figure]:
    """Return no pictures. An `Answer` uses this function if its results have no pictures."""
    return ()


def no_evidence(_result: Document) -> Sequence[Part]:
    """Return no tables of events. An `Answer` uses this function if its results have no tables of
    events."""
    return ()


def alone(result: Stored, _folder: Path) -> Stored:
    """Return the result unchanged. An `Answer` uses this function if it needs no other result of
    the folder."""
    return result


@dataclass(frozen=True, slots=True)
class Answer(Generic[Stored]):
    """The functions that read and present the results of one kind.

    `earned` judges a stored result again. `sheet` returns the sheet of a result. The second
    argument of `sheet` is the place of the stored result. If the result is not stored, this
    argument is "". `suite` returns the JUnit cases. `figures` returns the pictures. `evidence`
    returns tables that describe events step by step. `beside` adds findings to a result. These
    findings come from the other results in a folder. `whole_page` returns the page of a result. If
    `whole_page` is None, the page is made from the sheet, the pictures and the evidence.
    `contradictions` yields a sentence for each contradiction between the sections.
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
        """Convert a stored document to a result, and judge the result again. Error messages call
        the document `name`.

        Raises UsageError if the document is incomplete. Also raises UsageError for the same reasons
        as `as_earned`."""
        return self.as_earned(typed(document, self.result_type, name), name)

    def as_earned(self, result: Stored, name: str) -> Stored:
        """Judge a result again, and return the judged result. Error messages call the result
        `name`.

        Raises UsageError if the result contradicts itself, or if its stored verdict differs from
        the new verdict.
        """
        earned = result
        try:
            wrong = next(iter(self.contradictions(result)), "")
            if not wrong:
                earned = self.earned(result)
                wrong = first_difference(result, earned)
        except _BROKEN as error:
            wrong = f"the sections of the result cannot be judged ({type(error).__name__}: {error})"
        if wrong:
            raise UsageError(
                f"{name} is refused, because {wrong}; the file was changed or is damaged, so make "
                "the result again"
            )
        return earned

    def read_file(self, place: Path) -> Stored:
        """Return the result in the file or folder `place`.

        Raises UsageError if there is no result or if the result has another kind. Also raises
        UsageError for the same reasons as `read`.
        """
        document = read_result(place)
        if document.get("kind") != self.kind:
            raise UsageError(
                f"{place} is a result of another command; name a result of lockbench {self.kind}"
            )
        return self.read(document, str(place))

    def newest(self, folder: Path) -> Stored | None:
        """Return the newest result of this kind in the folders directly below `folder`, or None.

        The newest result is the result whose command started last. Raises UsageError if lockbench
        refuses the newest result. The method then returns no older result, because users would not
        expect an older result.
        """
        candidates: list[tuple[str, Path]] = []
        for path in folder.glob(f"*/{RESULT_NAME}"):
            # If a file is not a result, it is skipped, because the user did not name it.
            with suppress(UsageError):
                document = read_result(path)
                if document.get("kind") == self.kind:
                    candidates.append((str(document.get("started_at")), path))
        return self.read_file(max(candidates)[1]) if candidates else None

    def cases(self, result: Stored) -> Suite:
        """Return `result` as JUnit cases.

        If the status of the verdict is not `pass`, at least one case does not have the status
        `pass`. If all cases of the suite have passed, this method adds a case for the verdict. For
        example, every row may have passed, but the verdict requires more rows.
        """
        suite = self.suite(result)
        verdict = result.verdict
        if verdict.status == "pass" or any(case.status != "pass" for case in suite.cases):
            return suite
        whole = Case("the verdict", verdict.status, "; ".join(verdict.reasons) or str(verdict.word))
        return replace(suite, cases=(*suite.cases, whole))

    def page(self, result: Stored, place: str = "") -> Page:
        """Return the page of `result`, which is stored at `place`."""
        if self.whole_page is not None:
            return self.whole_page(result, place)
        sheet = self.sheet(result, place)
        started_at = result.started_at[:16].replace("T", " ")
        title = f"{sheet.verdict} · {self.kind} · {started_at}"
        return sheet_page(
            title, sheet, self.figures(result), self.evidence(result), shlex.join(result.command)
        )


# The module for each kind of result. A module is imported when a result of its kind is read.
Answers = Mapping[str, Callable[[], Answer[Any]]]


def answer_to(document: Mapping[str, object], name: str, answers: Answers) -> Answer[Any]:
    """Return the `Answer` for the kind of a stored document. Error messages call the document
    `name`.

    Raises UsageError if the kind is unknown.
    """
    kind = str(document.get("kind", "an unknown kind"))
    if kind not in answers:
        raise UsageError(
            f"{name} is a result of lockbench {kind}, which this lockbench does not know"
        )
    return answers[kind]()
