"""What the READMEs tell people to type: understood as written, and done where that takes
seconds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench.program import lockbench
from bench.scenario import load
from bench.topology.fleet import start_fleet

ROOT = Path(__file__).parents[1]
FOLDERS = ("lockcore", "bench", "dashboards", "docs", ".github")
PAGES = [
    ROOT / "README.md",
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
# Its examples stand on each other: tests/integration/test_tutorial.py follows it.
TUTORIAL = ROOT / "docs" / "tutorial.md"
# a remark, a pipe, a file: not the command's
LATER = re.compile(r"\s{2,}#.*|\s\|\s.*|\s>\s.*|\s&&\s.*")
# a drawing or a place left open, not a command
SKETCH = re.compile(r"[…─]")
MADE = (
    "results/",
    "planner",
    "redis-py-lock",
    "git:",
    "lib:",
    "…",
    "mine.toml",
    # places that a reader has, and a test has not
)


def blocks(page: Path, language: str = "") -> list[str]:
    """The code of a page: fenced blocks of `language`, and indented ones if none is asked for."""
    text = page.read_text("utf-8")
    # opening and closing ones in turn
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    fenced = [code for name, code in fences if name == language]
    indented = re.findall(
        r"(?:^ {4}\S.*\n)+",
        re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL),
        re.MULTILINE,
    )
    return fenced + (
        [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in indented]
        if not language
        else []
    )


def commands(word: str) -> list[tuple[str, str]]:
    """Every line that begins with `word`, with its page; lines that end in a backslash are
    joined."""
    found = []
    for page in PAGES:
        for block in blocks(page) + blocks(page, "sh"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (str(page.relative_to(ROOT)), LATER.sub("", line))
                for line in lines
                if line.startswith(f"{word} ") and not SKETCH.search(line)
            ]
    return found


@pytest.mark.parametrize(("page", "line"), commands("lockbench"))
def test_a_command_is_understood_as_it_is_written(
    page: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    if words[1] == "--version":
        return
    command = lockbench.get_command(click.Context(lockbench), words[1])
    context = command.make_context(words[1], words[2:], parent=click.Context(lockbench))
    scenario = context.params.get("scenario")
    if scenario is not None and not str(scenario).startswith(MADE):
        load(scenario, {}, lambda _recipe: 5)


@pytest.mark.parametrize("code", [code for page in PAGES for code in blocks(page, "toml")])
def test_a_scenario_of_a_page_can_be_loaded(code: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(code, "utf-8")
    assert load(path, {}, lambda _recipe: 5)


def test_everybody_says_the_same_of_how_long_the_suite_takes() -> None:
    pages = ("README.md", ".github/CONTRIBUTING.md", "Makefile")
    times = [
        re.search(r"make test  .*?(\d[\w ]*minutes)", (ROOT / page).read_text("utf-8"))
        for page in pages
    ]
    assert all(times)
    assert len({time[1] for time in times if time}) == 1


def test_the_example_of_a_capacity_shows_the_rate_that_it_asks_for() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    requested = re.findall(r"lockbench capacity .*--target-rate (\d+)", text)
    shown = re.findall(r"^([\d,]+)/s holds", text, re.MULTILINE)
    assert requested
    assert [rate.replace(",", "") for rate in shown] == requested


def test_there_are_commands_to_understand() -> None:
    assert len(commands("lockbench")) > 15
    assert ("README.md", "make test") in commands("make")
    assert any("--threshold" in line for _, line in commands("lockbench")), (
        "also those behind code in another language"
    )


def test_a_command_that_is_not_there_would_be_noticed() -> None:
    context = click.Context(lockbench)
    with pytest.raises(click.NoSuchOption):
        lockbench.get_command(context, "run").make_context(
            "run", ["--treshold", "1"], parent=context
        )


@pytest.mark.parametrize("line", sorted({line for _, line in commands("make")}))
def test_a_make_target_is_there(line: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {word for word in shlex.split(line)[1:] if "=" not in word} <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


SECTION = re.compile(r'((?:[\w.]+/)*README(?:\.md)?),\s+"([^"]+)"')
NAMING = [
    *ROOT.glob("*.yml"),
    *ROOT.glob(".*.yml"),
    *(ROOT / ".github").rglob("*.yml"),
    *(ROOT / "dashboards").rglob("*.y*ml"),
]


@pytest.mark.parametrize("path", NAMING, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_section_that_a_file_of_the_stack_names_is_there(path: Path) -> None:
    text = re.sub(r"\n\s*# ?", " ", path.read_text("utf-8"))
    for page, section in SECTION.findall(text):
        headings = re.findall(
            r"^#+ (.+)$", (ROOT / page).with_suffix(".md").read_text("utf-8"), re.MULTILINE
        )
        assert section in headings, f"{page} has no section {section!r}"


def test_files_of_the_stack_do_name_sections() -> None:
    assert (
        sum(
            bool(SECTION.search(re.sub(r"\n\s*# ?", " ", path.read_text("utf-8"))))
            for path in NAMING
        )
        >= 2
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_a_page_names_from_the_root_are_there(page: Path) -> None:
    named = re.findall(
        r"`((?:bench|lockcore|dashboards|tests|\.ci|\.github)/[\w./-]+)`", page.read_text("utf-8")
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_a_folders_table_names_are_there(page: Path) -> None:
    """The first cell of the tables that list files: every `name.py` in it exists below the
    folder."""
    if page.parent in (ROOT, ROOT / ".github"):
        return
    cells = re.findall(
        r"^\| (`[^|]*\.(?:py|css|js|j2|json|c|lua)`[^|]*) \|", page.read_text("utf-8"), re.MULTILINE
    )
    names = [name for cell in cells for name in re.findall(r"`([\w/.-]+\.\w+)`", cell)]
    there = {str(path.relative_to(page.parent)) for path in page.parent.rglob("*.*")}
    known = there | {Path(path).name for path in there}
    there_by_path = [name for name in names if (page.parent / name).is_file()]
    assert [name for name in names if name not in known and name not in there_by_path] == []


def run(*words: str, cwd: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


QUICK = ("doctor", "recipes", "init", "--version", "completion")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "line"),
    [(page, line) for page, line in commands("lockbench") if line.split()[1] in QUICK],
)
def test_a_quick_command_of_a_page_works(page: str, line: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "bench", *shlex.split(line)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def fleet():
    with start_fleet(5, "none") as servers:
        yield servers


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "code"),
    [
        (str(page.relative_to(ROOT)), code)
        for page in PAGES
        if page != TUTORIAL
        for code in blocks(page, "python")
    ],
    ids=lambda value: value if value.endswith(".md") else None,
)
def test_a_python_example_of_a_page_works(page: str, code: str, fleet, tmp_path: Path) -> None:
    """As written, but for two things: the hosts are servers that run, and these, just started, are
    trusted at once."""
    for number, host in enumerate(dict.fromkeys(re.findall(r"redis://([\w.-]+)", code))):
        code = code.replace(f"redis://{host}", fleet.urls[number])
    code = re.sub(
        r"(\.connect\((?:\[.*?\]|\w+))", r'\1, rejoin="trust-first"', code, flags=re.DOTALL
    )
    path = tmp_path / "example.py"
    path.write_text(code, "utf-8")
    done = run(sys.executable, str(path), cwd=tmp_path, timeout_s=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "line"),
    [
        (page, line)
        for page, line in commands("lockbench")
        if not any(part in line for part in (*MADE, "10.0.0", "fleet"))
        and line.split()[1] not in QUICK
    ],
)
def test_a_long_command_of_a_page_works(page: str, line: str, tmp_path: Path) -> None:
    """Exit codes 0, and 4 or 5 where that is what the command is there to show."""
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    done = run(sys.executable, "-m", "bench", *shlex.split(line)[1:], cwd=tmp_path, timeout_s=1_800)
    assert done.returncode in (0, 1, 4, 5), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout
