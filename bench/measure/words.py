"""A field says its words once: *`Annotated[type, says(…)]` → its name, label, unit and places*.

    field of a struct -> says(sentence, label, shown, …) -> Field -> whatever shows it

- result.schema.json has the sentence: msgspec reads it.
- Limits (`acquire.p99 < 10ms`), --metric, compare and gate know every number by its name:
  `bench.gates.threshold.metrics`.
- Tables on a terminal, on a page and in Markdown show fields at "table": `table_of` and `facts_of`
  in `bench.report.sheet`. "line" is a part of a sentence: `bench.report.figures.in_words`. "data"
  is what a picture has below it: `bench.report.html.plot.data_of`. "curve" is a curve of its own.
- --csv, runs side by side on a page and what compare keeps of a run are fields at "several".
  "compare" is what it judges, "beside" what only the page shows.

Rules
- A property is a field, too, where what it returns has words: `-> Annotated[str, says(…)]`.
- The name of a field ends in its unit (`_s`, `_us`, `_ms`, `_per_s`, `_ratio`). A field without one
  has the unit of the section that it stands in: `latency_s.acquire.p99` is in seconds. A share is a
  ratio, and everything else is a count or a text.
- Without a label the name is the label, without its unit.
- `shown` names places. `table` shows the field itself. `table:p50,p99` shows these fields of the
  section that stands there, with its label before theirs: one type of section can show another
  part in each place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import getmembers
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

# A factor is a ratio that nobody reads in per cent, such as that of Little's law.
Unit = Literal["s", "us", "ms", "per_s", "ratio", "factor", "count", "text"]
_UNIT = re.compile(r"(?:^|_)(per_s|us|ms|s|ratio)(?=$|_per_)")


class Words(TypedDict, total=False):
    """What a field says beside its sentence.

    `label`: its name wherever it is shown; `unit`: only where its name does not tell; `shown`: the
    places that show it, parted by spaces; `note`: what a roomy terminal adds; `metric`: its name in
    a limit, where that is not its path."""

    label: str
    unit: Unit
    shown: str
    note: str
    metric: str
    higher_is_better: bool


def says(sentence: str, **words: Unpack[Words]) -> Meta:
    """Return what a field of a result means, and its words."""
    return Meta(description=sentence, extra={**words})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section, or of a section in it, with its words.

    `path`: the names that lead to it. `shown`: all places that show it. A section may say for its
    fields where they are shown, like `shown="table:p50,p99"`: `named` are those places, and
    `outer_label` is the section's label there. `is_whole`: it is a count. `is_share`: it lies
    between 0 and 1. `higher_is_better`: a comparison calls a larger value better.
    """

    path: tuple[str, ...]
    own_label: str
    outer_label: str
    named: tuple[str, ...]
    unit: Unit
    note: str
    name: str
    shown: tuple[str, ...]
    higher_is_better: bool
    is_number: bool
    is_whole: bool
    is_share: bool

    @property
    def label(self) -> str:
        """Its name wherever it is shown."""
        return f"{self.outer_label} {self.own_label}".strip()

    def of(self, section: object) -> Any:
        """Return what `section` has there; None where a section on the way is not known."""
        value: Any = section
        for name in self.path:
            value = None if value is None else value.value_of(name)
        return value

    def value(self, section: object) -> float | None:
        """Return the number that `section` has there, inf included; None when it is unknown."""
        number = self.of(section)
        return None if number is None else float(number)


@cache
def fields_in(kind: type, place: str = "") -> tuple[Field, ...]:
    """Return every field of a type of section and of the sections in it, in their order; with a
    `place` those that its sections show there: its own, and those that they name."""
    return tuple(
        field
        for field in _fields(kind, None)
        if not place or place in (field.shown if len(field.path) == 1 else field.named)
    )


def _fields(kind: type, outer: Field | None) -> Iterator[Field]:
    hints = get_type_hints(kind, include_extras=True)
    for name, member in getmembers(kind, lambda member: isinstance(member, property)):
        annotation = member.fget.__annotations__["return"]
        if get_origin(annotation) is Annotated:
            hints[name] = annotation
    for name, annotation in hints.items():
        types, metas = _taken_apart(annotation)
        field = _field(name, types, metas, outer)
        yield field
        for section in filter(_is_section, types):
            yield from _fields(section, field)


def _field(name: str, types: set[Any], metas: list[Meta], outer: Field | None) -> Field:
    words: dict[str, Any] = {}
    for meta in metas:
        words |= meta.extra or {}
    outer_label = ""
    named: list[str] = []
    shown = words.get("shown", "").split()
    path: tuple[str, ...] = (name,)
    inherited: Unit = "text"
    if outer:
        path = (*outer.path, name)
        inherited = outer.unit
        places = [place.partition(":") for place in outer.shown]
        named = [place for place, _, names in places if name in names.split(",")]
        outer_label = outer.label if named else ""
    is_share = any(meta.le == 1 for meta in metas)
    return Field(
        path=path,
        own_label=words.get("label") or _UNIT.sub("", name).replace("_", " "),
        outer_label=outer_label,
        named=tuple(named) if len(path) == 2 else (),
        unit=words.get("unit") or _unit(name, types, inherited, is_share=is_share),
        note=words.get("note", ""),
        name=words.get("metric") or ".".join(path),
        shown=(*shown, *named),
        higher_is_better=words.get("higher_is_better", False),
        is_number=types in ({int}, {float}),
        is_whole=types == {int},
        is_share=is_share,
    )


def _unit(name: str, types: set[object], inherited: Unit, *, is_share: bool) -> Unit:
    """The unit of a field: that of its name, else that of its type or of its section."""
    if suffix := _UNIT.search(name):
        return cast("Unit", suffix[1])
    if is_share:
        return "ratio"
    if any(map(_is_section, types)):
        return inherited
    if types == {float} and inherited != "text":
        return inherited
    return "count" if types in ({int}, {float}) else "text"


def _is_section(kind: object) -> bool:
    return hasattr(kind, "__struct_fields__")


def _taken_apart(annotation: Any) -> tuple[set[Any], list[Meta]]:
    """The types that an annotation allows, None left out, and what is said of them."""
    types = set[object]()
    metas = list[Meta]()
    parts = [annotation]
    while parts:
        part = parts.pop()
        if get_origin(part) is Annotated:
            metas += [meta for meta in part.__metadata__ if isinstance(meta, Meta)]
            parts.append(part.__origin__)
        elif get_origin(part) in (Union, UnionType):
            parts += get_args(part)
        elif part is not type(None):
            types.add(part)
    return types, metas
