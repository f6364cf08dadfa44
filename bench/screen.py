"""The screen: *sentences, texts of others, tables, JSON → what this terminal can show, and nothing
that acts on it*.

Rules: everything that a person reads on stdout or stderr goes through here. A letter that the
screen cannot show is replaced by its likeness (µ by u, ≥ by >=), so no output ends in an exception.
A control character is shown as its escape: a name or a server's text cannot move the cursor, colour
a verdict or begin a line. No text is markup: brackets are brackets. JSON, Markdown and files are
UTF-8 on every screen.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

HANDLER = "lockbench.screen"
LIKENESS: Mapping[str, str] = {
    **dict.fromkeys("µμ", "u"),
    **dict.fromkeys("–—−‐‑‒⁻", "-"),
    **dict.fromkeys("·•∙", "|"),
    **dict.fromkeys("‘’‚′", "'"),
    **dict.fromkeys("“”„″«»", '"'),
    **dict.fromkeys("│┃║╎┆┊", "|"),
    **dict.fromkeys("─━═╌┄┈", "-"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╴╵╶╷╔╗╚╝╠╣╦╩╬┏┓┗┛┣┫┳┻╋╸╹╺╻", "+"),
    **dict.fromkeys("█▇▆▅▓", "#"),
    **dict.fromkeys("▄▃▂▁░▒▏▎▍▌▋▊▉▐▀", "."),
    **dict.fromkeys("●■◆", "*"),
    **dict.fromkeys("○□◇", "o"),
    "▶": ">",
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "≈": "~",
    "∝": "~",
    "±": "+-",
    "×": "x",
    "÷": "/",
    "√": "sqrt",
    "∞": "inf",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "⇄": "<->",
    "…": "...",
    "✓": "y",
    "✗": "n",
    "ⁿ": "^n",
    "ᵈ": "d",
    "°": "deg",
    "ε": "e",
    "δ": "d",
    "α": "a",
    "λ": "lambda",
    "σ": "s",
    "Ψ": "Psi",
    "\u00ad": "",
    "\u2060": "",
}
# What acts on a terminal or reorders a line: control characters, halves of a surrogate pair (bytes
# of a file's name that are no UTF-8), line and paragraph separators, marks of direction.
_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def clean(text: str) -> str:
    """One line of text in which nothing acts on a terminal.

    >>> clean("a\\x1b[31m\\nb")
    'a\\\\x1b[31m\\\\nb'
    """
    return _ACTING.sub(_escaped, text)


def lines_of(text: str) -> list[str]:
    """The clean lines of a text of ours that may quote a log: a line break counts where the next
    line is indented."""
    return [clean(line) for line in re.split(r"\n(?=  |$)", text)]


def fit(text: str, encoding: str | None) -> str:
    """The text in letters that `encoding` has.

    >>> fit("p99 ≤ 12 µs – naïve ☃", "ascii")
    'p99 <= 12 us - naive ?'
    """
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return "".join(
            letter if _has(encoding or "ascii", letter) else _alike(letter) for letter in text
        )
    except LookupError:
        return fit(text, "ascii")
    return text


def fitted(value: Any, encoding: str | None, *, is_head: bool = False) -> Any:
    """A value of dataclasses, tuples and mappings with all its texts clean and in letters that
    `encoding` has. Line breaks stay in the heads of tables, which are ours (`is_head`)."""
    from dataclasses import fields, is_dataclass, replace

    if isinstance(value, str):
        lines = value.split("\n") if is_head else [value]
        return fit("\n".join(map(clean, lines)), encoding)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {
            one.name: fitted(getattr(value, one.name), encoding, is_head=one.name == "head")
            for one in fields(value)
        }
        return replace(value, **parts)
    if isinstance(value, tuple):
        items = [fitted(item, encoding, is_head=is_head) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, Mapping):
        return {fitted(name, encoding): fitted(part, encoding) for name, part in value.items()}
    return value


def say(*lines: str) -> None:
    """Print clean lines on stdout, at once."""
    _print(sys.stdout, lines)


def note(*lines: str) -> None:
    """Print clean lines on stderr, at once."""
    _print(sys.stderr, lines)


def say_json(value: object, indent: int | None = None) -> None:
    """Print a value as JSON on stdout: UTF-8 on every screen.

    Half a surrogate pair becomes its escape in JSON.
    """
    say_utf8(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def say_utf8(text: str) -> None:
    """Print a document of ours on stdout, in UTF-8 on every screen."""
    sys.stdout.flush()
    data = text.encode("utf-8", "backslashreplace")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode())
    else:
        buffer.write(data)
    sys.stdout.flush()


def console_on(stream: TextIO | None = None) -> Console:
    """A console of rich on `stream` (default: stdout) that reads no text as markup."""
    from rich.console import Console

    # rich itself ends a line that is too long by an ellipsis.
    _replacing(stream or sys.stdout)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def open_screen() -> None:
    """From now on whatever this process prints, by whichever library, is replaced where the screen
    lacks a letter."""
    for stream in (sys.stdout, sys.stderr):
        _replacing(stream)


def _replacing(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=HANDLER)


def _print(stream: TextIO, lines: tuple[str, ...]) -> None:
    encoding = getattr(stream, "encoding", None)
    text = "".join(f"{fit(clean(line), encoding)}\n" for line in lines)
    stream.write(text)
    stream.flush()


def _escaped(match: re.Match[str]) -> str:
    letter = match[0]
    # This half of a surrogate pair stands for a byte of a file's name.
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


@cache
def _has(encoding: str, letter: str) -> bool:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _alike(letter: str) -> str:
    """ASCII that looks like it, or a question mark."""
    if letter in LIKENESS:
        return LIKENESS[letter]
    if letter.isspace():
        return " "
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return plain or ("" if unicodedata.combining(letter) else "?")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_alike, error.object[error.start : error.end])), error.end


codecs.register_error(HANDLER, _replace)
