"""A stored result of any kind, read and told by the table of the product: what `lockbench report`
does, without its command."""

from collections.abc import Mapping
from typing import Any

from bench.measure.result import Document
from bench.questions import ANSWERS
from bench.report.answer import Answer, answer_to
from bench.report.html.chapters import Page
from bench.report.junit import Suite
from bench.report.sheet import Sheet


def answer_of(result: Document) -> Answer[Any]:
    return ANSWERS[kind_of(result)]()


def kind_of(result: Document) -> str:
    kind: str = result.kind  # type: ignore[attr-defined]  # each type has its own Literal
    return kind


def of_its_kind(document: Mapping[str, object], name: str) -> Document:
    result: Document = answer_to(document, name, ANSWERS).read(document, name)
    return result


def sheet_of_its_kind(result: Document, place: str = "") -> Sheet:
    return answer_of(result).sheet(result, place)


def cases_of(result: Document) -> Suite:
    return answer_of(result).cases(result)


def page_of(result: Document, place: str = "") -> Page:
    return answer_of(result).page(result, place)
