"""Derives the name and the mark of a command from the typed options. A CI server shows the cases of
the command under this name and this mark.

A CI server keeps one case for each pair of class and name. So two runs in the same job must have
different names or marks. The name must be the same in every job, so that a CI server can show the
history of a case. For this reason the name does not contain the id of a run.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_LONGEST = 80


def identity_of(parameters: Mapping[str, object]) -> tuple[str, str]:
    """Return the name and the mark of the command that has these parameters.

    The name comes from --name. If there is no --name, the name comes from the scenario. If there is
    no scenario, the name comes from the compared values, and otherwise from the recipes. If none of
    these exists, the name is "". The mark is the name of the folder in --out. The mark is "" if
    there is no --out, if the user gives --name, or if the folder has the same name as the command.
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
    """Return a short form of `text`, in which "-" replaces the special characters.

    In a JUnit file, a dot separates a class from its package. An XML token does not allow some
    other characters.
    """
    return re.sub(r"[^\w:+@,=-]+", "-", text).strip("-")[:_LONGEST]
