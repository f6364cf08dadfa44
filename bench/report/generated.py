"""What nobody writes by hand: *types → the schema beside each module; verdicts' words, instruments
→ READMEs' tables*.

Rules: `make schemas` writes all of it; tests compare it with what it is made of. A page says by two
marks where a generated text belongs.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, writing
from bench.measure.section import schema_of
from bench.measure.verdict import WORDS, Kind, Word
from bench.report.kinds import KINDS, type_of
from bench.telemetry.table import instruments_table


def schemas() -> Iterator[tuple[Path, str]]:
    """Yield where each schema belongs, and its text; kinds of one type share a schema."""
    for form, kind in {type_of(kind): kind for kind in reversed([*KINDS])}.items():
        text = json.dumps(schema_of(form, f"urn:lockbench:{kind}:1"), indent=1, ensure_ascii=False)
        yield Path(inspect.getfile(form)).with_suffix(".schema.json"), text + "\n"


def words_table() -> str:
    """Return every word once, with the commands that say it, as Markdown."""
    commands: dict[Word, list[str]] = {}
    for command, words in WORDS.items():
        for word in words:
            commands.setdefault(word, []).append(command)
    rows = [
        f"| **{word.text}** | {word.colour} | {word.exit_code} | {' '.join(speakers)} | "
        f"{word.needs} | {word.means} |"
        for word, speakers in sorted(
            commands.items(), key=lambda item: list(Kind).index(item[0].kind)
        )
    ]
    head = "| word | colour | exit | said by | rests on | means |\n|---|---|--:|---|---|---|"
    return "\n".join((head, *rows))


def put_between_marks(path: Path, mark: str, text: str) -> None:
    """Replace what stands between the marks in `path`.

    Raises EnvironmentNotReadyError when they are not there.
    """
    begin, end = (f"<!-- {mark}: {which} -->" for which in ("begin", "end"))
    with writing(path, "name another file"):
        before, _, rest = path.read_text(encoding="utf-8").partition(begin)
        _, end_mark, after = rest.partition(end)
        if not end_mark:
            raise EnvironmentNotReadyError(
                f"{path} has no place for the table: write {begin} and {end} into it"
            )
        path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    for place, schema in schemas():
        place.write_text(schema, "utf-8")
    put_between_marks(Path("README.md"), "words", words_table())
    put_between_marks(Path("bench/telemetry/README.md"), "instruments", instruments_table())
