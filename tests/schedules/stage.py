"""Where a schedule is played: *a recipe and its servers → clients one by one, and a judged record of what they did*.

Rules
- Every client is connected for itself, as a process of its own would be, with its own gate. One resource.
- Nobody waits at a gate for longer than `PATIENCE_S`: a schedule that went wrong is an error, never a hang.
- What clients do is recorded as the load records it, and judged by the same oracle.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from bench.experiments.safety_matrix.row import sets_of, sleep_until
from bench.measure.run_result import SafetyReport
from bench.recipes.fencing import OWN_KEYS
from bench.recipes.operations import Operation, history_of
from bench.recipes.protocol import Recipe, RecipeSettings
from bench.recipes.registry import RecipeEntry
from bench.safety.judge import Circumstances, judge
from bench.topology.fleet import HOST, Fleet, KeptPort
from lockcore import Denied, Lease, Outcome, RetryPolicy
from lockcore.clock import NS_PER_MS, monotonic_ns

PATIENCE_S = 30.0


class Gate:
    """Stops whoever comes to its `point`; "" = nobody."""

    def __init__(self, point: str = "") -> None:
        self._point = point
        self._standing = 0
        self._changed = threading.Condition()

    def __call__(self, point: str) -> None:
        """A caller comes to `point`; returns when it may go on. Raises TimeoutError."""
        with self._changed:
            if point != self._point:
                return
            self._standing += 1
            self._changed.notify_all()
            try:
                self._wait(lambda: self.is_open, f"nobody opened {point}")
            finally:
                self._standing -= 1

    @property
    def is_open(self) -> bool:
        """Whether it stops nobody, or no longer."""
        return not self._point

    def open(self) -> None:
        """Let everybody go, from now on."""
        with self._changed:
            self._point = ""
            self._changed.notify_all()

    def is_reached(self, before: Future[object] | None = None) -> bool:
        """Return when somebody stands here (True), or when `before` has ended without it. Raises TimeoutError."""
        ended = before.done if before else bool
        if before:
            before.add_done_callback(lambda _: self._look())
        with self._changed:
            self._wait(lambda: self._standing > 0 or ended(), f"nobody came to {self._point}")
            return self._standing > 0

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool], otherwise: str) -> None:
        if not self._changed.wait_for(reached, PATIENCE_S):
            raise TimeoutError(f"{otherwise} within {PATIENCE_S:g} s")


RESOURCE = "r0"
LONG_MS = 10_000  # outlives every schedule
SHORT_MS = 240  # waited for, where a lock must expire
ASKED_AT_MOST = 100  # on a machine that is too busy to answer; no schedule makes a server silent
BUSY_S = 0.01  # after which an instance that lagged is asked once more
SLACK_MS = 5  # a key's end is rounded to a millisecond


class Client:
    """One client of the recipe. It works in the caller's thread, or (`begin` to `finish`) in one of its own."""

    def __init__(self, recipe: Recipe, gate: Gate) -> None:
        self.recipe, self.gate = recipe, gate
        self.operations: list[Operation] = []
        self._thread = ThreadPoolExecutor(1)
        self._begun: Future[object] | None = None

    def acquire(self, ttl_ms: int = LONG_MS, wait_ms: int = 0) -> Lease | Denied:
        """Lock the stage's resource. An attempt that no gate stops and a busy machine answers late is made again."""
        for _ in range(ASKED_AT_MOST):
            start_ns, is_free = monotonic_ns(), self.gate.is_open
            result = self.recipe.acquire(RESOURCE, ttl_ms, wait_ms)
            self.operations.append(Operation(start_ns, result, monotonic_ns()))
            unasked = isinstance(result, Denied) and result.outcome is Outcome.UNREACHABLE and result.tally.absent
            if isinstance(result, Lease) or not (is_free and (result.tally.silent or unasked)):
                break
            time.sleep(BUSY_S if unasked else 0)
        return result

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
        result = self.operations[-1].result
        assert isinstance(result, Lease), result
        return result

    @property
    def is_granted(self) -> bool:
        """Whether the last acquire got a lease."""
        return isinstance(self.operations[-1].result, Lease)

    def begin(self, work: Callable[[], object]) -> bool:
        """Start an acquire or a release; return when it stands at the gate (True) or has ended (False)."""
        self.start(work)
        return self.gate.is_reached(self._begun)

    def start(self, work: Callable[[], object]) -> None:
        """Start something in the client's own thread, for `finish` to wait for."""
        self._begun = self._thread.submit(work)

    def finish(self) -> None:
        """Open the gate and wait for what was begun."""
        self.gate.open()
        if self._begun is not None:
            self._begun.result(PATIENCE_S)

    def close(self) -> None:
        """Let everybody go, disconnect."""
        self.gate.open()
        self._thread.shutdown()
        self.recipe.close()


def _came_late(result: Lease | Denied) -> bool:
    """Whether silence or the clock decided it: a quorum that refused did answer."""
    late = result.outcome is Outcome.TOO_LATE
    return late or bool(result.tally.silent and result.outcome in (Outcome.UNREACHABLE, Outcome.SPLIT_VOTE))


class Stage:
    """Clients of `recipe` on a running `fleet`. The URLs are all of the fleet's, or as many as the recipe locks on."""

    def __init__(self, recipe: RecipeEntry, fleet: Fleet) -> None:
        self.recipe, self.about, self.fleet = recipe, recipe.about, fleet
        self.urls = fleet.urls[: self.about.most]
        self.key_prefix = f"lockbench:stage-{token_hex(4)}:"
        self.clients: list[Client] = []
        self._dead = KeptPort()
        self._servers = [Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=2.0) for url in self.urls]

    @property
    def key(self) -> str:
        """The key of the stage's resource."""
        return self.key_prefix + RESOURCE

    @property
    def settings(self) -> RecipeSettings:
        """What a client is told at connect, but for its gate."""
        retry = RetryPolicy("full-jitter", 2.0, 100_000)
        return RecipeSettings(
            key_prefix=self.key_prefix, instance_timeout_ms=SHORT_MS / 4, retry=retry, folder=self.fleet.folder
        )

    def client(self, closed: str = "", *, urls: Sequence[str] | None = None, **settings: Any) -> Client:
        """Connect one more, with its gate `closed` at this point."""
        gate = Gate(closed)
        told = replace(self.settings, gate=gate, **settings)
        client = Client(self.recipe.connect(urls or self.urls, told), gate)
        self.clients.append(client)
        return client

    def cut_off_from_first(self) -> tuple[str, ...]:
        """The URLs of a client that cannot reach the first instance: nothing listens where it looks for it."""
        return (f"redis://{HOST}:{self._dead.number}", *self.urls[1:])

    def until_ended(self, lease: Lease) -> None:
        """Return when the TTL of `lease`, granted before now, has passed on every server and every clock."""
        sleep_until(lease.granted_ns + (lease.ttl_ms + SLACK_MS) * NS_PER_MS)

    def ttls_ms(self) -> list[int]:
        """PTTL of the resource's key on each server: −1 for a key without end, −2 for no key."""
        return [int(server.pttl(self.key)) for server in self._servers]

    def holds(self, server: int = 0) -> bytes | None:
        """What the resource's key holds on one server."""
        held: bytes | None = self.command(server, "GET", self.key)
        return held

    def command(self, server: int, *words: str) -> Any:
        """What one server answers."""
        return self._servers[server].execute_command(*words)  # type: ignore[no-untyped-call]

    def sets(self) -> int:
        """How many SETs the first server has executed."""
        return sets_of(self._servers[0])

    def unlink(self) -> None:
        """Remove all keys of the stage. A server that a schedule has killed has none."""
        names = [self.key_prefix + name for name in (RESOURCE, *OWN_KEYS)]
        for server in self._servers:
            with suppress(RedisError):
                server.unlink(*names)

    def report(self) -> SafetyReport:
        """What the oracle says of all that was done so far. A lease not given back is one still worked under."""
        operations = [(number, done) for number, client in enumerate(self.clients) for done in client.operations]
        history = history_of(operations)
        flaw = None if self.about.safe else self.about.flaw
        return judge(history, LONG_MS, Circumstances(unsafe_recipe=flaw))

    def circumstances(self) -> dict[str, bool]:
        """Whether the lock was granted at all, and everybody answered in time: a busy machine does neither."""
        results = [[done.result for done in client.operations] for client in self.clients if client.operations]
        late = [one[-1] for one in results if _came_late(one[-1])]
        granted = any(isinstance(result, Lease) for one in results for result in one)
        return {"somebody was granted": granted, "nobody was answered too late": not late} if results else {}

    def close(self) -> None:
        """End all clients, unlink what they left. A signal in the middle skips a step, never those after it."""
        with ExitStack() as steps:
            steps.callback(self._dead.release)
            for server in self._servers:
                steps.callback(server.close)
            steps.callback(self.unlink)
            for client in self.clients:
                steps.callback(client.close)
            for client in self.clients:
                client.gate.open()  # nobody waits at a gate until its patience is over

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Shown:
    """`seen`: whether the flaw that the schedule looks for was there; `figures` by name, their units in the names.

    `preconditions`: without which it was neither seen nor absent, each with whether it came about; `circumstances`:
    without which it cannot be called absent (a flaw that is seen where it is known to be needs nobody else).
    """

    seen: bool
    figures: Mapping[str, float | None]
    report: SafetyReport
    preconditions: Mapping[str, bool] = field(default_factory=dict)
    circumstances: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A course of events. `shown_by`: recipes on which its flaw must be seen; `absent_in`: on which it must not.

    `looks_for`: the flaw, in a few words. `instances`: how many servers the stage needs for a recipe that takes any
    number. `harms`: it kills servers, so its fleet is of no use afterwards.
    """

    name: str
    looks_for: str
    play: Callable[[Stage], Shown]
    shown_by: Sequence[str]
    absent_in: Sequence[str]
    instances: int = 3
    harms: bool = False


TIMESTAMPS = ("timestamp-getset", "timestamp-set", "company-2013")
QUORUMS = ("redlock", "redlock-sequential", "majority-release")


def schedule(
    looks_for: str, shown_by: Sequence[str], absent_in: Sequence[str] = (), *, instances: int = 3, harms: bool = False
) -> Callable[[Callable[[Stage], Shown]], Schedule]:
    """Make the function below a Schedule of its name, with the fields given."""
    return lambda play: Schedule(
        play.__name__.replace("_", "-"), looks_for, play, shown_by, absent_in, instances, harms
    )


def violated(stage: Stage, **figures: float | None) -> Shown:
    """The flaw is that exclusion is violated."""
    report = stage.report()
    return Shown(report.verdict == "VIOLATED", {"service_faults": report.service_faults, **figures}, report)
