"""A worker of another host: what it leaves when it ends."""

import subprocess
import sys
from pathlib import Path

LEAVES = """
import sys
from pathlib import Path
from bench.workloads.away import Away

class Runner:
    def register_message(self, *_, **__): ...

away = Away(Runner())
away._folder = Path(sys.argv[1])
away.leave()
"""


def test_a_worker_that_never_came_to_work_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lockbench-worker-1"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", LEAVES, str(folder)], check=True, timeout=60)
    assert not folder.exists()
