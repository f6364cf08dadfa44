"""Tests the claims that need real time. A test measures lockcore's Redlock or owner tokens, and
confirms or refutes the claim.

A test reports a violation if two leases are valid at once, unless the claim says that leases
overlap. Source: the Redlock text.
"""

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.result import Figures, Finding, MatrixWord
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, Preconditions, row_verdict, unmet
from bench.scenario import Fault
from bench.topology.child import Child, orders, say
from bench.topology.faults.injection import Need, prepared_fleet
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.servants import Shape
from bench.topology.server import find_server
from lockcore import Denied, Lease, Redlock
from lockcore.clock import NS_PER_MS, monotonic_ns

# The word for a row that this machine cannot measure.
SKIPPED: Final = "skipped"
PREFIX = "lockbench:claim:"
INSTANCES = 3
_LINKS = frozenset({Need.PROXY})


@dataclass(frozen=True, slots=True)
class RowSetup:
    """The settings and the search process for the test of a row.

    `seed` is the seed of every random choice. If `quick` is true, the test is short. `server` is
    the path of a server program. If `server` is None, lockbench searches for a program. `searcher`
    is a search process of `lockbench explore`. The function `is_over` returns whether the test
    should end.
    """

    seed: int
    quick: bool
    server: str | None
    searcher: Child
    is_over: Callable[[], bool] = lambda: False


def cannot(verdict: MatrixWord, reason: str) -> Finding:
    """Return the finding for a row that is not tested."""
    return Finding("–", verdict, reason=reason)


def confirmed(
    holds: bool,
    figures: Figures,
    needs: Preconditions,
    *,
    broken: bool = False,
    reason: str | None = None,
) -> Finding:
    """Return the finding for a claim.

    `holds` is true if the observation agrees with the claim. `needs` holds the preconditions. If a
    precondition was not met, the verdict is "not known". `broken` is true if two leases were valid
    at once.
    """
    verdict = row_verdict(holds=holds, broken=broken, preconditions=needs)
    outcome = "confirmed" if verdict == AS_EXPECTED else "refuted"
    if verdict == NOT_KNOWN:
        outcome = NOT_KNOWN
        reason = "; ".join(filter(None, (reason, unmet(needs))))
    return Finding(outcome, verdict, figures, reason, needs)


def connect(urls: Sequence[str], **settings: Any) -> Redlock:
    """Return a new client of lockcore. The client trusts restarted servers at once, unless
    `settings` contains a different value for `rejoin`.
    """
    options = {"key_prefix": PREFIX, "rejoin": "trust", **settings}
    # This "shell" is a way of waiting, not a command shell.
    return Redlock.connect(urls, shell="threads", **options)  # noqa: S604


def double_grant(first: Lease, second: Lease | Denied) -> bool:
    """Return whether `second` was granted while `first` was valid.

    Call this function only if `first` was not released before the grant of `second`.
    """
    return isinstance(second, Lease) and second.granted_ns < first.valid_until_ns


def partition(_setup: RowSetup) -> Finding:
    """Disconnect a holder from the servers. Then the holder tries to release its lease, and another
    client waits for the lock.

    The finding says how long the other client had to wait, in ms and in TTLs.
    """
    ttl_ms = 500
    with (
        prepared_fleet(_LINKS, INSTANCES, "none") as fleet,
        connect(fleet.load_urls) as holder,
        connect(fleet.urls) as waiting,
    ):
        lease = holder.acquire("p", ttl_ms)
        for index in range(INSTANCES):
            fleet.shape(index, Shape(held=("to", "from")))
        cut_ns = monotonic_ns()
        holder.try_release(lease)
        granted = waiting.acquire("p", ttl_ms, 4 * ttl_ms)
        holder.close(0.0)
    blocked = (granted.granted_ns - cut_ns) / NS_PER_MS / ttl_ms
    figures: dict[str, float | None] = {"blocked_ms": blocked * ttl_ms, "blocked_per_ttl": blocked}
    needs = {
        "the holder lost its connection during its lease": cut_ns < lease.valid_until_ns,
        "the next caller requested the lock before the lease ended": blocked < 1.5,
    }
    return confirmed(blocked > 0.5, figures, needs, broken=double_grant(lease, granted))


# -- clocks ----------------------------------------------------------------------------------------

WITHIN = (0.995, 1.005)
BEYOND = (0.9, 1.1)
# A test makes at most this many tries. On a busy machine the next client may ask too late to see an
# overlap.
TIMES = 3
# A client may ask up to this time (ms) too late and is still in time, because retries come 2 ms
# apart.
LEAST_MS = 5.0


def drift(rates: tuple[float, float], setup: RowSetup) -> Finding:
    """Test leases on servers with clocks that are too slow or too fast. `rates` holds the two
    speeds, relative to a correct clock.

    The rates in WITHIN differ from a correct rate by half of the drift factor. With these clocks,
    no lease may overlap the next lease. The rates in BEYOND differ from a correct rate by ten times
    the drift factor. With the faster clock in BEYOND, a lease must overlap the next lease. With the
    slower clock in BEYOND, no lease may overlap the next lease.
    """
    ttl_ms = 1000 if setup.quick else 2000
    try:
        measured = {rate: _overlap_ms(rate, ttl_ms, setup) for rate in rates}
    except EnvironmentNotReadyError as error:
        return cannot(SKIPPED, str(error))
    figures: dict[str, float | None] = {"ttl_ms": ttl_ms}
    for rate, (overlap_ms, lived_ms) in measured.items():
        figures |= {
            f"overlap_ms_at_rate_{rate:g}": overlap_ms,
            f"lived_ms_at_rate_{rate:g}": lived_ms,
        }
    in_time = all(asked_in_time(rate, ttl_ms, lived_ms) for rate, (_, lived_ms) in measured.items())
    needs = {"the next lease began just after the key expired": in_time}
    slow_ms, fast_ms = (overlap_ms for overlap_ms, _ in measured.values())
    if rates == WITHIN:
        return confirmed(True, figures, needs, broken=slow_ms + fast_ms > 0)
    return confirmed(slow_ms == 0 and fast_ms > 0, figures, needs)


def asked_in_time(rate: float, ttl_ms: int, lived_ms: float) -> bool:
    """Return whether the next client asked for the lock early enough. Only an early request can
    show an overlap of two leases.

    To show an overlap, the next client must get the lock as soon as the key expires. The key
    expires TTL ÷ rate after the grant. If the clock is slow, the key always outlives its lease, so
    the result is always True.
    """
    return rate < 1 or lived_ms - ttl_ms / rate < max((1 - 1 / rate) * ttl_ms / 2, LEAST_MS)


def _overlap_ms(rate: float, ttl_ms: int, setup: RowSetup) -> tuple[float, float]:
    """Return the longest overlap of two consecutive leases (ms), and the shortest lifetime (ms) of
    the first lease's key.

    The function makes up to TIMES tries, and each try uses another resource.
    """
    targets = tuple(f"instance:{index}" for index in range(INSTANCES))
    orders = read_faults([Fault("clock-rate", 0, None, targets, "fixed", {"rate": rate})])
    overlap_ns = 0
    lived_ms = inf
    with prepared_fleet(needs_of(orders), INSTANCES, "none", find_server(setup.server)) as fleet:
        for order in orders:
            fault = injection(fleet, order)
            if refusal := fault.refusal():
                raise refusal
            fault.begin()
        for number in range(TIMES):
            with connect(fleet.load_urls) as first, connect(fleet.load_urls) as second:
                held = first.acquire(f"c{number}", ttl_ms)
                following = second.acquire(f"c{number}", ttl_ms, 2 * ttl_ms)
            overlap_ns = max(held.valid_until_ns - following.granted_ns, overlap_ns)
            lived_ms = min(lived_ms, (following.granted_ns - held.started_ns) / NS_PER_MS)
            if asked_in_time(rate, ttl_ms, lived_ms):
                break
    return overlap_ns / NS_PER_MS, lived_ms


# -- owner tokens ----------------------------------------------------------------------------------

# How many processes there are, and how many tokens of each kind a process makes.
PROCESSES = 4
TOKENS = 50_000
GUESSABLE = (
    "Nobody can guess 20 random bytes. A uuid1 contains the clock and the host, and anybody can "
    "know the time and the client id. Guessable tokens are safe among trusted clients, but they "
    "are not safe as passwords"
)
_PATIENCE_S = 60.0
# For each kind of token: the time for one token (ns), and all tokens.
MadeTokens = dict[str, tuple[float, list[str]]]


def owner_tokens(_setup: RowSetup) -> Finding:
    """Count the equal owner tokens among all processes, and return the finding.

    All random tokens must differ. Some tokens consist of a time in microseconds and a client id.
    The test expects collisions between such tokens.
    """
    with ExitStack() as stack:
        name = "a process that makes owner tokens"
        clients = [stack.enter_context(Child(name, __name__)) for _ in range(PROCESSES)]
        for number, client in enumerate(clients):
            client.tell(number)
        answers = [client.hear(MadeTokens, _PATIENCE_S) for client in clients]
    figures: dict[str, float] = {}
    for kind in answers[0]:
        tokens = [token for one in answers for token in one[kind][1]]
        figures[f"{kind}_collisions"] = len(tokens) - len(set(tokens))
        figures[f"{kind}_ns"] = round(sum(one[kind][0] for one in answers) / PROCESSES)
    shown = bool(figures["microseconds_collisions"])
    needs = {
        "a process made two tokens from the time and the client id within one microsecond": shown
        or figures["microseconds_ns"] < 1000
    }
    broken = figures["urandom_collisions"] + figures["uuid1_collisions"] > 0
    return confirmed(shown, figures, needs, broken=broken, reason=GUESSABLE)


def main() -> None:
    """Read client numbers, make tokens of each kind in a tight loop, and write the tokens."""
    for client in orders(int):
        makers: dict[str, Callable[[], bytes]] = {
            "urandom": lambda: os.urandom(20),
            "uuid1": lambda: uuid.uuid1().bytes,
            "microseconds": lambda client=client: (  # type: ignore[misc]
                b"%d:%d" % (time.time_ns() // 1000, client)
            ),
        }
        answer: MadeTokens = {}
        for kind, make in makers.items():
            began_ns = time.perf_counter_ns()
            tokens = [make() for _ in range(TOKENS)]
            answer[kind] = (
                (time.perf_counter_ns() - began_ns) / TOKENS,
                [token.hex() for token in tokens],
            )
        say(answer)


if __name__ == "__main__":
    main()
