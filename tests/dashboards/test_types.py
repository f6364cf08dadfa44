"""The boards against the types that Grafana publishes: *board.ts, the boards' JSON → the compiler's
complaints*.

LOCKBENCH_GRAFANA_SCHEMA names a folder that has `@grafana/schema` and `typescript`
(`.ci/grafana-schema` makes one).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.dashboards.prometheus_answers import FOLDER

SCHEMA = os.environ.get("LOCKBENCH_GRAFANA_SCHEMA", "")
COMPILER = "node_modules/typescript/bin/tsc"
STRICT = ("--strict", "--noEmit", "--skipLibCheck")
MODULES = ("--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
BOARDS = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.json")}


WRONG = {
    "option": ('"graphMode": "none"', '"graphMode": "nothing"'),
    "key": ('"noValue"', '"novalue"'),
    "custom": ('"fillOpacity": 8', '"fillOpacity": "8"'),
    "kind": ('"type": "heatmap"', '"type": "heat"'),
    "query": ('"instant": true', '"instantly": true'),
    "variable": ('"includeAll": true', '"includeAll": "yes"'),
    "number": ('"graphTooltip": 1', '"graphTooltip": 7'),
    # one thing of a board, and what is planted instead
}
PLANTED = {
    f"wrong-{name}": BOARDS["run-overview"].replace(was, now, 1)
    for name, (was, now) in WRONG.items()
}
pytestmark = pytest.mark.skipif(
    not SCHEMA, reason="no @grafana/schema here (.ci/grafana-schema fetches it by npm)"
)


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """What the compiler says of each board's text, good and planted ones."""
    folder = tmp_path_factory.mktemp("boards")
    shutil.copy(Path(__file__).with_name("board.ts"), folder)
    (folder / "node_modules").symlink_to(Path(SCHEMA, "node_modules").resolve())
    for name, text in (BOARDS | PLANTED).items():
        source = f"import type {{ Board }} from './board';\nexport const made: Board = {text};\n"
        (folder / f"{name}.ts").write_text(source, "utf-8")
    words = [
        "node",
        COMPILER,
        *STRICT,
        *MODULES,
        *(path.name for path in sorted(folder.glob("*.ts"))),
    ]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    lines = re.findall(r"^(.+)\.ts\(\d+,\d+\): error (.+)$", done.stdout, re.MULTILINE)
    assert bool(lines) == bool(done.returncode), done.stdout + done.stderr
    found: dict[str, list[str]] = {name: [] for name in ("board", *BOARDS, *PLANTED)}
    for name, text in lines:
        found[name].append(text)
    return found


def test_grafanas_own_types_accept_every_board(complaints: Mapping[str, list[str]]) -> None:
    assert {name: complaints[name] for name in ("board", *BOARDS) if complaints[name]} == {}


@pytest.mark.parametrize("name", PLANTED)
def test_grafanas_own_types_refuse_what_is_misspelt(
    complaints: Mapping[str, list[str]], name: str
) -> None:
    assert PLANTED[name] != BOARDS["run-overview"], "nothing was planted"
    assert complaints[name]
