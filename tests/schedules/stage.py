"""Where a course of events is played: *a recipe → its clients in virtual time, and a judged record
of what they did*.

Servers and time are those of `lockbench explore` (only in a process that `sockets.take_over` made
one for simulations); what clients do is recorded as the load records it, and judged by the same
oracle. Nobody waits for real: what takes ten seconds is over at once, and comes out the same every
time.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import seed
from typing import Any

from bench.experiments.explore.network import SimulatedServer
from bench.experiments.explore.sockets import Scene, url_of
from bench.experiments.explore.world import Process, World, here
from bench.experiments.judge.party import history_of
from bench.measure.record import OperationFacts
from bench.measure.run_result import SafetyReport
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.safety.judge import Circumstances, judge
from lockcore import Denied, Lease, Outcome, RetryPolicy
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, monotonic_ns

RESOURCE = "r0"
# outlives every course
LONG_MS = 10_000
# waited for, where a lock must expire
SHORT_MS = 240
INSTANCES = 3
Figures = dict[str, float | None]
Course = Callable[["Stage"], Figures]
_STAGES = count()


@dataclass
class Operation:
    """One acquire of a client and, 0 or None until then, its release. Times in ns."""

    start_ns: int
    result: Lease | Denied
    ended_ns: int
    sent_ns: int = 0
    replied_ns: int = 0
    release: Outcome | None = None

    def facts(self, caller: int) -> OperationFacts:
        """As the load records it; a lease that was not given back is still worked under."""
        found = self.result
        release = self.release.value if self.release else "none"
        attempt_ns = granted_ns = valid_until_ns = work_end_ns = 0
        if isinstance(found, Lease):
            attempt_ns = found.started_ns
            granted_ns = found.granted_ns
            valid_until_ns = found.valid_until_ns
            work_end_ns = self.sent_ns or monotonic_ns()
        elif found.lost_ns:
            attempt_ns = found.lost_ns[-1]
        return OperationFacts(
            intended_ns=self.start_ns,
            start_ns=self.start_ns,
            attempt_ns=attempt_ns,
            granted_ns=granted_ns,
            valid_until_ns=valid_until_ns,
            work_end_ns=work_end_ns,
            release_sent_ns=self.sent_ns,
            release_replied_ns=self.replied_ns,
            ended_ns=self.ended_ns,
            resource=0,
            caller=caller,
            outcome=found.outcome.value,
            sequence=1,
            release_outcome=release,
        )


class Client:
    """One client of a recipe, held up for `pause_ms` (None: for ever) where it comes to `point`."""

    def __init__(
        self, stage: "Stage", point: str, pause_ms: float | None, urls: Sequence[str], **told: Any
    ) -> None:
        self._point = point
        self._pause_ms = pause_ms
        # the pause is the holder's, and the acquire over, as in the load
        self._stalls = point == "after-grant"
        settings = RecipeSettings(
            key_prefix=stage.prefix,
            retry=RetryPolicy("full-jitter", 2.0, 100_000),
            gate=self._gate,
            **told,
        )
        self.recipe: Any = find_recipe(stage.recipe).connect(urls, settings)
        self.operations: list[Operation] = []

    def _gate(self, point: str) -> None:
        if point == self._point:
            self._point = ""
            until_ns = (
                FAR_FUTURE_NS
                if self._pause_ms is None
                else monotonic_ns() + int(self._pause_ms * NS_PER_MS)
            )
            here().wait(until_ns)

    def acquire(self, ttl_ms: int = LONG_MS, wait_ms: int = 0) -> Lease | Denied:
        """Lock the stage's resource."""
        start_ns = monotonic_ns()
        found: Lease | Denied = self.recipe.acquire(RESOURCE, ttl_ms, wait_ms)
        stalled = self._stalls and isinstance(found, Lease)
        self.operations.append(
            Operation(start_ns, found, found.granted_ns if stalled else monotonic_ns())
        )
        return found

    def release(self) -> Outcome:
        """Give the last lease back."""
        operation = self.operations[-1]
        operation.sent_ns = monotonic_ns()
        operation.release = self.recipe.release(self.lease)
        operation.replied_ns = monotonic_ns()
        return operation.release

    @property
    def lease(self) -> Lease:
        """What the last acquire got; it must have got one."""
        found = self.operations[-1].result
        assert isinstance(found, Lease), found
        return found

    @property
    def is_granted(self) -> bool:
        """Whether the last acquire got a lease."""
        return bool(self.operations) and isinstance(self.operations[-1].result, Lease)


class Stage:
    """Clients of `recipe` on simulated servers, one of which is down; everything happens in one
    course."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.about = find_recipe(recipe).about
        self.prefix = f"stage-{os.getpid()}-{next(_STAGES)}:"
        self.clients: list[Client] = []
        self.world = World(lambda _place: None)
        self.servers = [SimulatedServer(self.world, index, 1.0) for index in range(INSTANCES + 1)]
        self.servers[-1].down = True
        self.urls = [url_of(index) for index in range(self.about.most or INSTANCES)]

    def play(self, course: Course) -> Figures:
        """What came of a course."""
        found = Figures()
        busy = [course]

        def work() -> None:
            found.update(course(self))
            busy.clear()

        Scene.servers = tuple(self.servers)
        Scene.worlds = Scene.worlds + 1
        seed(1)
        Process(self.world, 0).start(work)
        self.world.run(self.world.now_ns + 100 * LONG_MS * NS_PER_MS, busy)
        self.world.end()
        for client in self.clients:
            client.recipe.close()
        return found

    def client(
        self,
        point: str = "",
        pause_ms: float | None = None,
        *,
        urls: Sequence[str] = (),
        **told: Any,
    ) -> Client:
        """Connect one more."""
        self.clients.append(Client(self, point, pause_ms, urls or self.urls, **told))
        return self.clients[-1]

    @property
    def without_first(self) -> list[str]:
        """The URLs of a client that cannot reach the first instance."""
        return [url_of(INSTANCES), *self.urls[1:]]

    def start(self, *works: Callable[[], object]) -> Callable[[], None]:
        """Begin all of them at once; what is returned waits for their ends."""
        ended: list[None] = []
        for work in works:
            here().process.start(partial(lambda done: (done(), ended.append(None)), work))

        def finish() -> None:
            while len(ended) < len(works):
                time.sleep(0.001)

        return finish

    def until_ended(self, lease: Lease) -> None:
        """Return when the TTL of `lease` has passed on every server and every clock."""
        time.sleep(
            max(lease.started_ns / NS_PER_MS + lease.ttl_ms + 5 - monotonic_ns() / NS_PER_MS, 0)
            / 1000
        )

    @property
    def held(self) -> list[Mapping[bytes, Any]]:
        """What each server holds."""
        return [server.data.keys for server in self.servers]

    @property
    def ttls_ms(self) -> list[Any]:
        """PTTL of the resource's key on each server: −1 for a key without end, −2 for no key."""
        return [server.data.pttl((self.prefix + RESOURCE).encode()) for server in self.servers]

    def report(self) -> SafetyReport:
        """What the oracle says of all that was done so far."""
        operations = [
            done.facts(number)
            for number, client in enumerate(self.clients)
            for done in client.operations
        ]
        flaw = None if self.about.safe else self.about.flaw
        return judge(history_of(operations), LONG_MS, Circumstances(unsafe_recipe=flaw))
