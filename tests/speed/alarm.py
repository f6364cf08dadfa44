"""`make bench-gate`: *pytest-benchmark's figures of the pure parts, a stored baseline → an alarm if much slower*.

Rules: a coarse alarm, by pytest-benchmark's own --benchmark-compare-fail on the minimum, which other load on the
machine moves least. It depends on the CPU model and the Python, so a baseline holds for one of each; where there is
none the run is stored as one and nothing passes (exit 4). For a change's effect on a lock use `lockbench gate`.
Source: pytest-benchmark's comparison.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.measure.environment import describe_environment

ROOT = Path(__file__).parents[2]
BASELINES = Path(__file__).with_name("baselines")
MEASURED = ("tests/lockcore/test_speed.py", "tests/bench/measure/test_speed.py")
LIMIT = "min:50%"
SLOWER, NO_BASELINE = 1, 4
KEPT = ("machine_info", "benchmarks", "datetime", "version")  # a baseline names no host and no commit
KEPT_OF_MACHINE = ("machine", "python_implementation", "python_version", "system")


def baseline_path(environment: dict[str, Any], folder: Path = BASELINES) -> Path:
    """Where the baseline of such a machine lies: CPU model, Python's minor version."""
    python = ".".join(environment["python"].split(".")[:2])
    name = f"{environment['cpu_model'] or 'unknown'} {python}"
    return folder / (re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") + ".json")


def command(*options: str) -> list[str]:
    """The pytest run that measures."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-only", *MEASURED]
    return [*words, "--benchmark-columns=min,median,rounds", "--benchmark-sort=name", *options]


def cleaned(report: dict[str, Any]) -> dict[str, Any]:
    """A report of pytest-benchmark without what names a person's machine, and without its samples."""
    kept = {key: report[key] for key in KEPT}
    kept["machine_info"] = {key: report["machine_info"].get(key) for key in KEPT_OF_MACHINE}
    for entry in kept["benchmarks"]:
        entry["stats"].pop("data", None)
    return {**kept, "commit_info": {}}


def renew(path: Path) -> int:
    """Measure and store a baseline; return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        code = subprocess.run(command(f"--benchmark-json={report}"), cwd=ROOT, check=False).returncode
        if code == 0:
            path.parent.mkdir(exist_ok=True)
            text = json.dumps(cleaned(json.loads(report.read_text("utf-8"))), indent=1, sort_keys=True)
            path.write_text(text + "\n", encoding="utf-8")
    return code


def compare(path: Path, limit: str) -> int:
    """Measure against a baseline; return pytest's exit code, which is not 0 beyond `limit`."""
    words = command(f"--benchmark-compare={path}", f"--benchmark-compare-fail={limit}")
    done = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    print(done.stderr.partition("Traceback (most recent")[0].rstrip())  # pytest-benchmark fails by raising
    return done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Compare, or store a baseline where there is none or --renew asks for one."""
    parser = argparse.ArgumentParser(prog="make bench-gate", description="Are the pure parts much slower than before?")
    parser.add_argument("--renew", action="store_true", help="store this run as the new baseline")
    parser.add_argument("--limit", default=LIMIT, metavar="STAT:CHANGE%", help=f"when to fail  [{LIMIT}]")
    chosen = parser.parse_args(arguments)
    path = baseline_path(describe_environment())
    shown = path.relative_to(ROOT)
    if not chosen.renew and path.exists():
        code = compare(path, chosen.limit)
        print(f"{'slower than' if code else 'no slower than'} {shown} by more than {chosen.limit}")
        return SLOWER if code else 0
    code = renew(path)
    if code:
        return code
    print(f"stored as baseline: {shown}" + ("" if chosen.renew else "; there was none, so nothing was compared"))
    return 0 if chosen.renew else NO_BASELINE


if __name__ == "__main__":
    sys.exit(main())
