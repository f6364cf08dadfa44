"""The verdict of one run: *its sections, what ended early, its limits → one word, and why*.

Rules
- The maker of a run and the reader of a stored one ask the same function, `judge_result`. A stored
  word is compared with its answer and never believed.
- Of an invalid run nothing is judged but violations, which are certain: its figures mean nothing.
- A run in which the recipe raised often is invalid: what raised has no figure, so all others are of
  a part.
- UNKNOWN safety, or one that was not tested, is the word of a run that has nothing else to say; it
  is never green.
- A run that Ctrl-C cut is not known, however well it began.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.gates.threshold import read_thresholds, sentence
from bench.measure import verdict as words
from bench.measure.run_result import Exceptions, Figures, JudgedThreshold, RunResult
from bench.measure.verdict import TESTED_LEAST, Evidence, Verdict
from bench.measure.verdict import conclude as concluded

# The share of the begun operations in which a recipe may raise.
MOST_RAISED = 0.01
_OF_SAFETY = {word.text: word for word in (words.SAFE, words.NOT_TESTED, words.UNKNOWN)}


def judge_result(result: RunResult) -> Verdict:
    """Return the verdict that the sections of `result` earn, whatever its own verdict says. Raises
    UsageError where a limit names a figure that this version does not know."""
    limits = judge_limits(result, breaks_of(result))
    return judge_run(result, breaks_of(result), limits, interrupted=result.interrupted)


def earned(result: RunResult) -> RunResult:
    """Return `result` with the verdict and the judged limits that its other sections earn. Raises
    as `judge_result`."""
    limits = tuple(judge_limits(result, breaks_of(result)))
    return replace(result, thresholds=limits, verdict=judge_result(result))


def judge_limits(
    figures: Figures, breaks: Sequence[str], limits: Sequence[str] | None = None
) -> list[JudgedThreshold]:
    """Return every limit on these figures, judged; `limits` None: those that a stored result was
    judged by. Raises UsageError as `judge_result`."""
    if limits is None:
        limits = [entry.expression for entry in getattr(figures, "thresholds", ())]
    void = invalidities(figures, breaks)
    return [threshold.judge(figures, void) for threshold in read_thresholds(limits)]


def breaks_of(result: RunResult) -> tuple[str, ...]:
    """What ended early or did not take place."""
    return tuple(dict.fromkeys((*result.breaks, *result.limits.invalidities())))


def judge_run(
    measured: Figures,
    deaths: Sequence[str],
    thresholds: Sequence[JudgedThreshold] = (),
    *,
    interrupted: bool = False,
) -> Verdict:
    """Return the verdict. `deaths`: workers that ended early; `interrupted`: by Ctrl-C."""
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
        # no figure of an invalid run counts, so no threshold fails by one
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
    """Why no figure of this run means anything; nothing when they do.

    `deaths`: workers that ended early.
    """
    generator = measured.generator
    claim = (
        [f"the load was not what it claims: {generator.reason}"]
        if generator.verdict == "INVALID"
        else []
    )
    return [*deaths, *_raised(measured.exceptions), *claim]


def _raised(exceptions: Exceptions) -> list[str]:
    """One sentence where the recipe raised too often. Of an acquire that raised nothing is
    recorded, and its caller rests. So neither latencies nor shares nor the load are what they
    claim."""
    raised = exceptions.raised
    operations = exceptions.operations
    if raised <= MOST_RAISED * operations:
        return []
    share = f" ({raised / operations:.1%})" if operations else ""
    return [
        f"the load was not what it claims: the recipe raised {raised:,} exceptions in "
        f"{operations:,} operations"
        f"{share}, and {MOST_RAISED:.0%} is allowed; the first: {exceptions.first}"
    ]


def _evictions(measured: Figures) -> list[str]:
    """The instances that evicted keys while the run lasted, which may be why a lock had two
    holders."""
    if not isinstance(measured, RunResult):
        return []
    return [
        f"instance #{one.index} ({one.address}) evicted {one.info.evicted_keys:,} keys "
        "meanwhile: an evicted lock "
        "is free for the next caller"
        for one in measured.instances
        if one.info and one.info.evicted_keys
    ]


def _nothing_granted(measured: Figures) -> list[str]:
    """Outcomes count what was due in the window, the rate what was granted in it: in a long queue
    these are others."""
    if measured.outcomes.acquired:
        return []
    if measured.rate.achieved_per_s:
        return [
            "no acquire due in the measured window got a lease; all leases granted in it "
            "were due earlier"
        ]
    return ["no lease was granted in the measured window"]
