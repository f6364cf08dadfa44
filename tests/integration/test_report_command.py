"""What a run leaves, limits judged and a page; `lockbench report`: again and beside others; no
result is refused."""

import json

import pytest

from tests.integration.locust_runs import started

pytestmark = pytest.mark.integration


SCENARIO = """
duration = "1s"
warmup = "200ms"
instances = 1
users = 4
hold = "1ms"
resources = 2
thresholds = ["acquire.p50 < 8s"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the result `one` of a short run that fails a limit."""
    place = tmp_path_factory.mktemp("reports")
    (place / "mine.toml").write_text(SCENARIO, "utf-8")
    # an option takes the key's place
    own = ["--threshold", "acquire.p50 < 9s", "--threshold", "rate > 9000000/s"]
    files = ["--out", "one", "--junit", "junit.xml", "--markdown", "mine.md"]
    run = started(
        place, "run", "mine.toml", *own, *files, GITHUB_STEP_SUMMARY=str(place / "step.md")
    )
    said, complaint = run.communicate(timeout=120)
    assert run.returncode == 1, said + complaint
    (place / "run.txt").write_text(said, "utf-8")
    (place / "half").mkdir()
    (place / "half" / "result.json").write_text('{"schema_version": 1, "kind": "run"}', "utf-8")
    return place


def test_a_run_leaves_a_report_and_says_so(folder):
    assert "one/result.json, report.html" in (folder / "run.txt").read_text("utf-8")
    page = (folder / "one" / "report.html").read_text("utf-8")
    result = json.loads((folder / "one" / "result.json").read_text("utf-8"))
    tested = f"{result['safety']['tested_leases']:,} tested leases"
    assert (result["safety"]["reason"] or tested) in page, (
        "NOT TESTED on a machine that is too busy"
    )
    assert 'data-figure="holders"' in page


def test_a_limit_that_does_not_hold_fails_the_run_everywhere_it_is_told(folder):
    said = (folder / "run.txt").read_text("utf-8")
    assert said.startswith("FAIL")
    assert "FAIL  rate > 9000000/s  measured" in said
    result = json.loads((folder / "one" / "result.json").read_text("utf-8"))
    assert [entry["status"] for entry in result["thresholds"]] == ["pass", "fail"]
    assert (result["verdict"]["status"], result["verdict"]["reasons"]) == (
        "fail",
        ["rate > 9000000/s does not hold"],
    )
    assert 'failures="1" errors="0"' in (folder / "junit.xml").read_text("utf-8")
    assert (folder / "step.md").read_text("utf-8").strip() == (folder / "mine.md").read_text(
        "utf-8"
    ).strip()


def test_a_report_is_made_again_and_shown(lockbench, folder):
    (folder / "one" / "report.html").unlink()
    again = lockbench("report", "one", "--markdown", "one.md", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] == (folder / "run.txt").read_text("utf-8").splitlines()[0]
    assert again.stdout.splitlines()[-1] == "report     one/report.html"
    assert (folder / "one" / "report.html").exists()
    assert (folder / "one.md").read_text("utf-8").startswith("## ")


def test_several_results_give_one_page(lockbench, folder):
    both = lockbench(
        "report", "one", "one/result.json", "--html", "both.html", "--json", cwd=folder
    )
    assert json.loads(both.stdout) == {"results": ["one", "one"], "html": "both.html"}
    assert "2 RUNS" in (folder / "both.html").read_text("utf-8")
    usual = json.loads(lockbench("report", "one", "one/result.json", "--json", cwd=folder).stdout)[
        "html"
    ]
    assert usual.startswith("results/")
    assert "2 RUNS" in (folder / usual).read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["nothing"],
            "cannot read nothing: No such file or directory; name a result folder of lockbench",
        ),
        (["run.txt"], "run.txt is not a result"),
        (
            ["one", "--html", "no/such/place.html"],
            "cannot write no/such/place.html: No such file or directory",
        ),
        ([], "missing argument"),
        (["half"], "half is not a complete RunResult of lockbench (Object missing required field"),
    ],
)
def test_what_cannot_be_is_one_sentence(lockbench, folder, arguments, says):
    refused = lockbench("report", *arguments, cwd=folder)
    assert refused.returncode in (2, 3)
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
