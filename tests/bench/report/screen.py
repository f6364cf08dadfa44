"""A sheet as a terminal shows it; a stored result."""

import io
from pathlib import Path

from rich.console import Console

from bench.measure.result import Document, read_result
from bench.report.sheet import Sheet, print_sheet
from tests.doubles.answers import of_its_kind


def stored(place: Path) -> Document:
    """The result in a file."""
    return of_its_kind(read_result(place), place.name)


def sheet_text(sheet: Sheet, width: int) -> str:
    """The plain text that a terminal of `width` columns shows of `sheet`, without trailing
    blanks."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    print_sheet(sheet, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
