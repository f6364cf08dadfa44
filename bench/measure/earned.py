"""What a stored result may say: *the result as it was read, the result as its sections earn it →
what differs*.

Rules
- A question judges its own results. It returns the same result, in which the verdict and every
  section that follows from other sections are made anew. The writer of a result asks the same
  function, so the two cannot part.
- Words, counts and figures are compared, sentences are not: a later version may put the same thing
  in other words.
- Figures are compared within 1e-9 of their size: a sum in another order is the same sum.
- Beside a word that says nothing good only that word is compared. Older rules made other figures
  there, and a reader is shown what the sections earn now.
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
# A section that also rests on another result is read anew and never compared.
ELSEWHERE = frozenset(("planner",))
# A command that was asked to end while it judged has this code instead of any other.
INTERRUPTED_CODE = 130
CLOSE = 1e-9


def first_difference(stored: Document, earned: Document) -> str:
    """Return where a stored result says something else than its sections earn, the word first; "" =
    nowhere."""
    own = stored.verdict
    due = earned.verdict
    if own.word != due.word:
        return f"it says {own.word}, and its sections come to {due.word}"
    if own.status != due.status:
        return f"its status is {own.status}, and its sections come to {due.word}"
    if own.exit_code not in (due.exit_code, INTERRUPTED_CODE):
        return f"its exit code is {own.exit_code}, and {due.word} ends with {due.exit_code}"
    if due.status != "pass":
        return ""
    for place, was, due_value in _differences(builtins_of(stored), builtins_of(earned), ""):
        if place != "verdict.exit_code":
            return (
                f"{place} is {_shown(was)}, and its sections give {_shown(due_value)}: {due.word}"
            )
    return ""


def _differences(
    stored: object, earned: object, place: str
) -> Iterator[tuple[str, object, object]]:
    """Yield every place at which the two JSON values differ, with both."""
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
    """A value in a sentence; of a list or an object only how many it holds."""
    if isinstance(value, list | Mapping):
        return f"{len(value)} entries"
    if value is None:
        return "null"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)[:60]
