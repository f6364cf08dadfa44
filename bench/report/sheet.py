"""The sheet describes a result in sentences and tables: *verdict, tables, labelled sentences → a
terminal or Markdown*.

Rules: the verdict comes first. No text in a cell can damage the layout of the table. If a colour
shows information, a text also shows this information. This module computes no figures. Source:
rich; GitHub's Markdown tables.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.measure.result import Document
from bench.measure.section import Section
from bench.measure.verdict import Kind, word_of
from bench.measure.words import Field, field_at, fields_in
from bench.report.figures import cell_of, head_of
from bench.screen import fitted

GOOD, DOUBTFUL, BAD = (kind.value for kind in (Kind.GOOD, Kind.UNKNOWN, Kind.BAD))
# An HTML page uses these names for the styles.
STYLES = {GOOD: "good", DOUBTFUL: "warning", BAD: "bad"}
ROOMY = 100  # columns


# The headings under which a page groups sentences.
TO_DO = "What to do"
NOT_MEASURED = "What was not measured"


class Sentence(NamedTuple):
    """A labelled sentence.

    `style`: the style GOOD, DOUBTFUL or BAD. If `style` is "", the label decides the style.
    `group`: the group TO_DO or NOT_MEASURED. If `group` is "", the sentence is a note.
    """

    label: str
    text: str
    style: str = ""
    group: str = ""


def to_do(text: str, label: str = "next") -> Sentence:
    """Return a line of the sheet that gives advice to the user."""
    return Sentence(label, text, "", TO_DO)


def not_measured(text: str) -> Sentence:
    """Return a line about something that the result did not measure."""
    return Sentence("not measured", text, "", NOT_MEASURED)


class KeyFigure(NamedTuple):
    """One number in large print, which answers a part of the question.

    `bound`: a text in brackets after the value, such as the uncertainty of the value.
    """

    name: str
    value: str
    bound: str = ""

    @property
    def text(self) -> str:
        """The value and the bound as a text of the form `value (bound)`.

        If there is no bound, the text is the value.
        """
        return f"{self.value} ({self.bound})" if self.bound else self.value


@dataclass(frozen=True, slots=True)
class Part:
    """One table.

    `name`: the name of the table. `about`: a text about the table. `head`: the heads of the
    columns. Newlines separate the lines of a head. `left`: the indices of the left-aligned columns.
    These columns hold words. `aside`: a column that only a wide terminal shows. `below`: the index
    of a column that a terminal prints on a separate line under each row. `styles`: a mapping from
    the text of a cell to the style of the cell. `terms`: uncommon words of the table, each with its
    meaning.
    """

    name: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})
    aside: int | None = None
    below: int | None = None
    styles: Mapping[str, str] = field(default_factory=dict)
    terms: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain_head(self) -> tuple[str, ...]:
        """The head of the table, without line breaks in the cells.

        A soft hyphen marks a place where a word may be split. The character U+2010 is a hyphen that
        belongs to the word itself.
        """
        cells = (cell.replace("-\n", "\u00ad").replace("\u2010\n", "\u2010") for cell in self.head)
        return tuple(" ".join(cell.split()) for cell in cells)


Row = TypeVar("Row")
# A column is either the path of a field, or a head with a function. The function returns the text
# for a row. The column of a function is left-aligned if its head is in `words`.
Columns = Sequence[str | tuple[str, Callable[[Row], str]]]


def table_of(
    kind: type,
    name: str,
    about: str,
    rows: Iterable[Row],
    columns: Columns[Row] = (),
    *,
    words: Collection[str] = (),
    terms: Mapping[str, str] | None = None,
) -> Part:
    """Return a table that shows each section in `rows` as a row. All sections have the type `kind`.

    `columns`: the columns (empty: all fields that tables show). `words`: the heads of the columns
    whose functions return words instead of figures.
    """
    shown = [
        _column(field_at(kind, column))
        if isinstance(column, str)
        else (*column, column[0] in words)
        for column in columns
    ] or [*map(_column, fields_in(kind, "table"))]
    return Part(
        name,
        about,
        tuple(head for head, _, _ in shown),
        tuple(tuple(text(row) for _, text, _ in shown) for row in rows),
        frozenset(number for number, (_, _, is_words) in enumerate(shown) if is_words),
        terms=terms or {},
    )


def _column(field: Field) -> tuple[str, Callable[[Row], str], bool]:
    """Return three facts about the column of a field: its head, a function, and a bool.

    The function returns the text of a row's cell in this column. The bool is True if the column has
    words instead of figures.
    """
    return head_of(field), partial(cell_of, field), field.unit == "text"


def facts_of(section: Section) -> tuple[tuple[str, str], ...]:
    """Return the rows of a table about one section, with a row for each field to show."""
    fields = fields_in(type(section), "table")
    return tuple((field.label, cell_of(field, section)) for field in fields)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A result in words.

    `verdict`: the verdict word in capitals. `style`: GOOD, DOUBTFUL or BAD. `tables_first`: True if
    the tables are printed above the sentences. If `tables_first` is False, the sentences are
    printed above the tables, because the sentences explain the tables.
    """

    verdict: str
    style: str
    headline: str
    conditions: str
    parts: tuple[Part, ...]
    lines: tuple[Sentence, ...]
    tables_first: bool = False
    # This part of the headline stays beside the verdict even if there is no room for the rest.
    caveat: str = ""
    keys: tuple[KeyFigure, ...] = ()

    @property
    def terms(self) -> dict[str, str]:
        """The uncommon words of all tables, each with its meaning."""
        return {term: meaning for part in self.parts for term, meaning in part.terms.items()}

    def style_of(self, line: Sentence) -> str:
        """Return the style in which a line of the sheet is printed.

        If a line has its own style, return this style. If a line has no style, the style depends on
        the label of the line. A reason for the verdict has the style of the verdict. A warning has
        the style DOUBTFUL.
        """
        return line.style or {"because": self.style, "warning": DOUBTFUL}.get(line.label, "")


def sheet_of(
    result: Document,
    place: str,
    *,
    headline: str,
    conditions: Iterable[str],
    parts: Iterable[Part],
    lines: Iterable[tuple[str, str] | Sentence],
    tables_first: bool = False,
    caveat: str = "",
    keys: Iterable[KeyFigure] = (),
) -> Sheet:
    """Return the sheet of a `result`.

    `place` is the result's folder, or "" if the result is not stored. `lines`: the sentences that
    only this kind of result has. The function adds the sentences that every sheet has. These
    sentences are the reasons for the verdict, the warnings and the place.
    """
    sentences = [
        *(("because", reason) for reason in result.verdict.reasons),
        *lines,
        *(("warning", warning) for warning in result.warnings),
        *([("result", place)] if place else []),
    ]
    word = word_of(result.kind, result.verdict)
    once = tuple(dict.fromkeys(Sentence(*line) for line in sentences))
    about = " · ".join(conditions)
    return Sheet(
        word.text,
        word.colour,
        headline,
        about,
        tuple(parts),
        once,
        tables_first,
        caveat,
        tuple(keys),
    )


def made(result: Document, shared: str = "") -> tuple[str, ...]:
    """Return the conditions of an experiment, which are its cores, its seed and its duration.

    `shared`: a text about the programs that share the cores. The text is printed after the number
    of cores.
    """
    return (
        f"{result.environment.cores_text}{shared}",
        *([] if result.seed is None else [f"seed {result.seed}"]),
        f"{result.duration_s:.0f} s",
    )


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print `sheet` on `console`. The verdict is the first line and the last line."""
    sheet = fitted(sheet, console.encoding)
    verdict = Text.assemble(
        (f"{sheet.verdict}   ", f"bold {sheet.style}"), (sheet.headline, "bold")
    )
    console.print(verdict)
    console.print(Text(sheet.conditions, style="dim"))
    tables = [line for part in sheet.parts for line in _part(part, console.width)]
    if terms := sheet.terms:
        tables += [
            Text(),
            *(Text(f"{term}: {meaning}", style="dim") for term, meaning in terms.items()),
        ]
    facts = [Text(), _facts(sheet)]
    for line in (*tables, *facts) if sheet.tables_first else (*facts, *tables):
        console.print(line)
    if tables and not sheet.tables_first:
        console.print()
    short = Text.assemble(
        (sheet.verdict, f"bold {sheet.style}"),
        (f"   {sheet.caveat}" if sheet.caveat else "", "bold"),
    )
    console.print(verdict if verdict.cell_len <= console.width else short)


def sheet_markdown(sheet: Sheet) -> str:
    """Return `sheet` as a Markdown document."""
    lines = (*(Sentence(key.name, key.text) for key in sheet.keys), *sheet.lines)
    facts = "\n".join(
        f"- **{line.label}**: {line.text}" if line.label else f"  - {line.text}" for line in lines
    )
    tables: list[str] = []
    for part in sheet.parts:
        if part.name:
            tables.append(f"### {part.name}: {part.about}" if part.about else f"### {part.name}")
        tables.append(part_markdown(part))
    tables += [f"*{term}*: {meaning}" for term, meaning in sheet.terms.items()]
    parts = [*tables, facts] if sheet.tables_first else [facts, *tables]
    text = "\n\n".join([f"## {sheet.verdict}: {sheet.headline}", sheet.conditions, *parts]) + "\n"
    # A text such as #1 names an instance. A word joiner in it keeps GitHub from making a link to an
    # issue.
    return re.sub(r"([#@])(?=\w)", "\\1\u2060", text)


def part_markdown(part: Part) -> str:
    """Return one table as Markdown."""
    rule = ["---" if column in part.left else "--:" for column in range(len(part.head))]
    return "\n".join(
        "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in row) + " |"
        for row in ([cell.replace("\n", "<br>") for cell in part.head], rule, *part.rows)
    )


def _facts(sheet: Sheet) -> Table:
    table = Table(
        box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    # If labels have this width, the sentences of most sheets begin in the same column.
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for key in sheet.keys:
        bound = f" ({key.bound})" if key.bound else ""
        table.add_row(Text(key.name), Text.assemble((key.value, "bold"), bound))
    for line in sheet.lines:
        table.add_row(Text(line.label), Text(line.text, style=sheet.style_of(line)))
    return table


def _part(part: Part, width: int) -> Iterator[RenderableType]:
    if part.name:
        yield Text.assemble(
            "\n", (part.name, "bold"), (f"   {part.about}" if part.about else "", "dim")
        )
    if part.below is None:
        yield from _tables(part, width)
    else:
        yield from _two_lines(part, part.below)


def _tables(part: Part, width: int) -> Iterator[RenderableType]:
    """Yield the table, or several pieces if the table is too wide. The table is split only between
    columns, so no figure is cut.

    Each piece repeats the first column of the table.
    """
    gap = 2 if width >= ROOMY and part.aside is None else 1
    shown = [column for column in range(len(part.head)) if column != part.aside or width >= ROOMY]
    widths = [
        max(
            cell_len(line)
            for row in (part.head, *part.rows)
            for line in row[column].splitlines() or [""]
        )
        + gap
        for column in range(len(part.head))
    ]
    pieces = [[shown[0]]]
    used_width = widths[shown[0]]
    for column in shown[1:]:
        if used_width + widths[column] - gap > width and len(pieces[-1]) > 1:
            pieces.append([shown[0]])
            used_width = widths[shown[0]]
        pieces[-1].append(column)
        used_width += widths[column]
    for number, piece in enumerate(pieces):
        if number:
            yield Text()
        yield _table(part, piece, gap)


def _table(part: Part, shown: Sequence[int], gap: int) -> Table:
    table = Table(
        box=None, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim"
    )
    for column in shown:
        justify: Literal["left", "right"] = "left" if column in part.left else "right"
        style = "dim" if column == part.aside else ""
        table.add_column(
            Text(part.head[column]), justify=justify, no_wrap=column != shown[0], style=style
        )
    for row in part.rows:
        table.add_row(
            *(Text(row[column], style=part.styles.get(row[column], "")) for column in shown)
        )
    return table


def _two_lines(part: Part, below: int) -> Iterator[RenderableType]:
    """Yield one line for the head and two lines for each row.

    The second line of a row has the cell of the column `below`.
    """
    lines = [
        [cell for column, cell in enumerate(row) if column != below]
        for row in (part.head, *part.rows)
    ]
    widths = [max(map(len, column)) + 1 for column in zip(*lines, strict=True)]
    for number, cells in enumerate(lines):
        texts = (
            (cell.ljust(width), part.styles.get(cell, ""))
            for cell, width in zip(cells, widths, strict=True)
        )
        line = Text.assemble(*texts, style="" if number else "dim", no_wrap=True)
        line.rstrip()
        yield line
        if number:
            yield Padding(Text(part.rows[number - 1][below], style="dim"), (0, 0, 0, 2))


# -- for CI servers --------------------------------------------------------------------------------
