"""What kind of result it is, and how each is told: *a stored result → its type, checked → its
sheet, cases, figures*.

Rules
- A kind is recognised by its own word (`kind`). Each question tells its own result, in a module
  with `sheet(result, place)` and `suite(result)`, if it has pictures `figures(result)`, if it has
  courses of events `evidence(result)`, and `beside(result, folder)` if another kind of result
  belongs to it.
- This is the one door for stored results. Each question judges its own result anew, with the
  function that the maker of the result asked, too. A result that contradicts itself, or whose word
  its sections do not earn, is refused.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, TypeVar, cast

from bench.errors import UsageError
from bench.measure.agreement import disagreements
from bench.measure.earned import first_difference
from bench.measure.result import RESULT_NAME, Document, read_result
from bench.measure.run_result import RunResult
from bench.measure.section import contradictions_in, typed
from bench.report.junit import Case, Suite
from bench.report.sheet import Sheet

_COMPARE = "bench.experiments.compare"
# Each kind: the type of its results, the module that describes them, the function that judges them
# anew.
KINDS = {
    "audit": (
        "bench.experiments.audit.result:AuditResult",
        "bench.experiments.audit.words",
        "bench.experiments.audit.judge:earned",
    ),
    "capacity": (
        "bench.experiments.capacity.result:CapacityResult",
        "bench.experiments.capacity.words",
        "bench.experiments.capacity.judge:earned",
    ),
    "compare": (
        f"{_COMPARE}.result:ComparisonResult",
        f"{_COMPARE}.words",
        f"{_COMPARE}.judge:earned",
    ),
    "crash": (
        "bench.experiments.durability.loss_result:CrashResult",
        "bench.experiments.durability.loss_words",
        "bench.experiments.durability.loss_judge:earned",
    ),
    "explore": (
        "bench.experiments.explore.result:ExploreResult",
        "bench.experiments.explore.words",
        "bench.experiments.explore.judge:earned",
    ),
    "fsync": (
        "bench.experiments.durability.price_result:FsyncResult",
        "bench.experiments.durability.price_words",
        "bench.experiments.durability.planner:earned",
    ),
    "gate": (
        f"{_COMPARE}.result:ComparisonResult",
        f"{_COMPARE}.words",
        f"{_COMPARE}.judge:earned",
    ),
    "run": (
        "bench.measure.run_result:RunResult",
        "bench.report.summary",
        "bench.gates.run_verdict:earned",
    ),
    "safety": (
        "bench.experiments.safety_matrix.result:SafetyResult",
        "bench.experiments.safety_matrix.words",
        "bench.experiments.safety_matrix.judge:earned",
    ),
    "split-votes": (
        "bench.experiments.split_votes.result:SplitVotesResult",
        "bench.experiments.split_votes.words",
        "bench.experiments.split_votes.judge:earned",
    ),
}
Found = TypeVar("Found", bound=Document)
# Sections that no command writes may raise any of these while they are judged.
_BROKEN = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


def type_of(kind: str) -> type[Document]:
    """Return the type of the results of `kind`."""
    form: type[Document] = resolve_name(KINDS[kind][0])
    return form


def of_its_kind(result: Mapping[str, object], name: str) -> Document:
    """Return the result called `name` as the type of its kind. Raises UsageError if it is not
    whole, of no kind, or says what its sections do not earn."""
    # The results of old runs have no `kind`.
    kind = str(result.get("kind", "run" if "latency_s" in result else "an unknown kind"))
    if kind not in KINDS:
        raise UsageError(
            f"{name} is a result of lockbench {kind}, which this lockbench does not know"
        )
    return as_earned(typed(result, type_of(kind), name), name)


def as_earned(result: Document, name: str) -> Document:
    """Return the result called `name` as its sections earn it. Raises UsageError where it
    contradicts itself, or says something else than it earns."""
    judge: Callable[[Document], Document] = resolve_name(KINDS[kind_of(result)][2])
    earned = result
    try:
        apart = disagreements(result) if isinstance(result, RunResult) else iter(())
        wrong = next(chain(apart, contradictions_in(result)), "")
        if not wrong:
            earned = judge(result)
            wrong = first_difference(result, earned)
    except _BROKEN as error:
        wrong = f"its sections cannot be judged ({type(error).__name__}: {error})"
    if wrong:
        raise UsageError(
            f"{name} is refused, because {wrong}; the file was changed or is damaged, so "
            "measure it anew"
        )
    return earned


def result_of_kind(place: Path, kind: str, form: type[Found]) -> Found:
    """Return the result in the file or folder `place`, a `form`. Raises UsageError when it is none,
    not of this kind, not whole, or says what its sections do not earn."""
    result = read_result(place)
    if result.get("kind") != kind:
        raise UsageError(
            f"{place} is not a result of lockbench {kind}; name a result of lockbench {kind}"
        )
    assert issubclass(form, type_of(kind))
    return cast("Found", of_its_kind(result, str(place)))


def newest_result(folder: Path, kind: str, form: type[Found]) -> Found | None:
    """Return the result of this kind that was begun last, of those right below `folder`; None when
    there is none. Raises UsageError where the newest one is refused: an older one in its place
    would be a surprise."""
    candidates: list[tuple[str, Path]] = []
    for path in folder.glob(f"*/{RESULT_NAME}"):
        # A file that is no result is left out, because nobody asked for it.
        with suppress(UsageError):
            result = read_result(path)
            if result.get("kind") == kind:
                candidates.append((str(result.get("started_at")), path))
    return result_of_kind(max(candidates)[1], kind, form) if candidates else None


def read_run(place: Path) -> RunResult:
    """Return the result of a run in a folder or file. Raises UsageError as `result_of_kind`."""
    return result_of_kind(place, "run", RunResult)


def kind_of(result: Document) -> str:
    """The command that made `result`: run, safety, split-votes, fsync, crash, capacity, compare
    …"""
    return str(getattr(result, "kind"))  # noqa: B009 - each type has its own Literal


def words_of(result: Document) -> ModuleType:
    """Return the module that tells `result`."""
    return import_module(KINDS[kind_of(result)][1])


def beside(result: Document, folder: Path) -> Document:
    """Return `result` with what the results right below `folder` add to it, where its kind looks
    for that."""
    look: Any = getattr(words_of(result), "beside", None)
    complete_result: Document = look(result, folder) if look else result
    return complete_result


def told(result: Document, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    sheet: Sheet = words_of(result).sheet(result, place)
    return sheet


def cases_of(result: Document) -> Suite:
    """Return `result` as JUnit cases. A word that is no pass has a case that is none: rows may all
    be as they must, and too few of them judged."""
    suite: Suite = words_of(result).suite(result)
    verdict = result.verdict
    if verdict.status == "pass" or any(case.status != "pass" for case in suite.cases):
        return suite
    whole = Case("the verdict", verdict.status, "; ".join(verdict.reasons) or str(verdict.word))
    return replace(suite, cases=(*suite.cases, whole))
