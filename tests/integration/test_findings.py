"""Each finding of the audit: its reproducer prints what its page says, where the library is
installed."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "bench/experiments/audit/findings").glob("*.md"))
# By the beginning of a page's name: the library's folder below .peers.
HOMES = {
    "aioredlock": "aioredlock",
    "portalocker": "portalocker-4.1",
    "redis-py": "redis-py",
    "redis-semaphore": "node",
    "redlock-ng": "redlock-ng",
    "redlock-py": "redlock-py",
}
CODE = re.compile(r"^```(py|js)\n(.*?)^```\n\nPrints `(.*?)`", re.DOTALL | re.MULTILINE)
REPRODUCERS = [(page, *found) for page in PAGES for found in CODE.findall(page.read_text("utf-8"))]


def test_every_finding_has_a_reproducer() -> None:
    assert {page for page, *_ in REPRODUCERS} == {*PAGES}
    assert len(PAGES) == len(HOMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "language", "code", "text"),
    REPRODUCERS,
    ids=[f"{page.stem}-{number}" for number, (page, *_) in enumerate(REPRODUCERS)],
)
def test_a_reproducer_prints_what_its_page_says(
    page: Path, language: str, code: str, text: str, tmp_path: Path
) -> None:
    (home,) = (home for name, home in HOMES.items() if page.stem.startswith(name))
    program = tmp_path / ("reproducer.mjs" if language == "js" else "reproducer.py")
    program.write_text(code, "utf-8")
    python = ROOT / ".peers" / home / "bin/python"
    if not (ROOT / ".peers" / home / ".installed").exists():
        pytest.skip(f"{home} is not installed; lockbench audit installs it")
    command = ["node" if language == "js" else str(python), str(program)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout.strip() == text, done.stderr[-2000:]
