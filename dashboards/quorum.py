"""The board "Quorum and split-brain retries": *instruments → how votes went, and which instance is to blame*.

Source: README's vocabulary (vote, margin, split vote, abstaining).
"""

from dashboards.panels import (
    INSTANCE,
    Query,
    board,
    grown,
    line,
    lines,
    mean,
    metric,
    now,
    number,
    quantile,
    rate,
    ratio,
    row,
    total,
    voting,
)

UID = "lockbench-quorum"
_MARGIN, _REPLY, _DEAD = "redlock.vote.margin", "db.client.operation.duration", "redlock.split_vote.dead_time"
_ZERO = "0.1"  # margins are whole numbers: what is not above 0.1 is 0


def _no_reserve() -> Query:
    none = f"sum({grown(metric(_MARGIN, 'bucket', le=_ZERO), whole=True)})"
    return ratio(Query(none, ""), total(_MARGIN, part="count"))


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
    return board("lockbench: Quorum and split-brain retries", UID, about, (_GLANCE, _VOTES, _INSTANCES, _TROUBLES))
