"""Several engines on the same servers, by hand: *who asks what, when bytes move → who is woken,
what it cost*.

Servers execute what they get at once, and pass words on (SUBSCRIBE, PUBLISH) as a real one does:
between the replies.
"""

from collections import Counter
from typing import Any

from hiredis import Reader

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import Acquisition
from lockcore.engine.engine import Engine
from lockcore.facts.membership import Hello
from lockcore.facts.model import Lease
from lockcore.rounds.rounds import SetRound
from lockcore.settings import RetryPolicy
from tests.doubles.keyspace import Keyspace
from tests.lockcore.by_hand import Caller, NoChance
from tests.lockcore.scripted import DELIFEQ, START_NS, TTL_MS, settings_of, submit


class Town:
    """`mute`: servers that lose every word. `commands`: how many of each kind were executed."""

    def __init__(
        self, processes: int = 2, instances: int = 3, *, hears: bool = True, **settings: Any
    ) -> None:
        self.now_ns = START_NS
        self.resource = "stock"
        self.servers = [Keyspace("delifeq", lambda: self.now_ns) for _ in range(instances)]
        self.mute: set[int] = set()
        self.published: list[bytes] = []
        self.commands: Counter[str] = Counter()
        told = {"retry": RetryPolicy("push"), "key_prefix": "shop:"} | settings
        self.houses = [House(self, settings_of(**told), hears=hears) for _ in range(processes)]

    def run(self, after_ms: float = 0) -> None:
        """Time passes, and all that moves comes to rest."""
        self.now_ns += int(after_ms * NS_PER_MS)
        for house in self.houses:
            house.engine.tick(self.now_ns)
        moved = True
        while moved:
            moved = sum(house.turn() for house in self.houses) > 0

    def publish(self, index: int, channel: bytes, word: bytes) -> int:
        """How many heard it."""
        self.published.append(word)
        heard = 0
        for house in self.houses:
            if house.lives and house.inbox == channel:
                heard += 1
                if index not in self.mute:
                    parts = (b"message", channel, word)
                    house.replies[index] += b">3\r\n" + b"".join(
                        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
                    )
        return heard


class House:
    """One process: an engine, and callers who all want the same."""

    def __init__(self, town: Town, settings: Any, *, hears: bool) -> None:
        self.town = town
        self.lives = True
        self.engine = Engine(
            [f"host:{index}" for index in range(len(town.servers))], settings, lambda: None
        )
        self.inbox = self.engine.handoff.mail.inbox if self.engine.handoff and hears else b""
        self.replies = [b"" for _ in town.servers]
        self.callers: list[Caller] = []
        for index in range(len(town.servers)):
            self._connect(index, hears=hears)

    @property
    def now_ns(self) -> int:
        return self.town.now_ns

    def _connect(self, index: int, *, hears: bool) -> None:
        reader: Any = Reader()

        def transmit(data: bytes) -> int:
            reader.feed(data)
            while (command := reader.gets()) is not False:
                self.replies[index] += self._execute(index, command)
            return 0

        hello = Hello(f"run-{index}", 1_000_000, "by hand 1", 0, hears=hears)
        self.engine.members.attach(index, hello, DELIFEQ, transmit, self.now_ns)

    def _execute(self, index: int, command: list[bytes]) -> bytes:
        town = self.town
        kind = command[0].decode()
        town.commands[kind] += 1
        if kind == "PUBLISH":
            return b":%d\r\n" % town.publish(index, *command[1:])
        return town.servers[index].run(command)

    def asks(self, wait_ms: float = 60_000) -> Caller:
        """One more caller wants it."""
        engine = self.engine
        acquire = Acquisition(
            engine, self.town.resource, engine.terms(TTL_MS), wait_ms, self.now_ns, NoChance()
        )
        self.callers.append(Caller(self, acquire.steps(self.now_ns)))  # type: ignore[arg-type]
        self.town.run()
        return self.callers[-1]

    def gives_back(self, caller: Caller) -> None:
        """A holder releases."""
        assert isinstance(caller.result, Lease)
        submit(self.engine, self.engine.release_round(caller.result, self.now_ns))
        caller.result = None
        self.town.run()

    def turn(self) -> bool:
        """What a shell does in one turn; whether anything moved."""
        if not self.lives:
            return False
        self.engine.flush(self.now_ns)
        moved = False
        for index, data in enumerate(self.replies):
            if data:
                moved = True
                self.replies[index] = b""
                self.engine.received(index, data, self.now_ns)
        if self.engine.take_ready():
            moved = True
            for caller in self.callers:
                caller.go_on()
        self.engine.flush(self.now_ns)
        return moved or any(self.replies)

    @property
    def trying(self) -> int:
        """How many have a SET under way."""
        return sum(isinstance(caller.wanted, SetRound) for caller in self.callers)
