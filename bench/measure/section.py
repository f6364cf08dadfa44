"""The base class for the parts of a result. Each part is a struct. This module converts a part to
JSON, from JSON, or to a JSON Schema.

- Each field is declared as `Annotated[type, says("one sentence")]`, and its name ends in its unit.
  `bench.measure.words` explains how tables choose their fields. If a field was added in a later
  version, it has a default, so that lockbench can still read older results. If a result has unknown
  keys, lockbench ignores these keys.
- `make schemas` generates every schema with `schema_of` and stores it in a file beside the type. Do
  not edit a schema by hand.
- Only this file uses msgspec to read JSON. A lock ensures that only one thread reads JSON at a
  time. When a type is used for the first time, msgspec 0.22 analyses the type. Without the lock, a
  second thread could use an analysis that the first thread has not finished. In this case, the
  process would end with SIGSEGV.
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
        """Return the value of a field for a table."""
        return getattr(self, name)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction within this section. The base class yields no
        sentence."""
        yield from ()


def contradictions_in(value: object, place: str = "") -> Iterator[str]:
    """Yield the contradictions of all sections in `value`. Each sentence begins with the place of
    its section."""
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
    """Return the JSON value of a section, or of a list or dict that contains sections.

    Raises ValueError for NaN and infinity.
    """
    return json.loads(json.dumps(msgspec.to_builtins(section, enc_hook=_plain), allow_nan=False))


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield all leaves of a JSON value. Each leaf has a dotted name and a value. A list or an empty
    object counts as one leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def decoded(
    text: bytes | str, kind: type[Found], dec_hook: Callable[[type, object], object] | None = None
) -> Found:
    """Convert the JSON text `text` to a value of the type `kind`. Raises msgspec.DecodeError,
    msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.json.decode(text, type=kind, dec_hook=dec_hook)


def converted(value: object, kind: type[Found]) -> Found:
    """Convert the JSON value `value` to a value of the type `kind`. Raises
    msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, kind)


def typed(value: object, kind: type[Found], name: str = "this") -> Found:
    """Convert the JSON value `value` to the type `kind`.

    Raises UsageError if the value does not fit the type. In the error message, `name` is the name
    of the value. The message also says which part of the value does not fit.
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
