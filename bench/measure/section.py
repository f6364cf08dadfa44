"""The parts of every result: *structs with a sentence for each field ⇄ JSON; structs → JSON
Schema*.

- A field is `Annotated[type, says("one sentence")]`, and the field's name has the unit.
  `bench.measure.words` explains how tables choose their fields. A field that was added later has a
  default, so lockbench can read older results. It ignores unknown keys of newer results.
- `make schemas` writes the output of `schema_of` next to each type. Nobody writes a schema by hand.
- Only this file uses msgspec to read JSON, and only in one thread at a time. msgspec 0.22 analyses
  each type at its first use. If two threads use a new type at the same time, the second thread uses
  the unfinished analysis of the first thread. Then the process ends with SIGSEGV.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from bench.errors import UsageError
from bench.measure import words

says = words.says
Found = TypeVar("Found")
_ONE_AT_A_TIME = threading.RLock()

Count = Annotated[int, Meta(ge=0)]
# 1 = 100 %
Share = Annotated[float, Meta(ge=0, le=1)]
# The name of the field has the unit.
Amount = Annotated[float, Meta(ge=0)]


class Section(Struct, frozen=True, kw_only=True):
    """A part of a result."""

    # Tests use this method to read fields by name.
    def __getitem__(self, name: str) -> object:
        return getattr(self, name)

    def value_of(self, name: str) -> Any:
        """Return the value of a field as tables show it."""
        return getattr(self, name)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction within this section. Most kinds of sections
        cannot contradict themselves."""
        yield from ()


def contradictions_in(value: object, place: str = "") -> Iterator[str]:
    """Yield the contradictions of every section in `value`, each with its place."""
    if isinstance(value, Section):
        yield from (
            f"{place}: {sentence}" if place else sentence for sentence in value.contradictions()
        )
        for name in value.__struct_fields__:
            yield from contradictions_in(getattr(value, name), f"{place}.{name}" if place else name)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from contradictions_in(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from contradictions_in(inner, f"{place}.{number}")


def builtins_of(section: object) -> Any:
    """Return the JSON value of a section, or of lists and dicts of them.

    Raises ValueError for NaN and infinity.
    """
    return json.loads(json.dumps(msgspec.to_builtins(section, enc_hook=_plain), allow_nan=False))


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of each leaf of a JSON value. A list or an empty object
    counts as one leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def decoded(
    text: bytes | str, kind: type[Found], dec_hook: Callable[[type, object], object] | None = None
) -> Found:
    """Return the JSON `text` as a value of type `kind`. Raises msgspec.DecodeError,
    msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.json.decode(text, type=kind, dec_hook=dec_hook)


def converted(value: object, kind: type[Found]) -> Found:
    """Return the JSON value `value` as a value of type `kind`. Raises msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)


def typed(value: object, kind: type[Found], name: str = "this") -> Found:
    """Return the JSON value `value` as a `kind`.

    Raises UsageError. The message says which part of `name` does not fit the type.
    """
    try:
        return converted(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        # UnicodeEncodeError means that a text contains only half of a surrogate pair.
        raise UsageError(
            f"{name} is not a complete {kind.__name__} of lockbench ({error}); make it again"
        ) from None


def schema_of(kind: type[Section], urn: str) -> dict[str, object]:
    """Return the JSON Schema (2020-12) of documents of type `kind`. The schema allows only the keys
    that lockbench writes."""
    (reference,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    own = parts.pop(str(reference["$ref"]).rpartition("/")[2])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": urn,
        **own,
        "$defs": parts,
    }
    for part in (document, *parts.values()):
        if "description" in part:
            # The formatter may break the lines of a docstring anywhere. A schema must not depend on
            # line breaks.
            part["description"] = " ".join(part["description"].split())
        if "properties" in part:
            part["required"] = list(part["properties"])
            part["additionalProperties"] = False
            for field in part["properties"].values():
                field.pop("default", None)
    return document


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of the type {type(value).__name__} cannot be part of a result")
