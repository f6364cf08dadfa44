"""What is claimed of Redlock and of persistence: *a claim's name → confirmed or refuted, with its figure*.

Rules: a claim that another command measures is listed with that command; what must hold whatever happens is explored;
what needs real time and real clocks stands in leases.py. Source: the Redis documentation, "Distributed Locks with
Redis"; the Redlock text, "Performance, crash recovery and fsync".
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.explored import look_at_rules
from bench.experiments.safety_matrix.leases import confirmed
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import ELSEWHERE, PlannedRow, RowSetup, cannot
from bench.topology.child import Child, orders, say

PROCESSES, TOKENS = 4, 50_000  # of each kind, by each process
GUESSABLE = (
    "20 random bytes cannot be guessed; uuid1 tells its clock and its host, time and client id are known to anybody: "
    "harmless among friends, as a token is no password"
)
_PATIENCE_S = 60.0
MadeTokens = dict[str, tuple[float, list[str]]]  # by kind: how long one took (ns), all of them


def owner_tokens(_setup: RowSetup) -> Finding:
    """Collisions over all processes: none of random ones, some of those made of a time."""
    with ExitStack() as stack:
        name = "a process that makes owner tokens"
        clients = [stack.enter_context(Child(name, __name__)) for _ in range(PROCESSES)]
        for number, client in enumerate(clients):
            client.tell(number)
        made = [client.hear(MadeTokens, _PATIENCE_S) for client in clients]
    figures: dict[str, float] = {}
    for kind in made[0]:
        tokens = [token for one in made for token in one[kind][1]]
        figures[f"{kind}_collisions"] = len(tokens) - len(set(tokens))
        figures[f"{kind}_ns"] = round(sum(one[kind][0] for one in made) / PROCESSES)
    shown = bool(figures["microseconds_collisions"])
    needs = {"tokens of time and client id were made within a microsecond": shown or figures["microseconds_ns"] < 1000}
    broken = figures["urandom_collisions"] + figures["uuid1_collisions"]
    return confirmed(shown, figures, needs, broken=broken, reason=GUESSABLE)


def main() -> None:
    """Make tokens as one client, each kind in a tight loop."""
    for client in orders(int):
        makers: dict[str, Callable[[], bytes]] = {
            "urandom": lambda: os.urandom(20),
            "uuid1": lambda: uuid.uuid1().bytes,
            "microseconds": lambda client=client: b"%d:%d" % (time.time_ns() // 1000, client),  # type: ignore[misc]
        }
        made: MadeTokens = {}
        for kind, make in makers.items():
            began_ns = time.perf_counter_ns()
            tokens = [make() for _ in range(TOKENS)]
            made[kind] = (time.perf_counter_ns() - began_ns) / TOKENS, [token.hex() for token in tokens]
        say(made)


_SPLITS = "`lockbench split-votes` measures it, beside the closed form"
_RESTARTS = "`lockbench crash` measures it, by vote margin, policy, restart and abstention"
_POWER = "`lockbench crash` measures it, with power cuts at random moments"
_GRANTED = 30  # with fewer, one in ten may come after its end and not be seen (95 %)
_DISKS = "`lockbench fsync` its price, over disks, clients and pipelines"
CLAIMS: tuple[tuple[str, str, Callable[[RowSetup], Finding] | str], ...] = (  # looked at, or measured elsewhere
    ("owner-tokens", "tokens of many processes never collide", owner_tokens),
    (
        "votes",
        "granted on N/2+1 votes only, and never after the validity has ended",
        partial(look_at_rules, {"granted": _GRANTED, "too late": 1}),
    ),
    ("validity-drift", "with clocks off by less than the drift factor leases never overlap", leases.validity_drift),
    ("split-vote-window", "sending to all at once narrows the window in which nobody wins", _SPLITS),
    ("retry-delay", "a random delay before the next attempt ends split votes", _SPLITS),
    ("release-to-all", "released on all instances, believed granted or not", partial(look_at_rules, {"late votes": 1})),
    (
        "extension",
        "extended on a quorum, before the lease's end, a limited number of times only",
        partial(look_at_rules, {"extended": 1, "not extended": 1}),
    ),
    ("restart-margin", "without persistence one restart loses the lock, by vote margin", _RESTARTS),
    ("clean-shutdown", "AOF and a clean SHUTDOWN are fine, time passes while off", _RESTARTS),
    ("delayed-restart", "a restart delayed by the longest TTL is safe, and costs that time", _RESTARTS),
    ("partition-ttl", "a holder that is cut off costs a TTL", leases.partition),
    ("clock-drift", "drift is small against the TTL: what 10 % would cost", leases.clock_drift),
    ("everysec-loses", "everysec can lose the key at a power cut", _POWER),
    ("always-is-slow", "always is safe but slow", f"{_POWER}; {_DISKS}"),
)


def claim_cases() -> Iterator[PlannedRow]:
    """One row per claim."""
    for name, about, how in CLAIMS:
        look = cannot(ELSEWHERE, how) if isinstance(how, str) else how
        yield PlannedRow("claim", "redlock", name, "confirmed", about, look)


if __name__ == "__main__":
    main()
