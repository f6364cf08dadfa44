"""The metadata of each result field: its name, its label, its unit, and the places that show it.

    field of a struct -> says(sentence, label, shown, …) -> Field -> whatever shows it

- msgspec copies the sentence of each field into the JSON schema.
- Each number has a name (`bench.gates.threshold.metrics`). Limits such as `acquire.p99 < 10ms`, the
  option --metric, and the commands compare and gate use these names.
- `shown` lists the places that show a field. If the list contains "table", tables show the field.
  Tables appear on a terminal, on a page and in Markdown (`table_of` and `facts_of` in
  `bench.report.sheet`). If the list contains "line", the field appears in the line of text that
  describes its section (`bench.report.figures.in_words`). If the list contains "data", the field
  appears in the data below a picture (`bench.report.html.plot.data_of`). If the list contains
  "curve", a picture shows the field as a curve.
- The output of --csv shows the fields with the place "several". A page with several runs side by
  side shows the fields with the place "several" or "beside". The command `compare` stores the
  fields with the place "several" for each run, and it judges the fields with the place "compare".

Rules
- A property also counts as a field if its return type has metadata, as in `-> Annotated[str,
  says(…)]`.
- Some tables have a fixed list of columns. Each entry of this list is the path of a field, such as
  `lost_per_cut.median`. The columns of these tables also use the label, the unit and the text of
  the field (`field_at`).
- The name of a field ends in its unit (`_s`, `_us`, `_ms`, `_per_s`, `_ratio`). If the name has no
  unit, the field has the unit of its section. For example, the unit of `latency_s.acquire.p99` is
  seconds. A field of the type Share is a ratio. All other fields without a unit are counts or
  texts.
- If a field has no label, outputs use its name without the unit. If the label is "", outputs show
  only the value.
- A table shows a time in seconds if its unit is "seconds". A table shows all times with another
  unit in ms.
- If a field is itself a section, `shown` can select fields of this section. For example,
  `table:p50,p99` means that the table shows the fields p50 and p99 of the section. The labels of
  these fields begin with the label of the section. Therefore outputs can show different parts of
  two fields that have the same type.
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
    """The metadata of a field, without its sentence. Each item is optional.

    `label` is the name that every output shows. `unit` is the unit of the field, and it is needed
    only if the field's name does not end in the unit. `shown` lists the places that show the field,
    separated by spaces. `note` is a text that a wide terminal shows beside the field. `metric` is
    the name of the field in limits. Without `metric`, limits use the path of the field.
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

    `path` lists the names from the outermost section to the field. `shown` lists all places that
    show the field. A section can choose places for its own fields, as in `shown="table:p50,p99"`.
    If a section has chosen places for this field, `named` lists these places, and `outer_label` is
    the label of the section. `is_whole` is true if the value of the field is always a whole number.
    `is_share` is true if the value lies between 0 and 1. `higher_is_better` is true if a larger
    value is better in a comparison.
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
        """Return the value of this field in `section`, or None if a section on the path is None."""
        value: Any = section
        for name in self.path:
            value = None if value is None else value.value_of(name)
        return value

    def value(self, section: object) -> float | None:
        """Return the value of this field in `section` as a float, or None if the value is unknown.
        The result may be inf."""
        number = self.of(section)
        return None if number is None else float(number)


@cache
def fields_in(kind: type, place: str = "") -> tuple[Field, ...]:
    """Return all fields of the section type `kind`. If a field is itself a section, its own fields
    come directly after it.

    If `place` is given, return only the fields that this place shows.
    """
    return tuple(
        field
        for field in _fields(kind, None)
        if not place or place in (field.shown if len(field.path) == 1 else field.named)
    )


def field_at(kind: type, path: str) -> Field:
    """Return the field at a dotted path. The returned field has a label that begins with the labels
    of all sections on the path."""
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
    """Return the unit of a field. If the name of the field ends in a unit, the result is this unit.
    Otherwise the type of the field or its section decides the unit."""
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
    """Return all types that an annotation allows, but not the type of None. Also return the
    metadata of the annotation."""
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
