"""`lockbench run --keep-history` and `lockbench report --judge`: whoever doubts a verdict judges
the record anew."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ended
from tests.integration.locust_runs import CALM
from tests.integration.test_run import Run

pytestmark = pytest.mark.integration
Lockbench = Callable[..., Ended]
LOAD = (
    *CALM,
    "--instances",
    "3",
    "--users",
    "8",
    "--resources",
    "2",
    "--hold",
    "1ms",
    "--warmup",
    "200ms",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result with its record."""
    folder = tmp_path_factory.mktemp("kept")
    run = Run(
        folder, *LOAD, "--duration", "2s", "--keep-history", "--threshold", "acquire.p99 < 1us"
    )
    # all of it, on a machine that is busy with other tests
    stdout, _ = run.process.communicate(timeout=180)
    assert run.process.returncode in (1, 4, 5), stdout + run.stderr
    return folder / "result"


def verdict_of(result: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((result / "result.json").read_text("utf-8"))["verdict"]
    return found


def test_the_record_says_again_what_the_result_says(kept: Path, lockbench: Lockbench) -> None:
    stored = verdict_of(kept)
    ended = lockbench("report", str(kept), "--judge")
    assert ended.returncode == stored["exit_code"], ended.stderr
    assert ended.stdout.startswith(str(stored["word"]))
    assert f"as stored: {stored['word']}, and all figures are the same" in ended.stdout
    assert ended.stderr == ""


def test_a_result_that_says_something_else_is_told_from_its_record(
    kept: Path, lockbench: Lockbench, tmp_path: Path
) -> None:
    """Planted: a stored word that nobody has earned, and a rate."""
    forged = tmp_path / "forged"
    shutil.copytree(kept, forged)
    document = json.loads((forged / "result.json").read_text("utf-8"))
    document["rate"]["achieved_per_s"] *= 2
    (forged / "result.json").write_text(json.dumps(document), "utf-8")
    ended = lockbench("report", str(forged), "--judge")
    assert ended.returncode == (verdict_of(kept)["exit_code"] or 2), (
        "a bad record decides, else the forged result"
    )
    assert "NOT AS STORED: " in ended.stdout
    assert "make the run again" in ended.stderr


@pytest.mark.parametrize("kind", ["history-", "lost-", "context", "worker-", "seals-"])
def test_a_kept_record_that_was_changed_is_unknown_or_refused(
    kept: Path, lockbench: Lockbench, tmp_path: Path, kind: str
) -> None:
    """Planted: one bit in the middle of one file."""
    torn = tmp_path / "torn"
    shutil.copytree(kept, torn)
    path = next(path for path in sorted((torn / "history").iterdir()) if path.name.startswith(kind))
    raw = bytearray(path.read_bytes())
    raw[len(raw.rstrip(b"\0")) // 2] ^= 1
    path.write_bytes(raw)
    ended = lockbench("report", str(torn), "--judge")
    assert "Traceback" not in ended.stderr
    # A bit of a name in the context makes it unreadable; a bit of a value leaves a record of
    # another checksum.
    assert ended.returncode in ((2, 4) if kind == "context" else (4,)), ended.stdout
    assert "torn" in ended.stdout + ended.stderr
    assert "safety     SAFE" not in ended.stdout


def test_a_result_without_a_kept_record_is_refused_with_the_way_to_keep_one(
    kept: Path, lockbench: Lockbench, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(kept / "result.json", bare)
    for place in (bare, bare / "result.json"):
        ended = lockbench("report", str(place), "--judge")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert (
            "no kept record; make the run again with lockbench run --keep-history" in ended.stderr
        )


def test_an_interrupted_run_keeps_its_record_too(lockbench: Lockbench, tmp_path: Path) -> None:
    run = Run(tmp_path, *LOAD, "--duration", "60s", "--keep-history")
    run.until("measuring")
    run.process.terminate()
    code, stdout = run.end()
    assert code == 130, stdout
    ended = lockbench("report", str(tmp_path / "result"), "--judge")
    stored = verdict_of(tmp_path / "result")
    assert ended.stdout.startswith(str(stored["word"])), ended.stdout
    assert "as stored" in ended.stdout
    run.assert_nothing_left()
