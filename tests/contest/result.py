"""What `make peers` and `make bench` measure: *rounds, rows of medians, bars*.

Rules: _us are microseconds of CPU per cycle or of latency; a cycle is acquire, hold, release.
Figures of a row are medians over its rounds, failures sums; None: nothing to count.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from bench.experiments.audit.result import MissingLibrary
from bench.experiments.judge.library import Language, Library
from bench.measure.environment import Environment, describe_environment
from bench.measure.statistics import Spread

# A round is not compared if other work took this share of the cores.
BUSY_RATIO = 0.05


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """One contestant under one load.

    `cycles_per_s`: completed in the measured time. `p50_us`, `p99_us`: of all acquires begun in it,
    within 0.5 %; None: took for ever, or none. `failed`: acquires begun in it and never granted:
    they took for ever. `client_us`, `server_us`: CPU of the client and of all servers per cycle.
    `beside_ratio`: of a core, what followed and judged a whole run. `elsewhere_ratio`: of the
    cores, what other processes and the host took. `piece_us`: CPU of a fixed piece of work
    meanwhile: how fast the cores were.

    `jain`: Jain's index of the callers' leases, 1 = all the same. `commands_per_lease`: sent by
    clients, over all instances. `gave_up`: acquires that ended without a lease and without an
    error. `leases`: of the whole round.

    `before_per_s`, `stopped_per_s`, `after_per_s`: cycles until one of the instances stands still,
    while it does, and from then on; `kept_ratio`: stopped ÷ the mean of before and after.
    `keys_left`: on all instances, 1.5 s after the last caller has ended. `errors`: failures by
    name.
    """

    cycles_per_s: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    failed: int = 0
    client_us: float | None = None
    server_us: float | None = None
    beside_ratio: float | None = None
    elsewhere_ratio: float | None = None
    piece_us: float | None = None
    jain: float | None = None
    commands_per_lease: float | None = None
    gave_up: int = 0
    leases: float = 0
    before_per_s: float | None = None
    stopped_per_s: float | None = None
    after_per_s: float | None = None
    kept_ratio: float | None = None
    keys_left: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)

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


@dataclass(frozen=True, kw_only=True)
class Row(RoundFigures):
    """A contestant's rounds under one load.

    `kind`: what it is written for; `instances`: N; `callers`: at once; `processes`: that share
    them.
    """

    name: str
    kind: Language
    instances: int = 3
    callers: int = 64
    processes: int = 1
    rounds: Sequence[RoundFigures]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What lockcore is to reach, taken inside each round.

    `ours`: our contestant, "" = the name says it; `theirs`: the peer beside it. `value`: ours ÷
    theirs, median over rounds, None: ours took for ever; `low`, `high`: the least and the most of
    the rounds; of six and more of the median's interval. `bar`: what it is to be, at least, or else
    below it. `busy`: the cores were not ours in any round: it is not known. `null`: the same of two
    that are alike: what nothing adds to nothing; None: not measured.
    """

    name: str
    ours: str = ""
    theirs: str | None = None
    value: float | None
    low: float | None
    high: float | None
    bar: float
    at_least: bool
    busy: bool = False
    null: Spread | None = None

    @property
    def measurable(self) -> bool:
        """False if what nothing adds to nothing is as much."""
        return (
            self.null is None
            or self.value is None
            or not self.null.low <= self.value <= self.null.high
        )


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which all was measured.

    `cores`: for clients and servers; `rounds`: of all contestants; `seconds`: load per contestant
    and round (of `make peers`: on free resources); `seed`: of the order; `servers`: by kind;
    `absent`: which server this machine lacks, and what was not measured for that.
    """

    cores: int
    rounds: int
    seconds: float
    seed: int
    servers: Mapping[str, str]
    environment: Environment = field(default_factory=describe_environment)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))
    absent: str = ""


@dataclass(frozen=True, kw_only=True)
class PeersResult:
    """Other libraries' locks beside lockcore, one after the other on the same servers.

    `absent`: who could not take part, and why; `cycles`: acquire and release of a free resource;
    `hot`: 64 callers want one resource; `stopped`: one of three instances stands still for 4 s.
    """

    conditions: Conditions
    contestants: Sequence[Library]
    absent: Sequence[MissingLibrary]
    cycles: Sequence[Row]
    hot: Sequence[Row]
    stopped: Sequence[Row]
    bars: Sequence[Bar]
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class SpeedRow(Row):
    """A contestant's rounds beside the ceiling.

    `server`: native, with compare-and-delete, or plain, with scripts only; `ratio`: CPU per cycle
    of the replay ÷ of this row; `wall_ratio`: cycles/s ÷ those of the replay.
    """

    server: Literal["plain", "native"]
    ratio: Spread
    wall_ratio: Spread

    @property
    def cores_used(self) -> float:
        """How many cores client and servers kept busy."""
        return self.cycles_per_s / self.cycles_per_cpu_s if self.cycles_per_cpu_s else 0.0


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """How close lockcore comes to what the servers can bear."""

    conditions: Conditions
    bars: Sequence[Bar]
    rows: Sequence[SpeedRow]
