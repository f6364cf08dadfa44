"""Defines rows about servers that refuse commands, forget keys, or fail over. The finding holds the
messages that the callers got. If keys remain, the finding also mentions these keys.

The rows apply the same faults as a scenario (bench/topology/faults), but to all servers at once. A
server that is busy or still loading answers nobody, so the judge does not look at its keys.
"""

import socket
from collections.abc import Callable

from bench.experiments.judge.party import Party, Said
from bench.experiments.judge.row import RowFinding, need
from bench.experiments.judge.stage import JudgeStage
from bench.topology.faults.injection import FaultKind, Injection
from bench.topology.faults.kinds import KINDS
from bench.topology.fleet import HOST, wait_until

# A fault that must have an end lasts this long, unless its row ends earlier.
FAULT_MS = 4000.0
# After this time (ms) a script makes its server answer BUSY.
SCRIPT_MS = 50
BUSY_S = 5.0
# The number of keys that other clients write in one batch. They write batches until a server has
# evicted the lock's keys.
BATCH = 64
BATCHES = 50
VALUE = "x" * 1024


def run_script(fault: Injection) -> None:
    """Make a server execute an endless script. The server then answers other commands with BUSY. At
    the end of the fault, SCRIPT KILL ends the script.
    """
    fleet = fault.fleet
    index = fault.index
    before = fleet.configure(index, {"lua-time-limit": str(SCRIPT_MS)})
    fault.undo.callback(fleet.configure, index, before)
    port = fleet.instances[index].port
    script = fault.undo.enter_context(socket.create_connection((HOST, port)))

    def ask(line: bytes) -> bytes:
        # A busy server refuses even the greeting, so this code uses no client library.
        with socket.create_connection((HOST, port), BUSY_S) as other:
            other.sendall(line)
            return other.recv(5)

    def until(answer: bytes) -> None:
        what = f"server {index + 1} did not answer {answer.decode()}"
        wait_until(lambda: ask(b"PING\r\n") == answer, BUSY_S, what)

    # The faults are undone in reverse order. The script still runs for a moment after SCRIPT KILL.
    fault.undo.callback(until, b"+PONG")
    fault.undo.callback(ask, b"SCRIPT KILL\r\n")
    script.sendall(b'EVAL "while true do end" 0\r\n')
    until(b"-BUSY")


BUSY = FaultKind(run_script)


def refusing(name: str, text: str, *, is_mute: bool = False) -> Callable[[JudgeStage], RowFinding]:
    """Return a function that plays a row. All servers refuse commands, while one client releases
    its lock and another client asks for the lock. If `is_mute` is true, the servers do not answer
    lockbench either.
    """

    def play(stage: JudgeStage) -> RowFinding:
        client = stage.party()
        other = stage.party()
        need(other.acquire().ok, "the client was granted the lock")
        with stage.fault(KINDS.get(name, BUSY), text, FAULT_MS, is_mute=is_mute):
            released = _heard(other.release())
            before = stage.keys()
            second = client.acquire()
            is_written = stage.keys() != before
        # A script that has already written runs on without memory, so a grant may be right.
        if second.ok and not is_written:
            return RowFinding("a client is granted the lock, but no server has written a key")
        is_free = second.ok or stage.until_lockable(0.5)
        answer = (
            "the lock was granted, because a server wrote the key"
            if second.ok
            else second.error or "no"
        )
        remark = f"acquire: {answer}; release: {released}"
        return RowFinding(
            remark=remark
            if is_free
            else f"{remark}; the keys of the lock remain until their TTL ends"
        )

    return play


def restarted(stage: JudgeStage) -> RowFinding:
    """A client holds the lock. All servers restart without persistence. Then another client asks
    for the lock.
    """
    holder = stage.party()
    other = stage.party()
    need(holder.acquire().ok, "the first client was granted the lock")
    stage.restart_all()
    _, remark = _second_holder(holder, other, "that the servers forgot")
    return RowFinding(remark=remark)


def failed_over(stage: JudgeStage) -> RowFinding:
    """A client holds the lock. Servers die before their replicas have the lock's keys, and the
    replicas take over. Then another client asks for the lock. If there are three or more servers,
    only a minority dies, so that a quorum survives.
    """
    holder = stage.party_behind_proxy()
    other = stage.party_behind_proxy()
    failing = stage.minority or range(stage.instances)
    stage.add_replicas(failing)
    need(holder.acquire().ok, "the first client was granted the lock")
    stage.fail_over()
    is_second, remark = _second_holder(holder, other, "that the replica never had")
    if is_second and stage.minority:
        return RowFinding(f"after a failover of a minority of the servers, {remark}")
    return RowFinding(remark=remark)


def evicted(stage: JudgeStage) -> RowFinding:
    """A client holds the lock. Other clients write until the servers have evicted the lock's keys.
    Then another client asks for the lock.
    """
    holder = stage.party()
    other = stage.party()
    need(holder.acquire().ok, "the first client was granted the lock")
    with stage.fault(KINDS["maxmemory"], "maxmemory, volatile-ttl", policy="volatile-ttl"):
        for batch in range(BATCHES):
            if not any(stage.keys()):
                break
            stage.write([f"others:{batch}:{number}" for number in range(BATCH)], VALUE)
        else:
            return RowFinding(remark="the servers evict other keys, but not the lock")
        _, remark = _second_holder(holder, other, "that the servers evicted")
    return RowFinding(remark=remark)


def _heard(released: Said) -> str:
    """Return a text that says how the release ended for its caller."""
    return released.error or ("no error" if released.ok else "no")


def _second_holder(holder: Party, other: Party, which: str) -> tuple[bool, str]:
    """Return whether a second client gets the lock while the first client still holds it. The
    servers have lost the lock. The second result is a text with the messages that both clients got.
    """
    first_try = other.acquire()
    # A client may have a connection to a server that is gone. In this case its first try fails, and
    # it asks again.
    granted = other.acquire() if first_try.error else first_try
    client = "a second client"
    if first_try.error:
        client += f" (its first try failed: {first_try.error})"
    is_second = granted.ok and other.operations[-1].granted_ns < holder.until_ns
    released = _heard(holder.release())
    if is_second:
        remark = f"{client} is granted the lock {which}"
    elif granted.ok:
        remark = f"{client} is granted the lock only after the lease of the first client has ended"
    else:
        remark = f"a second client is refused: {granted.error or 'no'}"
    return is_second, f"{remark}; the first client's release: {released}"
