"""Locks that do not lock, through the whole command: never SAFE, whatever the hold and however many processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.topology.fleet import Fleet, start_fleet

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "plugins" / "fake-locks"
POINTS = {
    "always-yes": "AlwaysYes",
    "yes-to-every-second": "YesToEverySecond",
    "late-release": "LateRelease",
    "foreign-delete": "ForeignDelete",
    "silent": "Silent",
    "never-releases": "NeverReleases",
    "yes-after-the-end": "YesAfterTheEnd",
    "never-yes": "NeverYes",
    "honest": "Honest",
}
HOLDS = ("0", "50us", "1ms")
CASES = [(recipe, hold, processes) for recipe in list(POINTS)[:4] for hold in HOLDS for processes in (1, 2)]
OFTEN = (  # each recipe, hold and number of processes; the others are of test-long
    ("always-yes", "0", 2),
    ("yes-to-every-second", "1ms", 1),
    ("late-release", "50us", 1),
    ("foreign-delete", "1ms", 2),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that offers the fakes."""
    site = tmp_path_factory.mktemp("site")
    about = site / "fake_locks-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-locks\nVersion: 1\n", "utf-8")
    lines = [f"{name} = fake_locks:{class_name}" for name, class_name in POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[lockbench.recipes]", *lines, ""]), "utf-8")
    return site


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One server for all."""
    with start_fleet(1, "none") as fleet:
        yield fleet


class Ended:
    """A `lockbench run` of a fake, with a threshold on safety."""

    def __init__(self, site: Path, fleet: Fleet, folder: Path, recipe: str, *options: str) -> None:
        command = (sys.executable, "-m", "bench", "run", "--recipe", recipe, "--target", fleet.urls[0], *options)
        command += ("--warmup", "0", "--users", "16", "--resources", "1", "--threshold", "safety.violations == 0")
        environment = {**os.environ, "PYTHONPATH": f"{site}:{FAKES}:{ROOT}", "TMPDIR": str(folder)}
        done = subprocess.run(
            [*command, "--out", "result"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode in (0, 4, 5), done.stderr
        self.code, self.word = done.returncode, done.stdout.partition("   ")[0]
        self.result: dict[str, Any] = json.loads((folder / "result" / "result.json").read_text("utf-8"))
        self.safety = self.result["safety"]

    @property
    def said(self) -> tuple[Any, ...]:
        safety, verdict = self.safety, self.result["verdict"]
        return (
            self.word,
            self.code,
            safety["verdict"],
            safety["tested_leases"],
            safety["violations"],
            verdict["reasons"],
        )


@pytest.mark.parametrize(
    ("recipe", "hold", "processes"),
    [
        pytest.param(*case, marks=() if case in OFTEN else pytest.mark.slow, id="-".join(map(str, case)))
        for case in CASES
    ],
)
def test_a_lock_that_does_not_lock_is_never_safe(
    site: Path, fleet: Fleet, tmp_path: Path, recipe: str, hold: str, processes: int
) -> None:
    load = ("--duration", "300ms", "--hold", hold, "--processes", str(processes))
    ended = Ended(site, fleet, tmp_path, recipe, *load)
    assert ended.safety["verdict"] in ("VIOLATED", "NOT TESTED"), ended.said
    assert ended.code == (5 if ended.safety["verdict"] == "VIOLATED" else 4), ended.said
    assert ended.word != "SAFE"
    assert ended.word == ended.result["verdict"]["word"]
    assert ended.code == ended.result["verdict"]["exit_code"]
    if hold == "0":
        assert ended.safety["tested_leases"] == 0, ended.said


@pytest.mark.parametrize(
    ("recipe", "verdict"),
    [
        ("silent", "NOT TESTED"),
        pytest.param("never-releases", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("never-yes", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("yes-after-the-end", "VIOLATED", marks=pytest.mark.slow),
    ],
)
def test_a_lock_that_only_seems_to_work_is_never_safe(
    site: Path, fleet: Fleet, tmp_path: Path, recipe: str, verdict: str
) -> None:
    ended = Ended(site, fleet, tmp_path, recipe, "--duration", "400ms", "--hold", "1ms")
    assert ended.safety["verdict"] == verdict, ended.said
    assert ended.code == (5 if verdict == "VIOLATED" else 4), ended.said


def test_the_same_lock_without_the_fault_is_safe_where_it_was_tested(site: Path, fleet: Fleet, tmp_path: Path) -> None:
    """Else the fakes would prove nothing: it is their fault that is found, not their make."""
    ended = Ended(site, fleet, tmp_path, "honest", "--duration", "1s", "--hold", "1ms", "--processes", "2")
    assert ended.safety["violations"] == ended.safety["foreign_deletes"] == 0, ended.said
    assert ended.safety["tested_leases"] > 0, ended.said
    if ended.safety["tested_leases"] >= 100 and ended.result["generator"]["verdict"] == "VALID":
        assert (ended.word, ended.code) == ("SAFE", 0), ended.said
