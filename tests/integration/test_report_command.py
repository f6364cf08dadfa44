"""`lockbench report`: what a run left becomes a page, again and beside others; what is no result is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def started(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the result `one` of a short run."""
    place = tmp_path_factory.mktemp("reports")
    options = ["--instances", "1", "--users", "4", "--duration", "1s", "--warmup", "200ms", "--hold", "1ms"]
    run = started("run", *options, "--resources", "2", "--out", "one", cwd=place)
    assert run.returncode in (0, 4), run.stderr
    (place / "run.txt").write_text(run.stdout, "utf-8")
    (place / "half").mkdir()
    (place / "half" / "result.json").write_text('{"schema_version": 1, "latency_s": {}}', "utf-8")
    return place


def test_a_run_leaves_a_report_and_says_so(folder):
    assert "one/result.json, report.html" in (folder / "run.txt").read_text("utf-8")
    page = (folder / "one" / "report.html").read_text("utf-8")
    result = json.loads((folder / "one" / "result.json").read_text("utf-8"))
    tested = f"{result['safety']['tested_leases']:,} tested leases"
    assert (result["safety"]["reason"] or tested) in page, "NOT TESTED on a machine that is too busy"
    assert 'data-figure="holders"' in page


def test_a_report_is_made_again_and_shown(lockbench, folder):
    (folder / "one" / "report.html").unlink()
    again = lockbench("report", "one", "--markdown", "one.md", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] == (folder / "run.txt").read_text("utf-8").splitlines()[0]
    assert again.stdout.splitlines()[-1] == "report     one/report.html"
    assert (folder / "one" / "report.html").exists()
    assert (folder / "one.md").read_text("utf-8").startswith("## ")


def test_several_results_give_one_page(lockbench, folder):
    both = lockbench("report", "one", "one/result.json", "--html", "both.html", "--json", cwd=folder)
    assert json.loads(both.stdout) == {"results": ["one", "one"], "html": "both.html"}
    assert "2 RUNS" in (folder / "both.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "cannot read nothing: No such file or directory; give a result folder of lockbench"),
        (["run.txt"], "run.txt is no result"),
        (["one", "--html", "no/such/place.html"], "cannot write no/such/place.html: No such file or directory"),
        ([], "missing argument"),
        (["half"], "half is not a whole RunResult of lockbench (Object missing required field"),
    ],
)
def test_what_cannot_be_is_one_sentence(lockbench, folder, arguments, says):
    refused = lockbench("report", *arguments, cwd=folder)
    assert refused.returncode in (2, 3)
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
