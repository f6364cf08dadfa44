"""The screen: every letter has a likeness, nothing acts on the terminal, nothing is markup, JSON is
UTF-8."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from bench.errors import EnvironmentNotReadyError, writing
from bench.frame.progress_line import ProgressLine
from bench.frame.showing import write_text
from bench.measure.result import write_whole
from bench.program import lockbench as program
from bench.report.sheet import BAD, Part, Sentence, Sheet, print_sheet
from bench.screen import LIKENESS, clean, console_on, fit, fitted, lines_of, open_screen, say_json
from tests.conftest import Ended

ROOT = Path(__file__).parents[2]
ENCODINGS = ["ascii", "cp1252", "latin-1", "utf-8"]
ATTACK = "a\x1b[2J\x1b]0;t\x07\r\nlockbench: PASS\u202e\x9b31m[red]b[/x][/] \u2028 \udcff :smile:"
PRINTED = (
    "bench/commands",
    "bench/frame",
    "bench/report",
    "bench/experiments",
    "bench/pytest_plugin.py",
)


def acts(text: str) -> list[str]:
    """What of a text could move a cursor, change a colour or reorder a line."""
    return [letter for letter in text if letter != "\n" and not letter.isprintable()]


def written(encoding: str) -> tuple[io.BytesIO, io.TextIOWrapper]:
    """A screen of this encoding, as Python makes one."""
    raw = io.BytesIO()
    return raw, io.TextIOWrapper(raw, encoding=encoding, errors="strict")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_is_fitted_to_what_a_screen_has(encoding: str) -> None:
    text = "p99 ≤ 12 µs – 3 × ±25 % ∞ → … ─│└ naïve 密 ☃"
    assert fit(text, encoding).encode(encoding)
    assert fit("p99 ≤ 12 µs – ∞ → …", "ascii") == "p99 <= 12 us - inf -> ..."
    assert fit("p99 12 µs – 3 × …", "cp1252") == "p99 12 µs – 3 × …"
    assert fit("x", "no-such-encoding") == "x"
    assert fit("µ", None) == "u"


def test_every_letter_of_ours_has_a_likeness() -> None:
    """`?` is for the letters of others."""
    ours = {letter for path in (ROOT / "bench").rglob("*.py") for letter in path.read_text("utf-8")}
    assert {letter for letter in ours if letter != "?" and "?" in fit(letter, "ascii")} <= {"☃"}
    assert all(text.isascii() for text in LIKENESS.values())


def test_nothing_that_acts_on_a_terminal_is_left() -> None:
    assert acts(clean(ATTACK)) == []
    assert clean("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert clean("r\udcff") == "r\\xff"
    assert clean("schlüssel – ≥ 密") == "schlüssel – ≥ 密"
    assert lines_of("it did not start:\n  line\nlockbench: PASS") == [
        "it did not start:",
        "  line\\nlockbench: PASS",
    ]


def sheet(text: str) -> Sheet:
    part = Part(
        text, text, ("head\nof two", text.replace("\n", "")), ((text, text),), styles={text: "red"}
    )
    return Sheet(
        "FAIL", BAD, text, text, (part,), (Sentence("because", text), Sentence(text, text))
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_sheet_with_anything_in_it_is_shown_on_any_screen(encoding: str) -> None:
    raw, stream = written(encoding)
    print_sheet(sheet(f"{ATTACK} ≥ 12 µs ⁂"), console_on(stream))
    stream.flush()
    shown = raw.getvalue().decode(encoding)
    assert acts(shown) == []
    assert "\nlockbench: PASS" not in shown
    assert "".join(["[red]b[/x][/]"]) in "".join(shown.split()), "no text is markup"
    assert ":smile:" in "".join(shown.split())


def test_a_fitted_cell_keeps_its_style_and_a_head_its_lines() -> None:
    made = fitted(sheet("12 µs"), "ascii")
    assert made.parts[0].styles == {"12 us": "red"}
    assert made.parts[0].head == ("head\nof two", "12 us")
    assert made.lines[0] == Sentence("because", "12 us")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_progress_is_shown_on_any_screen(encoding: str) -> None:
    raw, stream = written(encoding)
    with ProgressLine(stream=stream) as line:
        line(f"schedule: {ATTACK} µs")
    stream.flush()
    assert acts(raw.getvalue().decode(encoding)) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_is_utf8_on_any_screen(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, stream = written(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    say_json({"µ": ATTACK})
    assert json.loads(raw.getvalue().decode("utf-8")) == {"µ": ATTACK}


def test_whatever_prints_is_replaced_where_the_screen_lacks_a_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw, stream = written("ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    open_screen()
    print("µ ≥ – 密 \udcff")
    stream.flush()
    assert raw.getvalue() == b"u >= - ? ?\n"


def test_no_console_but_ours_and_no_bare_print_where_people_read() -> None:
    """rich's own console reads markup; a bare print lets control characters through."""
    wrong = []
    for place in PRINTED:
        path = ROOT / place
        for file in [path] if path.is_file() else path.rglob("*.py"):
            text = file.read_text("utf-8")
            wrong += [
                f"{file}: Console("
                for _ in range(text.count(" Console(") + text.count("(Console("))
            ]
            if (
                file.name == "command.py"
                or {"commands", "frame"} & {*file.parts}
                or "report" in file.parts
            ):
                wrong += [f"{file}: print(" for _ in range(text.count(" print("))]
    allowed = ["bench/frame/__init__.py: print(", "bench/frame/progress_line.py: print("]
    assert sorted(line.removeprefix(f"{ROOT}/") for line in wrong) == allowed


def refused(lockbench: Callable[..., Ended], *words: str) -> str:
    done = lockbench(*words)
    assert done.returncode in (2, 3), done.stderr
    assert acts(done.stdout + done.stderr) == []
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("doctor", "--target"), ("run", "--target"), ("fsync", "--target")]
)
def test_a_socket_s_path_and_a_zone_are_shown_as_they_are(
    lockbench: Callable[..., Ended], words: tuple[str]
) -> None:
    assert "/tmp/[/x].sock" in refused(lockbench, *words, "unix:///tmp/[/x].sock")
    assert "[fe80::1%eth0]:1" in refused(lockbench, *words, "redis://[fe80::1%eth0]:1")
    assert "/tmp/[red]a\\x1b[2J" in refused(lockbench, *words, "unix:///tmp/[red]a%1B[2J")


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\nlockbench: PASS", "\u202eb", "r\udcff"])
def test_a_name_cannot_act_on_the_terminal(lockbench: Callable[..., Ended], name: str) -> None:
    for words in (
        (name,),
        ("run", name),
        ("run", "--recipe", name),
        ("report", name),
        ("run", "--server", name),
    ):
        assert "\nlockbench: PASS" not in refused(lockbench, *words)


SCREENS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
STORED = ROOT / "tests/histories/results"


@pytest.mark.parametrize("screen", SCREENS)
def test_commands_end_as_they_do_on_a_utf8_screen(screen: str, tmp_path: Path) -> None:
    """One process says it of many command lines: its streams are made by Python from these
    variables."""
    results = [
        ["report", str(path), "--html", str(tmp_path / "x.html")]
        for path in sorted(STORED.glob("*.json"))
    ]
    lines = [
        ["recipes"],
        ["--help"],
        *[[name, "--help"] for name in program.commands],
        *results,
    ]
    code = (
        "import json, sys\n"
        "from bench.__main__ import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        if end.code: print('FAILED', end.code, words, file=sys.stderr)\n"
    )
    environ = {**os.environ, **SCREENS[screen], "COLUMNS": "80"}
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0
    assert b"FAILED" not in done.stderr, done.stderr.decode("latin-1")[-2000:]
    shown = done.stdout.decode("cp1252" if screen == "cp1252" else "ascii")
    assert acts(shown) == []
    assert shown.count(f"report     {tmp_path}") == len(results) > 3


def test_a_folder_whose_name_is_no_utf8_is_reported(
    lockbench: Callable[..., Ended], tmp_path: Path
) -> None:
    """Its bytes are halves of surrogate pairs in Python, which no UTF-8 file and no screen takes as
    they are."""
    name = os.fsdecode(b"r\xff")
    (tmp_path / name).mkdir()
    (tmp_path / name / "result.json").write_bytes((STORED / "run.json").read_bytes())
    done = lockbench("report", name, "--markdown", "shown.md")
    assert done.returncode == 0, done.stderr
    assert "r\\xff" in done.stdout
    assert "r\\udcff" in (tmp_path / "shown.md").read_text("utf-8")
    assert json.loads(lockbench("report", name, "--json").stdout)["results"] == [name]
    write_text(tmp_path / "text", f"{name}\n")
    write_whole(tmp_path / "whole", json.dumps({"name": name}, ensure_ascii=False), "")
    assert json.loads((tmp_path / "whole").read_text("utf-8")) == {"name": name}


def test_text_of_rich_is_not_the_way_round() -> None:
    """Why `clean` is needed: rich passes an escape on."""
    raw, stream = written("utf-8")
    console_on(stream).print(Text("\x1b[31m"))
    stream.flush()
    assert b"\x1b" in raw.getvalue()


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, "free disk space"), (errno.EFBIG, "ulimit -f"), (errno.ENOMEM, "more memory")],
)
def test_a_limit_of_this_process_is_not_called_a_full_disk(number: int, cure: str) -> None:
    with pytest.raises(EnvironmentNotReadyError, match=cure), writing(Path("x"), "free disk space"):
        raise OSError(number, os.strerror(number))
