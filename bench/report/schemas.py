"""The JSON Schemas of every kind of result: *the types → result.schema.json beside each* (`make schemas`).

Rules: nobody writes one by hand; a test compares them with the types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bench.measure.section import schema_of
from bench.report.kinds import TYPED, room_of, type_of


def schemas() -> Iterator[tuple[Path, str]]:
    """Yield where each schema belongs, and its text; kinds of one type share a schema."""
    for kind in {type_of(kind): kind for kind in reversed(TYPED)}.values():
        room = room_of(kind, "result")
        if room is None or room.__file__ is None:
            raise LookupError(f"no type of result for {kind}")
        text = json.dumps(schema_of(type_of(kind), f"urn:lockbench:{kind}:1"), indent=1, ensure_ascii=False)
        yield Path(room.__file__).with_name("result.schema.json"), text + "\n"


if __name__ == "__main__":
    for path, text in schemas():
        path.write_text(text, "utf-8")
