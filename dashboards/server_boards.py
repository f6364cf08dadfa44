"""The boards of the instances: *instruments → how votes went, who is to blame; what AOF policies cost and lose*.

Rules: a policy is a run (or several); all is by `redlock.fsync`, so the runs to compare must be in the time range.
"""

from bench.telemetry.table import BY_NAME
from dashboards.panels import (
    INSTANCE,
    POLICY,
    Query,
    acquire_quantile,
    bars,
    below,
    board,
    line,
    lines,
    mean,
    now,
    number,
    quantile,
    rate,
    ratio,
    row,
    total,
    voting,
    whole_rate,
)

_MARGIN, _REPLY, _DEAD = "redlock.vote.margin", "db.client.operation.duration", "redlock.split_vote.dead_time"
_ZERO = "0.1"  # margins are whole numbers: what is not above 0.1 is 0


def _no_reserve() -> Query:
    return ratio(below(_MARGIN, _ZERO), total(_MARGIN, part="count"))


def _spare() -> Query:
    needed = now("redlock.quorum.size", function="max")
    return Query(f"{voting().expr} - {needed.expr}", "{instance}", "spare")


_splits = ratio(total("redlock.split_votes"), total("redlock.acquire.outcomes"))
_GLANCE = row(
    "At a glance",
    line(
        4,
        number(
            "Split-brain retries per acquire",
            "Rounds that nobody could win (split votes), per acquire that returned.",
            _splits,
        ),
        number(
            "Leases without reserve",
            "Granted by exactly a quorum (margin 0): losing one instance's memory loses the lock.",
            _no_reserve(),
        ),
        number("Instances beyond the quorum", "Voting now, minus the quorum. Below 0 nothing can be locked.", _spare()),
        number(
            "Restarts",
            "Starts of instances during the runs in view: each may have forgotten its locks.",
            total("redis.restarts"),
            red_above=1,
        ),
    ),
)


_attempts = mean("redlock.acquire.attempts").named("mean"), quantile(0.99, "redlock.acquire.attempts").named("p99")
_dead = [quantile(q, _DEAD).named(name) for q, name in ((0.5, "p50"), (0.99, "p99"))]
_split = rate("redlock.split_votes").named("split votes")
_VOTES = row(
    "Votes",
    line(
        8,
        lines(
            "Votes",
            "Of each acquire's last round, once closed: granted, refused, errored, silent, absent, undecided.",
            rate("redlock.votes", ("redlock_vote",)),
            stacked=True,
        ),
        lines(
            "Vote margin",
            "Granted votes beyond the quorum: how many instances may fail without losing the lock.",
            mean(_MARGIN).named("mean"),
        ),
        lines("Split-brain retries (split votes)", "Rounds per second that nobody could win.", _split),
    ),
    line(
        8,
        lines(
            "Dead time of split votes",
            "From the start of an acquire that met a split vote to the start of the round that won.",
            *_dead,
        ),
        lines("Rounds per acquire", "1 = the first round decided it.", *_attempts),
    ),
)


_WAITING = row(
    "Waiting",
    line(
        7,
        lines("Polls", "Attempts beyond an acquire's first, and looks at who holds.", rate("redlock.acquire.polls")),
        lines("Wakeups", "Turns passed between processes (retry policy push).", rate("redlock.handoff.turns")),
        lines("Longest acquire", "So far, failed ones included.", now("redlock.acquire.longest", function="max")),
        lines(
            "Fairness among callers",
            "Jain's index of their leases so far: 1 is even, 1 ÷ callers is one for all.",
            now("redlock.callers.fairness", function="min"),
        ),
    ),
)


_by_instance = [quantile(q, _REPLY, INSTANCE) for q in (0.5, 0.99)]
_median = _by_instance[0].expr
_skew = Query(f"max({_median}) / min({_median})", "x", "slowest ÷ fastest")
_TIMED = "By instance; of about 250 acquires a second, and of at least one in 64."
_needed = now("redlock.quorum.size", function="max").named("quorum")
_INSTANCES = row(
    "Instances",
    line(
        8,
        lines("Reply to a SET, p50", _TIMED, _by_instance[0]),
        lines("Reply to a SET, p99", _TIMED, _by_instance[1]),
        lines("Latency skew", "Median reply of the slowest instance over that of the fastest.", _skew),
    ),
    line(
        7,
        lines("Voting instances", "Below the quorum nothing can be locked.", voting().named("voting"), _needed),
        lines(
            "Abstaining",
            "1 while an instance does not vote, as it may have forgotten locks.",
            now("redlock.instance.abstaining", INSTANCE, function="max"),
        ),
        lines("Commands", "What the load sent, by instance.", rate("redlock.instance.commands", INSTANCE)),
    ),
)


_errors = total("redlock.instance.errors", (*INSTANCE, "error_type"))
_errors = _errors.named("{{server_address}}:{{server_port}} {{error_type}}")
_uptime = now("redis.uptime", INSTANCE, function="min")
_TROUBLES = row(
    "Troubles",
    line(
        7,
        lines("Errors", "Met by the load since the run began, by instance and kind.", _errors),
        lines("Reconnects", "Connections made anew, by instance.", rate("redlock.instance.reconnects", INSTANCE)),
        lines("Uptime", "A fall is a restart: the instance may have forgotten its locks.", _uptime),
    ),
)


def quorum() -> str:
    """The board as JSON."""
    about = "Votes, margins, split-brain retries (split votes: rounds nobody wins), and the instances behind them."
    rows = (_GLANCE, _VOTES, _WAITING, _INSTANCES, _TROUBLES)
    return board("lockbench: Quorum and split-brain retries", "lockbench-quorum", about, rows)


# -- fsync trade-off ---------------------------------------------------------------------------------------------------

_BY = (POLICY,)


_p50, _p99 = (acquire_quantile(q, _BY, whole=True) for q in (0.5, 0.99))
_reply = quantile(0.99, _REPLY, _BY, whole=True)


def _per_lease(name: str) -> Query:
    """Of whole runs, so that a longer one does not look worse."""
    leases = total("redlock.acquire.outcomes", _BY, redlock_outcome="acquired")
    return ratio(total(name, _BY), leases, BY_NAME[name].unit + "/lease")


_PRICE = row(
    "The price, by policy",
    line(
        6,
        bars(
            "Rate of the whole run",
            "Leases over the time its users ran, warm-up and drain included; averaged over its runs.",
            whole_rate(_BY),
        ),
        bars("Acquire p50", "Of all leases of the runs, from the intended start.", _p50),
        bars("Acquire p99", "Of all leases of the runs, from the intended start.", _p99),
        bars(
            "Fsyncs per lease",
            "Calls of fsync and fdatasync over all instances, where the fault shim counts them.",
            _per_lease("redis.aof.fsyncs"),
        ),
        bars(
            "Stalls per lease",
            "Writes postponed since a sync was still under way (aof_delayed_fsync).",
            _per_lease("redis.aof.delayed_fsyncs"),
        ),
        bars("Reply to a SET, p99", "Of all instances over the whole runs, of observed attempts.", _reply),
    ),
)


_broken = total("redlock.safety.violations", _BY, redlock_violation_kind="service_fault")
_window = quantile(0.99, "redlock.crash.lost_window", _BY, whole=True)
_LOSS = row(
    "The loss, by policy",
    line(
        6,
        bars(
            "Locks lost in crashes",
            "Acknowledged locks that an instance forgot.",
            total("redlock.crash.lost_locks", _BY),
        ),
        bars("Lost window, p99", "How far back before a crash acknowledged locks were lost.", _window),
        bars(
            "Double grants", "Leases valid beside another one after a crash.", total("redlock.crash.double_grants", _BY)
        ),
        bars(
            "Safety violations",
            "Leases on one resource valid at the same time. Must be 0; no data: no oracle ran.",
            _broken,
        ),
    ),
)


_cpu, _commands = total("redis.cpu.time", _BY), total("redis.commands.processed", _BY)
_by = (*INSTANCE, POLICY)
_SERVERS = row(
    "Servers",
    line(
        7,
        bars("CPU per command", "Server CPU time over commands processed, of whole runs.", ratio(_cpu, _commands, "s")),
        lines("AOF size", "By instance.", now("redis.aof.size", _by)),
        lines("AOF rewrites", "1 while an instance rewrites its AOF.", now("redis.aof.rewrite_in_progress", _by)),
    ),
)


def fsync() -> str:
    """The board as JSON."""
    about = "What each AOF policy costs and what it loses. Run the same scenario with --fsync none, everysec, always."
    return board("lockbench: Fsync trade-off", "lockbench-fsync", about, (_PRICE, _LOSS, _SERVERS))
