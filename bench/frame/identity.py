"""Derives the name of a command for a CI server from the typed options, and a mark for its cases.

A CI server keeps one case for each pair of class and name. So two runs in the same job must have
different names or marks. The name must be the same in every job, so that a CI server can show the
history of a case. For this reason the name does not contain the id of a run.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_LONGEST = 80


def identity_of(parameters: Mapping[str, object]) -> tuple[str, str]:
    """Return the name and the mark of a command with these parameters.

    The name comes from the first existing source in this order: --name, the scenario's name, the
    compared values, the recipes. The mark is the name of the folder in --out. If the user gives
    --name, or if the mark equals the name, the mark is "". A missing name is "", too.
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
    """Return the name of a scenario's file without its extension.

    Return "" for a pipe or a file in memory, because such a file has no name.
    """
    path = Path(str(place or ""))
    return "" if path.is_relative_to("/proc") or path.is_relative_to("/dev") else path.stem


def _several(values: object) -> list[str]:
    if isinstance(values, (list, tuple)):
        return [str(value) for value in values]
    return [str(values)] if values else []


def _plain(text: str) -> str:
    """Return `text`, shortened and with "-" in place of special characters.

    A dot would separate a class from its package, and some characters are not allowed in an XML
    token.
    """
    return re.sub(r"[^\w:+@,=-]+", "-", text).strip("-")[:_LONGEST]
