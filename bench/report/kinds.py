"""What kind of result it is, and how each is told: *result → its sheet, its JUnit cases, its figures*.

Rules: a kind is recognised by its own word (`kind`), else by the sections only it has. Each question tells its own
result, in a module `words` with `sheet(result, place)` and `suite(result)`, if it has pictures `figures(result)`, if it
has courses of events `evidence(result)`, and `beside(result, folder)` if another kind of result belongs to it; only
where they lie is known here.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from bench.errors import UsageError
from bench.measure import run_result
from bench.measure.result import Document
from bench.measure.section import typed
from bench.report import summary
from bench.report.sheet import Sheet, Suite

_SECTIONS = {"run": "latency_s", "split-votes": "calibration", "safety": "counts"}  # what only this kind has
# Each has a module `result` with its type in a folder that is called as the kind, but for these.
_FOLDERS = {"gate": "compare", "peers": "contest", "safety": "safety_matrix", "split-votes": "split_votes"}
KINDS = ("audit", "capacity", "compare", "crash", "explore", "fsync", "gate", "peers", "run", "safety", "split-votes")


def type_of(kind: str) -> type[Document]:
    """Return the type of the results of `kind`: the one document made there."""
    room = room_of(kind, "result")
    types = (one for one in vars(room).values() if isinstance(one, type) and one.__module__ == room.__name__)
    return next(one for one in types if issubclass(one, Document))


def of_its_kind(result: Mapping[str, object] | Document, name: str = "this result") -> Document:
    """Return the result called `name` as the type of its kind. Raises UsageError if it is not whole, or of no kind."""
    if isinstance(result, Document):
        return result
    if (kind := kind_of(result)) not in KINDS:
        raise UsageError(f"{name} is a result of lockbench {kind}, which this lockbench does not know")
    return typed(result, type_of(kind), name)


def kind_of(result: Mapping[str, object] | Document) -> str:
    """The command that made `result`: run, safety, split-votes, fsync, crash, capacity, compare …"""
    if isinstance(result, Document):
        return str(getattr(result, "kind"))  # noqa: B009 - each type has its own Literal
    if isinstance(written := result.get("kind"), str):
        return written
    for kind, section in _SECTIONS.items():
        if section in result:
            return kind
    command = result.get("command")
    return str(command[1]) if isinstance(command, list) and len(command) > 1 else "an unknown kind"


def beside(result: Document, folder: Path) -> Document:
    """Return `result` with what the results right below `folder` add to it, where its kind looks for that."""
    look = getattr(room_of(kind_of(result), "words"), "beside", None)
    found: Document = look(result, folder) if look else result
    return found


def told(result: Document, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere). Raises as `of_its_kind`."""
    document = of_its_kind(result)
    sheet: Sheet = room_of(kind_of(document), "words").sheet(document, place)
    return sheet


def cases_of(result: Document) -> Suite:
    """Return `result` as JUnit cases. Raises as `of_its_kind`."""
    document = of_its_kind(result)
    suite: Suite = room_of(kind_of(document), "words").suite(document)
    return suite


def room_of(kind: str, room: str) -> ModuleType:
    """Return the module `words` or `result` of the question whose results are of `kind`."""
    if kind == "run":
        return {"words": summary, "result": run_result}[room]
    return import_module(f"bench.experiments.{_FOLDERS.get(kind, kind)}.{room}")
