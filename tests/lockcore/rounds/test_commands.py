"""The lock's commands: byte for byte what redis-py would send, and scripts that check the owner."""

from hashlib import sha1
from typing import Any

import pytest
from redis.connection import Connection

from lockcore.engine.engine import Engine
from lockcore.rounds.commands import (
    COMPARE_AND_DELETE,
    COMPARE_AND_DELETE_MANY,
    COMPARE_AND_EXTEND,
    OWNER_TOKEN_BYTES,
    OWNER_TOKEN_START,
    Script,
    merged_release,
)
from tests.lockcore.scripted import DELEX, DELIFEQ, EVALSHA, settings_of

KEYS = ["r", "stock:42", "ключ", "a b\r\nc", "x" * 300]


def packed(*arguments: bytes) -> bytes:
    """What redis-py sends for a command."""
    connection: Any = Connection
    return b"".join(connection().pack_command(*arguments))


class Attempt:
    """One attempt of an engine: its claim, its key and its owner token."""

    def __init__(self, resource: str, ttl_ms: int = 10_000, prefix: str = "") -> None:
        engine = Engine(["host:1"], settings_of(key_prefix=prefix), lambda: None)
        self.round = engine.set_round(resource, engine.terms(ttl_ms), 1)
        self.claim = self.round.claim
        self.key = (prefix + resource).encode()
        self.token = self.claim[OWNER_TOKEN_START:-2]


@pytest.mark.parametrize("resource", KEYS)
@pytest.mark.parametrize("ttl_ms", [3, 200, 10_000])
def test_an_acquire_is_set_nx_px(resource: str, ttl_ms: int) -> None:
    one = Attempt(resource, ttl_ms)
    sent = one.round.terms.set_head + one.claim + one.round.terms.set_tail
    assert sent == packed(b"SET", one.key, one.token, b"NX", b"PX", b"%d" % ttl_ms)


def test_a_key_is_the_prefix_and_the_resource() -> None:
    one = Attempt("stock", prefix="lockbench:7f:")
    assert one.key == b"lockbench:7f:stock"
    assert one.claim == b"$18\r\nlockbench:7f:stock\r\n$%d\r\n%b\r\n" % (
        OWNER_TOKEN_BYTES,
        one.token,
    )


@pytest.mark.parametrize("resource", KEYS)
def test_a_release_is_the_cheapest_compare_and_delete(resource: str) -> None:
    one = Attempt(resource)
    assert DELEX.encode_release(one.claim) == packed(b"DELEX", one.key, b"IFEQ", one.token)
    assert DELIFEQ.encode_release(one.claim) == packed(b"DELIFEQ", one.key, one.token)
    script = packed(b"EVALSHA", COMPARE_AND_DELETE.sha, b"1", one.key, one.token)
    assert EVALSHA.encode_release(one.claim) == script


@pytest.mark.parametrize("resource", KEYS)
def test_an_extension_is_the_cheapest_compare_and_extend(resource: str) -> None:
    one = Attempt(resource)
    native = packed(b"SET", one.key, one.token, b"IFEQ", one.token, b"PX", b"500")
    script = packed(b"EVALSHA", COMPARE_AND_EXTEND.sha, b"1", one.key, one.token, b"500")
    assert DELEX.encode_extend(one.claim, 500) == DELIFEQ.encode_extend(one.claim, 500) == native
    assert EVALSHA.encode_extend(one.claim, 500) == script


@pytest.mark.parametrize("releases", [1, 2, 9, 10, 100])
def test_a_merged_release_names_all_keys_and_then_all_tokens(releases: int) -> None:
    many = [Attempt(f"r{number}") for number in range(releases)]
    keys = [one.key for one in many]
    tokens = [one.token for one in many]
    expected = packed(b"EVALSHA", COMPARE_AND_DELETE_MANY.sha, b"%d" % releases, *keys, *tokens)
    assert merged_release([one.claim for one in many]) == expected


@pytest.mark.parametrize(
    "script", [COMPARE_AND_DELETE, COMPARE_AND_EXTEND, COMPARE_AND_DELETE_MANY]
)
def test_a_script_is_known_by_the_sha1_of_its_source_and_asks_for_the_owner(script: Script) -> None:
    assert script.sha == sha1(script.source, usedforsecurity=False).hexdigest().encode()
    assert script.source.startswith(b"-- KEYS[")
    assert b"call('GET', KEYS[" in script.source
