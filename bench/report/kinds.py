"""What kind of result it is, and how each is told: *result → its sheet, its JUnit cases, its figures*.

Rules: a kind is recognised by its own word (`kind`). Each question tells its own
result, in a module with `sheet(result, place)` and `suite(result)`, if it has pictures `figures(result)`, if it has
courses of events `evidence(result)`, and `beside(result, folder)` if another kind of result belongs to it.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from bench.errors import UsageError
from bench.measure.result import Document
from bench.measure.section import typed
from bench.report.sheet import Sheet, Suite

KINDS = {  # the type of its results, and the module that tells them
    "audit": ("bench.experiments.audit.result:AuditResult", "bench.experiments.audit.words"),
    "capacity": ("bench.experiments.capacity.result:CapacityResult", "bench.experiments.capacity.words"),
    "compare": ("bench.experiments.compare.result:ComparisonResult", "bench.experiments.compare.words"),
    "crash": ("bench.experiments.crash.result:CrashResult", "bench.experiments.crash.words"),
    "explore": ("bench.experiments.explore.result:ExploreResult", "bench.experiments.explore.words"),
    "fsync": ("bench.experiments.fsync.result:FsyncResult", "bench.experiments.fsync.words"),
    "gate": ("bench.experiments.compare.result:ComparisonResult", "bench.experiments.compare.words"),
    "peers": ("bench.experiments.contest.result:PeersResult", "bench.experiments.contest.words"),
    "run": ("bench.measure.run_result:RunResult", "bench.report.summary"),
    "safety": ("bench.experiments.safety_matrix.result:SafetyResult", "bench.experiments.safety_matrix.words"),
    "split-votes": ("bench.experiments.split_votes.result:SplitVotesResult", "bench.experiments.split_votes.words"),
}


def type_of(kind: str) -> type[Document]:
    """Return the type of the results of `kind`."""
    found: type[Document] = resolve_name(KINDS[kind][0])
    return found


def of_its_kind(result: Mapping[str, object], name: str) -> Document:
    """Return the result called `name` as the type of its kind. Raises UsageError if it is not whole, or of no kind."""
    kind = str(result.get("kind", "run" if "latency_s" in result else "an unknown kind"))  # old runs have none
    if kind not in KINDS:
        raise UsageError(f"{name} is a result of lockbench {kind}, which this lockbench does not know")
    return typed(result, type_of(kind), name)


def kind_of(result: Document) -> str:
    """The command that made `result`: run, safety, split-votes, fsync, crash, capacity, compare …"""
    return str(getattr(result, "kind"))  # noqa: B009 - each type has its own Literal


def words_of(result: Document) -> ModuleType:
    """Return the module that tells `result`."""
    return import_module(KINDS[kind_of(result)][1])


def beside(result: Document, folder: Path) -> Document:
    """Return `result` with what the results right below `folder` add to it, where its kind looks for that."""
    look = getattr(words_of(result), "beside", None)
    found: Document = look(result, folder) if look else result
    return found


def told(result: Document, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    sheet: Sheet = words_of(result).sheet(result, place)
    return sheet


def cases_of(result: Document) -> Suite:
    """Return `result` as JUnit cases."""
    suite: Suite = words_of(result).suite(result)
    return suite
