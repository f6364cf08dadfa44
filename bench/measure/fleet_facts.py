"""The sections of a result that describe the servers of a run.

The name of a field ends in its unit. A field is null if its value is unknown or does not apply.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from bench.measure.latency import Latency
from bench.measure.section import Amount, Count, Section, says
from bench.measure.server_facts import InstanceFacts, ServerBinary, SyncLatency, servers_text

_POLICIES = ("none", "no", "everysec", "always")


class FleetFacts(Section, frozen=True, kw_only=True):
    """The servers that the run started or targeted, and the durability of their data."""

    started: Annotated[
        bool, says("true if lockbench started the servers; false if the user named running servers")
    ]
    server: Annotated[
        ServerBinary | None,
        says("the server program that lockbench started; null if the user named running servers"),
    ]
    fsync: Annotated[
        str | None,
        says(
            "AOF fsync policy with which lockbench started the servers; null if the user named "
            "running servers"
        ),
    ]
    fdatasync_s: Annotated[
        SyncLatency | None,
        says(
            "duration of an append with fdatasync on the servers' disk; null if the user named "
            "running servers"
        ),
    ]
    instances: Annotated[tuple[InstanceFacts, ...], says("facts about each instance")]

    @property
    def servers_text(self) -> str:
        """The names and versions of the servers, such as `redis 7.0.15`. The text is empty if the
        name and version of every server are unknown."""
        return servers_text(self.instances)

    @property
    def policy(self) -> str | None:
        """The AOF policy that all instances have. It is None if the policies differ, or if the
        policy of an instance is unknown."""
        policies = {one.fsync for one in self.instances}
        return self.fsync or (policies.pop() if len(policies) == 1 else None)

    @property
    def policies(self) -> str:
        """The AOF policies of the instances as text, such as `everysec and always`. If no policy is
        known, the text is ""."""
        if self.fsync is not None:
            return self.fsync
        present = {one.fsync for one in self.instances}
        names = " and ".join(name for name in _POLICIES if name in present)
        silent = sum(one.fsync is None for one in self.instances)
        return f"{names} (of {silent} not known)" if names and silent else names

    @property
    def text(self) -> str:
        """A text that describes how the servers sync their data to disk, such as `fsync everysec`.
        If the user named the servers, the text begins with `own targets`, as in `own targets, fsync
        everysec`."""
        policies = f"fsync {self.policies or 'not known'}"
        return policies if self.started else f"own targets, {policies}"


class OwnFleet(Section, frozen=True, kw_only=True):
    """The servers that lockbench started for an experiment. A fact is null if it is not the same
    for all servers, or if the experiment did not read the fact."""

    started: Annotated[
        Literal[True], says("always true: lockbench started the servers for this experiment")
    ] = True
    server: Annotated[ServerBinary, says("the server program that was started")]
    fsync: Annotated[str | None, says("AOF fsync policy of the started servers")] = None
    fdatasync_s: Annotated[
        SyncLatency | None, says("duration of an append with fdatasync on the servers' disk")
    ] = None
    instances: Annotated[tuple[InstanceFacts, ...], says("facts about each instance")] = ()


@dataclass(frozen=True, slots=True)
class InfoDelta:
    """The changes in an instance's counters between two replies to INFO."""

    address: Annotated[
        str, says("address of the instance, without secrets: host:port or socket path")
    ]
    warning: Annotated[
        str | None, says("why the counters are unknown; null if the counters are known")
    ]
    elapsed_s: Annotated[float, says("seconds between the two readings of INFO")]
    cpu_s: Annotated[
        float | None, says("CPU time of the server (system and user), without forked children")
    ] = None
    commands_processed: Annotated[
        int | None, says("number of commands that the server processed")
    ] = None
    calls: Annotated[
        dict[str, int],
        says("number of calls of each command; a subcommand is written like config|get"),
    ] = field(default_factory=dict)
    expired_keys: Annotated[int | None, says("number of keys that expired")] = None
    evicted_keys: Annotated[
        int | None, says("number of keys that the server evicted because its memory was full")
    ] = None
    aof: Annotated[
        dict[str, int | str],
        says(
            "AOF figures of INFO; aof_delayed_fsync and aof_rewrites are the increases between "
            "the two readings; all other figures come from the second reading"
        ),
    ] = field(default_factory=dict)

    @property
    def delayed_fsyncs(self) -> int | None:
        """How many AOF writes waited for an fsync, or None if INFO does not have this count."""
        count = self.aof.get("aof_delayed_fsync")
        return count if isinstance(count, int) else None


class InstanceSeen(Section, frozen=True, kw_only=True):
    """The state of one instance, as one load process reports it."""

    index: Annotated[Count, says("position of the instance in the list of targets, from 0")]
    address: Annotated[
        str, says("address of the instance, without secrets: host:port or socket path")
    ]
    state: Annotated[
        str,
        says(
            "state of the instance at the end: voting, abstaining, lagging, refused or down; if "
            "the load processes disagree, the worst of their states"
        ),
    ]
    reason: Annotated[str, says('why the instance does not vote; "" if the instance votes')] = ""
    run_id: Annotated[
        str, says("id of the server process; each start of the server gives a new id")
    ] = ""
    server: Annotated[str | None, says("name and version of the server")] = None
    release_command: Annotated[
        str, says("the command with which releases deleted keys on this instance")
    ] = ""
    commands: Annotated[Count, says("number of commands sent to the instance")] = 0
    bytes_sent: Annotated[Count, says("bytes sent to the instance")] = 0
    bytes_received: Annotated[Count, says("bytes received from the instance")] = 0
    writes: Annotated[Count, says("number of system calls that sent data to the instance")] = 0
    reads: Annotated[Count, says("number of system calls that received data from the instance")] = 0
    late_replies: Annotated[
        Count, says("number of replies that arrived after the decision of their round")
    ] = 0
    pending: Annotated[
        Count, says("number of commands that were still unanswered at the end of the run")
    ] = 0
    owed_releases: Annotated[
        Count, says("number of releases that were still unsent at the end of the run")
    ] = 0
    reconnects: Annotated[Count, says("number of reconnects to the instance")] = 0
    errors: Annotated[dict[str, Count], says("number of errors by kind of error")] = msgspec.field(
        default_factory=dict
    )

    @property
    def is_well(self) -> bool:
        """True if the instance voted at the end of the run and the load processes counted no
        errors."""
        return self.state == "voting" and not self.errors


class InstanceReport(InstanceSeen, frozen=True, kw_only=True):
    """The facts about one instance. They consist of the combined reports of all load processes and
    of figures from the instance's INFO reply."""

    reply_s: Annotated[
        Latency | None,
        says(
            "times between a command and its reply, from a sample of the attempts",
            shown="line:p50,p99",
        ),
    ] = None
    cpu_us_per_command: Annotated[
        Amount | None,
        says("CPU time of the server per processed command", label="CPU/cmd", shown="line"),
    ] = None
    info: Annotated[
        InfoDelta | None, says("how much the INFO counters of the instance grew during the run")
    ] = None
    leaked_keys: Annotated[
        Count | None,
        says(
            "number of keys of this run that remained at the end; lockbench unlinked these keys; "
            "null if lockbench did not look for keys"
        ),
    ] = None
    other_keys: Annotated[
        Count | None,
        says(
            "number of other keys that remained at the end; lockbench does not unlink these "
            "keys; null if lockbench did not count keys"
        ),
    ] = None
