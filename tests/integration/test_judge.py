"""`lockbench judge` on real servers: locks whose faults are known from their source."""

import os
import signal
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.experiments.judge.contention import contend
from bench.experiments.judge.experiment import _Questioning
from bench.experiments.judge.plan import plan_of
from bench.experiments.judge.result import JudgedRow
from bench.experiments.judge.stage import JudgeStage
from bench.experiments.judge.subject import read_subject
from bench.topology.server import find_server

pytestmark = pytest.mark.integration
# How often a row that is not known is played.
TRIES = 3
HEAD = "import contextlib, threading, time, uuid, redis\n"
LOCKS = {
    # compares before it deletes
    "redis-py": """
        def lock(urls):
            client = redis.Redis.from_url(urls[0])
            return lambda name: client.lock(name, timeout=1, sleep=0.002)
    """,
    # deletes whatever is there
    "naive": """
        def lock(urls):
            client = redis.Redis.from_url(urls[0])
            @contextlib.contextmanager
            def held(name):
                while not client.set(name, "1", nx=True, px=1000):
                    time.sleep(0.002)
                try:
                    yield
                finally:
                    client.delete(name)
            return held
    """,
    # holds within a process only
    "memory": """
        LOCKS = {}
        def lock(urls):
            return lambda name: LOCKS.setdefault(name, threading.Lock())
    """,
    # never ends, and an exception in the body leaks it
    "endless": """
        def lock(urls):
            client = redis.Redis.from_url(urls[0])
            @contextlib.contextmanager
            def held(name):
                while not client.setnx(name, "1"):
                    time.sleep(0.002)
                yield
                client.delete(name)
            return held
    """,
    "semaphore": """
        TAKE = (
            "if redis.call('scard', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end "
            "redis.call('sadd', KEYS[1], ARGV[1]) return redis.call('pexpire', KEYS[1], 2000)"
        )
        def semaphore(size, urls, give_back=lambda client, name, me: client.srem(name, me)):
            client = redis.Redis.from_url(urls[0])
            @contextlib.contextmanager
            def held(name):
                me = uuid.uuid4().hex
                while not client.eval(TAKE, 1, name, me, size):
                    time.sleep(0.002)
                try:
                    yield
                finally:
                    give_back(client, name, me)
            return held
        def right(urls):
            return semaphore(2, urls)
        def wrong(urls):
            return semaphore(3, urls)
        def careless(urls):
            return semaphore(2, urls, lambda client, name, me: client.spop(name))
    """,
    # at most two; a place ends at its own score after a second, and the key lives for longer
    "scores": """
        TAKE = (
            "redis.call('zremrangebyscore', KEYS[1], '-inf', ARGV[1] - 1000) "
            "if redis.call('zcard', KEYS[1]) >= 2 then return 0 end "
            "redis.call('zadd', KEYS[1], ARGV[1], ARGV[2]) "
            "return redis.call('pexpire', KEYS[1], 4000)"
        )
        def scores(urls, give_back=lambda client, name, me: client.zrem(name, me)):
            client = redis.Redis.from_url(urls[0])
            @contextlib.contextmanager
            def held(name):
                me = uuid.uuid4().hex
                while not client.eval(TAKE, 1, name, time.time_ns() // 1_000_000, me):
                    time.sleep(0.002)
                try:
                    yield
                finally:
                    give_back(client, name, me)
            return held
        def right(urls):
            return scores(urls)
        def careless(urls):
            return scores(urls, lambda client, name, me: client.zpopmin(name))
    """,
    # readers in a set, the writer in a key beside it
    "shared": """
        READ = (
            "if redis.call('exists', KEYS[1]) == 1 then return 0 end "
            "redis.call('sadd', KEYS[2], ARGV[1]) "
            "redis.call('pexpire', KEYS[2], 1000) return 1"
        )
        WRITE = (
            "if redis.call('exists', KEYS[2]) == 1 then return 0 end "
            "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 1000) and 1 or 0"
        )
        BLIND = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 1000) and 1 or 0"
        class Shared:
            def __init__(self, urls, write=WRITE):
                self.client = redis.Redis.from_url(urls[0])
                self.script = write
            @contextlib.contextmanager
            def read(self, name):
                me = uuid.uuid4().hex
                while not self.client.eval(READ, 2, name, name + ":readers", me):
                    time.sleep(0.002)
                try:
                    yield
                finally:
                    self.client.srem(name + ":readers", me)
            @contextlib.contextmanager
            def write(self, name):
                me = uuid.uuid4().hex
                while not self.client.eval(self.script, 2, name, name + ":readers", me):
                    time.sleep(0.002)
                try:
                    yield
                finally:
                    self.client.delete(name)
        def right(urls):
            return Shared(urls)
        def wrong(urls):
            return Shared(urls, BLIND)
    """,
}
COMMAND = """
    import sys, time, redis
    client = redis.Redis.from_url(sys.argv[-1])
    for line in sys.stdin:
        verb, name = line.split()
        if verb == "acquire":
            while not client.set(name, "me", nx=True, px=1000):
                time.sleep(0.002)
        else:
            client.delete(name)
        print("ok", flush=True)
"""


def judged(lock: str, *names: str, capacity: int = 1, shared: bool = False) -> dict[str, JudgedRow]:
    """The rows called so, of the lock that is named. A busy machine may prevent what a row rests
    on, so rows that are not known are played again."""
    rows = {}
    again = list(names)
    for _ in range(TRIES):
        rows |= _judged(lock, again, capacity, shared=shared)
        again = [name for name in again if name in rows and rows[name].verdict == "not known"]
        if not again:
            break
    return rows


def _judged(lock: str, names: list[str], capacity: int, *, shared: bool) -> dict[str, JudgedRow]:
    """The rows called so, of the lock that is named, played once."""
    plan = plan_of(
        read_subject(lock), names, quick=True, capacity=capacity, shared=shared, with_costs=False
    )
    rows = [row for row in plan.rows if row.name in names]
    plan = replace(plan, rows=rows, seconds=1.0)
    playing = _Questioning(plan, find_server(None), lambda _text: None)
    playing.run()
    return {row.topic: row for row in playing.rows}


def written(folder: Path, name: str) -> str:
    """A file with this lock in it."""
    path = folder / "mine.py"
    path.write_text(HEAD + textwrap.dedent(LOCKS[name]), "utf-8")
    return str(path)


def test_a_lock_without_an_owner_check_deletes_its_successors_lock(tmp_path: Path) -> None:
    row = judged(written(tmp_path, "naive"), "release-after-expiry")["release-after-expiry"]
    assert row.verdict == "does not", row
    assert row.happened == "a late release deletes the lock of the next holder"
    assert row.course


def test_a_lock_that_compares_keeps_its_successors_lock(tmp_path: Path) -> None:
    """The negative control of the test above."""
    row = judged(written(tmp_path, "redis-py"), "release-after-expiry")["release-after-expiry"]
    assert row.verdict == "holds", row


def test_a_lock_in_memory_lets_each_process_in(tmp_path: Path) -> None:
    rows = judged(written(tmp_path, "memory"), "contention", "sigkill")
    assert rows["contention"].verdict == "does not", rows
    assert rows["sigkill"].verdict == "not applicable", rows


def test_a_lock_without_a_ttl_blocks_everybody_for_ever(tmp_path: Path) -> None:
    rows = judged(written(tmp_path, "endless"), "exception-in-body", "renewal", "sigkill")
    assert rows["exception-in-body"].verdict == "does not", rows
    assert rows["renewal"].verdict == "not applicable", rows
    assert rows["sigkill"].verdict == "does not", rows


def test_a_semaphore_is_not_asked_what_only_a_mutex_can_answer(tmp_path: Path) -> None:
    """A second holder is no fault there."""
    lock = f"{written(tmp_path, 'semaphore')}:right"
    rows = judged(lock, "body-without-lock", "sigkill", capacity=2)
    assert {row.verdict for row in rows.values()} == {"not applicable"}, rows


@pytest.mark.parametrize(("name", "word"), [("right", "holds"), ("careless", "does not")])
def test_a_place_that_ends_before_its_key_is_not_held_until_the_end_of_the_key(
    name: str, word: str, tmp_path: Path
) -> None:
    lock = f"{written(tmp_path, 'scores')}:{name}"
    row = judged(lock, "release-after-expiry", capacity=2)["release-after-expiry"]
    assert row.verdict == word, row


@pytest.mark.parametrize(("name", "word"), [("right", "holds"), ("careless", "does not")])
def test_a_semaphore_that_gives_away_a_strangers_place_is_found(
    name: str, word: str, tmp_path: Path
) -> None:
    lock = f"{written(tmp_path, 'semaphore')}:{name}"
    row = judged(lock, "release-after-expiry", capacity=2)["release-after-expiry"]
    assert row.verdict == word, row


@pytest.mark.parametrize(("name", "word"), [("right", "holds"), ("wrong", "does not")])
def test_a_semaphore_that_lets_one_in_too_many_is_found(
    name: str, word: str, tmp_path: Path
) -> None:
    lock = f"{written(tmp_path, 'semaphore')}:{name}"
    row = judged(lock, "contention", capacity=2)["contention"]
    assert row.verdict == word, row


@pytest.mark.parametrize(("name", "word"), [("right", "holds"), ("wrong", "does not")])
def test_a_writer_that_does_not_look_for_readers_is_found(
    name: str, word: str, tmp_path: Path
) -> None:
    lock = f"{written(tmp_path, 'shared')}:{name}"
    names = ("contention", "together", "writer-beside-reader", "reader-beside-writer")
    rows = judged(lock, *names, shared=True)
    assert rows["contention"].verdict == word, rows
    assert rows["writer-beside-reader"].verdict == word, rows
    assert rows["reader-beside-writer"].verdict == "holds", rows
    assert rows["together"].verdict == "holds", rows


def test_a_mutex_is_not_asked_what_only_readers_can_answer(tmp_path: Path) -> None:
    rows = judged(written(tmp_path, "redis-py"), "together", "reader-beside-writer", "same-caller")
    assert [*rows] == ["same-caller"]
    assert "requests its lock again, it waits" in rows["same-caller"].happened, rows


def test_a_lock_without_sides_is_refused_as_a_shared_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without a method 'write'; with --shared"):
        judged(written(tmp_path, "redis-py"), "contention", shared=True)


def test_several_takeovers_are_timed_at_once(tmp_path: Path) -> None:
    row = judged(written(tmp_path, "redis-py"), "sigkill")["sigkill"]
    figures = {one.name: one.value for one in row.figures}
    assert figures["takeovers"] == 3, row
    # The lease lasts for a second. It began before its holder was killed.
    assert 0.3 < figures["takeover p50"] <= figures["longest takeover"] < 10, row


@pytest.mark.parametrize(("name", "word"), [("redis-py", "holds"), ("naive", "does not")])
def test_a_lock_on_redis_py_is_played_in_virtual_time(name: str, word: str, tmp_path: Path) -> None:
    row = judged(written(tmp_path, name), "search")["search"]
    assert row.verdict == word, row
    if row.verdict == "does not":
        assert row.happened.startswith("two leases were valid at the same time"), row
        assert any("DEL" in step.what for step in row.course), row


def test_a_search_says_why_a_lock_cannot_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import redis.asyncio\ndef lock(urls):\n"
        " client = redis.asyncio.Redis.from_url(urls[0])\n"
        " return lambda name: client.lock(name, timeout=1, sleep=0.002)\n",
        "utf-8",
    )
    row = judged(str(path), "search")["search"]
    assert row.verdict == "not applicable", row
    assert "cannot run in virtual time" in row.happened, row


def test_a_command_runs_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.txt").write_text("here", "utf-8")
    path = tmp_path / "command.py"
    path.write_text("open('beside.txt').close()\n" + textwrap.dedent(COMMAND), "utf-8")
    monkeypatch.chdir(tmp_path)
    rows = judged(f"{sys.executable} command.py", "body-without-lock")
    assert rows["body-without-lock"].verdict == "not applicable", rows


def test_a_command_is_judged_by_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "command.py"
    path.write_text(textwrap.dedent(COMMAND), "utf-8")
    rows = judged(f"{sys.executable} {path}", "release-after-expiry", "body-without-lock")
    assert rows["release-after-expiry"].verdict == "does not", rows
    assert rows["body-without-lock"].verdict == "not applicable", rows


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def lock(urls): return 7", "which is not a lock; write `def lock"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def lock(urls: return", r"SyntaxError: .*mine\.py:1"),
        ("def lock(urls): raise ValueError('one\\ntwo')", "ValueError: one two"),
        ("import sys\nsys.exit(0)", r"the lock raised SystemExit: 0 .*mine\.py:2.; correct"),
        (
            "def lock(urls):\n async def held(name): pass\n return held",
            "^[^(]*returns 'coroutine', which is not a lock; write",
        ),
        (
            "class lock:\n def __init__(self, urls): pass\n def release(self, name): pass\n"
            " def acquire(self, name): raise OSError('nobody there')",
            "acquire failed on a free resource with the answer OSError: nobody there",
        ),
        ("def lock(urls): return lambda name: open('/absent')", "FileNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_driven_is_refused_before_any_load(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=sentence):
        judged(str(path), "contention")


def test_a_load_that_is_interrupted_leaves_no_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    before = threading.active_count()
    subject = read_subject(written(tmp_path, "redis-py"))

    def interrupted() -> None:
        with JudgeStage(subject, 1, find_server(None)) as stage:
            threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            contend(stage, 30.0)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() <= before
    assert raised == []


def test_a_lock_is_told_what_its_servers_do(tmp_path: Path) -> None:
    rows = judged(written(tmp_path, "redis-py"), "failover", "eviction", "loading", "busy")
    assert {row.verdict for row in rows.values()} == {"told"}, rows
    for name, text in (
        ("failover", "that the replica never had"),
        ("eviction", "that the servers evicted"),
        ("loading", "BusyLoadingError"),
        ("busy", "BUSY Redis is busy running a script"),
    ):
        assert text in rows[name].happened, rows[name]
