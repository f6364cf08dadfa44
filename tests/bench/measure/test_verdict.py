"""A verdict is a value with its evidence: certain bad, good with its bound, or not known because
…"""

from itertools import combinations

import pytest

from bench.measure.verdict import (
    AS_EXPECTED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    INVALID,
    NOT_KNOWN,
    NOT_TESTED,
    SAFE,
    VIOLATED,
    WORDS,
    Evidence,
    Kind,
    Verdict,
    Word,
    conclude,
    word_of,
)

ENOUGH = (Evidence("rows judged", 12, least=10),)
GOOD_WORDS = [
    (command, word) for command, words in WORDS.items() for word in words if word.kind is Kind.GOOD
]


@pytest.mark.parametrize(("command", "good"), GOOD_WORDS)
@pytest.mark.parametrize(
    "evidence",
    [(), (Evidence("rows", 0),), (Evidence("rows", 9, 10),), (*ENOUGH, Evidence("x", 0))],
)
def test_no_good_word_is_said_without_its_evidence(
    command: str, good: Word, evidence: tuple[Evidence, ...]
) -> None:
    verdict = conclude(good, evidence, {})
    assert (verdict.word, verdict.exit_code) == (NOT_KNOWN.text, 4), command
    assert verdict.reasons


@pytest.mark.parametrize(("command", "good"), GOOD_WORDS)
def test_no_good_word_is_said_beside_any_other(command: str, good: Word) -> None:
    for other in set(WORDS[command]) - {good}:
        assert conclude(good, ENOUGH, {other: ["why"]}).word == other.text


@pytest.mark.parametrize("command", WORDS)
def test_certain_bad_wins_over_not_known_whatever_else_was_found(command: str) -> None:
    for one, other in combinations(WORDS[command], 2):
        kinds = {
            word_of(command, conclude(AS_EXPECTED, ENOUGH, found)).kind
            for found in ({one: ["a"], other: ["b"]}, {other: ["b"], one: ["a"]})
        }
        worst = min((one.kind, other.kind), key=[Kind.BAD, Kind.UNKNOWN, Kind.GOOD].index)
        assert kinds == {worst}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((VIOLATED, FAIL, INVALID), 5),
        ((FAIL, INCONCLUSIVE), 1),
        ((INVALID, INCONCLUSIVE), 4),
        ((NOT_TESTED, INVALID), 4),
        ((NOT_TESTED,), 0),
        ((INTERRUPTED, VIOLATED), 130),
        ((INTERRUPTED, FAIL), 130),
        ((), 0),
    ],
)
def test_exit_codes_keep_their_precedence(words: tuple[Word, ...], code: int) -> None:
    assert conclude(SAFE, ENOUGH, {word: ["why"] for word in words}).exit_code == code


def test_reasons_stand_once_those_of_the_worst_word_first() -> None:
    found = {INCONCLUSIVE: ["late", "few"], VIOLATED: ["two holders", "few"]}
    verdict = conclude(SAFE, ENOUGH, found)
    assert verdict.reasons == ("two holders", "few", "late")
    assert verdict.status == "violated"


def test_a_stored_verdict_without_a_word_is_never_shown_as_good() -> None:
    assert word_of("run", Verdict(status="pass", reasons=())).kind is Kind.UNKNOWN
    assert word_of("run", Verdict(status="violated", reasons=())).kind is Kind.BAD
    assert (
        word_of("never heard of", Verdict(status="pass", word="SAFE", reasons=())).kind
        is Kind.UNKNOWN
    )
    assert word_of("run", conclude(SAFE, ENOUGH, {})) is SAFE


def test_the_rule_of_three_bounds_what_was_never_seen() -> None:
    assert Evidence.none_in("tested leases", 300, 100).excludes == "more than 1 in 100"
    assert not Evidence.none_in("tested leases", 99, 100).excludes


def test_every_word_stands_once_per_command_with_a_kind_that_fits_its_exit_code() -> None:
    for words in WORDS.values():
        assert len({word.text for word in words}) == len(words)
        for word in words:
            assert (word.kind is Kind.BAD) == (word.exit_code in (1, 5))
            assert word.kind is not Kind.GOOD or word.exit_code == 0
            assert word.needs
            assert word.means
