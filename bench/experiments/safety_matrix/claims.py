"""What is claimed of Redlock and of persistence: *a claim's name → confirmed or refuted, with its figure*.

Rules: a claim that another command measures is listed with that command; those about leases and clocks stand in
leases.py, those about restarts here: servers are killed with -9 unless it says otherwise, every trial has its own
resource. Source: the Redis documentation, "Distributed Locks with Redis"; the Redlock text, "Performance, crash
recovery and fsync".
"""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from redis import Redis

from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.leases import PREFIX, confirmed, connect, double_grant, left_ms
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import BROKEN_OFF, ELSEWHERE, Pace, PlannedRow, RowSetup, cannot
from bench.topology.child import Child, orders, say
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Lease, RetryPolicy
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

TTL_MS, MAX_TTL_MS = 1000, 1200
WAIT_MS = 5000
_UNTIL_GRANTED = RetryPolicy("full-jitter", 2.0, 100_000, retry_unreachable=True)
OFF_S, KEY_MS = 0.5, 5000
NOTICED_MS = 250  # what a key's end may be off: far less than OFF_S, or time had stood still


def restart_margin(setup: RowSetup) -> Finding:
    """One of the voters restarts empty: N=3 with a vote to spare and without, N=4 without."""
    trials = 3 if setup.quick else 20
    figures: dict[str, float | None] = {"trials": trials}
    asked: dict[tuple[int, int], list[bool | None]] = {(3, 1): [None], (3, 0): [None], (4, 0): [None]}
    for instances, margin in tuple(asked):
        with suppress(*BROKEN_OFF), start_fleet(instances, "none") as fleet:
            asked[instances, margin] = [_granted_again(fleet, margin, f"m-{margin}-{n}") for n in range(trials)]
        figures[f"double_grants_n{instances}_margin_{margin}"] = asked[instances, margin].count(True)
    all_asked = not any(None in answers for answers in asked.values())
    needs = {"the votes were as planned, and the second client was answered in time": all_asked}
    safe = True in asked[3, 1] + asked[4, 0]
    return confirmed(all(asked[3, 0]), figures, needs, broken=int(safe))


def _granted_again(fleet: Fleet, margin: int, resource: str) -> bool | None:
    """Lock so that `margin` votes are to spare, restart one voter, ask as another: a double grant? None: not asked."""
    last, quorum = len(fleet.urls) - 1, len(fleet.urls) // 2 + 1
    with suppress(*BROKEN_OFF), ExitStack() as clients:
        if not margin:
            fleet.kill(last)
        lease = clients.enter_context(connect(fleet.urls)).acquire(resource, 10_000, 2000)
        cast = sum(left_ms(url, resource) > 0 for url in (fleet.urls if margin else fleet.urls[:last]))
        if not margin:
            fleet.restart(last)
        fleet.restart(0)
        asked = clients.enter_context(connect(fleet.urls)).try_acquire(resource, 10_000)
        known = cast == quorum + margin and (isinstance(asked, Lease) or not asked.tally.silent)
        return double_grant(lease, asked) if known and monotonic_ns() < lease.valid_until_ns else None
    return None


def clean_shutdown(_setup: RowSetup) -> Finding:
    """A key with an end, SHUTDOWN (SIGTERM), a while, a start: how far is its end off?"""
    with start_fleet(1, "everysec") as fleet, Redis.from_url(fleet.urls[0]) as server:
        set_ns = monotonic_ns()
        server.set(PREFIX + "s", "x", px=KEY_MS)
        unsure_ns = monotonic_ns() - set_ns
        fleet.kill(0, signal.SIGTERM)
        time.sleep(OFF_S)
        fleet.restart(0)
        asked_ns = monotonic_ns()
        found_ms = left_ms(fleet.urls[0], "s")
    answered_ns = monotonic_ns()
    unsure_ms = (unsure_ns + answered_ns - asked_ns) / NS_PER_MS
    needs = {
        "the server was asked before the key's end": answered_ns < set_ns + KEY_MS * NS_PER_MS,
        f"it answered within {NOTICED_MS / 2:g} ms": unsure_ms < NOTICED_MS / 2,
    }
    lost = int(found_ms < 0 and all(needs.values()))
    off_ms = found_ms - (KEY_MS - (answered_ns - set_ns) / NS_PER_MS)
    return confirmed(abs(off_ms) < NOTICED_MS, {"lost_keys": lost, "end_off_ms": off_ms}, needs, broken=lost)


def delayed_restart(_setup: RowSetup) -> Finding:
    """One, a majority, all restart without persistence; a client trusts them at once, or has them abstain."""
    figures: dict[str, float | None] = {}
    back_s: list[float] = []
    with Pace() as pace:
        for name, restarted in (("one", (0,)), ("majority", (0, 1)), ("all", (0, 1, 2))):
            with suppress(*BROKEN_OFF), start_fleet(3, "none") as fleet:  # what others came to stays seen
                trusting, _, back = _after_restart(fleet, restarted, "trust")
                figures[f"double_grants_trusting_{name}"] = int(trusting)
                delayed, unavailable_s, again = _after_restart(fleet, restarted, "trust-first")
                figures[f"double_grants_delayed_{name}"] = int(delayed)
                figures[f"unavailable_{name}_s"] = unavailable_s
                back_s += (back, again)
    needs = {
        f"every lock was granted within {WAIT_MS} ms": len(back_s) == 6,
        "every server was back within half a lease": max(back_s, default=0) < TTL_MS / 2000,
        **pace.kept(TTL_MS / 10),
    }
    broken = sum(value or 0 for name, value in figures.items() if "delayed" in name)
    one_s, majority_s = (figures.get(f"unavailable_{name}_s") or 0 for name in ("one", "majority"))
    lost = all(figures.get(f"double_grants_trusting_{name}") for name in ("all", "majority"))
    costs_a_ttl = one_s < MAX_TTL_MS / 1000 <= majority_s
    return confirmed(lost and costs_a_ttl, figures, needs, broken=broken)


def _after_restart(fleet: Fleet, restarted: tuple[int, ...], rejoin: str) -> tuple[bool, float, float]:
    """Whether a client that knew the servers got the held lock too early; seconds until it got a free one, and until
    the servers were back. Raises LockcoreError where nothing was granted in WAIT_MS."""
    resource = f"d-{rejoin}-{len(restarted)}"
    with (
        connect(fleet.urls, max_ttl_ms=MAX_TTL_MS) as first,
        connect(fleet.urls, max_ttl_ms=MAX_TTL_MS, rejoin=rejoin, retry=_UNTIL_GRANTED) as second,
    ):
        lease = first.acquire(resource, TTL_MS)
        for index in restarted:
            fleet.kill(index)
        died_ns = monotonic_ns()
        fleet.restart(*restarted)
        back_s = (monotonic_ns() - died_ns) / NS_PER_S
        free = second.acquire(f"{resource}-free", TTL_MS, WAIT_MS)
        held = second.acquire(resource, TTL_MS, WAIT_MS)
    return double_grant(lease, held), (free.granted_ns - died_ns) / NS_PER_S, back_s


# -- tokens, and the table ---------------------------------------------------------------------------------------------

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
_POWER = "`lockbench crash` measures it, with power cuts at random moments"
_DISKS = "`lockbench fsync` its price, over disks, clients and pipelines"
CLAIMS: tuple[tuple[str, str, Callable[[RowSetup], Finding] | str], ...] = (  # looked at, or measured elsewhere
    ("owner-tokens", "tokens of many processes never collide", owner_tokens),
    ("votes", "granted on N/2+1 votes only, and never after the validity has ended", leases.votes),
    ("validity-drift", "with clocks off by less than the drift factor leases never overlap", leases.validity_drift),
    ("split-vote-window", "sending to all at once narrows the window in which nobody wins", _SPLITS),
    ("retry-delay", "a random delay before the next attempt ends split votes", _SPLITS),
    ("release-to-all", "released on all instances, believed granted or not", leases.release_to_all),
    ("extension", "extended on a quorum, before the lease's end, a limited number of times only", leases.extension),
    ("restart-margin", "without persistence one restart loses the lock, by vote margin", restart_margin),
    ("clean-shutdown", "AOF and a clean SHUTDOWN are fine, time passes while off", clean_shutdown),
    ("delayed-restart", "a restart delayed by the longest TTL is safe, and costs that time", delayed_restart),
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
