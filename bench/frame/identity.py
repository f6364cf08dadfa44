"""Names a command for a CI server: *the typed options → a name, and a mark for the cases*.

Rules: CI servers keep one case for each class and name. So two runs in one job must have different
names or marks. The name must be the same in every job, so that a CI server can show the history of
a case. For this reason the id of a run is not part of the name.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_LONGEST = 80


def identity_of(parameters: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of a command with these parameters, and its mark.

    The name is the first of these that exists: --name, the scenario's name, the compared values,
    the recipes. The mark is the name of the folder in --out. With --name there is no mark. A
    missing name or mark is "".
    """
    own_name = str(parameters.get("name") or "")
    compared = [
        parameters.get("baseline"),
        parameters.get("candidate"),
        *_several(parameters.get("things")),
    ]
    choices = (
        own_name,
        _stem(parameters.get("scenario")),
        " ".join(str(one) for one in compared if one),
        " ".join(_several(parameters.get("recipe"))),
    )
    name = next((plain for choice in choices if (plain := _plain(choice))), "")
    out = parameters.get("out")
    mark = "" if own_name or not out else Path(str(out)).name
    return name, "" if mark == name else mark


def _stem(place: object) -> str:
    """Return the name of a scenario's file without its ending.

    Return "" for a pipe or a file in memory, because they have no name.
    """
    path = Path(str(place or ""))
    return "" if path.is_relative_to("/proc") or path.is_relative_to("/dev") else path.stem


def _several(values: object) -> list[str]:
    if isinstance(values, (list, tuple)):
        return [str(value) for value in values]
    return [str(values)] if values else []


def _plain(text: str) -> str:
    """Return `text` without special characters.

    A dot would separate a class from its package, and an XML token cannot hold some characters.
    """
    return re.sub(r"[^\w:+@,=-]+", "-", text).strip("-")[:_LONGEST]
