"""Each finding of the audit: its reproducer is short, and prints what its page says where the
library is installed."""

import re
import subprocess
from pathlib import Path

import pytest

from bench.topology.fleet import start_fleet

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
# About ten: imports, comments and the line with the server's URL do not count.
LINES = 13


def reproducer(page: Path) -> tuple[str, str, str]:
    """The language of a page's reproducer, its code, and the line that it prints."""
    ((language, code, text),) = CODE.findall(page.read_text("utf-8"))
    return language, code, text


def home_of(page: Path) -> str:
    (home,) = (home for name, home in HOMES.items() if page.stem.startswith(name))
    return home


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_finding_has_one_reproducer_of_about_ten_lines(page: Path) -> None:
    _, code, _ = reproducer(page)
    free = re.compile(r"\s*($|#|//|import |from |URL = |const url = )")
    assert len([line for line in code.splitlines() if not free.match(line)]) <= LINES
    assert '"redis://127.0.0.1:6379"' in code
    assert home_of(page)


def test_the_page_of_the_audit_names_every_finding() -> None:
    text = (ROOT / "docs" / "audit.md").read_text("utf-8")
    assert [page.name for page in PAGES if f"/findings/{page.name})" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reproducer_prints_what_its_page_says(page: Path, tmp_path: Path) -> None:
    language, code, text = reproducer(page)
    peer = ROOT / ".peers" / home_of(page)
    if not (peer / ".installed").exists():
        pytest.skip(f"{peer.name} is not installed; lockbench audit installs it")
    program = tmp_path / ("reproducer.mjs" if language == "js" else "reproducer.py")
    program.write_text(code, "utf-8")
    if language == "js":
        (tmp_path / "node_modules").symlink_to(peer / "node_modules")
    interpreter = "node" if language == "js" else str(peer / "bin/python")
    with start_fleet(1, "none") as fleet:
        done = subprocess.run(
            [interpreter, str(program), fleet.urls[0]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout.strip() == text, done.stderr[-2000:]
