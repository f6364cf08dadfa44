"""Judges experiments that expect a certain outcome in every row. Each row gets a word, and the
words of all rows decide the verdict.

A precondition is a sentence that is true or false for a row, for example "a fault took place". If a
precondition is false, the row neither confirms nor refutes the expectation. However, if the lock
had two holders at once, the row is a violation, even if a precondition is false.
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
# This table maps the word of a row to a verdict word of the whole command.
ROW_WORDS: Mapping[str, Word] = {
    VIOLATED: words.VIOLATED,
    NOT_SHOWN: words.NOT_AS_EXPECTED,
    NOT_KNOWN: words.NOT_KNOWN,
    AS_EXPECTED: words.AS_EXPECTED,
}
Preconditions = Mapping[str, bool]


def row_verdict(*, holds: bool, broken: bool, preconditions: Preconditions) -> RowWord:
    """Return the word for one row.

    `broken` is true if the lock had two holders at once. `holds` is true if the row met the
    expectation. If `broken` is true, the word is "violated". Otherwise, if a precondition is false,
    the word is "not known". Otherwise, the word is "as expected" if `holds` is true, and "not
    shown" if `holds` is false.
    """
    if broken:
        return VIOLATED
    if not all(preconditions.values()):
        return NOT_KNOWN
    return AS_EXPECTED if holds else NOT_SHOWN


def unmet(preconditions: Preconditions) -> str | None:
    """Return a text that names the false preconditions, or None if all preconditions are true."""
    missing = [sentence for sentence, met in preconditions.items() if not met]
    return f"these preconditions were not met: {'; '.join(missing)}" if missing else None


def conclude_rows(
    rows: Sequence[tuple[str, str]],
    *,
    least: int = 1,
    tested: str = "rows as expected",
    also: Sequence[Evidence] = (),
    interrupted: str = "",
) -> Verdict:
    """Return the verdict that follows from all rows.

    `rows` has a word and a sentence for each row. A row counts only if its word is one of the four
    words of `RowWord`. For example, a skipped row does not count. A good verdict needs at least
    `least` rows with the word "as expected". A good verdict also needs the evidence in `also`. If
    Ctrl-C interrupted the command, `interrupted` is a sentence about the work that was not done.
    Otherwise `interrupted` is "".
    """
    bad = (VIOLATED, NOT_SHOWN, NOT_KNOWN)
    reasons = {
        ROW_WORDS[word]: [sentence for verdict, sentence in rows if verdict == word] for word in bad
    }
    reasons[words.INTERRUPTED] = [interrupted] if interrupted else []
    count = sum(verdict == AS_EXPECTED for verdict, _ in rows)
    return conclude(words.AS_EXPECTED, [Evidence(tested, count, least), *also], reasons)
