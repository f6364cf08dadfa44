"""The rows that a lock is asked, in the order of the page.

Rules: most rows are schedules of the audit, so one text tells what both do. The others are what
only a lock of your own is asked: contention, renewal, takeover, and servers that refuse.
"""

from bench.experiments.judge.contention import contention
from bench.experiments.judge.judge import CONTENTION
from bench.experiments.judge.lifetime import cut, freeze, kill, renewal, takeover, terminate
from bench.experiments.judge.row import (
    ENDS,
    EXCLUSION,
    OWNER,
    RENEWAL,
    SERVERS,
    TAKEOVER,
    JudgeRow,
    RowFinding,
)
from bench.experiments.judge.schedules import SCHEDULES
from bench.experiments.judge.servers import evicted, failed_over, refusing, restarted


def _of_audit(
    group: str, name: str, *, is_safety: bool = False, may_wait: bool = False
) -> JudgeRow:
    schedule = SCHEDULES[name]
    return JudgeRow(
        group,
        name,
        schedule.facts.looks_for,
        lambda stage: RowFinding(schedule.play(stage)),
        schedule.least,
        is_safety,
        may_wait,
    )


ROWS: tuple[JudgeRow, ...] = (
    JudgeRow(EXCLUSION, CONTENTION, "two holders at once under load", contention, is_safety=True),
    _of_audit(EXCLUSION, "paused-in-acquire", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "clock-ahead", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "body-without-lock", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "forked", is_safety=True, may_wait=True),
    _of_audit(OWNER, "release-after-expiry", is_safety=True),
    _of_audit(OWNER, "paused-holder"),
    JudgeRow(RENEWAL, "renewal", "how many renewals may fail", renewal, only_tells=True),
    JudgeRow(
        TAKEOVER,
        "sigterm",
        "its holder ends by SIGTERM",
        takeover("ended by SIGTERM", terminate),
        only_tells=True,
    ),
    JudgeRow(
        TAKEOVER, "sigkill", "its holder is killed", takeover("was killed", kill), only_tells=True
    ),
    JudgeRow(
        TAKEOVER,
        "stopped",
        "its holder stands still",
        takeover("stood still", freeze),
        only_tells=True,
    ),
    JudgeRow(
        TAKEOVER,
        "network",
        "its holder loses the network",
        takeover("lost the network", cut, proxied=True),
        only_tells=True,
    ),
    JudgeRow(SERVERS, "restart", "servers restart without persistence", restarted, only_tells=True),
    JudgeRow(
        SERVERS,
        "failover",
        "a replica takes over before it has the lock",
        failed_over,
        is_safety=True,
        only_tells=True,
    ),
    JudgeRow(SERVERS, "eviction", "the servers evict the lock", evicted, only_tells=True),
    JudgeRow(
        SERVERS,
        "readonly",
        "READONLY: the server became a replica",
        refusing("readonly", "REPLICAOF, so they answer READONLY"),
        only_tells=True,
    ),
    JudgeRow(
        SERVERS,
        "out-of-memory",
        "OOM: the server takes no writes",
        refusing("maxmemory", "maxmemory 1, so they answer OOM"),
        only_tells=True,
    ),
    JudgeRow(
        SERVERS,
        "loading",
        "LOADING: the server reads its snapshot",
        refusing("loading", "DEBUG RELOAD, so they answer LOADING", is_mute=True),
        only_tells=True,
    ),
    JudgeRow(
        SERVERS,
        "busy",
        "BUSY: the server runs a long script",
        refusing("busy", "a script without end, so they answer BUSY", is_mute=True),
        only_tells=True,
    ),
    _of_audit(SERVERS, "script-flush"),
    _of_audit(SERVERS, "late-set"),
    _of_audit(SERVERS, "one-stopped"),
    _of_audit(SERVERS, "one-killed"),
    _of_audit(SERVERS, "majority-down"),
    _of_audit(ENDS, "exception-in-body"),
    _of_audit(ENDS, "interrupted-acquire"),
    _of_audit(ENDS, "interrupted-release"),
)
BY_NAME = {row.name: row for row in ROWS}
