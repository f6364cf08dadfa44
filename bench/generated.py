"""What nobody writes by hand: *types → the schema beside each module; verdicts' words, instruments
→ READMEs' tables*.

Rules: `make schemas` writes all of it; tests compare it with what it is made of.
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
    """Yield where each schema belongs, and its text; kinds of one type share a schema."""
    kinds = {answer().result_type: kind for kind, answer in reversed([*ANSWERS.items()])}
    for form, kind in kinds.items():
        text = json.dumps(schema_of(form, f"urn:lockbench:{kind}:1"), indent=1, ensure_ascii=False)
        yield Path(inspect.getfile(form)).with_suffix(".schema.json"), text + "\n"


def words_table() -> str:
    """Return every word once, with its exit code and its meaning, as Markdown."""
    rows = [f"| **{word.text}** | {word.exit_code} | {word.means} |" for word, _ in _spoken()]
    return "\n".join(("| word | exit | means |\n|---|--:|---|", *rows))


def evidence_table() -> str:
    """Return every word once, with what it rests on and the commands that say it, as Markdown."""
    rows = [
        f"| **{word.text}** | {word.colour} | {' '.join(speakers)} | {word.needs} |"
        for word, speakers in _spoken()
    ]
    return "\n".join(("| word | colour | said by | rests on |\n|---|---|---|---|", *rows))


def _spoken() -> list[tuple[Word, list[str]]]:
    """Every word with its commands, the worst words first."""
    commands: dict[Word, list[str]] = {}
    for command, words in WORDS.items():
        for word in words:
            commands.setdefault(word, []).append(command)
    return sorted(commands.items(), key=lambda item: list(Kind).index(item[0].kind))


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
    put_between_marks(Path("bench/measure/README.md"), "words", evidence_table())
    put_between_marks(Path("docs/telemetry/instruments.md"), "instruments", instruments_table())
