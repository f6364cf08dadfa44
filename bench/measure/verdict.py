"""The verdict of a command. A verdict consists of one word, some evidence for this word, and the
reasons for this word.

- If there are reasons for a BAD word and reasons for an UNKNOWN word, the verdict is the BAD word.
  One certain case is a sufficient reason for a BAD word. The verdict is a GOOD word only if there
  is enough evidence and there is no reason for another word.
- Only the function `conclude` chooses the verdict. The same function chooses the exit code. If
  there are reasons for several words, `conclude` compares the exit codes of these words. It chooses
  the exit code that is first in the sequence 130, 2, 3, 5, 1, 4, 0.
- `WORDS` contains all words, and `make schemas` generates the table in README.md from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, Self

from bench.measure.section import Count, Section, says

INTERRUPTED_CODE = 130
# The precedence of exit codes, highest first. No word has the code 2 or 3, but a command that fails
# may end with one of them.
_PRECEDENCE = (INTERRUPTED_CODE, 2, 3, 5, 1, 4, 0)
Status = Literal["pass", "fail", "inconclusive", "invalid", "violated"]
# If fewer leases were tested, the verdict says nothing about safety.
TESTED_LEAST = 100


class Kind(Enum):
    """There are three kinds of verdict words. The value of a kind is the colour in which outputs
    show the words of this kind."""

    BAD = "red"
    UNKNOWN = "yellow"
    GOOD = "green"


@dataclass(frozen=True, slots=True)
class Word:
    """A verdict word.

    `text` is the printed word. `status` is the status of the verdict in result.json. Several
    verdict words can have the same status. `needs` describes the condition under which a command
    gives this verdict. `means` explains to a reader what the word means.
    """

    text: str
    kind: Kind
    status: Status
    exit_code: int
    needs: str
    means: str

    @property
    def colour(self) -> str:
        """The colour in which every output shows the word."""
        return self.kind.value


class Evidence(Section, frozen=True):
    """The number of counted cases, as evidence for a verdict word."""

    tested: Annotated[str, says("name of the counted cases")]
    count: Annotated[Count, says("number of counted cases")]
    least: Annotated[Count, says("the smallest count with which a good verdict is possible")] = 1
    excludes: Annotated[
        str,
        says(
            "share of bad cases that the evidence excludes with 95 % confidence, because no case "
            'was bad; "" if the evidence excludes no share'
        ),
    ] = ""

    @classmethod
    def none_in(cls, tested: str, count: int, least: int = 1) -> Self:
        """Return evidence that an event never happened in n = `count` cases. By the rule of three,
        the rate of the event is then at most 3 ÷ n."""
        return cls(
            tested,
            count,
            least,
            f"more than 1 in {count / 3:,.0f}" if count >= least and count > 3 else "",
        )


class Verdict(Section, frozen=True, kw_only=True):
    """A verdict word with its evidence and its reasons."""

    status: Annotated[
        Status, says("status of the verdict; several verdict words can have the same status")
    ]
    word: Annotated[
        str | None, says("the verdict word that lockbench prints; null before the verdict")
    ] = None
    exit_code: Annotated[
        int | None,
        says(
            "exit code of the command, unless Ctrl-C ended the command; null if there is no verdict"
        ),
    ] = None
    evidence: Annotated[tuple[Evidence, ...], says("the counts that support the verdict")] = ()
    reasons: Annotated[
        tuple[str, ...], says("sentences that explain the verdict; the worst reason is first")
    ]

    @classmethod
    def of(
        cls, word: Word, exit_code: int, evidence: Sequence[Evidence], reasons: Sequence[str]
    ) -> Self:
        """Return a verdict with the word `word`."""
        return cls(
            status=word.status,
            word=word.text,
            exit_code=exit_code,
            evidence=tuple(evidence),
            reasons=tuple(reasons),
        )


VIOLATED = Word(
    "VIOLATED",
    Kind.BAD,
    "violated",
    5,
    "Two leases of one resource were valid at once, or another safety rule was broken.",
    "The lock did not hold.",
)
FAIL = Word(
    "FAIL",
    Kind.BAD,
    "fail",
    1,
    "A figure is certainly beyond its limit.",
    "The lock is slower or worse than you allow.",
)
INVALID = Word(
    "INVALID",
    Kind.UNKNOWN,
    "invalid",
    4,
    "The load was not as requested, a part of the load ended early, the machine was "
    "throttled or suspended, or the recipe raised exceptions in over 1 % of its operations.",
    "The figures mean nothing. Repair the recipe, or repeat the run on a quieter machine.",
)
INCONCLUSIVE = Word(
    "INCONCLUSIVE",
    Kind.UNKNOWN,
    "inconclusive",
    4,
    "There are too few samples, or the figures contradict each other.",
    "There is no answer. The reasons of the verdict name the missing data.",
)
NOT_KNOWN = Word(
    "NOT KNOWN",
    Kind.UNKNOWN,
    "inconclusive",
    4,
    "A precondition was not met, the rounds contradict each other, or too few rows could be "
    "judged.",
    "Nothing is known about the lock. Repeat the command on a quieter machine.",
)
INTERRUPTED = Word(
    "INTERRUPTED",
    Kind.UNKNOWN,
    "inconclusive",
    INTERRUPTED_CODE,
    "Ctrl-C stopped the command before its result was certain.",
    "The result contains the finished parts.",
)
SAFE = Word(
    "SAFE",
    Kind.GOOD,
    "pass",
    0,
    f"At least {TESTED_LEAST} leases were tested (held while another attempt was sent), and there "
    "is no violation.",
    "With 95 % confidence, the share of violated leases is below 3 ÷ tested leases.",
)
NOT_TESTED = Word(
    "NOT TESTED",
    Kind.UNKNOWN,
    "pass",
    0,
    f"Fewer than {TESTED_LEAST} leases were tested, and the run has no limit on safety.",
    "The figures are valid. Safety was not tested; use --hold and fewer resources to test it.",
)
UNKNOWN = Word(
    "UNKNOWN",
    Kind.UNKNOWN,
    "pass",
    0,
    "The history has holes, a clock stepped, or the error of a clock is unknown.",
    "The figures are valid. Nothing is known about safety.",
)
COMPARED = Word(
    "COMPARED",
    Kind.GOOD,
    "pass",
    0,
    "At least one pair of runs finished. At least one figure has the verdict different or same; "
    "the success share does not count if it is the same.",
    "Each figure of the comparison has its own verdict.",
)
PASS = Word(
    "PASS",
    Kind.GOOD,
    "pass",
    0,
    "At least one pair of runs finished, and the interval of every judged figure ends within "
    "the tolerance. A candidate worse by the tolerance or more passes at most 5 of 100 gates.",
    "The candidate is not worse than the baseline by more than the tolerance.",
)
AS_EXPECTED = Word(
    "AS EXPECTED",
    Kind.GOOD,
    "pass",
    0,
    "Enough rows were judged, and every judged row has its expected verdict.",
    "The safe locks were never violated, and each expected effect appeared.",
)
NOT_AS_EXPECTED = Word(
    "NOT AS EXPECTED",
    Kind.UNKNOWN,
    "inconclusive",
    4,
    "An expected effect did not appear, although it could have appeared.",
    "The experiment does not show the expected effect.",
)
FOUND = Word(
    "FOUND",
    Kind.GOOD,
    "pass",
    0,
    "The lock sustains the target rate. Or at least 8 probes give an interval of ±25 % or less, "
    "and two probes are near each end of the interval.",
    "With 95 % certainty, the capacity lies in the interval, or the lock sustains the target rate.",
)
NOT_KEPT = Word(
    "NOT KEPT",
    Kind.BAD,
    "fail",
    1,
    "Every probe missed the SLO, including two probes at 1/s and three probes at middle rates. In "
    "the other case, at least half of the probes at the target rate missed the SLO, and the lock "
    "certainly does not sustain this rate.",
    "The lock sustains no rate, or it does not sustain your target rate.",
)
RECOMMENDED = Word(
    "RECOMMENDED",
    Kind.GOOD,
    "pass",
    0,
    "Each restart method had at least 20 crashes, and no crash of the recommended method "
    "granted a lock twice.",
    "This is the best of the measured methods. The page names the machine and the dates.",
)
HOLDS = Word(
    "HOLDS",
    Kind.GOOD,
    "pass",
    0,
    f"The lock passed every test that decides the verdict, and at least {TESTED_LEAST} leases "
    "were tested under contention.",
    "No test broke the lock. The page lists the tests that did not run.",
)

_EXPERIMENT = (AS_EXPECTED, NOT_AS_EXPECTED, NOT_KNOWN, VIOLATED, INTERRUPTED)
# The words of each command. The name of a command is the `kind` of its result.
WORDS: Mapping[str, tuple[Word, ...]] = {
    "run": (SAFE, NOT_TESTED, UNKNOWN, VIOLATED, FAIL, INVALID, INCONCLUSIVE, INTERRUPTED),
    "compare": (COMPARED, VIOLATED, FAIL, INVALID, INCONCLUSIVE, INTERRUPTED),
    "gate": (PASS, VIOLATED, FAIL, INVALID, INCONCLUSIVE, INTERRUPTED),
    "capacity": (FOUND, VIOLATED, NOT_KEPT, INCONCLUSIVE, INTERRUPTED),
    **dict.fromkeys(("safety", "explore", "split-votes", "crash", "fsync", "audit"), _EXPERIMENT),
    "judge": (HOLDS, VIOLATED, FAIL, NOT_KNOWN, INTERRUPTED),
    "planner": (RECOMMENDED, NOT_KNOWN),
}


def worst_code(codes: Iterable[int]) -> int:
    """Return the exit code for several runs. `codes` contains the exit code of each run. The result
    is the code that comes first in `_PRECEDENCE`."""
    return min(codes, key=_PRECEDENCE.index)


def conclude(
    good: Word,
    evidence: Sequence[Evidence],
    reasons_by_word: Mapping[Word, Sequence[str]],
    *,
    thin: Word = NOT_KNOWN,
) -> Verdict:
    """Return the verdict.

    `reasons_by_word` maps each word to the reasons for it, which are sentences. If there are
    reasons for several words, the verdict is the worst of these words. If there is no reason for
    any word, the evidence decides. The verdict is `good` if there is enough evidence, and `thin` if
    there is not. The verdict lists each reason once, and it lists the reasons for the worst word
    first.
    """
    effective = {word: reasons for word, reasons in reasons_by_word.items() if reasons}
    if not effective and (missing := _missing(evidence)):
        effective = {thin: missing}
    ranked = sorted(effective, key=_severity)
    word = ranked[0] if ranked else good
    code = min((one.exit_code for one in (*ranked, word)), key=_PRECEDENCE.index)
    return Verdict.of(
        word, code, evidence, list(dict.fromkeys(line for one in ranked for line in effective[one]))
    )


def word_of(command: str, verdict: Verdict) -> Word:
    """Return the `Word` of a stored verdict.

    An old result may have a word that this version does not know. The kind of an unknown word is
    never GOOD.
    """
    words = WORDS.get(command, ())
    text = verdict.word
    status = verdict.status
    if matches := [one for one in words if one.text == text]:
        return matches[0]
    bad = status in (VIOLATED.status, FAIL.status)
    name = text or next((one.text for one in words if one.status == status), status.upper())
    return Word(str(name), Kind.BAD if bad else Kind.UNKNOWN, status, 0, "", "")


def _missing(evidence: Sequence[Evidence]) -> list[str]:
    if not evidence:
        return ["nothing was tested"]
    return [
        f"the number of {one.tested} is {one.count:,}, but {one.least:,} are needed"
        if one.count
        else f"there are no {one.tested}"
        for one in evidence
        if one.count < one.least
    ]


def _severity(word: Word) -> tuple[int, int]:
    """Return a key that sorts words by severity, with the worst word first. The first part of the
    key is the kind of the word. The second part is the precedence of the word's exit code. INVALID
    comes before INCONCLUSIVE, because an invalid run is often also inconclusive."""
    return list(Kind).index(word.kind), 2 * _PRECEDENCE.index(word.exit_code) - (word is INVALID)
