"""Lists the rows of the judge, in the sequence in which the report shows them. Each row tests a
lock.

Most rows are schedules, which the audit also plays. The other rows apply only to a user's own lock.
For example, these rows test contention, renewal, takeover, and servers that refuse commands.
"""

from bench.experiments.judge.callers import (
    reader_beside_writer,
    same_caller,
    several_names,
    together,
    writer_beside_reader,
)
from bench.experiments.judge.contention import contention
from bench.experiments.judge.lifetime import cut, freeze, kill, renewal, takeover, terminate
from bench.experiments.judge.needs import CONTENTION
from bench.experiments.judge.row import (
    CALLER,
    EXCLUSION,
    MANY,
    RENEWAL,
    SERVERS,
    TAKEOVER,
    JudgeRow,
)
from bench.experiments.judge.schedules import SCHEDULES
from bench.experiments.judge.servers import evicted, failed_over, refusing, restarted
from bench.experiments.judge.simulation import search
from bench.experiments.judge.stage import JudgeStage

ROWS: tuple[JudgeRow[JudgeStage], ...] = (
    JudgeRow(
        EXCLUSION,
        CONTENTION,
        "two clients hold the lock at the same time under load",
        contention,
        is_safety=True,
    ),
    JudgeRow(
        EXCLUSION,
        "search",
        "two leases are valid at the same time in a simulated schedule",
        search,
        is_safety=True,
    ),
    JudgeRow(MANY, "together", "fewer holders at once than the lock allows", together),
    JudgeRow(
        MANY,
        "writer-beside-reader",
        "a writer beside a reader",
        writer_beside_reader,
        is_safety=True,
        may_wait=True,
    ),
    JudgeRow(
        MANY,
        "reader-beside-writer",
        "a reader beside a writer",
        reader_beside_writer,
        is_safety=True,
        may_wait=True,
    ),
    SCHEDULES["paused-in-acquire"],
    SCHEDULES["clock-ahead"],
    SCHEDULES["body-without-lock"],
    SCHEDULES["forked"],
    SCHEDULES["release-after-expiry"],
    SCHEDULES["paused-in-release"],
    SCHEDULES["paused-holder"],
    JudgeRow(RENEWAL, "renewal", "how many renewals may fail", renewal),
    JudgeRow(
        TAKEOVER,
        "sigterm",
        "SIGTERM ends the holder",
        takeover("was ended by SIGTERM", terminate),
    ),
    JudgeRow(
        TAKEOVER,
        "sigkill",
        "the holder is killed",
        takeover("was killed", kill),
    ),
    JudgeRow(
        TAKEOVER,
        "stopped",
        "the holder is frozen",
        takeover("was frozen", freeze),
    ),
    JudgeRow(
        TAKEOVER,
        "network",
        "the holder loses the network",
        takeover("lost the network", cut, proxied=True),
    ),
    JudgeRow(SERVERS, "restart", "servers restart without persistence", restarted),
    JudgeRow(
        SERVERS,
        "failover",
        "a replica takes over before it has copied the lock",
        failed_over,
        is_safety=True,
    ),
    JudgeRow(SERVERS, "eviction", "the servers evict the lock", evicted),
    JudgeRow(
        SERVERS,
        "readonly",
        "READONLY: the server became a replica",
        refusing("readonly", "they became replicas and answer READONLY"),
    ),
    JudgeRow(
        SERVERS,
        "out-of-memory",
        "OOM: the server takes no writes",
        refusing("maxmemory", "they have no memory left and answer OOM"),
    ),
    JudgeRow(
        SERVERS,
        "loading",
        "LOADING: the server reads its snapshot",
        refusing("loading", "they read their snapshot and answer LOADING", is_mute=True),
    ),
    JudgeRow(
        SERVERS,
        "busy",
        "BUSY: the server runs a long script",
        refusing("busy", "they run an endless script and answer BUSY", is_mute=True),
    ),
    SCHEDULES["script-flush"],
    SCHEDULES["late-set"],
    SCHEDULES["one-stopped"],
    SCHEDULES["one-killed"],
    SCHEDULES["majority-down"],
    JudgeRow(
        CALLER,
        "same-caller",
        "the answer to a holder that asks for the same lock again",
        same_caller,
    ),
    JudgeRow(
        CALLER,
        "several-names",
        "whether a client may hold several locks, and whether two clients can block each other",
        several_names,
    ),
    SCHEDULES["exception-in-body"],
    SCHEDULES["interrupted-acquire"],
    SCHEDULES["interrupted-release"],
)
BY_NAME = {row.name: row for row in ROWS}
