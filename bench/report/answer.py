"""How results of one kind are read, judged anew and presented: *a stored result → its checked type
→ its sheet, cases and page*.

Rules
- A result names its kind in the field `kind`. Each question exports an `Answer` for its results. A
reader of results of any kind gets the table of all answers (`bench/questions.py`).
- All stored results enter through this module. Each answer judges its own result anew, with the
function that judged the result when it was written. A result that contradicts itself is refused. So
is a result whose verdict word does not follow from its sections.
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
# Judging may raise any of these, if the sections are not as any command writes them.
_BROKEN = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


def no_figures(_result: Document) -> Sequence[Figure]:
    """Return no pictures, for results that have none."""
    return ()


def no_evidence(_result: Document) -> Sequence[Part]:
    """Return no courses of events, for results that have none."""
    return ()


def alone(result: Stored, _folder: Path) -> Stored:
    """Return the result unchanged: no other result belongs beside it."""
    return result


@dataclass(frozen=True, slots=True)
class Answer(Generic[Stored]):
    """How to read the results of one kind.

    `earned`: judges a result anew. `sheet`: the sheet of a result that is stored at a place ("" =
    nowhere). `suite`: its JUnit cases. `figures`, `evidence`: its pictures, and its courses of
    events step by step. `beside`: adds what other results below a folder show. `whole_page`: its
    page, if the page is more than the sheet with pictures. `contradictions`: the places where its
    sections contradict each other.
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
        Raises UsageError if the document is not whole, and as `as_earned`."""
        return self.as_earned(typed(document, self.result_type, name), name)

    def as_earned(self, result: Stored, name: str) -> Stored:
        """Return the result called `name`, with the verdict that its sections earn. Raises
        UsageError if the result contradicts itself, or if its verdict is not the one that it
        earns."""
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
                f"{name} is refused, because {wrong}; the file was changed or is damaged, so "
                "measure it anew"
            )
        return earned

    def read_file(self, place: Path) -> Stored:
        """Return the result in the file or folder `place`. Raises UsageError if there is no result,
        or one of another kind, and as `read`."""
        document = read_result(place)
        if document.get("kind") != self.kind:
            raise UsageError(
                f"{place} is not a result of lockbench {self.kind}; name a result of lockbench "
                f"{self.kind}"
            )
        return self.read(document, str(place))

    def newest(self, folder: Path) -> Stored | None:
        """Return the result of this kind that started last, of the results right below `folder`, or
        None if there is none. Raises UsageError if the newest result is refused, because an older
        one in its place would be a surprise."""
        candidates: list[tuple[str, Path]] = []
        for path in folder.glob(f"*/{RESULT_NAME}"):
            # A file that is not a result is skipped, because the user did not name it.
            with suppress(UsageError):
                document = read_result(path)
                if document.get("kind") == self.kind:
                    candidates.append((str(document.get("started_at")), path))
        return self.read_file(max(candidates)[1]) if candidates else None

    def cases(self, result: Stored) -> Suite:
        """Return `result` as JUnit cases. If the verdict is not a pass, at least one case is not a
        pass either: all rows may be as they must, and still too few of them were judged."""
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
    """Return the answer that reads the stored `document` called `name`. Raises UsageError if the
    kind is unknown."""
    kind = str(document.get("kind", "an unknown kind"))
    if kind not in answers:
        raise UsageError(
            f"{name} is a result of lockbench {kind}, which this lockbench does not know"
        )
    return answers[kind]()
