"""A second process of a lock's load: it has connections of its own, and it never outlives the first
one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from bench.errors import InconclusiveError
from bench.run import own_lock
from bench.run.own_lock import OwnLoad, measure_own_lock
from bench.run.own_process import Link, answer, forked
from bench.topology.fleet import Fleet, start_fleet, wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(1, "none") as started:
        yield started


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for has a number, and does not run."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (
            Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
        )
    return False


def test_the_copy_has_connections_of_its_own(fleet: Fleet) -> None:
    client = redis.Redis.from_url(fleet.urls[0], single_connection_client=True)
    own_id = client.client_id()

    def ask(_link: Link) -> int:
        # once: the one that was inherited
        with suppress(redis.ConnectionError):
            client.ping()
        return int(client.client_id())

    with forked(ask, fleet.urls) as link:
        assert answer(link, 10.0, "ask") != own_id
    assert client.client_id() == own_id, "the connection of the first process still works"


def test_without_that_a_connection_would_be_shared(fleet: Fleet) -> None:
    """The negative control: with no address known, nothing is cut."""
    client = redis.Redis.from_url(fleet.urls[0], single_connection_client=True)
    own_id = client.client_id()
    with forked(lambda _link: int(client.client_id()), ()) as link:
        assert answer(link, 10.0, "ask") == own_id


def test_what_the_copy_raises_and_its_end_are_told() -> None:
    def fails(_link: Link) -> None:
        raise ValueError("no")

    def ends(_link: Link) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        forked(fails, ()) as link,
        pytest.raises(InconclusiveError, match=r"could not begin: ValueError: no"),
    ):
        answer(link, 10.0, "begin")
    with (
        forked(ends, ()) as link,
        pytest.raises(InconclusiveError, match="ended before it could begin"),
    ):
        answer(link, 10.0, "begin")


def test_a_copy_that_hangs_is_ended() -> None:
    def hangs(link: Link) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        link.send(os.getpid())
        signal.pause()

    with forked(hangs, ()) as link:
        pid = answer(link, 10.0, "begin")
        with pytest.raises(InconclusiveError, match=r"did not end within 0\.1 s"):
            answer(link, 0.1, "end")
    assert not is_alive(pid)


def test_a_lock_that_hangs_in_the_second_process_only_ends_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_lock, "STRAGGLER_S", 0.4)
    first_pid = os.getpid()

    class HangsInACopy:
        def __init__(self, _name: str) -> None:
            pass

        def __enter__(self) -> None:
            if os.getpid() != first_pid:
                time.sleep(3600)

        def __exit__(self, *_: object) -> None:
            pass

    with pytest.raises(
        InconclusiveError, match=r"2 of 4 callers are still inside the lock 0\.5 s after the end"
    ):
        measure_own_lock(HangsInACopy, OwnLoad(callers=4, seconds=0.1, warmup_s=0.0, ttl_s=0.1))


PROGRAM = """
import os, signal, sys, time
from bench.run.own_process import answer, forked

def work(link):
    link.send(os.getpid())
    while True:
        time.sleep(3600)

with forked(work, ()) as link:
    print(answer(link, 10.0, "begin"), flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_copy_ends_with_the_first_process(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.send_signal(number)
        process.wait(10)
        wait_until(lambda: not is_alive(pid), 10.0, "the copy did not end")
