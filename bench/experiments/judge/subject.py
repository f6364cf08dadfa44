"""Reads the command-line argument that names the judged lock, and drives this lock.

    mine.py              its function `lock`; mine.py:other is its function `other`
    package.module:lock  that function
    "node lock.mjs"      a command that reads `acquire NAME` and `release NAME` on stdin, and
                         answers each by a line: ok, no, or the text of an error

lockbench calls the function with the URLs of the servers, as `lock(urls)`. The function returns the
lock. The lock is either a callable that turns a name into a context manager, or an object with
`acquire(name)` and `release(name)`. If `acquire` returns a token, `release` may take the token
instead of the name, or the name and the token. A function `lock(name, urls)` may also return the
context manager itself. All of these calls may be asynchronous. With `--shared`, the function
returns an object with `read(name)` and `write(name)`. A command then reads the words `read` and
`write` instead of `acquire`. If the function returns any other object, lockbench refuses it with
one sentence.

The user's file runs in a separate process, never in lockbench's own process. This module inspects
the lock in the separate process. lockbench's own process only reads the command-line argument.
"""

import importlib
import importlib.util
import inspect
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.errors import UsageError
from bench.experiments.judge.clients.lock import ClientOrder, Connect, Lock, then
from lockcore.bench import masked_command

FUNCTION = "lock"
# An argument with one of these names is the name of the lock, and not a token.
NAMES = ("name", "key", "resource")
# At most this many names of a module are shown.
MOST_NAMES = 20
# The locks whose acquire has returned a grant, such as True or a token. Their None means no. In the
# same way, the set holds the releases that have returned a true value.
ANSWERING = set[str]()
SHAPE = (
    "write `def lock(urls): …` that returns a callable from a name to a context manager, or an "
    "object with acquire(name) and release(name)"
)


SHARED = (
    "with --shared, `lock(urls)` must return an object with the methods read(name) and "
    "write(name), which return context managers"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """The lock that the user named. `typed` is the user's argument without secrets. `text` is the
    same argument, but with the absolute path of the file. If the lock is a command, `command` holds
    the words of the command. Otherwise `command` is empty.
    """

    typed: str
    text: str
    command: tuple[str, ...] = ()


def read_subject(text: str) -> Subject:
    """Return the lock that `text` names. Raises UsageError if `text` does not name a lock."""
    place, _, _ = text.partition(":")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not written in UTF-8; give it another name") from None
    if place.endswith(".py") and Path(place).is_file():
        return Subject(text, str(Path(place).resolve()) + text.removeprefix(place))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} cannot be read as a command ({error}); quote its words as in a shell"
        ) from None
    if len(words) == 1 and place.endswith(".py"):
        raise UsageError(
            f"there is no file {place}; name a file, package.module:object or a command"
        )
    if len(words) == 1 and ":" in text and "/" not in text:
        return Subject(text, text)
    (shown,) = masked_command([text])
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"{shown!r} names no lock; give a file that ends in .py, package.module:object, or a "
            "command on the path"
        )
    return Subject(shown, shown, tuple(_absolute(word) for word in words))


def subject_of(make_lock: Callable[..., object]) -> Subject:
    """Return the description of the lock that `make_lock` makes. `make_lock` is a function of this
    process. Raises UsageError if another process cannot import the function.
    """
    name = getattr(make_lock, "__qualname__", "?")
    place = getattr(make_lock, "__module__", "?")
    module = sys.modules.get(place)
    target: object = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is not make_lock:
        raise UsageError(
            f"{name} of {place} cannot be imported by the client processes of a judged lock; write "
            "the function at the top of a module"
        )
    file = getattr(module, "__file__", None)
    if "." not in place and file is not None:
        place = file
    return Subject(name, f"{place}:{name}")


def _absolute(word: str) -> str:
    """Return the absolute path of a file. A client needs the absolute path, because it may run in
    another folder. Return any other text unchanged.
    """
    path = Path(word)
    return str(path.absolute()) if path.is_file() else word


# -- in the process of the lock --------------------------------------------------------------------


def lock_of(order: ClientOrder) -> tuple[str, Connect]:
    """Return two results. The first result is "threads" or "asyncio", and says how the lock of
    `order` waits. The second result is a function that connects this lock. Raises UsageError if
    lockbench cannot drive the lock.
    """
    function = _found(order.name)
    parameters = _parameters(function, order.name)
    is_direct = len(parameters) > 1
    if order.side:
        return _side_of(function, order)
    if is_direct:
        is_async = inspect.iscoroutinefunction(function) or _is_asynchronous(
            function("lockbench:probe", order.urls), order.name
        )
        return _way(is_async), lambda order: _driven(
            lambda name: function(name, order.urls), order.name
        )
    if inspect.iscoroutinefunction(function):
        return "asyncio", lambda order: _connected(function, order)
    is_async = _is_asynchronous(_held_by(function(order.urls), order.name), order.name)
    return _way(is_async), lambda order: _driven(function(order.urls), order.name)


def _side_of(function: Callable[..., object], order: ClientOrder) -> tuple[str, Connect]:
    """Return the same two results as `lock_of`, but for one side of a shared lock. `order.side`
    says whether this is the readers' side or the writer's side. `function` returns an object that
    has both sides. Raises UsageError.
    """
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{order.name} is a coroutine function, but it must be a normal function; {SHARED}"
        )
    lock = function(order.urls)
    side = getattr(lock, order.side, None)
    if side is None:
        kind = type(lock).__name__
        raise UsageError(
            f"{order.name} returns an object of the type {kind!r} without a method "
            f"{order.side!r}; {SHARED}"
        )
    is_async = _is_asynchronous(_held_by(side, order.name), order.name)
    return _way(is_async), lambda order: _driven(
        getattr(function(order.urls), order.side), order.name
    )


def _way(is_async: bool) -> str:
    return "asyncio" if is_async else "threads"


async def _connected(function: Callable[..., Awaitable[object]], order: ClientOrder) -> Lock:
    return _driven(await function(order.urls), order.name)


def _found(text: str) -> Callable[..., object]:
    place, _, name = text.partition(":")
    module = _module(place)
    names = name or FUNCTION
    target: object = module
    for part in names.split("."):
        target = getattr(target, part, None)
    if target is None:
        public = [one for one in vars(module) if not one.startswith("_")]
        there = ", ".join(public[:MOST_NAMES]) or "nothing"
        raise UsageError(f"{place} has no {names!r} (the module has {there}); {SHAPE}")
    if not callable(target):
        raise UsageError(f"{names!r} of {place} is not a function; {SHAPE}")
    return target


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not error.name or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise UsageError(
                f"there is no module {error.name!r} for {place}; install it, or start lockbench in "
                "the folder that holds it"
            ) from None
    path = Path(place)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _parameters(function: Callable[..., object], text: str) -> Sequence[str]:
    """Return the names of the arguments that the function needs. Raises UsageError unless the
    function needs only the URLs, or the arguments `name` and `urls`."""
    needed = _needed(function)
    if needed in (["urls"], ["name", "urls"]) or (len(needed) == 1 and needed != ["name"]):
        return needed
    signature = f"{function.__name__}({', '.join(needed)})"
    raise UsageError(f"{text}: {signature} does not take the URLs of the servers; {SHAPE}")


def _needed(function: Callable[..., object]) -> list[str]:
    """Return the names of the arguments that a caller must give by position. If the function is
    written in C and does not state its arguments, the result is empty.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return []
    return [
        one.name
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]


def _held_by(lock: object, text: str) -> object:
    """If `lock` is a function of a name, call `lock` with a test name and return the result.
    Otherwise return `lock`. The returned object is not locked yet.
    """
    if inspect.isawaitable(lock) or not callable(lock):
        return lock
    return lock("lockbench:probe")


def _is_asynchronous(lock: object, text: str) -> bool:
    """Return whether the lock's calls must be awaited. Raises UsageError if lockbench cannot drive
    the lock.
    """
    for enter in ("__enter__", "acquire"):
        method = getattr(lock, enter, None)
        if method is not None:
            return inspect.iscoroutinefunction(method)
    if hasattr(lock, "__aenter__"):
        return True
    raise UsageError(f"{text} returns {type(lock).__name__!r}, which is not a lock; {SHAPE}")


def _driven(lock: object, text: str) -> Lock:
    """Return the calls that drive `lock`. The user's function made the object `lock`."""

    def answers() -> bool:
        return text in ANSWERING

    if hasattr(lock, "acquire") and hasattr(lock, "release"):
        needed = _needed(lock.release)
        first = needed[0] if needed else NAMES[0]
        takes_token = first not in (*NAMES, *_needed(lock.acquire)[:1])

        def words(name: str, got: object) -> tuple[object, ...] | None:
            """Return the arguments of the later release, or None if the lock was refused."""
            if not _is_granted(got, text):
                return None
            if len(needed) > 1:
                return name, got
            is_token = takes_token and not isinstance(got, bool | None)
            return (got if is_token else name,)

        return Lock(
            lambda name, *_: then(lock.acquire(name), lambda got: words(name, got)),
            lambda held: _given_back(lock.release(*held), text),
            answers=answers,
        )

    if not callable(lock):
        raise UsageError(
            f"{text} returns {type(lock).__name__!r}, which does not take a name; {SHAPE}"
        )

    def make(name: str, *_terms: int) -> object:
        manager = lock(name)
        if not any(hasattr(manager, one) for one in ("__enter__", "__aenter__", "acquire")):
            raise UsageError(
                f"{text} returns {type(manager).__name__!r}, which is not a lock; {SHAPE}"
            )
        return manager

    probe = make("lockbench:probe")
    if hasattr(probe, "__enter__") or hasattr(probe, "__aenter__"):
        return Lock(lambda name, *_: _enter(make(name)), _leave, hold=make)
    return Lock(
        lambda name, *_: _taken(make(name), text),
        lambda held: _given_back(held.release(), text),
        answers=answers,
    )


def _is_granted(got: object, text: str) -> bool:
    """Return whether the result of a call means success. `text` names the call.

    In many locks, acquire returns nothing and raises an exception for a refusal. In other locks,
    acquire returns True or None, as SET NX does in redis-py. Each client first acquires a free lock
    and releases it. The result of this first acquire shows whether acquire returns something at a
    grant. A later refusal could not show this, because some locks return None for a grant and False
    for a refusal.
    """
    if got is None:
        return text not in ANSWERING
    if got:
        ANSWERING.add(text)
    return bool(got)


def _given_back(got: object, text: str) -> object:
    """Return False if the release reports that the caller did not hold the lock. Otherwise return
    None.
    """
    return then(got, lambda answer: None if _is_granted(answer, f"release {text}") else False)


def _enter(manager: Any) -> object:
    enter = getattr(manager, "__enter__", None) or manager.__aenter__
    return then(enter(), lambda _: manager)


def _leave(manager: Any) -> object:
    leave = getattr(manager, "__exit__", None) or manager.__aexit__
    return then(leave(None, None, None), lambda _: None)


def _taken(lock: Any, text: str) -> object:
    return then(lock.acquire(), lambda got: lock if _is_granted(got, text) else None)
