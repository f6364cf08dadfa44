"""Parts of a result for a reader that looks at few of their fields: *a dict of dicts → the same by
attribute*."""

import json
from types import SimpleNamespace
from typing import Any


def attributes(value: object) -> Any:
    """Return `value` with its dicts as objects; JSON values only."""
    return json.loads(json.dumps(value), object_hook=lambda fields: SimpleNamespace(**fields))
