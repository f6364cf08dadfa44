"""Two threads may meet a type for the first time at once."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import msgspec
from bench.measure.section import Count, Section, converted

sys.setswitchinterval(1e-6)
read = {"locked": converted, "bare": msgspec.convert}[sys.argv[1]]
fields = [f"field_{number}" for number in range(40)]

def meet(kind, together):
    together.wait()
    read(dict.fromkeys(fields, 1), kind)

for _ in range(50):
    typed = [(name, dict[str, Count] | Count | None) for name in fields]
    kind = msgspec.defstruct("Kind", typed, bases=(Section,))
    together = threading.Barrier(4)
    threads = [threading.Thread(target=meet, args=(kind, together)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("how", ["locked", pytest.param("bare", marks=pytest.mark.slow)])
def test_threads_that_meet_a_type_at_once_get_it(how):
    """`bare` shows what the lock is for; should it pass, msgspec is mended and the lock can go."""
    ends = [
        subprocess.run([sys.executable, "-c", PROGRAM, how], check=False).returncode
        for _ in range(3)
    ]
    assert (set(ends) == {0}) == (how == "locked")
