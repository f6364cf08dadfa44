"""docs/tutorial.md, followed as a reader would: its files are written, its commands are typed.

A block of the language `console` has commands (`$ …`), lines of their output, and `[exit N]`. The
command must end with that code, and its output must have these lines in this order. Numbers may
differ, as they do from machine to machine. A comment above a block says what the block is:
`file: NAME` is written to NAME, `by hand` is not run here, and `slow` runs in `make test-long`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND_TIMEOUT_S = 400
# A busy machine may leave a row unanswered. Then the words of the page cannot be compared.
UNANSWERED = ("not known", "NOT KNOWN", "INVALID", "INCONCLUSIVE")


@dataclass(frozen=True)
class Step:
    """A command, the lines of its output that the page shows, and its exit code."""

    command: str
    output: tuple[str, ...]
    exit_code: int


def blocks() -> list[tuple[str, str, str]]:
    """Each block of the page: its note, its language, its text."""
    found = BLOCK.finditer(TUTORIAL.read_text("utf-8"))
    return [(block["note"] or "", block["language"], block["text"]) for block in found]


def step(text: str) -> Step:
    """The one command of a console block that is run."""
    command, *output = text.splitlines()
    exit_code = 0
    if output and (ending := re.fullmatch(r"\[exit (\d+)\]", output[-1])):
        exit_code = int(ending[1])
        output.pop()
    return Step(command.removeprefix("$ "), tuple(output), exit_code)


def shape(line: str) -> str:
    """A line without its numbers, units of time, and widths of columns.

    A judged lock's first line is compared up to its colon, because a busy machine may leave the
    row unanswered that the line would name.
    """
    if re.match(r"[A-Z]+ {3}\S+\.py: ", line):
        line = line.partition(":")[0]
    line = re.sub(r"\d[\d,.]*", "#", line)
    line = re.sub(r"# ?(ns|µs|ms|s)\b", "# time", line)
    return re.sub(r"\s+", " ", line).strip()


def assert_shows(shown: tuple[str, ...], output: str) -> None:
    """Assert that `output` has the lines `shown` in this order."""
    lines = iter([shape(line) for line in output.splitlines()])
    for line in shown:
        assert any(shape(line) in real for real in lines), f"not in the output: {line}\n{output}"


def follow(step: Step, folder: Path) -> None:
    """Type the command in `folder`, and compare what it shows."""
    program_folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", step.command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{program_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "140",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    busy = [word for word in UNANSWERED if word in done.stdout]
    if busy and done.returncode != step.exit_code:
        pytest.skip(f"{step.command}: the machine was too busy ({busy[0]})")
    assert done.returncode == step.exit_code, done.stdout + done.stderr
    if not busy:
        assert_shows(step.output, done.stdout + done.stderr)


@pytest.mark.integration
def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    for note, language, text in blocks():
        if note.startswith("file: "):
            (tmp_path / note.removeprefix("file: ")).write_text(text, "utf-8")
        elif language == "console" and not note:
            follow(step(text), tmp_path)


@pytest.mark.slow
def test_the_long_commands_of_the_tutorial_work() -> None:
    for note, _, text in blocks():
        if note.startswith("slow"):
            follow(step(text), ROOT)


def test_a_line_that_the_output_lacks_is_noticed() -> None:
    assert_shows(
        ("SAFE 12 leases/s", "threshold PASS"), "SAFE  9,000 leases/s\n\nthreshold  PASS\n"
    )
    with pytest.raises(AssertionError, match="not in the output: FAIL"):
        assert_shows(("FAIL   mine.py",), "SAFE   mine.py\n")
    with pytest.raises(AssertionError, match="not in the output: first"):
        assert_shows(("second", "first"), "first\nsecond\n")
