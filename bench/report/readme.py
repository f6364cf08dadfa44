"""What README is given by the code: *the words of all commands → one table; a text between two marks of a file*.

Rules: the table is made of `bench.measure.verdict.WORDS`, which is what the commands conclude with; a test compares.
Run as `python -m bench.report.readme README.md` it writes the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.measure.verdict import WORDS, Kind, Word

MARK = "words"


def words_table() -> str:
    """Return every word once, with the commands that say it, as Markdown."""
    commands: dict[Word, list[str]] = {}
    for command, words in WORDS.items():
        for word in words:
            commands.setdefault(word, []).append(command)
    rows = [
        f"| **{word.text}** | {word.colour} | {word.exit_code} | {' '.join(said)} | {word.needs} | {word.means} |"
        for word, said in sorted(commands.items(), key=lambda item: list(Kind).index(item[0].kind))
    ]
    head = "| word | colour | exit | said by | rests on | means |\n|---|---|--:|---|---|---|"
    return "\n".join((head, *rows))


def put_between_marks(path: Path, mark: str, text: str) -> None:
    """Replace what stands between the marks in `path`. Raises EnvironmentNotReadyError when they are not there."""
    begin, end = (f"<!-- {mark}: {which} -->" for which in ("begin", "end"))
    try:
        before, _, rest = path.read_text(encoding="utf-8").partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise EnvironmentNotReadyError(f"{path} has no place for the table: write {begin} and {end} into it")
        path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    put_between_marks(Path(sys.argv[1]), MARK, words_table())
