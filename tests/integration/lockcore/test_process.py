"""Processes that end, stop or are patched: what they leave behind.

Each claim in an interpreter of its own.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles import pace
from tests.doubles.instance import Instances
from tests.integration.lockcore.certificates import Certificates
from tests.integration.lockcore.shell import TTL_MS, Connect, GeventShell, Scripted, Shell, only

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXIT_S = 20.0
# of `patient`'s 2,500: what came of that is the machine's
STOOD_STILL_MS = 1000.0
HEADER = """
import sys, threading, time
from lockcore import LagCap, Redlock
from lockcore.errors import LockcoreError
urls = sys.argv[1:]
patient = dict(
    rejoin="trust-first", instance_timeout_ms=2500, lag_cap=LagCap(age_ms=5000),
    connect_timeout_s=5.0,
)
"""


AT_EXIT = """
import atexit
@atexit.register  # before lockcore is imported, so it runs after lockcore's own
def tell(): print(*[f"{status.state} {status.pending}" for status in lock.instances], flush=True)
"""


@contextmanager
def python(code: str, urls: list[str], before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A fresh interpreter that runs `before`, HEADER and `code`; killed when the test is through
    with it."""
    command = [sys.executable, "-X", "dev", "-c", before + HEADER + code, *urls]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line it says."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        process.kill()
        pytest.fail(f"it ended: {process.communicate()[1]}")
    return line


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said on stderr."""
    _, said = process.communicate(timeout=EXIT_S)
    return process.returncode, said


def test_an_interrupted_thread_that_ends_its_process_leaves_no_key(instances: Instances) -> None:
    code = """
lock = Redlock.connect(urls, shell="threads", **patient)
print("connected", flush=True)
sys.stdin.readline()
def tell():
    while not all(status.pending for status in lock.instances): time.sleep(0.001)
    print("asked", flush=True)
threading.Thread(target=tell, daemon=True).start()
lock.acquire("stock", 10_000)
"""
    with python(code, instances.urls) as process:
        assert line_of(process) == "connected"
        instances.pause()
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)
        assert line_of(process) == "asked"
        process.send_signal(signal.SIGINT)
        code_, said = end_of(process)
    assert code_ == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    instances.resume()
    until(lambda: instances.were_told(["set", "release"]))
    assert instances.keys == []


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + EXIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


ENDS = """
lock = Redlock.connect(urls, shell="threads", **patient)
def work(name):
    try:
        while True: lock.release(lock.acquire(name, 10_000))
    except LockcoreError: pass
for number in range(8): threading.Thread(target=work, args=(f"r{number}",), daemon=True).start()
while lock.instances[0].commands < 200: time.sleep(0.001)
"""
IMPORTS = """
assert not {"gevent", "asyncio", "uvloop", "redis"} & set(sys.modules), "imported too early"
with Redlock.connect(urls, **patient) as lock:
    assert type(lock._driver).__name__ == "ThreadDriver"
    lock.release(lock.acquire("stock", 10_000))
assert "gevent" not in sys.modules
"""
PATCHED = """
from gevent import monkey; monkey.patch_all()
import gevent
try: Redlock.connect(urls, shell="threads")
except RuntimeError as error: assert "use shell='gevent'" in str(error), error
with Redlock.connect(urls, **patient) as lock:
    assert type(lock._driver).__name__ == "GreenletDriver"
    def user(number):
        for turn in range(20):
            lock.release(lock.acquire(f"r{number}", 10_000, 20_000))
        return "done"
    jobs = [gevent.spawn(user, number) for number in range(50)]
    gevent.joinall(jobs, raise_error=True)
    assert [job.value for job in jobs] == ["done"] * 50
    victim = gevent.spawn(lock.acquire, "killed", 10_000)
    gevent.sleep(0)
    victim.kill()
    while any(status.pending for status in lock.instances): gevent.sleep(0.001)
    lock.release(lock.acquire("killed", 10_000, 20_000))
    assert all(not status.errors for status in lock.instances), lock.instances
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ENDS, id="it may end while its threads lock"),
        pytest.param(IMPORTS, id="threads need no gevent, and an import no event loop"),
        pytest.param(PATCHED, id="patched, it waits by greenlets"),
    ],
)
def test_a_process_does_its_work_and_ends_cleanly(scripted: Scripted, code: str) -> None:
    ends_cleanly(code, scripted(3).urls)


def ends_cleanly(code: str, urls: list[str]) -> None:
    with pace.kept() as machine, python(code, urls) as process:
        ended = end_of(process)
    if ended != (0, "") and machine.worst_ms > STOOD_STILL_MS:
        pytest.skip(f"not known here: the machine stood still for {machine.worst_ms:.0f} ms")
    assert ended == (0, "")


def test_a_process_that_forgets_to_close_ends_cleanly_and_at_once(scripted: Scripted) -> None:
    code = """
lock = Redlock.connect(urls, shell="threads", **patient)
lock.keep_alive(lock.acquire("stock", 10_000), every_ms=5)
"""
    with python(code, scripted(3).urls, before=AT_EXIT) as process:
        # closed, and everything answered
        assert line_of(process) == "down 0 down 0 down 0"
        assert end_of(process) == (0, "")


def test_a_patched_process_speaks_tls(tls_fleet: list[str], certificates: Certificates) -> None:
    urls = [f"{url}?ssl_ca_certs={certificates.authority}" for url in tls_fleet]
    ends_cleanly(PATCHED, urls)


def test_a_patched_child_of_a_patched_process_is_foreign_and_does_not_spin(
    instances: Instances,
) -> None:
    code = """
from gevent import monkey; monkey.patch_all()
import gevent, os
lock = Redlock.connect(urls, **patient)
lease = lock.acquire("stock", 10_000)
child = os.fork()
if child == 0:
    try: lock.try_release(lease)
    except LockcoreError as error: assert "another process" in str(error)
    started = time.process_time()
    gevent.sleep(0.5)
    assert time.process_time() - started < 0.2, "it spins"
    with Redlock.connect(urls, **patient) as mine:
        assert not mine.try_acquire("stock", 10_000)
        mine.release(mine.acquire("other", 10_000))
    os._exit(7)
print("forked", flush=True)
for _ in range(50):
    if lock.instances[0].state == "voting": lock.release(lock.acquire("mine", 10_000))
    gevent.sleep(0.004)
assert os.waitpid(child, 0)[1] == 7 << 8
lock.release(lease)
"""
    with python(code, instances.urls) as process:
        assert line_of(process) == "forked"
        # what the child inherited is at its end, and stays readable
        instances[0].drop_connections()
        assert end_of(process) == (0, "")


@pytest.mark.parametrize("shell_name", ["threads", "gevent", "asyncio"])
@only(GeventShell)
def test_a_holder_that_stood_still_past_its_end_does_not_extend(
    shell: Shell, connect: Connect, instances: Instances, shell_name: str
) -> None:
    with python(HOLDERS[shell_name], instances.urls) as process:
        assert line_of(process) == "kept"
        process.send_signal(signal.SIGSTOP)
        # its TTL
        end = time.monotonic() + 1.0
        shell.until(lambda: time.monotonic() > end and instances.keys == [], "its locks to expire")
        other = connect(instances.urls).acquire("stock", TTL_MS)
        shell.until(lambda: len(instances.keys) == 3, "the next holder's locks")
        before = [instance.kinds().count("extend") for instance in instances]
        process.send_signal(signal.SIGCONT)
        assert line_of(process) == "gone"
        assert [instance.kinds().count("extend") for instance in instances] == before
        assert all(instance.keys == {b"stock": other.owner_token} for instance in instances)


HOLDER = """
def on_gone(denied): print(denied.outcome.value, flush=True)
settings = patient | dict(instance_timeout_ms=200)
def watch(keeper):
    if keeper.renewals: print("kept", flush=True)
    return not keeper.renewals
"""
BLOCKING = f"""{HOLDER}
import gevent
lock = Redlock.connect(urls, shell="%s", **settings)
keeper = lock.keep_alive(lock.acquire("stock", 1000), every_ms=150, on_gone=on_gone)
while watch(keeper): %s(0.01)
%s(60)
"""
HOLDERS = {
    "threads": BLOCKING % ("threads", "time.sleep", "time.sleep"),
    "gevent": BLOCKING % ("gevent", "gevent.sleep", "gevent.sleep"),
    "asyncio": f"""{HOLDER}
import asyncio
from lockcore import AsyncRedlock
async def main():
    lock = await AsyncRedlock.connect(urls, **settings)
    keeper = lock.keep_alive(await lock.acquire("stock", 1000), every_ms=150, on_gone=on_gone)
    while watch(keeper): await asyncio.sleep(0.01)
    await asyncio.sleep(60)
asyncio.run(main())
""",
}
