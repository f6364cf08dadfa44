"""The CI examples are not run here, so at least every option in them exists and every exit code is
explained."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bench.experiments.compare.question import GATE
from bench.scenario import load

ROOT = Path(__file__).parents[3]
EXAMPLES = [ROOT / ".github" / "workflows" / "lock-gate.yml", ROOT / ".gitlab-ci.yml"]


def commands(text: str) -> list[list[str]]:
    """Every call of `lockbench gate`, as words."""
    joined = "\n".join(
        line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")
    )
    calls = re.findall(r"lockbench gate [^\n]*", joined)
    return [shlex.split(call.partition("||")[0]) for call in calls]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_calls_the_gate_as_it_is(path: Path) -> None:
    known = {name for param in GATE.command().params for name in param.opts}
    calls = commands(path.read_text(encoding="utf-8"))
    assert calls
    for call in calls:
        options = [word for word in call if word.startswith("--")]
        assert "--baseline" in options
        assert set(options) <= known


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_asks_whether_the_lock_excludes_before_how_fast_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (call,) = re.findall(r"lockbench run [^\n]*", text)
    assert "--threshold 'safety.violations == 0'" in call
    assert text.index(call) < text.index("lockbench gate --baseline")
    assert load(Path(shlex.split(call)[2])).processes > 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_explains_every_exit_code(path: Path) -> None:
    head = path.read_text(encoding="utf-8").partition("\nname:")[0]
    for code in ("0 PASS", "1 FAIL", "4 INCONCLUSIVE", "5 ", "2 wrong", "3 no"):
        assert code in head


def script(path: Path) -> str:
    """The step that calls the gate, as its runner hands it to the shell."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == ".gitlab-ci.yml":
        return "\n".join(document["lock-gate"]["script"])
    (step,) = [
        step
        for step in document["jobs"]["gate"]["steps"]
        if "lockbench gate" in step.get("run", "")
    ]
    return str(step["run"])


def forgiven(path: Path) -> set[int]:
    """The exit codes of the step with which the job is not red."""
    job = yaml.safe_load(path.read_text(encoding="utf-8")).get("lock-gate", {})
    return {0, *job.get("allow_failure", {}).get("exit_codes", ())}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 130])
@pytest.mark.parametrize("said", ["noise", "not noise", "older", "nothing"])
def test_an_example_forgives_noise_and_nothing_else(
    path: Path, code: int, said: str, tmp_path: Path
) -> None:
    """The step is run with a gate that ends so and leaves such a result, or none."""
    verdict = {"noise": {"only_noise": True}, "not noise": {"only_noise": False}, "older": {}}.get(
        said
    )
    wrote = json.dumps({"verdict": verdict})
    leave = f"mkdir gate; echo '{wrote}' > gate/result.json\n" if verdict is not None else ""
    gate = tmp_path / "lockbench"
    gate.write_text(f'#!/bin/sh\n[ "$1" = gate ] || exit 0\n{leave}exit {code}\n', encoding="utf-8")
    gate.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BASE": "main"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    green = done.returncode in forgiven(path)
    assert green == (code == 0 or (code == 4 and said == "noise"))


@pytest.mark.parametrize(
    ("path", "kind"), [(EXAMPLES[0], "github-workflows"), (EXAMPLES[1], "gitlab-ci")]
)
def test_an_example_is_one_to_its_own_runner(path: Path, kind: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{kind}",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
