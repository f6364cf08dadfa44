"""What a user may name and write, and what is refused in one sentence."""

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.experiments.judge.clients.lock import ClientOrder, Lock, at_once, value
from bench.experiments.judge.subject import lock_of, read_subject

URLS = ("redis://127.0.0.1:1",)
LOCKS = {
    "context manager": """
        import contextlib
        LOG = []
        def lock(urls):
            @contextlib.contextmanager
            def held(name):
                LOG.append(("in", name, tuple(urls)))
                yield
                LOG.append(("out", name))
            return held
    """,
    "name and urls": """
        import contextlib
        LOG = []
        @contextlib.contextmanager
        def lock(name, urls):
            LOG.append(("in", name, tuple(urls)))
            yield
            LOG.append(("out", name))
    """,
    "object": """
        LOG = []
        class Locks:
            def __init__(self, urls):
                self.urls = tuple(urls)
            def acquire(self, name):
                LOG.append(("in", name, self.urls))
                return True
            def release(self, name):
                LOG.append(("out", name))
        lock = Locks
    """,
    "asynchronous context manager": """
        import contextlib
        LOG = []
        def lock(urls):
            @contextlib.asynccontextmanager
            async def held(name):
                LOG.append(("in", name, tuple(urls)))
                yield
                LOG.append(("out", name))
            return held
    """,
    "asynchronous object": """
        LOG = []
        class Locks:
            def __init__(self, urls):
                self.urls = tuple(urls)
            async def acquire(self, name):
                LOG.append(("in", name, self.urls))
            async def release(self, name):
                LOG.append(("out", name))
        async def lock(urls):
            return Locks(urls)
    """,
}


def written(folder: Path, text: str) -> Path:
    """A file of this text."""
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


async def used(connect: Callable[[ClientOrder], object], order: ClientOrder) -> None:
    """Lock and release once."""
    lock = await value(connect(order))
    assert isinstance(lock, Lock)
    held = await value(lock.acquire("r", 0, 0))
    assert held is not None
    await value(lock.release(held))


@pytest.mark.parametrize("form", LOCKS)
def test_each_form_of_a_lock_is_entered_and_left(form: str, tmp_path: Path) -> None:
    path = written(tmp_path, LOCKS[form])
    order = ClientOrder(str(path), URLS)
    how, connect = lock_of(order)
    assert how == ("asyncio" if "asynchronous" in form else "threads")
    if how == "asyncio":
        asyncio.run(used(connect, order))
    else:
        at_once(used(connect, order))
    assert sys.modules["mine"].LOG == [("in", "r", URLS), ("out", "r")]


def test_a_lock_that_says_no_is_refused(tmp_path: Path) -> None:
    text = """
        class Locks:
            def acquire(self, name):
                return False
            def release(self, name):
                pass
        def lock(urls):
            return Locks()
    """
    order = ClientOrder(str(written(tmp_path, text)), URLS)
    _, connect = lock_of(order)
    assert connect(order).acquire("r", 0, 0) is None


@pytest.mark.parametrize(("answer", "released"), [("None", None), ("1", None), ("0", False)])
def test_a_release_that_returns_something_false_says_that_it_was_late(
    answer: str, released: object, tmp_path: Path
) -> None:
    text = f"""
        class Locks:
            def acquire(self, name):
                return True
            def release(self, name):
                return {answer}
        def lock(urls):
            return Locks()
    """
    order = ClientOrder(str(written(tmp_path, text)), URLS)
    lock = lock_of(order)[1](order)
    assert lock.release(lock.acquire("name", 0, 0)) is released


@pytest.mark.parametrize(
    ("answers", "granted"),
    [
        ([None, None], [True, True]),
        ([True, None], [True, False]),
        ([True, False], [True, False]),
        ([1, 0], [True, False]),
        (["t-1", None], [True, False]),
        (["t-1", False], [True, False]),
        # Nothing for a grant, and False for a refusal.
        ([False, None, None], [False, True, True]),
        # A refusal that comes first does not hide the kind of the lock.
        ([False, True, None], [False, True, False]),
    ],
)
@pytest.mark.parametrize("form", ["", "async "])
def test_none_is_a_grant_until_a_lock_has_answered_something_true(
    answers: list[object], granted: list[bool], form: str, tmp_path: Path
) -> None:
    text = f"""
        GRANTS = iter({answers})
        RELEASES = iter({answers})
        class Locks:
            {form}def acquire(self, name):
                return next(GRANTS)
            {form}def release(self, name):
                return next(RELEASES)
        def lock(urls):
            return Locks()
    """
    order = ClientOrder(str(written(tmp_path, text)), URLS)
    lock = lock_of(order)[1](order)

    async def heard() -> list[tuple[bool, bool]]:
        return [
            (
                await value(lock.acquire("r", 0, 0)) is not None,
                await value(lock.release(("r",))) is None,
            )
            for _ in answers
        ]

    assert asyncio.run(heard()) == [(one, one) for one in granted]
    assert lock.answers() is any(answers)


@pytest.mark.parametrize(
    ("arguments", "result", "released"),
    [
        ("token", "'t-1'", ("t-1",)),
        ("name, token", "'t-1'", ("r", "t-1")),
        ("resource", "'t-1'", ("r",)),
        ("token", "True", ("r",)),
        ("name, token=None", "'t-1'", ("r", None)),
        ("*words", "'t-1'", ("r",)),
    ],
)
def test_release_gets_the_token_of_acquire_if_it_takes_one(
    arguments: str, result: str, released: tuple[object, ...], tmp_path: Path
) -> None:
    given = "words" if "*" in arguments else arguments.replace("=None", "") + ","
    text = f"""
        LOG = []
        class Locks:
            def acquire(self, name):
                return {result}
            def release(self, {arguments}):
                LOG.append(({given}))
        def lock(urls):
            return Locks()
    """
    order = ClientOrder(str(written(tmp_path, text)), URLS)
    lock = lock_of(order)[1](order)
    lock.release(lock.acquire("r", 0, 0))
    log = sys.modules["mine"].LOG
    assert log == [released]


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="there is no module 'nowhere' for nowhere.locks"):
        lock_of(ClientOrder("nowhere.locks:lock", URLS))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "has no 'lock'"),
        ("lock = 1", "is not a function"),
        ("def lock(name): ...", r"lock\(name\) does not take the URLs of the servers"),
        ("def lock(a, b, c): ...", "does not take the URLs of the servers"),
        ("def lock(urls): return 7", "returns 'int', which is not a lock"),
        ("def lock(urls): return lambda name: 7", "returns 'int', which is not a lock"),
    ],
)
def test_what_cannot_be_driven_is_refused_in_a_sentence(
    text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        lock_of(ClientOrder(str(written(tmp_path, text)), URLS))


def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    assert read_subject("mine.py:other").text == f"{path}:other"


def test_a_module_and_a_command_are_told_apart() -> None:
    assert read_subject("package.module:lock").command == ()
    assert read_subject("sh -c cat").command == ("sh", "-c", "cat")


def test_a_command_is_shown_without_its_secrets() -> None:
    subject = read_subject("sh -c cat --password=hunter2 --token 'a b' redis://ann:s3cr3t@h:1/0")
    shown = "sh -c cat --password=*** --token *** redis://ann:***@h:1/0"
    assert (subject.typed, subject.text) == (shown, shown)
    assert subject.command[-4:] == (
        "--password=hunter2",
        "--token",
        "a b",
        "redis://ann:s3cr3t@h:1/0",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("absent.py", "there is no file absent.py"),
        ("no-such-program x", "names no lock; give a file"),
        ("", "names no lock; give a file"),
        ("node 'lock.mjs", "cannot be read as a command"),
        ("mine\udcff.py", "is not written in UTF-8"),
    ],
)
def test_a_name_of_nothing_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_subject(text)
