"""The name, label, unit and places of each result field: *`Annotated[type, says(…)]` → Field*.

    field of a struct -> says(sentence, label, shown, …) -> Field -> whatever shows it

- msgspec copies the sentence of each field into result.schema.json.
- Limits (`acquire.p99 < 10ms`), --metric, compare and gate find every number by its name
  (`bench.gates.threshold.metrics`).
- The tables on a terminal, on a page and in Markdown show the "table" fields (`table_of` and
  `facts_of` in `bench.report.sheet`). A line of text shows the "line" fields
  (`bench.report.figures.in_words`). The data below a picture contains the "data" fields
  (`bench.report.html.plot.data_of`). Each "curve" field has its own curve.
- --csv and a page with runs side by side show the "several" fields. compare stores the "several"
  fields of each run, and it judges the "compare" fields. Only the page shows the "beside" fields.

Rules
- A property is also a field if its return type has metadata, as in `-> Annotated[str, says(…)]`.
- A table that chooses its columns itself names them by path, such as `lost_per_cut.median`. The
  labels, units and texts of these columns still come from the fields (`field_at`).
- The name of a field ends in its unit (`_s`, `_us`, `_ms`, `_per_s`, `_ratio`). If the name of a
  field has no unit, the field has the unit of its section. For example, `latency_s.acquire.p99` is
  in seconds. A share is a ratio. Any other field without a unit is a count or a text.
- If a field has no label, its label is its name without the unit. If the label is "", outputs add
  no word for the field.
- The unit "seconds" is for times that a table shows in seconds. A table shows all other times in
  ms.
- `shown` lists places that show the field. `table` means that the table shows the field itself. If
  the field is a section, `table:p50,p99` means that the table shows the fields p50 and p99 of this
  section. Each field then follows the label of the section. So one type of section can show
  different fields in different places.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

# A factor is a ratio that outputs do not show in per cent, such as the ratio of Little's law.
Unit = Literal["s", "seconds", "us", "ms", "per_s", "ratio", "factor", "count", "text"]
_UNIT = re.compile(r"(?:^|_)(per_s|us|ms|s|ratio)(?=$|_per_)")


class Words(TypedDict, total=False):
    """The metadata of a field besides its sentence.

    `label`: the name that every output shows. `unit`: the unit, if the field's name does not end in
    it. `shown`: the places that show the field, with spaces in between. `note`: the text that a
    wide terminal adds. `metric`: the name that a limit uses, if this name differs from the path.
    """

    label: str
    unit: Unit
    shown: str
    note: str
    metric: str
    higher_is_better: bool


def says(sentence: str, **words: Unpack[Words]) -> Meta:
    """Return the metadata of a result field. `sentence` explains the field."""
    return Meta(description=sentence, extra={**words})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section or of an inner section, with its metadata.

    `path`: the names that lead to the field. `shown`: all places that show the field. A section may
    name places for its own fields, as in `shown="table:p50,p99"`. `named`: the places that the
    section names for this field. In these places, the section has the label `outer_label`.
    `is_whole`: the field is a count. `is_share`: the value lies between 0 and 1.
    `higher_is_better`: a comparison calls a larger value better.
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
        """The name of the field in every output."""
        return f"{self.outer_label} {self.own_label}".strip()

    def of(self, section: object) -> Any:
        """Return the value of this field in `section`, or None if a section on the path is
        unknown."""
        value: Any = section
        for name in self.path:
            value = None if value is None else value.value_of(name)
        return value

    def value(self, section: object) -> float | None:
        """Return the number of this field in `section`, or None if it is unknown. The number may be
        inf."""
        number = self.of(section)
        return None if number is None else float(number)


@cache
def fields_in(kind: type, place: str = "") -> tuple[Field, ...]:
    """Return every field of a section type and of its inner sections, in their order.

    If `place` is given, return only the fields that this place shows.
    """
    return tuple(
        field
        for field in _fields(kind, None)
        if not place or place in (field.shown if len(field.path) == 1 else field.named)
    )


def field_at(kind: type, path: str) -> Field:
    """Return the field at a dotted path. Its label includes every section on the path."""
    by_path = {".".join(one.path): one for one in fields_in(kind)}
    section = path.rpartition(".")[0]
    return replace(by_path[path], outer_label=field_at(kind, section).label if section else "")


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
        own_label=words.get("label", _UNIT.sub("", name).replace("_", " ")),
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
    """Return the unit of a field. The unit comes from the name of the field. If the name has no
    unit, it comes from the type or from the section."""
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
    """Return the types that an annotation allows, without None, and the metadata in the
    annotation."""
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
