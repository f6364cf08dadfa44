"""This module builds the boards of runs: *instruments → boards*. The boards show speed and
outcomes, votes, the cost of AOF policies, and a comparison of two runs.

Rules: a ratio divides a value of the chosen run by the same value of the baseline run. Each of the
two values covers the whole time of its run. A ratio of 1 means that both values are equal. A
comparison of two runs gives only a first hint. The commands `compare` and `gate` of lockbench give
a verdict with an interval. On the board for AOF policies, each policy can have several runs. The
time range of the board must include all runs that the reader compares.
"""

from functools import partial

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption

from bench.telemetry.table import BY_NAME
from dashboards import queries
from dashboards.board import SOME_RUNS, board, choice
from dashboards.panels import bars, heat, lines, number
from dashboards.queries import ACQUIRE, INSTANCE, Query, now, quantile, rate, ratio, state, total

# The bounds of every histogram.
SLO_S = ("0.001", "0.0022", "0.0047", "0.01", "0.022", "0.047", "0.1", "0.22", "0.47")
_MARGIN = "redlock.vote.margin"
_REPLY = "db.client.operation.duration"
_ENDED = "redlock.acquire.outcomes"
_leases = partial(total, _ENDED, redlock_outcome="acquired")
_broken = partial(total, "redlock.safety.violations", redlock_violation_kind="service_fault")
_UNSAFE = (
    "Leases on one resource that were valid at the same time. Must be 0. An empty panel means "
    "that no oracle ran."
)
_NO_ORACLE = "no oracle ran"
_NO_CRASH = "no crash in view"
_WHOLE_RUN = (
    "Leases per second while users ran, with warm-up and drain. The panel shows the average "
    "of all runs in view."
)


def _half_and_most(name: str) -> list[Query]:
    return [quantile(q, name).named(legend) for q, legend in ((0.5, "p50"), (0.99, "p99"))]


# -- run overview ----------------------------------------------------------------------------------

_taken = Query(_leases().expr, "{lease}")
_p99_of_all = queries.acquire_quantile(0.99, whole=True)
_in_time = ratio(queries.below(ACQUIRE, "$slo", redlock_outcome="acquired"), total(_ENDED))
_GLANCE = (
    number("Safety violations", _UNSAFE, _broken(), red_above=1, empty=_NO_ORACLE),
    number(
        "Leases judged",
        "By the oracle, for violations.",
        total("redlock.safety.judged_leases"),
        empty=_NO_ORACLE,
    ),
    number(
        "Leases",
        "Leases acquired in the displayed runs, with warm-up and drain (`totals` of result.json).",
        _taken,
    ),
    number("Rate of the whole run", _WHOLE_RUN, queries.whole_rate()),
    number(
        "Acquire p99",
        "All acquires of the displayed runs, measured from the intended start. 100 s means that "
        "more than 1 % of the acquires failed.",
        _p99_of_all,
    ),
    number(
        "Within the SLO",
        "Share of all acquires that got the lock within the chosen time. Failures count as misses.",
        _in_time,
    ),
)
_PERCENTILES = (
    "All acquires, measured from the intended start. 100 s means that too many acquires failed. "
    "Points are exemplars that you can click."
)
_percentiles = [queries.acquire_quantile(q).named(f"p{100 * q:g}") for q in (0.5, 0.9, 0.99, 0.999)]
_rates = [now(f"redlock.load.{name}").named(name) for name in ("achieved", "offered")]
_RATE = (
    lines(
        "Rate offered and achieved",
        "Leases that were granted per second, and acquires per second that an open loop offers. A "
        "gap between the lines means that the servers did not sustain the load.",
        *_rates,
    ),
    lines("Acquire latency, percentiles", _PERCENTILES, *_percentiles, exemplars=True),
)
_OTHERS = (
    "A release lasts from its request to the answer. A hold lasts from grant to release. A "
    "hand-off lasts from a release to the next grant of the resource."
)
_others = [
    quantile(0.99, f"redlock.{legend.replace('-', '')}.duration").named(f"{legend} p99")
    for legend in ("release", "hold", "hand-off")
]
_buckets = queries.buckets(ACQUIRE, redlock_outcome="acquired")
_LATENCY = (
    heat("Acquire latency, heatmap", "Successful acquires per second in each bucket.", _buckets),
    lines("Release, hold and hand-off, p99", _OTHERS, *_others),
)
_outcomes = rate(_ENDED, ("redlock_outcome",))
_held = Query(now("redlock.leases.held").expr, "{caller}", "holding")
_waiting = now("redlock.callers.waiting").named("waiting")
_OUTCOMES = (
    lines("Outcomes", "Acquires that returned, by outcome.", _outcomes, stacked=True),
    lines(
        "Callers",
        "Callers that hold a lease and callers that wait for one.",
        _held,
        _waiting,
        stacked=True,
    ),
)
_gone = Query(rate("redlock.leases.gone").expr, "{lock}/s", "leases gone")
_expired = Query(rate("redis.keys.expired").expr, "{lock}/s", "keys expired")
_validity = queries.mean("redlock.lease.validity").named("mean")
_faults = state("redlock.fault.active", ("redlock_fault_kind", "redlock_fault_target"))
_LEASES = (
    lines(
        "Validity left at the grant",
        "The validity of a lease: TTL minus elapsed time minus drift.",
        _validity,
    ),
    lines(
        "Leases gone and keys expired",
        "Leases that were gone at their release, and keys that expired without a release.",
        _gone,
        _expired,
    ),
    lines("Faults", "1 means that an injected fault is in force.", _faults),
)


def overview() -> str:
    """Return the board as JSON."""
    slo = (
        dashboard.CustomVariable("slo")
        .label("SLO (s)")
        .description("the longest time that an acquire should take")
    )
    slo.current(VariableOption(selected=True, text="0.01", value="0.01"))
    slo.values(",".join(("0.01", *(bound for bound in SLO_S if bound != "0.01"))))
    about = (
        "The board shows one run live: its rate, its latency from the intended start, its "
        "outcomes and its callers. Start here."
    )
    latency = ("Rate and latency", 9, _RATE), ("", 9, _LATENCY)
    shelves = (
        ("At a glance", 4, _GLANCE),
        *latency,
        ("Outcomes and callers", 8, _OUTCOMES),
        ("", 7, _LEASES),
    )
    return board("Run overview", "run-overview", about, shelves, (slo,))


# -- quorum and split-brain retries ----------------------------------------------------------------

_splits = ratio(total("redlock.split_votes"), total(_ENDED))
_needed = now("redlock.quorum.size", function="max").named("quorum")
_spare = Query(f"{queries.voting().expr} - {_needed.expr}", "{instance}", "spare")
# Margins are whole numbers, so a value of at most 0.1 is 0.
_bare = ratio(queries.below(_MARGIN, "0.1"), queries.count(_MARGIN))
_restarts = total("redis.restarts")
_MARGINS = (
    number(
        "Split-brain retries per acquire",
        "Rounds that nobody could win (split votes), per acquire.",
        _splits,
    ),
    number(
        "Leases without reserve",
        "Leases granted by exactly a quorum. If one of these instances forgets a lock, the lock "
        "is lost.",
        _bare,
    ),
    number(
        "Instances beyond the quorum",
        "Instances that vote now, minus the quorum. Below 0, a lock is impossible.",
        _spare,
        empty="not known now",
    ),
    number(
        "Restarts",
        "Restarts in the displayed runs. Each instance may have forgotten its locks.",
        _restarts,
        red_above=1,
    ),
)
_votes = rate("redlock.votes", ("redlock_vote",))
_split = rate("redlock.split_votes").named("split votes")
_margin = queries.mean(_MARGIN).named("mean")
_VOTES = (
    lines(
        "Votes",
        "Votes of the last round of each acquire, counted after the end of the round.",
        _votes,
        stacked=True,
    ),
    lines(
        "Vote margin",
        "Granted votes beyond the quorum. The lock survives the failure of this many instances.",
        _margin,
    ),
    lines("Split-brain retries (split votes)", "Rounds per second that nobody could win.", _split),
)
_dead = _half_and_most("redlock.split_vote.dead_time")
_attempts = (
    queries.mean("redlock.acquire.attempts").named("mean"),
    _half_and_most("redlock.acquire.attempts")[1],
)
_ROUNDS = (
    lines(
        "Dead time of split votes",
        "Time from the start of an acquire to the round that won.",
        *_dead,
    ),
    lines("Rounds per acquire", "1 means that the first round decided the acquire.", *_attempts),
)
_jain = now("redlock.callers.fairness", function="min")
_WAITING = (
    lines("Polls", "Repeated attempts plus queries about holders.", rate("redlock.acquire.polls")),
    lines(
        "Wakeups",
        "Turns that a process passed to another process (retry policy push).",
        rate("redlock.handoff.turns"),
    ),
    lines(
        "Longest acquire",
        "So far, failed ones included.",
        now("redlock.acquire.longest", function="max"),
    ),
    lines(
        "Fairness among callers",
        "Jain's index of the callers' leases. 1 means equal numbers of leases, and 1 ÷ callers "
        "means that one caller got all.",
        _jain,
    ),
)
_median, _slow = (quantile(q, _REPLY, INSTANCE) for q in (0.5, 0.99))
_skew = Query(f"max({_median.expr}) / min({_median.expr})", "x", "slowest ÷ fastest")
_TIMED = (
    "Reply times of each instance. The times come from about 250 acquires per second, and from at "
    "least one acquire in 64."
)
_REPLIES = (
    lines("Reply to a SET, p50", _TIMED, _median),
    lines("Reply to a SET, p99", _TIMED, _slow),
    lines(
        "Latency skew",
        "The median reply time of the slowest instance ÷ the median of the fastest instance.",
        _skew,
    ),
)
_abstains = state("redlock.instance.abstaining", INSTANCE, function="max")
_INSTANCES = (
    lines(
        "Voting instances",
        "Number of voting instances. Below the quorum, no lock is possible.",
        queries.voting().named("voting"),
        _needed,
    ),
    lines(
        "Abstaining",
        "1 means that an instance does not vote, because it may have forgotten locks.",
        _abstains,
    ),
    lines(
        "Commands",
        "Commands that the load sent to each instance.",
        rate("redlock.instance.commands", INSTANCE),
    ),
)
_errors = total("redlock.instance.errors", (*INSTANCE, "error_type"))
_errors = _errors.named("{{server_address}}:{{server_port}} {{error_type}}")
_TROUBLES = (
    lines("Errors", "Errors that the load met since the run began, by instance and kind.", _errors),
    lines(
        "Reconnects",
        "Connections made anew, by instance.",
        rate("redlock.instance.reconnects", INSTANCE),
    ),
)


def quorum() -> str:
    """Return the board as JSON."""
    about = (
        "The board shows the instances, their votes, vote margins and split-brain retries. A "
        "split-brain retry follows a round that nobody won (split vote)."
    )
    votes = (
        ("At a glance", 4, _MARGINS),
        ("Votes", 8, _VOTES),
        ("", 8, _ROUNDS),
        ("Waiting", 7, _WAITING),
    )
    servers = ("Instances", 8, _REPLIES), ("", 7, _INSTANCES), ("Troubles", 7, _TROUBLES)
    return board("Quorum and split-brain retries", "quorum", about, (*votes, *servers))


# -- fsync trade-off -------------------------------------------------------------------------------

_BY = (queries.POLICY,)


def _each_lease(name: str) -> Query:
    """Return the final value of a counter divided by the number of leases. The division makes runs
    of different lengths comparable."""
    return ratio(total(name, _BY), _leases(_BY), BY_NAME[name].unit + "/lease")


_p50, _p99 = (queries.acquire_quantile(q, _BY, whole=True) for q in (0.5, 0.99))
_reply = quantile(0.99, _REPLY, _BY, whole=True)
_stalls = _each_lease("redis.aof.delayed_fsyncs")
_PRICE = (
    bars("Rate of the whole run", _WHOLE_RUN, queries.whole_rate(_BY)),
    bars("Acquire p50", "All leases of the runs, measured from the intended start.", _p50),
    bars("Acquire p99", "All leases of the runs, measured from the intended start.", _p99),
    bars(
        "Fsyncs per lease",
        "Sum over all instances. Only the fault shim counts fsyncs.",
        _each_lease("redis.aof.fsyncs"),
        empty="no shim counted",
    ),
    bars("Stalls per lease", "Writes that waited for a running sync (aof_delayed_fsync).", _stalls),
    bars(
        "Reply to a SET, p99",
        "Reply time of all instances over the whole runs, measured in observed attempts.",
        _reply,
    ),
)
_lost = total("redlock.crash.lost_locks", _BY)
_doubled = total("redlock.crash.double_grants", _BY)
_window = quantile(0.99, "redlock.crash.lost_window", _BY, whole=True)
_LOSS = (
    bars(
        "Locks lost in crashes",
        "Acknowledged locks that an instance forgot.",
        _lost,
        empty=_NO_CRASH,
    ),
    bars(
        "Lost window, p99",
        "Age of acknowledged locks at the moment when a crash destroyed them.",
        _window,
        empty=_NO_CRASH,
    ),
    bars(
        "Double grants",
        "Double grants: overlapping leases after a crash.",
        _doubled,
        empty=_NO_CRASH,
    ),
    bars("Safety violations", _UNSAFE, _broken(_BY), empty=_NO_ORACLE),
)
_size = now("redis.aof.size", (*INSTANCE, *_BY))
_rewrites = state("redis.aof.rewrite_in_progress", (*INSTANCE, *_BY))
_SERVERS = (
    lines("AOF size", "By instance.", _size),
    lines("AOF rewrites", "1 means that an instance is rewriting its AOF.", _rewrites),
)


def fsync() -> str:
    """Return the board as JSON."""
    about = (
        "The cost and the losses of each AOF policy. Run the same scenario with --fsync none, "
        "everysec, always."
    )
    shelves = (
        ("The price, by policy", 6, _PRICE),
        ("The loss, by policy", 6, _LOSS),
        ("Servers", 7, _SERVERS),
    )
    return board("Fsync trade-off", "fsync", about, shelves, since=SOME_RUNS)


# -- generator health and comparison ---------------------------------------------------------------

_lag_of_all = quantile(0.99, "redlock.scheduler.lag", whole=True)
_HEALTH = (
    number(
        "Scheduler lag p99",
        "Delay with which a load process wakes from a sleep, in all displayed runs.",
        _lag_of_all,
        red_above=0.01,
    ),
    number(
        "Late starts", "Operations that the timer started late.", total("redlock.load.late_starts")
    ),
    number(
        "Queued starts",
        "Operations that were due while no caller was free.",
        total("redlock.load.queued_starts"),
    ),
    number(
        "Telemetry dropped",
        "Telemetry items that were created but did not arrive. Counts stay complete.",
        total("redlock.telemetry.dropped"),
    ),
)
_cpu = rate("redlock.client.cpu", ("redlock_worker",))
_lag = _half_and_most("redlock.scheduler.lag")
_LOAD = (
    lines(
        "CPU of the load",
        "Share of one core, by load process. At 90 % or more, the rate is a lower bound. A "
        "value of 0 means that the process is silent, because it was killed or does not run "
        "(alert LoadProcessSilent).",
        _cpu,
    ),
    lines(
        "Scheduler lag",
        "Delay with which a load process wakes from a sleep, measured every 10 ms.",
        *_lag,
    ),
)


_against = partial(ratio, unit="x")


def _latency(q: float) -> Query:
    both = (queries.acquire_quantile(q, whole=True, run=run) for run in ("$run", "$baseline"))
    return _against(*both)


def _per_lease(name: str) -> Query:
    each = (ratio(total(name, run=run), _leases(run=run)).expr for run in ("$run", "$baseline"))
    return _against(*(Query(f"({expr})", "") for expr in each))


_speed = _against(queries.whole_rate(), queries.whole_rate(run="$baseline"))
_ratio_of = partial(number, empty="choose a run and a baseline")
_RATIOS = (
    _ratio_of(
        "Rate",
        "Leases per second of the whole run. A value above 1 means that the chosen run is "
        "faster than the baseline.",
        _speed,
    ),
    _ratio_of(
        "Acquire p50",
        "A value below 1 means that the chosen run is faster than the baseline.",
        _latency(0.5),
    ),
    _ratio_of(
        "Acquire p99",
        "A value below 1 means that the chosen run is faster than the baseline.",
        _latency(0.99),
    ),
    _ratio_of(
        "Client CPU per lease",
        "A value below 1 means that the chosen run needs less CPU time than the baseline.",
        _per_lease("redlock.client.cpu"),
    ),
    _ratio_of(
        "Server CPU per lease",
        "A value below 1 means that the chosen run needs less CPU time than the baseline.",
        _per_lease("redis.cpu.time"),
    ),
)


def generator() -> str:
    """Return the board as JSON."""
    about = (
        "The board shows whether you can trust the figures of the load generator. It also "
        "compares the chosen run with a baseline."
    )
    named = choice("baseline_name", "Baseline's name", "its --name", queries.NAME)
    within = f'{queries.NAME}=~"$baseline_name"'
    about_baseline = (
        "baseline",
        "Baseline",
        "each ratio is a figure of the chosen run divided by the same figure of this run",
        queries.RUN,
    )
    baseline = choice(*about_baseline, within, multi=False)
    shelves = ("Health", 4, _HEALTH), ("", 8, _LOAD), ("Chosen run ÷ baseline", 4, _RATIOS)
    return board(
        "Generator health and comparison",
        "generator",
        about,
        shelves,
        (named, baseline),
        since=SOME_RUNS,
    )
