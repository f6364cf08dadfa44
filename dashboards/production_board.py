"""This module builds the board for applications that use `lockcore.otel`: *instruments → panels
that show the health of locking for each service and each instance*.

Rules: the board selects metrics by the label `job`. With OpenTelemetry, this label is the name of
the service. Runs of lockbench export the same metrics with a run id. The board does not show the
series that have a run id. Each rate and each share is computed from the last few scrapes. The
description of each panel tells the reader how to react.
"""

from functools import partial

from dashboards import queries
from dashboards.board import AN_HOUR, board, choice, instances
from dashboards.panels import lines, number
from dashboards.queries import ACQUIRE, INSTANCE, PRODUCTION, Query, ratio

_ENDED = "redlock.acquire.outcomes"
_CLASS = ("job", "redlock_resource_class")
_FLEET = ("job", "instance", "redlock_fleet")
_now = partial(queries.now, run=PRODUCTION)
_rate = partial(queries.rate, run=PRODUCTION)
_state = partial(queries.state, run=PRODUCTION)
_p99 = partial(queries.quantile, 0.99, run=PRODUCTION)


def _failed(by: tuple[str, ...] = ()) -> Query:
    """Return the share of acquires that failed for any reason other than contention."""
    lost = _rate(_ENDED, by, redlock_outcome="=~split_vote|unreachable|too_late")
    return ratio(lost, Query(f"({_rate(_ENDED, by).expr} > 0)", ""))


def _slow(by: tuple[str, ...] = ()) -> Query:
    got = _rate(_ENDED, by, redlock_outcome="acquired")
    return ratio(_rate("redlock.acquire.slow", by), Query(f"({got.expr} > 0)", ""))


_votes = _now("redlock.instance.voting", _FLEET)
_needed = _now("redlock.quorum.size", _FLEET, function="max")
_spare = Query(f"min({_votes.expr} - {_needed.expr})", "{instance}")
_took = partial(queries.quantile, name=ACQUIRE, run=PRODUCTION, redlock_outcome="acquired")
_acquire = _took(0.5).named("p50"), _took(0.99).named("p99")
_over = partial(_now, "redlock.leases.overdue")
_gone = partial(_rate, "redlock.leases.gone")
_holding = Query(_now("redlock.leases.held").expr, "{caller}", "holding")
_waiting = _now("redlock.callers.waiting").named("waiting")
_outcomes = _rate(_ENDED, ("redlock_outcome",))
_IDLE = "no acquire lately"
_number = partial(number, empty="no service in view")
_GLANCE = (
    _number(
        "Failed",
        "Acquires that found no quorum, ended with a split vote, or were too late. If the share "
        "is high, look at the instances.",
        _failed(),
        empty=_IDLE,
    ),
    _number(
        "Slow",
        "Leases that took longer than slow_s. Other panels show the slow services.",
        _slow(),
        empty=_IDLE,
    ),
    _number(
        "Acquire p99",
        "If many callers wait, a resource is hot. If few callers wait, an instance is slow.",
        _acquire[1],
    ),
    _number(
        "Instances beyond the quorum",
        "The panel shows the process that gets the fewest votes. A value below 0 means that "
        "no lock is possible.",
        _spare,
    ),
    _number(
        "Leases overdue",
        "Leases that ended without a release. Hold leases for less time, or use keep_alive.",
        _over(),
        red_above=1,
    ),
    _number(
        "Leases gone",
        "Leases per second that no longer existed when their holder released them. These "
        "holders worked without a lock.",
        _gone(),
    ),
)
_COURSE = (
    lines(
        "Outcomes", "Contended means that another caller holds the lock.", _outcomes, stacked=True
    ),
    lines(
        "Acquire latency",
        "Successful acquires. A point leads to the trace of the service.",
        *_acquire,
        exemplars=True,
    ),
    lines(
        "Callers",
        "If only the number of waiting callers grows, a resource is hot or no quorum answers.",
        _holding,
        _waiting,
    ),
)
_tries = _p99("redlock.acquire.attempts", ("job",))
_hold = _p99("redlock.hold.duration", _CLASS)
_WHOM = (
    lines(
        "Failed, by service",
        "If one service fails, check its network and settings. If all services fail, check the "
        "instances.",
        _failed(("job",)),
    ),
    lines(
        "Slow, by class",
        "The slow leases of each service and class of resource. Callers wait for these locks.",
        _slow(_CLASS),
    ),
    lines("Leases gone, by class", "Services that worked without their lock.", _gone(_CLASS)),
    lines(
        "Leases overdue, by class",
        "Leases whose holders still work after the end of the lease, by class of resource.",
        _over(_CLASS),
    ),
)
_WHY = (
    lines(
        "Hold p99",
        "Time from the grant to the release of a lease. If the hold time is close to the "
        "TTL, use keep_alive.",
        _hold,
    ),
    lines(
        "Release p99",
        "If releases are slow, an instance or the network is slow.",
        _p99("redlock.release.duration", ("job",)),
    ),
    lines(
        "Rounds per acquire, p99",
        "If acquires need many rounds, callers collide. Widen the retry window.",
        _tries,
    ),
    lines(
        "Split votes",
        "Rounds that nobody could win. The usual cause is too many callers at the same time.",
        _rate("redlock.split_votes", ("job",)),
    ),
)
_voting = _state("redlock.instance.voting", INSTANCE, function="min")
_abstains = _state("redlock.instance.abstaining", INSTANCE, function="max")
_replies = _p99(
    "db.client.operation.duration", INSTANCE, db_system_name="redis", db_operation_name="SET"
)
_errors = _rate("redlock.instance.errors", (*INSTANCE, "error_type"))
_INSTANCES = (
    lines(
        "Votes for its clients",
        "1 means that the instance votes for every process. 0 means that it is down, lagging "
        "or abstaining for at least one process.",
        _voting,
    ),
    lines(
        "Abstaining",
        "1 means that the instance may have forgotten locks and does not vote. The instance votes "
        "again after one TTL.",
        _abstains,
    ),
    lines(
        "Reply to a SET, p99",
        "If one instance is above the others, check its AOF policy, disk and machine.",
        _replies,
    ),
)
_TROUBLES = (
    lines(
        "Errors",
        "Errors by instance and kind. The kind is TIMEOUT, CLOSED or the first word of the answer.",
        _errors,
    ),
    lines(
        "Reconnects",
        "Possible causes are restarts, or a network that drops connections.",
        _rate("redlock.instance.reconnects", INSTANCE),
    ),
    lines(
        "Commands",
        "Commands that applications send to each instance.",
        _rate("redlock.instance.commands", INSTANCE),
    ),
    lines(
        "Votes",
        "Votes of observed attempts. Absent means that the instance was not asked.",
        _rate("redlock.votes", ("redlock_vote",)),
    ),
)


def production() -> str:
    """Return the board as JSON."""
    apps = f'{queries.RUN}=""'
    service = choice("service", "Service", "who locks", "job", apps, of="redlock.leases.held")
    variables = (service, *instances(f'{apps}, job=~"$service"'))
    about = (
        "For applications that call lockcore.otel.instrument. The board shows whether "
        "locking works, which service fails, which instance is the cause, and what to do."
    )
    shelves = (
        ("Is locking fine?", 4, _GLANCE),
        ("", 8, _COURSE),
        ("For whom not?", 7, _WHOM),
        ("", 7, _WHY),
        ("Which instance?", 8, _INSTANCES),
        ("", 7, _TROUBLES),
    )
    return board(
        "Locks in production",
        "production",
        about,
        shelves,
        variables=variables,
        since=AN_HOUR,
        refresh="30s",
    )
