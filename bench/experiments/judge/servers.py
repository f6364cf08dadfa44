"""Servers that refuse, forget or change places: *a stage → what a caller is told, what is left*."""

from collections.abc import Callable

from bench.experiments.judge.row import Play, RowFinding
from bench.experiments.judge.schedules import need
from bench.experiments.judge.stage import JudgeStage


def refusing(do: Callable[[JudgeStage], None], undo: Callable[[JudgeStage], None]) -> Play:
    """Servers that refuse to write: one client gives its lock back, another one asks for it."""

    def play(stage: JudgeStage) -> RowFinding:
        client = stage.party()
        other = stage.party()
        need(other.acquire().ok, "the client was granted")
        do(stage)
        try:
            released = other.release()
            before = stage.keys()
            asked = client.acquire()
            is_written = stage.keys() != before
        finally:
            undo(stage)
        # A script that has written something goes on without memory, so a grant may be right.
        if asked.ok and not is_written:
            return RowFinding("a client is granted the lock, and no server has written it")
        is_free = asked.ok or stage.until_lockable(0.5)
        answer = "granted, as the server did write" if asked.ok else asked.error or "no"
        remark = f"acquire: {answer}; release: {released.error or 'no error'}"
        return RowFinding(remark=remark if is_free else f"{remark}; keys stay until their TTL ends")

    return play


def restarted(stage: JudgeStage) -> RowFinding:
    """A client holds the lock; all servers restart without persistence; another client asks."""
    holder = stage.party()
    other = stage.party()
    need(holder.acquire().ok, "the first client was granted")
    stage.restart_all()
    reply = other.acquire()
    released = holder.release()
    if reply.ok:
        remark = "a second client is granted the lock that the servers forgot"
    else:
        remark = f"a second client is refused: {reply.error or 'no'}"
    return RowFinding(remark=f"{remark}; the first one's release: {released.error or 'no error'}")
