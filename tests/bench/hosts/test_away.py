"""A worker of another host: what it leaves when it ends."""

import subprocess
import sys
from pathlib import Path

LEAVES = """
import sys
from pathlib import Path
from bench.topology.servants import Guard
from bench.hosts.away import Away

class Runner:
    def register_message(self, *_, **__): ...

away = Away(Runner())
away._guard = Guard(Path(sys.argv[1]), "lockbench-worker-")
away._folder = away._guard.folder
away.leave()
"""


def test_a_worker_that_never_came_to_work_leaves_no_folder(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path)], check=True, timeout=60)
    assert not list(tmp_path.iterdir())
