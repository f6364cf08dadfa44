"""The table of all instruments: *name → unit, kind, attributes, meaning, and the name in
Prometheus*.

Rules
- Every exported value is defined here and nowhere else. The `/metrics` page, the boards and
  docs/telemetry/instruments.md are made from this table.
- An attribute is never a resource, key, owner token or password. All values that are not in this
  table come from the configuration of the run. So the set of values is known before the first
  operation. If OpenTelemetry has a stable name for a value, the table uses this name.
- Every data point has the attributes `redlock.recipe` and `redlock.fsync`. The run id is an
  attribute of OpenTelemetry's resource instead of an attribute of the points.
- All histograms use the same list of bounds, both in OTLP and in Prometheus. Each whole number up
  to 4 has its own bucket.

Sources: the names follow OpenTelemetry's specification, "Prometheus compatibility", and
OpenTelemetry's semantic conventions. The bounds follow IEC 60063, series E6.
"""

from dataclasses import dataclass
from enum import Enum
from functools import partial


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of metrics.

    `values`: all possible values. The number of values is always small. If `values` is empty,
    `origin` names the source of the values.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    origin: str = ""

    @property
    def label(self) -> str:
        """The name of the attribute as a Prometheus label."""
        return self.name.replace(".", "_")


ACQUIRE_OUTCOMES = ("acquired", "contended", "split_vote", "unreachable", "too_late")
RELEASE_OUTCOMES = ("released", "gone", "unreachable")
EXTEND_OUTCOMES = ("extended", "gone", "unreachable")
VOTES = ("granted", "refused", "errored", "silent", "absent", "undecided")
VIOLATIONS = (
    "service_fault",
    "granted_invalid",
    "foreign_delete",
    "client_overstay",
    "spurious_refusal",
)
POLICIES = ("none", "no", "everysec", "always", "mixed", "unknown")
DROPPED = ("span", "attempt", "export", "point", "record")
CPU_STATES = ("sys", "user", "sys_children", "user_children")

RECIPE = Attribute("redlock.recipe", "the lock under test", origin="`lockbench recipes`")
FSYNC = Attribute("redlock.fsync", "when the instances sync their AOF", POLICIES)
RUN_ID = Attribute(
    "redlock.run.id",
    "the id of the run, as an attribute of the OpenTelemetry resource",
    origin="drawn once per run",
)
ACQUIRED_AS = Attribute("redlock.outcome", "how an acquire ended", ACQUIRE_OUTCOMES)
RELEASED_AS = Attribute("redlock.outcome", "how a release ended", RELEASE_OUTCOMES)
EXTENDED_AS = Attribute("redlock.outcome", "how an extension ended", EXTEND_OUTCOMES)
VOTE = Attribute(
    "redlock.vote",
    "the vote of one instance; `undecided` means that no vote arrived before the load ended",
    VOTES,
)
VIOLATION = Attribute(
    "redlock.violation.kind", "the rule of the oracle that was broken", VIOLATIONS
)
FAULT = Attribute(
    "redlock.fault.kind", "the kind of the injected fault", origin="the scenario's [[faults]]"
)
FAULT_TARGET = Attribute(
    "redlock.fault.target",
    "the instance or load process that the fault hits",
    origin="instance:<index> or worker:<index>",
)
WORKER = Attribute("redlock.worker", "index of the load process", origin="0 … processes − 1")
DROPPED_KIND = Attribute("redlock.telemetry.item", "the kind of the dropped telemetry", DROPPED)
CPU_STATE = Attribute("state", "the kinds of CPU time that INFO reports", CPU_STATES)
ADDRESS = Attribute("server.address", "host of the instance", origin="the run's instances")
PORT = Attribute("server.port", "port of the instance", origin="the run's instances")
SYSTEM = Attribute("db.system.name", "the kind of database", ("redis",))
OPERATION = Attribute("db.operation.name", "the command that was timed", ("SET",))
VOTE_ERROR = Attribute(
    "error.type", "reason why the instance did not answer successfully", ("errored", "silent")
)
ERROR = Attribute(
    "error.type",
    "reason why the instance did not answer successfully",
    origin="TIMEOUT, CLOSED, or the first word of an error reply",
)
FLEET = Attribute(
    "redlock.fleet",
    "the group of instances, if a process has locks on several groups",
    origin="the application",
)
CLASS = Attribute(
    "redlock.resource.class",
    "the class of the resource",
    origin="the application's mapping",
)
RUN_NAME = Attribute("redlock.run.name", "the name that the user gave to the run", origin="--name")
STARTED = Attribute("redlock.run.started", "when the run began, UTC", origin="the run")

_DECADES = [
    f"{digits}e{exponent}" for exponent in range(-5, 2) for digits in (1, 1.5, 2.2, 3.3, 4.7, 6.8)
]
# The 43 upper bounds from 10 µs to 100 s, six for each power of ten.
BOUNDS: tuple[float, ...] = (*map(float, _DECADES), 100.0)

COMMON: tuple[Attribute, ...] = (RECIPE, FSYNC)
SCOPE = "lockbench"
# The first version of the conventions in which all names for databases are stable.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.33.0"

_UNITS = {"s": "_seconds", "By": "_bytes"}
_INSTANCE = (ADDRESS, PORT)


class InstrumentKind(Enum):
    """The kind of an instrument.

    A COUNTER only grows. A GAUGE shows the present value of a quantity. A HISTOGRAM counts values
    in buckets. `BOUNDS` has the upper bounds of the buckets.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric.

    Each data point of the metric has all attributes in `attributes`, and all attributes in
    `COMMON`.
    """

    name: str
    unit: str
    kind: InstrumentKind
    attributes: tuple[Attribute, ...]
    meaning: str

    @property
    def prometheus(self) -> str:
        """The name in Prometheus. A histogram's name has no `_bucket`, `_sum` or `_count`."""
        unit = "_per_second" if self.unit.endswith("/s") else _UNITS.get(self.unit, "")
        total = "_total" if self.kind is InstrumentKind.COUNTER else ""
        return self.name.replace(".", "_") + unit + total


def _instrument(
    kind: InstrumentKind, name: str, unit: str, meaning: str, *attributes: Attribute
) -> Instrument:
    return Instrument(name, unit, kind, attributes, meaning)


_histogram = partial(_instrument, InstrumentKind.HISTOGRAM)
_counter = partial(_instrument, InstrumentKind.COUNTER)
_gauge = partial(_instrument, InstrumentKind.GAUGE)

INSTRUMENTS: tuple[Instrument, ...] = (
    _histogram(
        "redlock.acquire.duration",
        "s",
        "time from the intended start until acquire returned",
        ACQUIRED_AS,
    ),
    _histogram(
        "redlock.release.duration",
        "s",
        "time from sending a release until the release returned",
        RELEASED_AS,
    ),
    _histogram(
        "redlock.extend.duration",
        "s",
        "time from sending an extension until the extension returned",
        EXTENDED_AS,
    ),
    _histogram(
        "redlock.hold.duration", "s", "time from the grant until the holder sends its release"
    ),
    _histogram(
        "redlock.handoff.duration",
        "s",
        "time from sending a release to the next grant of the same resource, while another "
        "caller waits",
    ),
    _histogram("redlock.lease.validity", "s", "remaining validity of a lease when it was granted"),
    _histogram(
        "redlock.acquire.attempts", "{attempt}", "number of rounds in one acquire", ACQUIRED_AS
    ),
    _counter("redlock.acquire.outcomes", "{acquire}", "acquires that returned", ACQUIRED_AS),
    _counter(
        "redlock.votes",
        "{vote}",
        "votes in the last round of each acquire, counted when the round has closed",
        VOTE,
    ),
    _histogram(
        "redlock.vote.margin",
        "{vote}",
        "granted votes of an acquired lease minus the quorum, measured when the round has closed",
    ),
    _counter(
        "redlock.split_votes", "{round}", "rounds that nobody could win (split-brain retries)"
    ),
    _histogram(
        "redlock.split_vote.dead_time",
        "s",
        "time from the start of an acquire with a split vote to the start of its winning round",
    ),
    _gauge("redlock.leases.held", "{lease}", "callers holding a lease"),
    _gauge("redlock.callers.waiting", "{caller}", "callers that wait for a lease"),
    _counter(
        "redlock.handoff.turns",
        "{turn}",
        "how often one process passed the turn for a resource to another process (retry "
        "policy `push`)",
    ),
    _counter(
        "redlock.acquire.polls",
        "{attempt}",
        "repeated attempts to acquire, plus queries about a lock's holder",
    ),
    _gauge(
        "redlock.acquire.longest",
        "s",
        "duration of the longest acquire so far, with failed acquires included",
    ),
    _gauge(
        "redlock.callers.fairness",
        "{index}",
        "fairness: Jain's index of the leases per caller so far; 1 means that all callers got "
        "the same number",
    ),
    _counter(
        "redlock.leases.gone",
        "{lease}",
        "leases that had expired or belonged to another caller at their release",
    ),
    # safety
    _counter(
        "redlock.safety.violations",
        "{violation}",
        "violations of the oracle's rules; absent if no oracle runs",
        VIOLATION,
    ),
    _counter(
        "redlock.safety.judged_leases",
        "{lease}",
        "leases that the oracle has judged so far; absent if no oracle runs",
    ),
    _counter(
        "redlock.crash.lost_locks",
        "{lock}",
        "acknowledged locks that an instance forgot in a crash",
    ),
    _histogram(
        "redlock.crash.lost_window",
        "s",
        "age of an acknowledged lock when a crash destroyed the lock",
    ),
    _counter(
        "redlock.crash.double_grants",
        "{lease}",
        "double grants: overlapping leases after a crash",
    ),
    # the load
    _gauge(
        "redlock.load.offered",
        "{acquire}/s",
        "the requested rate of an open loop; each exporter reports its share",
    ),
    _gauge(
        "redlock.load.achieved", "{acquire}/s", "leases acquired per second in the last interval"
    ),
    _counter(
        "redlock.load.time",
        "s",
        "time for which the users of the run have worked; it stops growing when the users stop",
    ),
    _counter(
        "redlock.load.late_starts",
        "{acquire}",
        "operations that the load generator's timer started late",
    ),
    _counter(
        "redlock.load.queued_starts",
        "{acquire}",
        "operations that had to wait because no caller was free",
    ),
    _histogram(
        "redlock.scheduler.lag",
        "s",
        "how late a load process wakes from a sleep; measured every 10 ms",
        WORKER,
    ),
    _counter(
        "redlock.client.cpu", "s", "CPU time of each load process since its users started", WORKER
    ),
    _gauge(
        "redlock.fault.active",
        "{fault}",
        "1 if the fault was in force in the last interval",
        FAULT,
        FAULT_TARGET,
    ),
    _gauge(
        "redlock.run.active",
        "{run}",
        "1 if the users of the run are working, 0 after the users have stopped",
    ),
    _gauge(
        "redlock.run.info",
        "{run}",
        "always 1; the attributes of this metric name the run",
        RUN_NAME,
        STARTED,
    ),
    _counter(
        "redlock.telemetry.dropped",
        "{item}",
        "telemetry items that were created but did not arrive",
        DROPPED_KIND,
    ),
    # the instances
    _histogram(
        "db.client.operation.duration",
        "s",
        "reply time of an instance to the SET of an observed attempt",
        SYSTEM,
        OPERATION,
        VOTE_ERROR,
        *_INSTANCE,
    ),
    _gauge(
        "redlock.quorum.size",
        "{instance}",
        "the quorum: more than half of the configured instances",
    ),
    _gauge(
        "redlock.instance.voting",
        "{instance}",
        "1 if the instance votes for every load process, otherwise 0",
        *_INSTANCE,
    ),
    _gauge(
        "redlock.instance.abstaining",
        "{instance}",
        "1 if the instance must not vote, because it may have forgotten locks; otherwise 0",
        *_INSTANCE,
    ),
    _counter(
        "redlock.instance.commands",
        "{command}",
        "commands that the load sent to the instance",
        *_INSTANCE,
    ),
    _counter(
        "redlock.instance.errors",
        "{error}",
        "errors that the load met at the instance",
        ERROR,
        *_INSTANCE,
    ),
    _counter(
        "redlock.instance.reconnects",
        "{connection}",
        "connections that had to be opened again",
        *_INSTANCE,
    ),
    _counter(
        "redis.restarts",
        "{restart}",
        "restarts of the instance since the run began (INFO shows a new run_id)",
        *_INSTANCE,
    ),
    _counter(
        "redis.cpu.time",
        "s",
        "CPU time of the instance (used_cpu_* of INFO)",
        CPU_STATE,
        *_INSTANCE,
    ),
    _counter(
        "redis.keys.expired",
        "{key}",
        "locks that expired because nobody released them (expired_keys of INFO)",
        *_INSTANCE,
    ),
    _counter(
        "redis.aof.fsyncs",
        "{fsync}",
        "fsync calls of the instance; absent if the fault shim does not count them",
        *_INSTANCE,
    ),
    _counter(
        "redis.aof.delayed_fsyncs",
        "{fsync}",
        "writes that had to wait for a running sync (aof_delayed_fsync of INFO)",
        *_INSTANCE,
    ),
    _gauge("redis.aof.size", "By", "size of the AOF (aof_current_size of INFO)", *_INSTANCE),
    _gauge(
        "redis.aof.rewrite_in_progress",
        "{rewrite}",
        "1 if the instance is rewriting its AOF (aof_rewrite_in_progress of INFO)",
        *_INSTANCE,
    ),
)
IN_APPLICATIONS: tuple[Instrument, ...] = (
    _counter(
        "redlock.acquire.slow",
        "{acquire}",
        "acquires that got a lease later than the application allows",
        CLASS,
    ),
    _gauge(
        "redlock.leases.overdue",
        "{lease}",
        "leases that expired without a release; a lease counts for at most one hour after its end",
        CLASS,
    ),
    # Only lockcore.otel has these instruments. lockcore.otel also has some of the instruments
    # above.
)
BY_NAME: dict[str, Instrument] = {
    instrument.name: instrument for instrument in (*INSTRUMENTS, *IN_APPLICATIONS)
}


ATTRIBUTES: tuple[Attribute, ...] = tuple(
    dict.fromkeys(
        (RUN_ID, *COMMON, FLEET, *(key for one in BY_NAME.values() for key in one.attributes))
    )
)


def instruments_table() -> str:
    """Return two Markdown tables: one of all instruments and one of all attributes."""
    lines = ["| metric | unit | kind | attributes | meaning |", "|---|---|---|---|---|"]
    for one in BY_NAME.values():
        keys = " ".join(f"`{attribute.name}`" for attribute in one.attributes) or "–"
        lines.append(f"| `{one.name}` | {one.unit} | {one.kind.value} | {keys} | {one.meaning} |")
    lines += ["", "| attribute | meaning | values |", "|---|---|---|"]
    for key in ATTRIBUTES:
        values = " ".join(f"`{value}`" for value in key.values) or key.origin
        lines.append(f"| `{key.name}` | {key.meaning} | {values} |")
    return "\n".join(lines)
