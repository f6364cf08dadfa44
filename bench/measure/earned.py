"""Compares a stored result with the result that follows from its sections. A difference shows that
the stored data does not support the stored verdict or a stored figure.

Rules
- Each lockbench command that writes results has a function that judges these results. The function
  computes the verdict, and it computes every section that follows from other sections. The command
  calls this function when it writes a result. Code that reads the result calls the same function.
  Therefore the writer and the reader get the same verdict.
- This module compares words, counts and figures. It does not compare sentences, because a later
  version of lockbench may phrase the sentences differently.
- Two figures count as equal if the difference is at most 1e-9, or at most 1e-9 times the larger
  figure. The order in which numbers are added can cause a difference of this size.
- If the verdict is not a pass, this module compares only the word, the status and the exit code of
  the verdict. All other figures of this result may differ, because an older version of lockbench
  may have computed these figures. Outputs show the newly computed figures.
"""

from collections.abc import Iterator, Mapping
from math import isclose

from bench.measure.result import Document
from bench.measure.section import builtins_of

SENTENCES = frozenset(
    (
        "reason",
        "reasons",
        "text",
        "tested",
        "agreement",
        "warnings",
        "misses",
        "failures",
        "name",
        "label",
    )
)
# These sections also depend on another result. They are computed again whenever the result is read,
# and they are never compared.
ELSEWHERE = frozenset(("planner",))
# If a command is interrupted while it judges, it ends with this code. Its verdict does not matter.
INTERRUPTED_CODE = 130
CLOSE = 1e-9


def first_difference(stored: Document, earned: Document) -> str:
    """Return a sentence about the first difference between a stored result and the result that
    follows from its sections.

    The function compares the verdict's word first. If there is no difference, the return value is
    "".
    """
    own = stored.verdict
    due = earned.verdict
    if own.word != due.word:
        return f"the stored verdict is {own.word}, but the sections give {due.word}"
    if own.status != due.status:
        return f"the stored status is {own.status}, but the sections give the verdict {due.word}"
    if own.exit_code not in (due.exit_code, INTERRUPTED_CODE):
        return (
            f"the stored exit code is {own.exit_code}, but {due.word} has the exit code "
            f"{due.exit_code}"
        )
    if due.status != "pass":
        return ""
    for place, was, due_value in _differences(builtins_of(stored), builtins_of(earned), ""):
        if place != "verdict.exit_code":
            return (
                f"{place} is {_shown(was)}, but the sections give {_shown(due_value)}: {due.word}"
            )
    return ""


def _differences(
    stored: object, earned: object, place: str
) -> Iterator[tuple[str, object, object]]:
    """Compare two JSON values. For each difference, yield its place, the value in `stored` and the
    value in `earned`."""
    name = place.rpartition(".")[2]
    if name in SENTENCES | ELSEWHERE:
        return
    if (
        isinstance(stored, Mapping)
        and isinstance(earned, Mapping)
        and stored.keys() == earned.keys()
    ):
        for key, value in stored.items():
            yield from _differences(value, earned[key], f"{place}.{key}" if place else key)
    elif isinstance(stored, list) and isinstance(earned, list) and len(stored) == len(earned):
        for number, (one, other) in enumerate(zip(stored, earned, strict=True)):
            yield from _differences(one, other, f"{place}.{number}")
    elif not _is_same(stored, earned):
        yield place, stored, earned


def _is_same(stored: object, earned: object) -> bool:
    if isinstance(stored, bool) or isinstance(earned, bool):
        return stored is earned
    if isinstance(stored, int | float) and isinstance(earned, int | float):
        return isclose(stored, earned, rel_tol=CLOSE, abs_tol=CLOSE)
    return stored == earned


def _shown(value: object) -> str:
    """Return the value as a part of a sentence.

    If the value is a list or an object, the text only says how many entries it has.
    """
    if isinstance(value, list | Mapping):
        return f"{len(value)} entries"
    if value is None:
        return "null"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)[:60]
