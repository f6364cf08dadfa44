"""What `make peers` and `make bench` store: *turns, rows of medians, bars → two types*.

Rules: _us are microseconds of CPU per cycle or of latency; a cycle is acquire, hold, release.
Figures of a row are medians over its rounds, failures sums; null: nothing to count.
"""

from typing import Annotated, Literal, Self

from msgspec import field
from msgspec.structs import replace

from bench.measure.environment import Environment
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, says
from bench.measure.server_facts import ServerBinary
from bench.measure.statistics import Spread

Kind = Literal["lockcore", "python", "node", "go", "rust", "java"]
# A turn is not compared if other work took this share of the cores.
BUSY_RATIO = 0.05


class TurnFigures(Section, frozen=True, kw_only=True):
    """One contestant under one load."""

    cycles_per_s: Annotated[Amount, says("completed in the measured time")] = 0.0
    p50_us: Annotated[
        Amount | None,
        says("of all acquires begun in it, within 0.5 %; null: took for ever, or none"),
    ] = None
    p99_us: Annotated[Amount | None, says("as p50_us")] = None
    failed: Annotated[Count, says("acquires begun in it and never granted: they took for ever")] = 0
    client_us: Annotated[Amount | None, says("CPU of the client per cycle")] = None
    server_us: Annotated[Amount | None, says("CPU of all servers per cycle")] = None
    beside_ratio: Annotated[
        Amount | None, says("of a core, what followed and judged a whole run")
    ] = None
    elsewhere_ratio: Annotated[
        Amount | None, says("of the cores, what other processes and the host took")
    ] = None
    piece_us: Annotated[
        Amount | None, says("CPU of a fixed piece of work meanwhile: how fast the cores were")
    ] = None
    jain: Annotated[
        Amount | None, says("Jain's index of the callers' leases: 1 = all the same")
    ] = None
    commands_per_lease: Annotated[Amount | None, says("sent by clients, over all instances")] = None
    gave_up: Annotated[Count, says("acquires that ended without a lease and without an error")] = 0
    leases: Annotated[Amount, says("of the whole turn")] = 0
    before_per_s: Annotated[
        Amount | None, says("cycles until one of the instances stands still")
    ] = None
    stopped_per_s: Annotated[Amount | None, says("cycles while it does")] = None
    after_per_s: Annotated[Amount | None, says("cycles from then on")] = None
    kept_ratio: Annotated[Amount | None, says("stopped ÷ the mean of before and after")] = None
    keys_left: Annotated[Count, says("on all instances, 1.5 s after the last caller has ended")] = 0
    errors: Annotated[dict[str, int], says("failures by name")] = field(default_factory=dict)

    @property
    def cycles_per_cpu_s(self) -> float:
        """Cycles for a second of CPU of client and servers."""
        spent_us = (self.client_us or 0.0) + (self.server_us or 0.0)
        return 1e6 / spent_us if spent_us else 0.0

    def at_pace(self, usual_us: float | None) -> Self:
        """The same on cores on which the piece of work takes `usual_us`; as it is where that is not
        known."""
        if not self.piece_us or not usual_us:
            return self
        slower = self.piece_us / usual_us
        times = {
            name: us / slower
            for name in ("p50_us", "client_us", "server_us")
            if (us := getattr(self, name))
        }
        return replace(self, cycles_per_s=self.cycles_per_s * slower, **times)


class TurnRow(TurnFigures, frozen=True, kw_only=True):
    """A contestant's rounds under one load."""

    name: Annotated[str, says("of the contestant")]
    kind: Annotated[Kind, says("what it is written for")]
    instances: Annotated[Count, says("N")] = 3
    callers: Annotated[Count, says("at once")] = 64
    processes: Annotated[Count, says("that share the callers")] = 1
    rounds: Annotated[tuple[TurnFigures, ...], says("what the figures are of")]


class PeersConditions(Section, frozen=True, kw_only=True):
    """Under which all was measured."""

    server: Annotated[ServerBinary, says("the program")]
    cores: Annotated[Count, says("for clients and servers")]
    rounds: Annotated[Count, says("of all contestants")]
    seconds: Annotated[Amount, says("load per turn on free resources")]


class Peer(Section, frozen=True):
    """A contestant."""

    name: Annotated[str, says("of the contestant")]
    kind: Annotated[Kind, says("what it is written for")]
    home: Annotated[str, says("its folder in the cache; empty: our own environment")] = ""
    packages: Annotated[tuple[str, ...], says("what is installed for it")] = ()
    instances: Annotated[tuple[int, ...], says("the N it can lock on")] = (1, 3, 5)
    processes: Annotated[Count, says("it takes part in loads of at least so many")] = 1


class Missing(Section, frozen=True, kw_only=True):
    """A contestant that could not take part."""

    name: Annotated[str, says("of the contestant")]
    reason: Annotated[str, says("why not")]


class ContestBar(Section, frozen=True, kw_only=True):
    """What lockcore is to reach, taken inside each round."""

    name: Annotated[str, says("what is compared")]
    ours: Annotated[str, says("our contestant; empty: the name says it")] = ""
    theirs: Annotated[str | None, says("the peer beside it")] = None
    value: Annotated[
        float | None, says("ours ÷ theirs, median over rounds; null: ours took for ever")
    ]
    low: Annotated[
        float | None, says("the least of the rounds; of six and more of the median's interval")
    ]
    high: Annotated[float | None, says("the most of the rounds; as low")]
    bar: Annotated[float, says("what it is to be")]
    at_least: Annotated[bool, says("true: at least the bar; false: below it")]
    busy: Annotated[bool, says("the cores were not ours in any round: it is not known")] = False
    null: Annotated[
        Spread | None,
        says("the same of two that are alike: what nothing adds to nothing; null: not measured"),
    ] = None

    @property
    def measurable(self) -> bool:
        """False if what nothing adds to nothing is as much."""
        return (
            self.null is None
            or self.value is None
            or not self.null.low <= self.value <= self.null.high
        )


class PeersResult(Document, frozen=True, kw_only=True):
    """Other libraries' locks beside lockcore, in turn on the same servers."""

    kind: Annotated[Literal["peers"], says("the command that made it")] = "peers"
    conditions: Annotated[PeersConditions, says("under which all was measured")]
    contestants: Annotated[tuple[Peer, ...], says("who was there")]
    absent: Annotated[tuple[Missing, ...], says("who could not take part, and why")]
    cycles: Annotated[tuple[TurnRow, ...], says("acquire and release of a free resource")]
    hot: Annotated[tuple[TurnRow, ...], says("64 callers want one resource")]
    stopped: Annotated[tuple[TurnRow, ...], says("one of three instances stands still for 4 s")]
    bars: Annotated[tuple[ContestBar, ...], says("what lockcore is to reach")]


# -- make bench ------------------------------------------------------------------------------------


class SpeedRow(TurnRow, frozen=True, kw_only=True):
    """A contestant's rounds beside the ceiling."""

    server: Annotated[
        Literal["plain", "native"],
        says("native: with compare-and-delete; plain: with scripts only"),
    ]
    ratio: Annotated[Spread, says("CPU per cycle of the replay ÷ of this row")]
    wall_ratio: Annotated[Spread, says("cycles/s ÷ those of the replay")]

    @property
    def cores_used(self) -> float:
        """How many cores client and servers kept busy."""
        return self.cycles_per_s / self.cycles_per_cpu_s if self.cycles_per_cpu_s else 0.0


class SpeedConditions(Section, frozen=True, kw_only=True):
    """Under which all was measured."""

    cores: Annotated[Count, says("for clients and servers")]
    rounds: Annotated[Count, says("of all contestants")]
    seconds: Annotated[Amount, says("load per contestant and round")]
    seed: Annotated[int, says("of the order within the rounds")]
    servers: Annotated[dict[str, str], says("by kind")]
    absent: Annotated[
        str, says("which server this machine lacks, and what was not measured for that")
    ] = ""


class SpeedResult(Section, frozen=True, kw_only=True):
    """How close lockcore comes to what the servers can bear."""

    schema_version: Annotated[Literal[1], says("version of this document's form")] = 1
    command: Annotated[Literal["speed"], says("make bench")] = "speed"
    conditions: Annotated[SpeedConditions, says("under which all was measured")]
    environment: Annotated[Environment, says("where it happened")]
    bars: Annotated[tuple[ContestBar, ...], says("what is to be reached")]
    rows: Annotated[tuple[SpeedRow, ...], says("one per contestant")]
