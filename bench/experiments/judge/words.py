"""Turns a result of `lockbench judge` into text. The verdict comes first. Then the text gives the
answer to each question, the advice, and the course of events of each fault.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bench.experiments.judge.judge import AT_ONCE, reason_of
from bench.experiments.judge.needs import CONTENTION
from bench.experiments.judge.result import (
    CourseStep,
    JudgedRow,
    JudgeResult,
    WaitingCost,
    seconds_text,
)
from bench.measure import verdict as words
from bench.report.figures import counted, latency
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
    BAD,
    DOUBTFUL,
    GOOD,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    not_measured,
    sheet_of,
    table_of,
    to_do,
)

# The advice for each row that does not hold.
ADVICE: Mapping[str, str] = {
    "contention": "take the lock with one command on the server, such as SET key owner NX PX ttl",
    "search": "read the steps below, which form a short schedule that breaks the lock",
    "together": "give each holder its own member or key, so a release frees only its own place",
    "writer-beside-reader": "when a writer takes the lock, check for readers in the same command",
    "reader-beside-writer": "when a reader takes the lock, check for a writer in the same command",
    "paused-in-acquire": "start to measure the validity before the SET, and refuse a grant whose "
    "TTL has passed",
    "clock-ahead": "let the server measure the time; use PX in SET, and no timestamps from clients",
    "body-without-lock": "raise an error before the body runs if the lock was not granted",
    "forked": "create one client per process, and never use an owner token that a fork copied",
    "release-after-expiry": "delete the key only if its value is still your own random value; "
    "use DELEX, DELIFEQ, or a script",
    "paused-in-release": "compare and delete in one command; use DELEX, DELIFEQ, or a script",
    "paused-holder": "let the release report whether the lock was still yours; check this report",
    "renewal": "renew at least three times in a TTL",
    "sigterm": "set the TTL of the key in the command that creates the key",
    "sigkill": "set the TTL of the key in the command that creates the key",
    "stopped": "set the TTL of the key in the command that creates the key",
    "network": "set the TTL of the key in the command that creates the key",
    "failover": "grant a lock only with the votes of more than half of the servers",
    **dict.fromkeys(
        ("readonly", "out-of-memory", "loading", "busy"),
        "treat an error of a server as a refusal, and never as a grant",
    ),
    "script-flush": "after a NOSCRIPT error, send the script again with EVAL",
    "late-set": "send a release after a failed acquire, too, because its SET may still arrive",
    "one-stopped": "give each server a short time-out of its own, and ask all servers at once",
    "one-killed": "count votes, and treat a missing server as a missing vote instead of an error",
    "majority-down": "limit the time that one acquire may take",
    "exception-in-body": "release the lock in a finally block, or use a context manager",
    "interrupted-acquire": "send a release even if acquire raised a BaseException",
    "interrupted-release": "send the release again if it was interrupted",
}
STYLES = {
    "holds": GOOD,
    "does not": f"bold {BAD}",
    "not known": f"bold {DOUBTFUL}",
}
# Each word after the number 1, and after other numbers.
_TALLY = {
    "holds": ("holds", "hold"),
    "does not": ("does not", "do not"),
    "told": ("only tells", "only tell"),
    "not known": ("is not known", "are not known"),
}
# The rows in the order in which a reader looks for them.
_ORDER = ("does not", "not known", "holds", "told", "not applicable")


def sheet(result: JudgeResult, place: str = "") -> Sheet:
    """Return the sheet that shows `result`. `place` is the path of the stored result, or ""."""
    server = result.fleet.server
    lifetime = "none" if result.ttl_ms is None else seconds_text(result.ttl_ms)
    about = (
        _tally(result),
        f"N={result.instances}, {_holders(result)}, TTL {lifetime}",
        f"{server.name} {server.version}, started by lockbench on loopback, in memory",
        *made(result),
    )
    whole = sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=about,
        parts=_parts(result),
        lines=[*_advice(result), *_limits(result)],
        tables_first=True,
        keys=_keys(result),
    )
    # The table has these reasons already.
    reasons = {reason_of(row) for row in result.rows}
    return replace(whole, lines=tuple(line for line in whole.lines if line.text not in reasons))


def _holders(result: JudgeResult) -> str:
    if result.shared:
        return "readers together or a writer"
    return f"at most {counted(result.capacity, 'holder')}"


def _headline(result: JudgeResult) -> str:
    """Return a headline with the result of the worst row. Rows with a fault are worse than rows
    without a result, and both are worse than all other rows. If several rows are equally bad, a row
    about safety comes before the other rows. Among rows about safety, the row `contention` comes
    first.
    """
    worst = min(result.rows, key=_rank, default=None)
    if worst is None:
        return f"{result.lock}: no row was played"
    if result.interrupted and worst.verdict not in ("does not", "not known"):
        played = counted(len(result.rows), "row")
        return f"{result.lock}: interrupted after {played}; no row shows a fault so far"
    return f"{result.lock}: {worst.happened or worst.question} ({worst.topic})"


def _rank(row: JudgedRow) -> tuple[int, bool, bool]:
    return _ORDER.index(row.verdict), not row.is_safety, row.topic != CONTENTION


def _tally(result: JudgeResult) -> str:
    """Return a text with the number of rows for each verdict word. The text names the rows that
    show a fault.
    """
    counts = Counter[str](row.verdict for row in result.rows)
    broken = ", ".join(row.topic for row in result.rows if row.verdict == "does not")
    names = {"does not": f" ({broken})"}
    return ", ".join(
        f"{counts[word]} {texts[counts[word] > 1]}{names.get(word, '')}"
        for word, texts in _TALLY.items()
        if counts[word]
    )


def _keys(result: JudgeResult) -> Iterator[KeyFigure]:
    """Return the figures at the head of the page."""
    figures = {(row.topic, one.name): one.value for row in result.rows for one in row.figures}
    at_once = figures.get((CONTENTION, AT_ONCE))
    if at_once is not None:
        may = "readers may" if result.shared else f"{result.capacity} may"
        yield KeyFigure("holders at once", f"{at_once:.0f}", may)
    takeover_s = figures.get(("sigkill", "takeover p50"))
    if takeover_s is not None:
        number = figures[("sigkill", "takeovers")]
        bound = f"median of {number:.0f} takeovers"
        yield KeyFigure("takeover after SIGKILL", latency(takeover_s), bound)
    if result.costs and result.costs[0].handoff_p50_s:
        beside = ", ".join(
            f"{cost.lock} {latency(cost.handoff_p50_s)}" for cost in result.costs[1:]
        )
        yield KeyFigure("hand-off p50", latency(result.costs[0].handoff_p50_s), beside)


def _parts(result: JudgeResult) -> Iterator[Part]:
    """Yield the table of rows and the table of waiting costs. In the table of rows, the rows that
    need attention come first.
    """
    head = ("word", "row", "about", "what happened")
    played = (row for row in result.rows if row.verdict != "not applicable")
    first = sorted(played, key=lambda row: _ORDER.index(row.verdict))
    rows = tuple((row.verdict, row.topic, row.group, row.happened) for row in first)
    yield Part("rows", "", head, rows, frozenset(range(4)), below=3, styles=STYLES)
    if result.costs:
        about = (
            "four processes request one lock, and each lease lasts 2 ms; the CPU time includes "
            "the pipe to the judge"
        )
        yield table_of(WaitingCost, "what waiting costs", about, result.costs)


def _advice(result: JudgeResult) -> Iterator[Sentence]:
    """Yield the advice on the faults. If several rows have the same advice, yield it only once."""
    broken = [row for row in result.rows if row.verdict == "does not" and row.topic in ADVICE]
    if result.verdict.status == words.HOLDS.status:
        yield to_do("to keep the lock correct, run lockbench judge --quick --junit judge.xml in CI")
    for text in dict.fromkeys(ADVICE[row.topic] for row in broken):
        names = ", ".join(row.topic for row in broken if ADVICE[row.topic] == text)
        yield to_do(f"{text} ({names})", "change")


def _limits(result: JudgeResult) -> Iterator[Sentence]:
    """Yield sentences that say what the judgement did not test."""
    if not result.keys:
        text = "a lease creates no key on these servers, so the lock does not use them"
        yield Sentence("warning", text)
    if result.chosen:
        names = ", ".join(row.topic for row in result.rows)
        text = (
            f"the judge played only these rows: {names}; run lockbench judge without this "
            "selection to play all rows"
        )
        yield Sentence("warning", text)
    missing = [row for row in result.rows if row.verdict == "not applicable"]
    for reason in dict.fromkeys(row.happened for row in missing):
        names = ", ".join(row.topic for row in missing if row.happened == reason)
        yield not_measured(f"{reason} ({names})")
    yield not_measured("load over several hosts")


def evidence(result: JudgeResult) -> tuple[Part, ...]:
    """Return one part for each row with a fault or without a result. The part shows each step of
    the row's course of events."""
    return tuple(_course(row) for row in result.rows if row.course)


def _course(row: JudgedRow) -> Part:
    return table_of(CourseStep, row.topic, f"{row.question}: {row.happened}", row.course)


def suite(result: JudgeResult) -> Suite:
    """Return the rows that decide the verdict, as JUnit cases."""
    statuses = {"holds": words.HOLDS.status, "not known": words.NOT_KNOWN.status}
    cases = []
    for row in result.rows:
        status = statuses.get(row.verdict)
        if row.verdict == "does not":
            status = words.VIOLATED.status if row.is_safety else words.FAIL.status
        if status is not None:
            cases.append(Case(row.topic, status, row.happened))
    return suite_of(result, cases, {"lock": result.lock})
