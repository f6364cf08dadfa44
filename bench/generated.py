"""Writes the generated files: JSON schemas of result types, and Markdown tables in the docs.

`make schemas` writes all of these files. Tests check that the files match the code.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, writing
from bench.measure.section import schema_of
from bench.measure.verdict import WORDS, Kind, Word
from bench.questions import ANSWERS
from bench.telemetry.table import instruments_table


def schemas() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each schema.

    If several kinds of results have the same type, they share a schema.
    """
    kinds = {answer().result_type: kind for kind, answer in reversed([*ANSWERS.items()])}
    for form, kind in kinds.items():
        text = json.dumps(schema_of(form, f"urn:lockbench:{kind}:1"), indent=1, ensure_ascii=False)
        yield Path(inspect.getfile(form)).with_suffix(".schema.json"), text + "\n"


def words_table() -> str:
    """Return a Markdown table of all verdict words with their exit codes and meanings."""
    rows = [f"| **{word.text}** | {word.exit_code} | {word.means} |" for word, _ in _spoken()]
    return "\n".join(("| word | exit | meaning |\n|---|--:|---|", *rows))


def evidence_table() -> str:
    """Return a Markdown table of all verdict words. The table shows the commands and the required
    evidence of each word."""
    rows = [
        f"| **{word.text}** | {word.colour} | {' '.join(speakers)} | {word.needs} |"
        for word, speakers in _spoken()
    ]
    return "\n".join(("| word | colour | commands | condition |\n|---|---|---|---|", *rows))


def _spoken() -> list[tuple[Word, list[str]]]:
    """Return each verdict word, and the commands that can give this verdict. The worst verdicts
    come first."""
    commands: dict[Word, list[str]] = {}
    for command, words in WORDS.items():
        for word in words:
            commands.setdefault(word, []).append(command)
    return sorted(commands.items(), key=lambda item: list(Kind).index(item[0].kind))


def put_between_marks(path: Path, mark: str, text: str) -> None:
    """Replace the text between the marks in `path`.

    Raises EnvironmentNotReadyError if the file does not contain both marks.
    """
    begin, end = (f"<!-- {mark}: {which} -->" for which in ("begin", "end"))
    with writing(path, "name another file"):
        before, _, rest = path.read_text(encoding="utf-8").partition(begin)
        _, end_mark, after = rest.partition(end)
        if not end_mark:
            raise EnvironmentNotReadyError(
                f"{path} has no place for the table; add the lines {begin} and {end}"
            )
        path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    for place, schema in schemas():
        place.write_text(schema, "utf-8")
    put_between_marks(Path("README.md"), "words", words_table())
    put_between_marks(Path("bench/measure/README.md"), "words", evidence_table())
    put_between_marks(Path("docs/telemetry/instruments.md"), "instruments", instruments_table())
