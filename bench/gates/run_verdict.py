"""Derives the verdict on one run from its sections, from parts that ended early, and from the
user's limits.

Rules
- `judge_result` judges new runs and stored runs in the same way. If a run is stored, `judge_result`
  ignores the stored verdict word. Other code compares the stored verdict word with the new verdict
  word.
- If a run is invalid, its verdict is INVALID or VIOLATED. The verdict can be VIOLATED, because a
  violation is certain even in an invalid run. No other figure of an invalid run affects the
  verdict.
- A run is invalid if the recipe raised exceptions too often. The figures do not include an
  operation that raised an exception. With many exceptions, the figures would describe only a part
  of the operations.
- If there is no reason for another verdict, the safety word UNKNOWN or NOT TESTED becomes the
  verdict. A run with one of these two verdicts is not a success.
- If Ctrl-C interrupted a run, the run never gets a good verdict.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.gates.threshold import read_thresholds, sentence
from bench.measure import verdict as words
from bench.measure.run_result import Exceptions, Figures, JudgedThreshold, RunResult
from bench.measure.verdict import TESTED_LEAST, Evidence, Verdict
from bench.measure.verdict import conclude as concluded

# The largest allowed share of operations in which the recipe raised an exception.
MOST_RAISED = 0.01
_OF_SAFETY = {word.text: word for word in (words.SAFE, words.NOT_TESTED, words.UNKNOWN)}


def judge_result(result: RunResult) -> Verdict:
    """Return the verdict that follows from the sections of `result`. The function ignores the
    stored verdict.

    Raises UsageError if a limit names a figure that this version does not know.
    """
    limits = judge_limits(result, breaks_of(result))
    return judge_run(result, breaks_of(result), limits, interrupted=result.interrupted)


def earned(result: RunResult) -> RunResult:
    """Return a copy of `result` with a new verdict and newly judged limits. The function computes
    the verdict and the limits from the other sections of `result`.

    Raises UsageError if a limit names a figure that this version does not know.
    """
    limits = tuple(judge_limits(result, breaks_of(result)))
    return replace(result, thresholds=limits, verdict=judge_result(result))


def judge_limits(
    figures: Figures, breaks: Sequence[str], limits: Sequence[str] | None = None
) -> list[JudgedThreshold]:
    """Compare `figures` with the limits, and return the verdict on each limit.

    If `limits` is None, use the limits that the stored result names. Raises UsageError if a limit
    names a figure that this version does not know.
    """
    if limits is None:
        limits = [entry.expression for entry in getattr(figures, "thresholds", ())]
    void = invalidities(figures, breaks)
    return [threshold.judge(figures, void) for threshold in read_thresholds(limits)]


def breaks_of(result: RunResult) -> tuple[str, ...]:
    """Return sentences about parts of the run that ended early or did not take place.

    The function also returns sentences from the section `limits` of the result. An example is a
    sentence about a CPU quota that throttled the container too often.
    """
    return tuple(dict.fromkeys((*result.breaks, *result.limits.invalidities())))


def judge_run(
    measured: Figures,
    deaths: Sequence[str],
    thresholds: Sequence[JudgedThreshold] = (),
    *,
    interrupted: bool = False,
) -> Verdict:
    """Return the verdict on a run.

    `deaths` holds sentences about parts of the run that ended early. `interrupted` is true if
    Ctrl-C interrupted the run.
    """
    safety = measured.safety
    invalid = invalidities(measured, deaths)
    failed, undecided = (
        [sentence(one) for one in thresholds if one.status == status]
        for status in ("fail", "inconclusive")
    )
    violations: list[str] = []
    if safety.verdict == "VIOLATED":
        violations = [str(safety.reason), *_evictions(measured)]
    interruption: list[str] = []
    doubts: list[str] = []
    if invalid:
        # No figure of an invalid run counts, so no figure can break a threshold.
        failed = []
    else:
        interruption = ["interrupted before its time"] if interrupted else []
        doubts = [*safety.misreports, *_nothing_granted(measured), *undecided]
    reasons = {
        words.VIOLATED: violations,
        words.FAIL: failed,
        words.INVALID: invalid,
        words.INTERRUPTED: interruption,
        words.INCONCLUSIVE: doubts,
    }
    evidence = (Evidence.none_in("tested leases", safety.tested_leases, TESTED_LEAST),)
    word = _OF_SAFETY.get(safety.verdict, words.UNKNOWN)
    if word is not words.SAFE and not any(reasons.values()):
        return Verdict.of(word, word.exit_code, evidence, ())
    return concluded(words.SAFE, evidence, reasons, thin=words.NOT_TESTED)


def invalidities(measured: Figures, deaths: Sequence[str]) -> list[str]:
    """Return the reasons why the figures of this run are worthless. If there is no such reason, the
    list is empty.

    `deaths` holds sentences about parts of the run that ended early.
    """
    generator = measured.generator
    claim = (
        [f"the load was not as requested: {generator.reason}"]
        if generator.verdict == "INVALID"
        else []
    )
    return [*deaths, *_raised(measured.exceptions), *claim]


def _raised(exceptions: Exceptions) -> list[str]:
    """Return a list with one sentence if the recipe raised exceptions too often. Otherwise the list
    is empty.

    There is no record of an acquire that raised an exception. After the exception, the caller also
    waits before its next operation. Therefore too many exceptions make the latencies, the shares
    and the load wrong.
    """
    raised = exceptions.raised
    operations = exceptions.operations
    if raised <= MOST_RAISED * operations:
        return []
    share = f" ({raised / operations:.1%})" if operations else ""
    return [
        f"the load was not as requested: the recipe raised {raised:,} exceptions in "
        f"{operations:,} operations{share}; at most {MOST_RAISED:.0%} is allowed; the first "
        f"exception: {exceptions.first}"
    ]


def _evictions(measured: Figures) -> list[str]:
    """Return sentences about instances that evicted keys during the run.

    If a server evicts the key of a lock, the lock can get two holders.
    """
    if not isinstance(measured, RunResult):
        return []
    return [
        f"instance #{one.index} ({one.address}) evicted {one.info.evicted_keys:,} keys during the "
        "run; another caller can take an evicted lock"
        for one in measured.instances
        if one.info and one.info.evicted_keys
    ]


def _nothing_granted(measured: Figures) -> list[str]:
    """Return a list with one sentence if no acquire that was due in the measured window got a
    lease. Otherwise the list is empty.

    The outcomes count the acquires that were due in the window. The rate counts the grants that
    happened in the window. If the queue is long, a grant in the window may belong to an acquire
    that was due before the window.
    """
    if measured.outcomes.acquired:
        return []
    if measured.rate.achieved_per_s:
        return [
            "no acquire that was due in the measured window got a lease; all leases of the window "
            "belong to acquires that were due earlier"
        ]
    return ["no lease was granted in the measured window"]
