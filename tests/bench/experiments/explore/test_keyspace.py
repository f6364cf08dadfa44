"""The simulated server answers as servers do: the same commands on it, on fakeredis, and on real
servers."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hiredis import Reader, ReplyError
from redis.exceptions import NoScriptError, ResponseError

from bench.experiments.explore.keyspace import Command, Keyspace, RealKeyspace
from bench.topology.fleet import start_fleet
from bench.topology.server import found_servers
from lockcore.clock import NS_PER_MS
from lockcore.rounds.commands import (
    COMPARE_AND_DELETE,
    COMPARE_AND_DELETE_MANY,
    COMPARE_AND_EXTEND,
    Script,
)

KEYS = (b"a", b"b")
VALUES = (b"1", b"2", b"x" * 20)
# A time that no test reaches, so that all clocks may differ.
LONG_MS = b"600000"
Reply = Any
Ask = Callable[[Command], Reply]


def told(data: bytes) -> Reply:
    """A reply as tests compare it: of an error its first word."""
    reader = Reader()
    reader.feed(data)
    reply = reader.gets()
    return f"error {str(reply).partition(' ')[0]}" if isinstance(reply, ReplyError) else reply


def ask_fakeredis() -> Ask:
    fakeredis = pytest.importorskip("fakeredis", reason="make .venv installs it")
    connection = fakeredis.FakeRedis(protocol=2).connection_pool.get_connection()

    def ask(command: Command) -> Reply:
        connection.send_command(*command)
        try:
            return connection.read_response()
        except NoScriptError:
            return "error NOSCRIPT"
        except ResponseError:
            return "error ERR"

    return ask


def ask_server(port: int) -> Ask:
    server = RealKeyspace(port)
    return lambda command: told(server.run(command))


@pytest.fixture(params=["fakeredis", "redis", "valkey"])
def ask(request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Somebody else who answers, empty."""
    if request.param == "fakeredis":
        yield ask_fakeredis()
        return
    binaries = [binary for binary in found_servers() if binary.name == request.param]
    if not binaries:
        pytest.skip(f"there is no {request.param} here")
    with start_fleet(1, "none", server=binaries[0]) as fleet:
        yield ask_server(fleet.instances[0].port)


def a_script(draw: Random) -> Command:
    script: Script = draw.choice((COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND))
    keys = list(KEYS) if script is COMPARE_AND_DELETE_MANY else [draw.choice(KEYS)]
    values = [draw.choice(VALUES) for _ in keys]
    values += [LONG_MS] if script is COMPARE_AND_EXTEND else []
    how = draw.choice(
        ([b"EVAL", script.source], [b"EVALSHA", script.sha], [b"SCRIPT", b"LOAD", script.source])
    )
    return how if how[0] == b"SCRIPT" else [*how, b"%d" % len(keys), *keys, *values]


def a_command(draw: Random) -> Command:
    """One of the forms that locks use."""
    key = draw.choice(KEYS)
    value = draw.choice(VALUES)
    forms: list[Command] = [
        [b"SET", key, value, b"NX", b"PX", LONG_MS],
        [b"SET", key, value, b"PX", LONG_MS],
        [b"SET", key, value, b"EX", b"600"],
        [b"SET", key, value],
        [b"SET", key, value, b"NO", b"SUCH"],
        [b"SETNX", key, value],
        [b"GET", key],
        [b"GETRANGE", key, b"0", b"40"],
        [b"GETSET", key, value],
        [b"DEL", *KEYS],
        [b"DEL", key],
        [b"UNLINK", key],
        [b"EXISTS", *KEYS],
        [b"PEXPIRE", key, LONG_MS],
        [b"INCR", b"number"],
        [b"HSET", b"table", key, value],
        [b"HGET", b"table", key],
        [b"ZADD", b"members", draw.choice((b"1", b"2")), value],
        [b"ZREM", b"members", value],
        [b"ZREMRANGEBYSCORE", b"members", b"-inf", b"1"],
        [b"ZCOUNT", b"members", b"(1", b"+inf"],
        [b"EXISTS", b"members"],
        [b"SCRIPT", b"FLUSH"],
        [b"PING"],
        [b"NO-SUCH-COMMAND", key],
    ]
    return draw.choice(forms) if draw.random() < 0.7 else a_script(draw)


@pytest.mark.parametrize("seed", range(5))
def test_a_course_of_commands_has_the_replies_of_a_server(ask: Ask, seed: int) -> None:
    draw = Random(seed)
    keyspace = Keyspace(lambda: 0, 1.0)
    answers = set()
    for _ in range(300):
        command = a_command(draw)
        reply = told(keyspace.run(command))
        assert ask(command) == reply, command
        for key in KEYS:
            assert ask([b"GET", key]) == keyspace.get(key), command
        answers.add(str(reply))
    assert {"None", "b'OK'", "1", "0", "error NOSCRIPT", "error ERR"} <= answers


@pytest.mark.parametrize("command", [[b"DELEX", b"a", b"IFEQ", b"1"], [b"DELIFEQ", b"a", b"1"]])
@pytest.mark.parametrize("held", [b"1", b"2"])
def test_native_deletes_answer_as_servers_that_know_them(
    ask: Ask, command: Command, held: bytes
) -> None:
    keyspace = Keyspace(lambda: 0, 1.0)
    for one in (keyspace.run, ask):
        one([b"SET", b"a", held, b"PX", LONG_MS])
    reply = ask(command)
    if reply == "error ERR":
        pytest.skip("this server is too old for the command")
    assert reply == told(keyspace.run(command))


def test_a_key_ends_when_its_time_is_over_by_the_servers_clock() -> None:
    now_ns = 0
    keyspace = Keyspace(lambda: now_ns, rate=1.25)
    keyspace.run([b"SET", b"a", b"1", b"PX", b"1000"])
    now_ns = 799 * NS_PER_MS
    assert keyspace.get(b"a") == b"1"
    now_ns = 800 * NS_PER_MS
    assert keyspace.get(b"a") is None
    assert keyspace.run([b"PTTL", b"a"]) == b":-2\r\n"


def test_a_sorted_set_keeps_its_end_and_time_is_told_by_the_servers_clock() -> None:
    now_ns = 0
    keyspace = Keyspace(lambda: now_ns, rate=1.25)
    keyspace.run([b"ZADD", b"a", b"1", b"x"])
    keyspace.run([b"PEXPIRE", b"a", b"1000"])
    keyspace.run([b"ZADD", b"a", b"1", b"y"])
    assert keyspace.run([b"PTTL", b"a"]) == b":1000\r\n"
    now_ns = 2_400 * NS_PER_MS
    assert told(keyspace.run([b"TIME"])) == [b"3", b"0"]
    assert told(keyspace.run([b"EXISTS", b"a"])) == 0


def test_a_command_that_a_server_is_too_old_for_is_an_error() -> None:
    keyspace = Keyspace(lambda: 0, 1.0, frozenset({b"DELEX", b"IFEQ"}))
    assert told(keyspace.run([b"DELEX", b"a", b"IFEQ", b"1"])) == "error ERR"
    assert told(keyspace.run([b"SET", b"a", b"1", b"IFEQ", b"1"])) == "error ERR"
