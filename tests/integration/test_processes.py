"""Do load processes add up? On servers that cost nothing (tests/plugins/no-servers), so that a
machine of two cores can tell: with a core each, N of them make N times as many leases as one if a
lease costs each of them the same CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from bench.topology.fleet import start_fleet
from tests.contest.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "tests" / "plugins" / "no-servers"
ROUNDS = 3


def client_us(site: Path, urls: tuple[str, ...], processes: int, out: Path) -> float:
    """The CPU of the load processes per lease, µs."""
    targets = [word for url in urls for word in ("--target", url)]
    load = ["--users", f"{200 * processes}", "--resources", "1000", "--skew", "own", "--hold", "0"]
    times = ["--warmup", "1s", "--duration", "3s", "--processes", f"{processes}", "--out", f"{out}"]
    environment = os.environ | {
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{site}:{PLUGIN}:{ROOT}"
    }
    words = [
        sys.executable,
        "-m",
        "bench",
        "run",
        "--recipe",
        "no-servers",
        *targets,
        *load,
        *times,
    ]
    subprocess.run(words, check=False, env=environment, capture_output=True, timeout=60)
    return float(
        json.loads((out / "result.json").read_text("utf-8"))["cost"]["client_cpu_us_per_cycle"]
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages that offers the recipe."""
    about = tmp_path / "site" / "no_servers-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: no-servers\nVersion: 1\n", "utf-8"
    )
    (about / "entry_points.txt").write_text(
        "[lockbench.recipes]\nno-servers = no_servers:NoServers\n", "utf-8"
    )
    return about.parent


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.integration
def test_two_load_processes_make_eighteen_tenths_of_the_leases_of_one(
    site: Path, tmp_path: Path
) -> None:
    ratios: list[float] = []
    with start_fleet(5, "none") as fleet:
        for number in range(ROUNDS):
            with Machine() as machine:
                one, two = (
                    client_us(site, fleet.urls, each, tmp_path / f"{number}-{each}")
                    for each in (1, 2)
                )
            if machine.elsewhere_ratio < 0.05:
                ratios.append(2 * one / two)
    if not ratios:
        pytest.skip("not known here: something else took a twentieth of the cores in every round")
    assert median(ratios) >= 1.8, ratios
