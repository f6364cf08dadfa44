"""What lockcore did in the simulator, in the words of the model: *a schedule as it was played →
steps of Redlock.tla*.

    python -m tests.model.traces [N]   # N schedules (1,000) of `lockbench explore`, each step
                                       # asked of TLC

Rules: every step has its time (µs) and its effect. Commands of a client reach an instance in their
order; those that never did are lost before the next one that did. A script that the server did not
know is no step; nor is an extension sent once more for that, which found nothing. One caller in a
client, one resource.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from operator import itemgetter
from typing import NamedTuple

from bench.experiments.explore.play import ENGINE
from bench.experiments.explore.schedule import TTL_MS, Setting
from bench.experiments.explore.search import numbered, setting_of
from bench.experiments.explore.world import START_NS, Event
from bench.recipes.registry import find_recipe
from tests.model.checker import run_tlc

NS_PER_TICK = 1000
TTL = TTL_MS * 1000
# as lockcore's validity: 1 % and 2 ms
ALLOWANCE = TTL // 100 + 2000
MANY = 1_000_000
FAR = 1 << 62
CONSTANTS = {
    "Horizon": "0",
    "Attempts": f"{MANY}",
    "Crashes": f"{MANY}",
    "Losses": f"{MANY}",
    "Owed": f"{MANY}",
    "Forgets": "0",
    "Skew": f"{TTL // 100}",
    "Ttl": f"{TTL}",
    "LongTtl": f"{TTL}",
    "LongOnes": "{}",
    "Allowance": f"{ALLOWANCE}",
    "Trust": "FALSE",
    "OwnerCheck": "TRUE",
    "CleanLate": "TRUE",
    "FromSending": "TRUE",
}
# of one attempt, at one time
ORDER = ("acquire", "grant", "extend", "extended", "release", "give up")

# of what was seen
NAMES = {"granted": "grant", "extended": "extended"}
SENDS = {"acquire": "set", "extend": "ext", "release": "del", "give up": "del", "again": "del"}

# when, and what comes first then
Order = tuple[int, ...]


class TraceStep(NamedTuple):
    """A step of the model: when, what, who; see Trace.tla."""

    at: int
    do: str
    c: int = 0
    i: int = 0
    n: int = 0
    end: int = 0
    ok: bool = False


class Accepted(NamedTuple):
    """`traces`, `steps`: asked; `refused`: which of them (from 0) and its step that the model does
    not take, or −1."""

    traces: int
    steps: int
    refused: tuple[int, int]


class _Call(NamedTuple):
    """A command that an instance executed."""

    do: str
    token: bytes
    sent: int
    ok: bool
    known: bool


class _Attempt(NamedTuple):
    """An attempt of a client: its number, when it began, until when it was granted (0: not), when
    it was over."""

    client: int
    number: int
    began: int
    until: int
    over: int


def trace_of(seen: Sequence[Event], rate: float) -> list[TraceStep]:
    """The steps of one play. `rate`: of the servers' clocks."""
    attempts = _attempts(seen, [(event, call) for event in seen if (call := _call(event))])
    clients = list(_of_clients(seen, attempts))
    planned = [*((_order(step), step) for step in clients), *_of_instances(seen, attempts, clients)]
    return list(_with_losses([step for _, step in sorted(planned, key=itemgetter(0))], rate))


def _tick(time_ns: int) -> int:
    return (time_ns - START_NS) // NS_PER_TICK


def _call(event: Event) -> _Call | None:
    if event[1] != "call":
        return None
    words = event[5]
    reply = event[6]
    name = words[0]
    sent = _tick(event[4])
    ok = reply in (b"+OK\r\n", b":1\r\n")
    known = not reply.startswith(b"-")
    if name == b"SET":
        return _Call("set" if b"NX" in words else "ext", words[2], sent, ok, known)
    if name in (b"EVAL", b"EVALSHA"):
        return _Call("ext" if len(words) > 5 else "del", words[4], sent, ok, known)
    return _Call("del", words[-1], sent, ok, known) if name in (b"DELIFEQ", b"DELEX") else None


def _attempts(seen: Sequence[Event], calls: Sequence[tuple[Event, _Call]]) -> dict[bytes, _Attempt]:
    """Every attempt of which an instance has heard, by its owner token."""
    attempts: dict[bytes, _Attempt] = {}
    for client in {event[2] for event, _ in calls}:
        mine = [call for event, call in calls if event[2] == client]
        first = {
            call.token: min(one.sent for one in mine if one.token == call.token)
            for call in mine
            if call.do == "set"
        }
        tokens = sorted(first, key=lambda token: first[token])
        own = [event for event in seen if event[1] in (*NAMES, "gives back") and event[2] == client]
        for number, token in enumerate(tokens, 1):
            next_ = first[tokens[number]] if number < len(tokens) else FAR
            between = [event for event in own if first[token] <= _tick(event[0]) <= next_]
            until = next((_tick(event[3]) for event in between if event[1] == "granted"), 0)
            ends = [call.sent for call in mine if call.do == "del" and call.token == token]
            ends += [_tick(event[0]) for event in between if event[1] == "gives back"]
            over = min(ends, default=FAR if until else next_)
            began = min(until - TTL + ALLOWANCE, first[token]) if until else first[token]
            attempts[token] = _Attempt(client + 1, number, began, until, over)
    return attempts


def _of_clients(seen: Sequence[Event], attempts: Mapping[bytes, _Attempt]) -> Iterator[TraceStep]:
    """What clients begin and end."""
    for client, number, began, until, over in attempts.values():
        yield TraceStep(began, "acquire", client, n=number)
        if over < FAR:
            yield TraceStep(over, "release" if until else "give up", client, n=number)
    for event in seen:
        if event[1] in NAMES:
            at = _tick(event[0])
            client = event[2] + 1
            number = max(
                one.number
                for one in attempts.values()
                if one.client == client and one.until and one.began <= at
            )
            end = _tick(event[3])
            yield TraceStep(at, NAMES[event[1]], client, n=number, end=end)
            if event[1] == "extended":
                yield TraceStep(end - TTL + ALLOWANCE, "extend", client, n=number)


def _of_instances(
    seen: Sequence[Event], attempts: Mapping[bytes, _Attempt], clients: Sequence[TraceStep]
) -> Iterator[tuple[Order, TraceStep]]:
    """What instances do, and what was sent to them later than when the model's clients send; each
    with its order."""
    # of what each connection brought last, when that was sent
    last: dict[tuple[int, int], Order] = {}
    asked = {(step.c, step.n) for step in clients if step.do == "extend"}
    for number, event in enumerate(seen):
        if event[1] == "restart":
            yield (_tick(event[0]),), TraceStep(_tick(event[0]), "crash", i=event[2] + 1)
        if (call := _call(event)) is None:
            continue
        client, attempt, _, until, over = attempts.get(call.token, (event[2] + 1, 0, 0, 0, 0))
        step = TraceStep(_tick(event[0]), call.do, client, event[3] + 1, attempt, ok=call.ok)
        sender = {"set": "acquire", "ext": "extend"}.get(call.do, "release" if until else "give up")
        order: Order = (call.sent, attempt, ORDER.index(sender))
        if call.known:
            yield (step.at,), step
        if call.do == "del" and call.sent != over:
            before = last.get((client, step.i), (0,))
            order = (*(before if before[0] == call.sent else order), number)
            yield order, TraceStep(call.sent, "again", client, step.i, attempt)
        # one that came to nothing
        if call.do == "ext" and (client, attempt) not in asked:
            asked.add((client, attempt))
            yield order, TraceStep(call.sent, "extend", client, n=attempt)
        last[client, step.i] = order


def _order(step: TraceStep) -> Order:
    """When a client does something: of one time, behind what instances do, as that was sent
    before."""
    return step.at, step.n, ORDER.index(step.do)


def _with_losses(steps: Sequence[TraceStep], rate: float) -> Iterator[TraceStep]:
    """The steps with what was lost between them, and with the ends of keys."""
    links: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for step in steps:
        if step.do in SENDS:
            for instance in (step.i,) if step.i else (1, 2, 3):
                links.setdefault((step.c, instance), []).append((SENDS[step.do], step.n))
        elif step.do == "crash":
            for client, instance in links:
                if instance == step.i:
                    links[client, instance] = []
        elif step.i:
            link = links.get((step.c, step.i), [])
            wanted = (step.do, step.n)
            if step.do == "ext" and not step.ok and wanted not in link:
                continue
            while link and wanted in link and link[0] != wanted:
                yield TraceStep(step.at, "lose", step.c, step.i)
                del link[0]
            del link[:1]
        sets_an_end = step.do in ("set", "ext") and step.ok
        yield step._replace(end=step.at + int(TTL / rate)) if sets_an_end else step


def accepted(traces: Sequence[Sequence[TraceStep]], quorum: int = 2) -> Accepted:
    """Ask TLC for a course of the model for each trace.

    Raises RuntimeError when it did not get to its end.
    """
    text = ",\n".join("<<" + ", ".join(map(_record, trace)) + ">>" for trace in traces)
    module = f"---- MODULE Traces ----\nTraces == <<\n{text}\n>>\n====\n"
    constants = {**CONSTANTS, "Clients": "{1, 2}", "Instances": "{1, 2, 3}", "Quorum": f"{quorum}"}
    settings = "SPECIFICATION TraceSpec\nINVARIANT Exclusion\nCONSTANT Ends <- Seen\n"
    said = run_tlc("Trace", settings, constants, {"Traces.tla": module}, deadlocks=True)
    steps = sum(map(len, traces))
    if "Deadlock reached" in said or "is violated" in said:
        last = said.rpartition("State ")[2]
        which, where = (int(last.partition(f"/\\ {name} = ")[2].split()[0]) for name in ("t", "k"))
        return Accepted(len(traces), steps, (which - 1, where - 1))
    if "No error has been found" not in said:
        raise RuntimeError(f"TLC did not get to its end: {said[-800:]}")
    return Accepted(len(traces), steps, (-1, -1))


def _record(step: TraceStep) -> str:
    fields = step._asdict() | {"do": f'"{step.do}"', "ok": str(step.ok).upper()}
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in fields.items()) + "]"


def played(first: int = 0) -> Iterator[tuple[Setting, list[TraceStep]]]:
    """The schedules of `lockbench explore --recipe redlock --seed 1` that the model can say: one
    caller, one lock."""
    setting = setting_of(ENGINE, find_recipe(ENGINE).about)
    for number in count(first):
        schedule, found = numbered(setting, number, 1)
        if schedule.setting.resources == schedule.setting.callers == 1:
            yield schedule.setting, trace_of(found.seen, schedule.setting.rate)


def main(wanted: int) -> int:
    """Play so many schedules and have them accepted; 1 when one is refused."""
    begun_s = time.monotonic()
    traces = [trace for _, trace in islice(played(), wanted)]
    found = accepted(traces)
    which, where = found.refused
    took = f"{time.monotonic() - begun_s:.0f} s"
    if which >= 0:
        print(
            f"REFUSED: course {which} of lockcore, at its step {where}; {took}",
            *traces[which][: where + 1],
            sep="\n  ",
        )
        return 1
    print(
        f"{found.traces:,} courses of lockcore, {found.steps:,} steps, are courses of "
        f"the model; {took}",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1000))
