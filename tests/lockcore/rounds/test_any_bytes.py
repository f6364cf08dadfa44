"""Bytes stay bytes: whatever texts, messages and errors hold, each reply is read as one that is
read alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hiredis import ReplyError

from lockcore.rounds.awaited import Asked
from lockcore.rounds.resp import bulk, request
from lockcore.rounds.rounds import Round
from tests.doubles.keyspace import NIL, OK, ONE, WRONGTYPE, ZERO
from tests.lockcore.rounds.one_reply_at_a_time import PlainReader
from tests.lockcore.scripted import (
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    name_of,
    rounds_kept,
    settings_of,
)

# RESP3's nil
NULL = b"_\r\n"
INBOX = b"shop:handoff:" + b"p" * 22
TEXTS = (
    b"\n_\r",
    b"_\r\n",
    b"\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b":0\r\n",
    b"$-1\r\n",
    b"*2\r\n",
    b">",
    b"x",
    b"\r",
    b"\n",
)
HEAD = b">3\r\n$7\r\nmessage\r\n" + bulk(INBOX) + b"$"
FLUSHED = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


def text(random: Random) -> bytes:
    """What a user may choose, such as a resource's name, a value or a message: here, much that
    looks like replies."""
    return b"".join(random.choices(TEXTS, k=random.randrange(12)))


def message(random: Random) -> bytes:
    """What another client publishes."""
    return b">3\r\n" + bulk(b"message") + bulk(INBOX) + bulk(text(random))


def odd(random: Random) -> bytes:
    """A reply that no lock is answered with."""
    line = text(random).replace(b"\r", b" ").replace(b"\n", b" ")
    return random.choice(
        (
            bulk(text(random)),
            bulk(b"OK"),
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n" + bulk(text(random)) + ONE,
            b":5\r\n",
            b"*1\r\n*2\r\n" + NULL + bulk(text(random)),
            b"~1\r\n" + bulk(text(random)),
            b"%1\r\n+a\r\n" + ONE,
            b"-ERR " + line + b"\r\n",
            b"-MISCONF " + line + b"\r\n",
            b"+" + line + b"\r\n",
            b"#t\r\n",
            b",1.5\r\n",
            b"=6\r\ntxt:OK\r\n",
            b"(12\r\n",
            b"+ok\r\n",
            b"$0\r\n\r\n",
        )
    )


def answer(command: list[bytes], random: Random, oddness: float, held: set[bytes]) -> bytes:
    """One instance's reply to one command: mostly what it is asked for; what is held is mostly
    refused by all."""
    chance = random.random()
    if chance < oddness:
        return odd(random)
    if command[0] == b"SET":
        if (command[1] in held) == (random.random() < 0.9):
            return random.choice((NULL, NULL, NIL))
        return OK
    if command[0] == b"ASK":
        return random.choice((bulk(text(random)), NIL, NULL, ONE))
    if command[0] == b"EVALSHA" and int(command[2]) > 1:
        parts = [
            WRONGTYPE if random.random() < oddness else random.choice((ONE, ZERO))
            for _ in command[3::2]
        ]
        return b"*%d\r\n" % len(parts) + b"".join(parts)
    return ONE if random.random() < 0.8 else ZERO


class Reading:
    """One fleet, its callers, and what it came to know. `plain`: each reply is read alone."""

    def __init__(self, seed: int, *, plain: bool) -> None:
        self.random = Random(seed)
        instances = self.random.choice((1, 2, 3, 3, 5))
        merge = self.random.random() < 0.3
        settings = settings_of(
            merge_releases=merge,
            rejoin=self.random.choice(("trust", "trust-first")),
            max_ttl_ms=10_000,
        )
        self.fleet = ScriptedFleet(
            instances, settings=settings, dialect=EVALSHA if merge else DELIFEQ
        )
        self.known: list[object] = []
        self.rounds: list[Round] = []
        self.readers = [self._reader(index, plain=plain) for index in range(instances)]

    def _reader(self, index: int, *, plain: bool) -> Callable[[bytes], None]:
        engine = self.fleet.engine
        engine.pipes[index].heard = lambda word, *_: self.known.append((index, word))
        if self.random.random() < 0.5:
            engine.pipes[index].replies.message_head = HEAD
        if plain:
            return PlainReader(engine, index).receive
        return lambda data: engine.received(index, data, self.fleet.now_ns)

    def _asked(self, reply: object, pipe: Any) -> None:
        shown: object = "?"
        if isinstance(reply, ReplyError):
            shown = f"error {reply}"
        elif type(reply) in {bytes, int, type(None)}:
            shown = reply
        self.known.append((pipe.index, shown))

    def ask(self) -> None:
        """Callers acquire, others release; something is asked of single instances in between."""
        fleet = self.fleet
        random = self.random
        for number in range(random.choice((1, 2, 4, 5, 20))):
            won = [
                round_
                for round_ in self.rounds
                if name_of(round_) == "acquired" and not round_.cleaned
            ]  # type: ignore[union-attr]
            if won and random.random() < 0.4:
                fleet.engine.clean_up(random.choice(won))  # type: ignore[arg-type]
            else:
                self.rounds.append(fleet.begin(f"r{number}"))
            if random.random() < 0.05:
                pipe = random.choice(fleet.engine.pipes)
                fleet.engine.unicast(pipe, request(b"ASK"), Asked(fleet.now_ns, self._asked))
        fleet.flush()

    def play(self) -> list[object]:
        """Everything that is asked is answered, in pieces of any size, from all instances by
        turns."""
        fleet = self.fleet
        random = self.random
        oddness = random.choice((0.0, 0.03, 0.3))
        held = {b"r%d" % number for number in range(20) if random.random() < 0.3}
        left = [b"" for _ in fleet.unanswered]
        for _ in range(3):
            self.ask()
            while any(fleet.unanswered) or any(left):
                for index, commands in enumerate(fleet.unanswered):
                    for command in commands:
                        if random.random() < 0.05:
                            left[index] += message(random)
                        if random.random() < 0.005:
                            left[index] += FLUSHED
                        left[index] += answer(command, random, oddness, held)
                    commands.clear()
                index = random.randrange(len(left))
                size = random.choice((1, 2, 3, 17, 200, 4_000))
                if left[index]:
                    self.readers[index](left[index][:size])
                    left[index] = left[index][size:]
                    self.known.append(
                        [(name_of(round_), tuple(round_.tally)) for round_ in self.rounds]
                    )
                fleet.flush()
        self.known.append(
            [
                (pipe.traffic.errors, pipe.awaited, pipe.traffic.late_replies)
                for pipe in fleet.engine.pipes
            ]
        )
        fleet.tick(60)
        fleet.engine.take_ready()
        if not oddness:
            assert fleet.is_empty()
            assert rounds_kept(fleet.engine) == []
        return self.known


@pytest.mark.parametrize("seed", range(150))
def test_any_bytes_in_any_pieces_count_as_one_reply_read_at_a_time(seed: int) -> None:
    """Names, values and messages that look like replies are none: they grant, refuse and confirm
    nothing."""
    assert Reading(seed, plain=False).play() == Reading(seed, plain=True).play()
