"""The board of applications (`lockcore.otel`): *instruments → is locking fine, for whom not, which instance*.

Rules: narrowed by `job`, which is the service's name wherever OpenTelemetry comes in; what a bench run exports under
the same names has a run id, and is left out. Rates and shares are of the last few scrapes. Panels say what to do.
"""

from functools import partial

from grafana_foundation_sdk.builders import dashboard

from bench.telemetry.table import BY_NAME
from dashboards.panels import (
    ACQUIRE,
    INSTANCE,
    PRODUCTION,
    Query,
    board,
    choice,
    grown,
    line,
    lines,
    metric,
    now,
    number,
    quantile,
    rate,
    ratio,
    row,
    source,
)

_ENDED, _CLASS = "redlock.acquire.outcomes", ("job", "redlock_resource_class")
_FLEET = ("job", "instance", "redlock_fleet")
_REPLY = "db.client.operation.duration"
_now, _rate = partial(now, run=PRODUCTION), partial(rate, run=PRODUCTION)
_p99 = partial(quantile, 0.99, run=PRODUCTION)


def _failed(by: tuple[str, ...] = ()) -> Query:
    """Acquires that got neither the lock nor an answer, of all that returned."""
    one = metric(_ENDED, run=PRODUCTION, redlock_outcome="unreachable")
    lost = one.replace('redlock_outcome="unreachable"', 'redlock_outcome=~"split_vote|unreachable|too_late"')
    total, by_ = _rate(_ENDED, by), f" by ({', '.join(by)})" if by else ""
    return Query(f"sum{by_} ({grown(lost)}) / ({total.expr} > 0)", "1", total.legend)


def _slow(by: tuple[str, ...] = ()) -> Query:
    got = _rate(_ENDED, by, redlock_outcome="acquired")
    slow = _rate("redlock.acquire.slow", by)
    return ratio(slow, Query(f"({got.expr} > 0)", ""))


def _spare() -> Query:
    votes = _now("redlock.instance.voting", _FLEET)
    needed = _now("redlock.quorum.size", _FLEET, function="max")
    return Query(f"min({votes.expr} - {needed.expr})", "{instance}")


_took = partial(quantile, name=ACQUIRE, run=PRODUCTION, redlock_outcome="acquired")
_acquire = _took(0.5).named("p50"), _took(0.99).named("p99")
_over, _gone = partial(_now, "redlock.leases.overdue"), partial(_rate, "redlock.leases.gone")
_holding = Query(_now("redlock.leases.held").expr, "{caller}", "holding")
_waiting = _now("redlock.callers.waiting").named("waiting")
_GLANCE = row(
    "Is locking fine?",
    line(
        4,
        number("Failed", "Acquires without a quorum, with a split vote, or too late: see the instances.", _failed()),
        number("Slow", "Leases that took longer than slow_s: see for whom.", _slow()),
        number("Acquire p99", "Of samples. High with many waiting: a hot resource; else: an instance.", _acquire[1]),
        number(
            "Instances beyond the quorum", "For the process that has fewest. Below 0 nothing can be locked.", _spare()
        ),
        number("Leases overdue", "Ran out, not given back: hold shorter, or keep_alive.", _over(), red_above=1),
        number("Leases gone", "Found gone, per second: somebody worked without its lock.", _gone()),
    ),
    line(
        8,
        lines(
            "Outcomes",
            "Contended is an answer: somebody else holds it.",
            _rate(_ENDED, ("redlock_outcome",)),
            stacked=True,
        ),
        lines(
            "Acquire latency",
            "Of samples, successes. Points lead to the application's traces.",
            *_acquire,
            exemplars=True,
        ),
        lines("Callers", "Waiting grows, holding does not: a hot resource, or no quorum answers.", _holding, _waiting),
    ),
)
_tries = _p99("redlock.acquire.attempts", ("job",))
_WHOM = row(
    "For whom not?",
    line(
        7,
        lines("Failed, by service", "One service: its network or settings; all: the instances.", _failed(("job",))),
        lines("Slow, by class", "By service and class of resource: which lock is waited for.", _slow(_CLASS)),
        lines("Leases gone, by class", "Whose work ran without its lock.", _gone(_CLASS)),
        lines("Leases overdue, by class", "Who works past its lease.", _over(_CLASS)),
    ),
    line(
        7,
        lines(
            "Hold p99", "Grant to release, of samples. Near the TTL: keep_alive.", _p99("redlock.hold.duration", _CLASS)
        ),
        lines("Release p99", "Of samples.", _p99("redlock.release.duration", ("job",))),
        lines("Rounds per acquire, p99", "Of samples. Many: contenders collide; widen the retry window.", _tries),
        lines("Split votes", "Rounds that nobody could win: too many at once.", _rate("redlock.split_votes", ("job",))),
    ),
)
_voting = _now("redlock.instance.voting", INSTANCE, function="min")
_abstains = _now("redlock.instance.abstaining", INSTANCE, function="max")
_replies = _p99(_REPLY, INSTANCE, db_system_name="redis", db_operation_name="SET")  # not of the application's databases
_errors = _rate("redlock.instance.errors", (*INSTANCE, "error_type"))
_INSTANCES = row(
    "Which instance?",
    line(
        8,
        lines("Votes for its clients", "1: for every process. 0: down, lagging or abstaining for one.", _voting),
        lines("Abstaining", "1 while it may have forgotten locks; it votes again after one TTL.", _abstains),
        lines("Reply to a SET, p99", "One above the others: its AOF policy, disk, machine.", _replies),
    ),
    line(
        7,
        lines("Errors", "By instance and kind: TIMEOUT, CLOSED, or what it answered.", _errors),
        lines("Reconnects", "Restarts, or a network that drops.", _rate("redlock.instance.reconnects", INSTANCE)),
        lines("Commands", "What applications send there.", _rate("redlock.instance.commands", INSTANCE)),
        lines("Votes", "Of observed attempts. Absent: it was not asked.", _rate("redlock.votes", ("redlock_vote",))),
    ),
)


def production() -> str:
    """The board as JSON."""
    held, voting = BY_NAME["redlock.leases.held"].prometheus, BY_NAME["redlock.instance.voting"].prometheus
    apps, mine = 'redlock_run_id=""', 'redlock_run_id="", job=~"$service"'
    variables: list[dashboard.DatasourceVariable | dashboard.QueryVariable] = [
        source(),
        choice("service", "Service", "who locks", f"label_values({held}{{{apps}}}, job)"),
        choice("instance", "Instance", "host of a server", f"label_values({voting}{{{mine}}}, server_address)"),
        choice("port", "Port", "port of a server", f"label_values({voting}{{{mine}}}, server_port)"),
    ]
    about = (
        "Applications that call lockcore.otel.instrument: is locking fine, for whom not, which instance, what to do."
    )
    rows = (_GLANCE, _WHOM, _INSTANCES)
    return board("lockbench: Locks in production", "lockbench-production", about, rows, variables=variables)
