"""`python -m bench.telemetry README.md …`: *files with the two marks → the same with today's instrument table*.

Source: `table.py`.
"""

import sys
from pathlib import Path

from bench.telemetry.table import with_table

for path in map(Path, sys.argv[1:]):
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
