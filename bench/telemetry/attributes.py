"""What may stand beside a value: *attribute name → its closed set of values, or where they come from*.

Rules
- Never a resource, key, owner token or password: a set that is not spelled out here comes from the run's configuration
  (its instances, workers, recipe), so its size is known before the first operation.
- Names of OpenTelemetry's stable conventions where there is one, `redlock.*` otherwise.

Source: the vocabulary of README; OpenTelemetry semantic conventions for databases, servers and errors (stable).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """One key. `values`: all it may be, or empty when `origin` says where its few values come from."""

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    origin: str = ""

    @property
    def label(self) -> str:
        """Its name as a Prometheus label."""
        return self.name.replace(".", "_")


ACQUIRE_OUTCOMES = ("acquired", "contended", "split_vote", "unreachable", "too_late")
RELEASE_OUTCOMES = ("released", "gone", "unreachable")
EXTEND_OUTCOMES = ("extended", "gone", "unreachable")
VOTES = ("granted", "refused", "errored", "silent", "absent", "undecided")
VIOLATIONS = ("service_fault", "granted_invalid", "foreign_delete", "client_overstay", "spurious_refusal")
POLICIES = ("none", "no", "everysec", "always", "mixed", "unknown")
PHASES = ("warm_up", "measuring", "draining")
DROPPED = ("span", "attempt", "export", "record")
CPU_STATES = ("sys", "user", "sys_children", "user_children")

RECIPE = Attribute("redlock.recipe", "the lock under test", origin="`lockbench recipes`")
FSYNC = Attribute("redlock.fsync", "when the instances sync their AOF", POLICIES)
RUN_ID = Attribute("redlock.run.id", "which run; on the resource", origin="drawn once per run")
ACQUIRED_AS = Attribute("redlock.outcome", "how an acquire ended", ACQUIRE_OUTCOMES)
RELEASED_AS = Attribute("redlock.outcome", "how a release ended", RELEASE_OUTCOMES)
EXTENDED_AS = Attribute("redlock.outcome", "how an extension ended", EXTEND_OUTCOMES)
VOTE = Attribute("redlock.vote", "what one instance said", VOTES)
VIOLATION = Attribute("redlock.violation.kind", "which rule of the oracle was broken", VIOLATIONS)
FAULT = Attribute("redlock.fault.kind", "what was injected", origin="the scenario's [[faults]]")
FAULT_TARGET = Attribute("redlock.fault.target", "into what", origin="instance:<index> or worker:<index>")
WORKER = Attribute("redlock.worker", "index of the load process", origin="0 … processes − 1")
PHASE = Attribute("redlock.run.phase", "part of a run", PHASES)
DROPPED_KIND = Attribute("redlock.telemetry.item", "what was dropped", DROPPED)
CPU_STATE = Attribute("state", "where CPU time went, as INFO splits it", CPU_STATES)
ADDRESS = Attribute("server.address", "host of the instance", origin="the run's instances")
PORT = Attribute("server.port", "port of the instance", origin="the run's instances")
SYSTEM = Attribute("db.system.name", "what the instance is", ("redis",))
OPERATION = Attribute("db.operation.name", "the command that was timed", ("SET",))
VOTE_ERROR = Attribute("error.type", "why there was no good answer", ("errored", "silent"))
ERROR = Attribute(
    "error.type", "why there was no good answer", origin="TIMEOUT, CLOSED, or an error reply's first word"
)
USERS = Attribute("redlock.users", "callers over all processes", origin="the scenario")
INSTANCES = Attribute("redlock.instances", "N", origin="the scenario")
PROCESSES = Attribute("redlock.processes", "load processes", origin="the scenario")
LOOP = Attribute("redlock.loop", "closed: callers at once again; open: a schedule", ("closed", "open"))
VERSION = Attribute("service.version", "of lockbench", origin="the installation")
