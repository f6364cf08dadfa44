"""Turns the observations of a schedule into the rows of a sequence diagram. The functions are pure.

Each row shows one step. A step is a command, a grant, or a deviation from the usual course. If
several instances get a command at the same time, one row shows all their answers. If a client sends
a batch, the row shows the number of commands. The diagram omits a clean-up that found no key to
delete. The text of a step shows a value as the name of the client that wrote the value. Times are
in ms since the start.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from bench.experiments.explore.result import Step
from bench.experiments.explore.schedule import LATENCY_NS
from bench.experiments.explore.world import START_NS, Event
from lockcore.bench import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS

_NAMES = {
    COMPARE_AND_DELETE: "del if",
    COMPARE_AND_DELETE_MANY: "del if",
    COMPARE_AND_EXTEND: "extend if",
}
SCRIPTS = {word: name for script, name in _NAMES.items() for word in (script.sha, script.source)}
REPLIES = {b"+OK\r\n": "OK", b"$-1\r\n": "nil"}
WORDS = {
    "pause": "paused {ms:g} ms",
    "late": "message {ms:g} ms late",
    "late reply": "reply {ms:g} ms late",
    "lose": "message lost",
    "cut": "link breaks",
    "ahead": "clock {ms:g} ms ahead",
    "kill": "caller killed",
    "restart": "restarts empty",
    "stop": "stops for {ms:g} ms",
    "flush": "forgets its scripts",
    "forget": "forgets everything",
    "full": "is full for {ms:g} ms",
    "die": "dies",
}
OF_SERVERS = {"restart", "stop", "flush", "forget", "full", "die"}


def steps_of(events: Sequence[Event], instances: int) -> list[Step]:
    """Return the steps in order. The last step names the broken rule."""
    writes = {b"SET", b"SETNX", b"GETSET"}
    owners = {
        event[5][2]: event[2]
        for event in events
        if event[1] == "call" and event[5][0].upper() in writes
    }
    rows = list[Step]()
    merged = set[int]()
    for number, event in enumerate(events):
        ms = _ms(event[0])
        what = event[1]
        if what == "call":
            if number not in merged:
                together = list(_together(events, number))
                merged.update(index for index, _ in together)
                if not _found_nothing([one for _, one in together]):
                    rows.append(
                        Step(ms, event[2], _call([one for _, one in together], instances, owners))
                    )
        elif what == "broken":
            rows.append(Step(ms, -1, event[2]))
        elif (row := _other(event, ms, instances)) is not None:
            rows.append(row)
    return [
        Step(
            row.ms,
            row.who,
            row.text if (times := len(list(same))) == 1 else f"{times} × {row.text}",
        )
        for row, same in groupby(rows)
    ]


def _other(event: Event, ms: float, instances: int) -> Step | None:
    """Return the row of an event that is not a command, or None if the diagram omits the event."""
    what = event[1]
    if what in ("granted", "extended"):
        until = (
            "for ever"
            if event[3] - event[0] > FAR_FUTURE_NS // 10**5
            else f"until {_ms(event[3]):.1f}"
        )
        return Step(ms, event[2], f"{what} {until}")
    if what not in WORDS:
        return None
    text = WORDS[what].format(ms=event[3] / NS_PER_MS)
    if what in OF_SERVERS:
        return Step(ms, -1, f"{event[2] + 1} {text}")
    where = f" to {event[4] + 1}" if len(event) > 4 and instances > 1 else ""
    return Step(ms, event[2], text + where)


def _ms(time_ns: int) -> float:
    return (time_ns - START_NS) / NS_PER_MS


def _together(events: Sequence[Event], first: int) -> Iterator[tuple[int, Event]]:
    """Yield the call `events[first]` and all calls that the diagram shows in the same row.

    One client sent the same command to several servers at the same moment. The servers executed
    these calls at about the same time.
    """
    begun = events[first]
    for index in range(first, len(events)):
        event = events[index]
        if event[0] > begun[0] + 2 * LATENCY_NS:
            return
        if event[1] == "call" and (event[2], event[4], event[5][0]) == (
            begun[2],
            begun[4],
            begun[5][0],
        ):
            yield index, event


def _found_nothing(calls: Sequence[Event]) -> bool:
    """Return whether the diagram omits these calls, because they changed no key.

    The diagram omits a clean-up that found no key. The diagram also omits each command that loads a
    script. If a server did not know a script yet, the diagram omits the failed call of this script.
    """
    replies = b"".join(event[6] for event in calls)
    words = calls[0][5][:2]
    deletes = words[0] in {b"DELIFEQ", b"DELEX"} or SCRIPTS.get(words[-1]) == "del if"
    return words[0] == b"SCRIPT" or b"NOSCRIPT" in replies or (deletes and b":1" not in replies)


def _call(calls: Sequence[Event], instances: int, owners: Mapping[bytes, int]) -> str:
    """Return the text of a call, such as `SET NX PX 500 → OK`.

    If only some of the instances got the call, the text begins with the numbers of these instances.
    For example, the text `2,3: … → OK nil` describes a call to the instances 2 and 3. If several
    different commands share the row, the text says how many commands there are.
    """
    sent_ns, command = calls[0][4:6]
    targets = sorted({event[3] + 1 for event in calls})
    where = f"{','.join(map(str, targets))}: " if len(targets) < instances else ""
    replies = [_reply(event[6], owners) for event in calls]
    commands = len({tuple(event[5][1:]) for event in calls})
    answers = " ".join(replies)
    many = ""
    if commands > 1:
        answers = " ".join(f"{times} {reply}" for reply, times in Counter(replies).items())
        many = f"{commands} × "
    late = " (late)" if calls[0][0] - sent_ns > 2 * LATENCY_NS else ""
    return f"{where}{many}{_name(command, owners)} → {answers}{late}"


def _name(command: Sequence[bytes], owners: Mapping[bytes, int]) -> str:
    name = command[0].decode().upper()
    arguments = list(command[1:])
    if name in ("EVAL", "EVALSHA"):
        name = SCRIPTS.get(command[1], "script")
        arguments = list(command[3:])
    elif name == "DELIFEQ":
        name = "del if"
    options = [
        word
        for word in arguments[1:]
        if word in {b"NX", b"PX", b"IFEQ"} or (word.isdigit() and len(word) < 6)
    ]
    mine = (
        [f"C{owners[arguments[1]] + 1}'s"]
        if name in SCRIPTS.values() and len(arguments) > 1 and arguments[1] in owners
        else []
    )
    return " ".join([name, *mine, *(word.decode() for word in options)])


def _reply(reply: bytes, owners: Mapping[bytes, int]) -> str:
    if reply in REPLIES:
        return REPLIES[reply]
    if reply.startswith(b"*"):
        return "master" if b"master" in reply else "slave"
    text = (
        reply.partition(b"\r\n")[2].removesuffix(b"\r\n") if reply.startswith(b"$") else reply[:-2]
    )
    if text in owners:
        return f"C{owners[text] + 1}'s"
    return text.decode(errors="replace").lstrip(":+-").partition(" ")[0][:12]
