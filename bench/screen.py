"""The screen: *the sentences, tables and JSON of lockbench, or a text from another program →
harmless text*. The terminal can show every character of the harmless text, and the harmless text
cannot control the terminal.

Rules
- All text for people on stdout or stderr goes through this module.
- If the screen cannot show a character, similar characters replace it (u for µ, >= for ≥). So no
  output causes an exception.
- A control character is printed as an escape sequence that the user can read. So a name or a text
  from a server cannot move the cursor, change a colour or begin a line.
- No text is read as markup. Square brackets in a text appear on the screen unchanged.
- JSON, Markdown and files are UTF-8 on every screen.
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
# Characters that control a terminal or reorder a line. These are control characters, line and
# paragraph separators, marks of direction, and halves of a surrogate pair. Python uses such a half
# for a byte of a file's name that is not UTF-8.
_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def clean(text: str) -> str:
    """Return the text as one line that cannot control a terminal.

    >>> clean("a\\x1b[31m\\nb")
    'a\\\\x1b[31m\\\\nb'
    """
    return _ACTING.sub(_escaped, text)


def lines_of(text: str) -> list[str]:
    """Return the lines of a message of lockbench, with control characters as escapes.

    The message may quote a log. A line break splits the message only if two spaces or the end of
    the message follow.
    """
    return [clean(line) for line in re.split(r"\n(?=  |$)", text)]


def fit(text: str, encoding: str | None) -> str:
    """Return the text in characters that `encoding` has.

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
    """Return a copy of the value, in which all texts are safe for a terminal with this `encoding`.

    Control characters become escape sequences. If the terminal cannot show a character, similar
    characters replace this character. The value consists of dataclasses, tuples and mappings.
    `is_head`: true if the value is the head of a table. A head keeps its line breaks, because
    lockbench writes the heads itself.
    """
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
    """Print lines on stdout without delay. Control characters are printed as escapes."""
    _print(sys.stdout, lines)


def note(*lines: str) -> None:
    """Print lines on stderr without delay. Control characters are printed as escapes."""
    _print(sys.stderr, lines)


def say_json(value: object, indent: int | None = None) -> None:
    """Print a value as JSON on stdout, in UTF-8 on every screen.

    A lone half of a surrogate pair is printed as a JSON escape.
    """
    say_utf8(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def say_utf8(text: str) -> None:
    """Print a document of lockbench on stdout, in UTF-8 on every screen."""
    sys.stdout.flush()
    data = text.encode("utf-8", "backslashreplace")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode())
    else:
        buffer.write(data)
    sys.stdout.flush()


def console_on(stream: TextIO | None = None) -> Console:
    """Return a console of rich on `stream` (default: stdout) that treats no text as markup."""
    from rich.console import Console

    # rich itself puts an ellipsis, which the screen may lack, at the end of a line that is too
    # long.
    _replacing(stream or sys.stdout)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def open_screen() -> None:
    """Make stdout and stderr replace each character that the screen lacks.

    This function also affects the output of other libraries in this process.
    """
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
    # This half of a surrogate pair represents a byte of a file's name.
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
    """Return ASCII text that looks like the character, or a question mark."""
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
