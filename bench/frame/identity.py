"""How a CI server tells two commands of one job apart: *the typed options → a name, and a mark for
the cases*.

Rules: readers of JUnit files keep one case per class and name, so two runs in a job must differ in
one of the two. The name is the same in every job, so that a reader can show the history of a case.
So the id of a run is not part of the name.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_LONGEST = 80


def identity_of(parameters: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of a command with these parameters, and a mark. Each is "" if there is none.

    The name is --name. Without --name it is the scenario's name, else the compared values, else the
    recipes. The mark is the folder in --out. There is no mark beside --name.
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
    """Return the name of a scenario's file. "" if the file has no name of its own (a pipe, a file
    in memory)."""
    path = Path(str(place or ""))
    return "" if path.is_relative_to("/proc") or path.is_relative_to("/dev") else path.stem


def _several(values: object) -> list[str]:
    if isinstance(values, (list, tuple)):
        return [str(value) for value in values]
    return [str(values)] if values else []


def _plain(text: str) -> str:
    """`text` without the characters that separate a class from its package, and without characters
    that an XML token cannot hold."""
    return re.sub(r"[^\w:+@,=-]+", "-", text).strip("-")[:_LONGEST]
