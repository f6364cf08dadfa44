"""Rows that must come out in a certain way: *what was seen, what it rests on → a row's word; rows →
a Verdict*.

A precondition is a sentence with whether it came about (somebody was granted, a fault took place,
the machine kept time). Without it nothing is refuted and nothing confirmed; only what is broken
stays broken.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from bench.measure import verdict as words
from bench.measure.verdict import Evidence, Verdict, Word, conclude

RowWord = Literal["as expected", "not shown", "not known", "violated"]
AS_EXPECTED: Final = "as expected"
NOT_SHOWN: Final = "not shown"
NOT_KNOWN: Final = "not known"
VIOLATED: Final = "violated"
# The result of a row → the word with which the command ends because of that row.
ROW_WORDS: Mapping[str, Word] = {
    VIOLATED: words.VIOLATED,
    NOT_SHOWN: words.NOT_AS_EXPECTED,
    NOT_KNOWN: words.NOT_KNOWN,
    AS_EXPECTED: words.AS_EXPECTED,
}
Preconditions = Mapping[str, bool]


def row_verdict(*, holds: bool, broken: bool, preconditions: Preconditions) -> RowWord:
    """Return the word of a row: `broken` exclusion first, then what it needs, then whether it
    `holds`."""
    if broken:
        return VIOLATED
    if not all(preconditions.values()):
        return NOT_KNOWN
    return AS_EXPECTED if holds else NOT_SHOWN


def unmet(preconditions: Preconditions) -> str | None:
    """Return which preconditions did not come about, in words, or None."""
    missing = [sentence for sentence, met in preconditions.items() if not met]
    return f"did not come about: {'; '.join(missing)}" if missing else None


def conclude_rows(
    rows: Sequence[tuple[str, str]],
    *,
    least: int = 1,
    tested: str = "rows as expected",
    also: Sequence[Evidence] = (),
    interrupted: str = "",
) -> Verdict:
    """Return the verdict over rows, each a word and its sentence; rows with other words (skipped …)
    do not count. `least`: how many must be as expected; `also`: what else it rests on;
    `interrupted`: what Ctrl-C left undone."""
    bad = (VIOLATED, NOT_SHOWN, NOT_KNOWN)
    reasons = {
        ROW_WORDS[word]: [sentence for verdict, sentence in rows if verdict == word] for word in bad
    }
    reasons[words.INTERRUPTED] = [interrupted] if interrupted else []
    count = sum(verdict == AS_EXPECTED for verdict, _ in rows)
    return conclude(words.AS_EXPECTED, [Evidence(tested, count, least), *also], reasons)
