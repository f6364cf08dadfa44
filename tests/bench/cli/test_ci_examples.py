"""The CI examples are not run here, so at least every option in them exists and every exit code is explained."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.gate import gate

ROOT = Path(__file__).parents[3]
EXAMPLES = [ROOT / ".github" / "workflows" / "lock-gate.yml", ROOT / ".gitlab-ci.yml"]


def commands(text: str) -> list[list[str]]:
    """Every call of `lockbench gate`, as words."""
    joined = "\n".join(line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#"))
    calls = re.findall(r"lockbench gate [^\n]*", joined)
    return [shlex.split(call.partition("||")[0]) for call in calls]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_calls_the_gate_as_it_is(path: Path) -> None:
    known = {name for param in gate.params for name in param.opts}
    calls = commands(path.read_text(encoding="utf-8"))
    assert calls
    for call in calls:
        options = [word for word in call if word.startswith("--")]
        assert "--baseline" in options
        assert set(options) <= known


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_explains_every_exit_code(path: Path) -> None:
    head = path.read_text(encoding="utf-8").partition("\nname:")[0]
    for code in ("0 PASS", "1 FAIL", "4 INCONCLUSIVE", "5 ", "2 wrong", "3 no"):
        assert code in head


@pytest.mark.parametrize(("path", "kind"), [(EXAMPLES[0], "github-workflows"), (EXAMPLES[1], "gitlab-ci")])
def test_an_example_is_one_to_its_own_runner(path: Path, kind: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
