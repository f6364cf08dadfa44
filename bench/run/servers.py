"""The instances of one run: *scenario → URLs that answer, facts about the instances, and the counts
of the instances*.

Rules: at the end of the `with` block, this module stops the fleet that it started. This module
examines the user's targets and never starts or stops them. If a target is unfit, lockbench refuses
the target before any load starts.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from bench.errors import EnvironmentNotReadyError
from bench.measure.fleet_facts import FleetFacts, InfoDelta
from bench.measure.server_facts import InstanceFacts, SyncLatency
from bench.recipes.registry import find_recipe
from bench.recipes.several_instances import replicate
from bench.scenario import Scenario
from bench.telemetry.settings import is_wanted
from bench.topology.disk import fdatasync_latency
from bench.topology.faults.injection import FaultOrder, Need, prepared_fleet
from bench.topology.faults.kinds import needs_of
from bench.topology.fleet import Fleet
from bench.topology.probe import (
    InfoSnapshot,
    delta,
    info_snapshot,
    inspect,
    key_counts,
    require_independent,
)
from bench.topology.server import find_server

_DURABLE = ("everysec", "always")
# compare repeats the warnings that contain this text.
BEHIND_A_PROXY = "every instance is behind a proxy"
# If the fdatasync of a disk takes less time (s) than this, the disk is unlike a cloud volume, which
# syncs in 0.5 to 10 ms.
VIRTUAL_DISK_S = 0.0005


@dataclass(frozen=True, slots=True)
class Servers:
    """The running instances of a run. The instances are either our `fleet` or the user's targets.

    `urls` are the direct addresses of the instances. `load_urls` are the addresses that the load
    uses. If a fault needs proxies, `load_urls` are the addresses of these proxies.
    """

    urls: tuple[str, ...]
    facts: tuple[InstanceFacts, ...]
    fleet: Fleet | None
    disk: SyncLatency | None

    @property
    def load_urls(self) -> tuple[str, ...]:
        """The URLs to which the load connects."""
        return self.fleet.load_urls if self.fleet else self.urls

    def section(self) -> FleetFacts:
        """Return the section `fleet` of a result: the servers, their durability and their disk."""
        server = self.fleet.server if self.fleet else None
        fsync = self.fleet.fsync if self.fleet else None
        return FleetFacts(
            started=self.fleet is not None,
            server=server,
            fsync=fsync,
            fdatasync_s=self.disk,
            instances=self.facts,
        )

    def key_counts(self) -> tuple[int | None, ...]:
        """Return how many keys each server has now.

        A number is None if it is unknown. A number is also None for the servers of the user,
        because these servers may hold other keys.
        """
        return key_counts(self.urls) if self.fleet else (None,) * len(self.urls)

    def other_keys(self, before: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return how many more keys each of our own servers has now, compared with `before`.

        Call this method only after the keys of the run are unlinked.
        """
        pairs = zip_longest(before, self.key_counts())
        return tuple(
            None if old is None or new is None else max(new - old, 0) for old, new in pairs
        )

    def losses(self) -> list[str]:
        """Return one sentence for each of our servers that ended unexpectedly.

        The end of a server is expected only if a fault should have ended the server. Call this
        method only after every fault is undone.
        """
        try:
            codes = self.fleet.exit_codes() if self.fleet else ()
        except EnvironmentNotReadyError as error:
            return [str(error)]
        return [
            f"instance #{index} ended during the run (exit code {code}), although no fault ended it"
            for index, code in enumerate(codes)
            if code is not None
        ]

    def warnings(self) -> list[str]:
        """Return the warnings about the servers.

        Each warning concerns all numbers in the result of this run.
        """
        sentences = [
            f"{fact.address}: {warning}" for fact in self.facts for warning in fact.warnings
        ]
        # lockbench and the faults of the scenario configure our own servers, so the hazards of
        # these servers are left out.
        if self.fleet is None:
            sentences += [
                f"{fact.address}: {hazard}" for fact in self.facts for hazard in fact.hazards
            ]
        if self.load_urls != self.urls:
            sentences.append(
                f"{BEHIND_A_PROXY}, so rates are lower and latencies are higher than without "
                "a proxy"
            )
        durable = any(fact.fsync in _DURABLE for fact in self.facts)
        if self.disk and durable and self.disk.p50_s < VIRTUAL_DISK_S:
            sentences.append(
                f"fsync is cheap on this disk: {self.disk.p50_s * 1e6:.0f} µs (p50); cloud disks "
                "need 0.5-10 ms"
            )
        versions = {f"{fact.server} {fact.version}" for fact in self.facts if fact.server}
        if len(versions) > 1:
            sentences.append(f"the instances run different servers: {', '.join(sorted(versions))}")
        if any(fact.no_fsync_on_rewrite for fact in self.facts):
            sentences.append(
                "no-appendfsync-on-rewrite is on, so a server does not sync during an AOF rewrite"
            )
        return sentences


@contextlib.contextmanager
def open_servers(
    scenario: Scenario,
    *,
    server: str | None,
    allow_missing: bool,
    faults: Sequence[FaultOrder] = (),
) -> Iterator[Servers]:
    """Start a fleet that is prepared for `faults`.

    If the scenario names targets, examine the targets and start no fleet. `server`: the program of
    the fleet (None: search for one). Raises BenchError in three cases: the recipe cannot use the
    instances of the scenario, a server does not start, or lockbench refuses a target.
    """
    recipe = find_recipe(scenario.recipe)
    recipe.require(scenario.instances, scenario.pause, scenario.capacity, shared=scenario.shared)
    replicated = recipe.about.replicated
    if scenario.targets:
        channels = recipe.about.channels or scenario.retry.policy == "push"
        facts = ask(
            scenario.targets, allow_missing=allow_missing, replicated=replicated, channels=channels
        )
        yield Servers(scenario.targets, facts, None, None)
        return
    needs = needs_of(faults)
    binary = find_server(server)
    # Telemetry shows the number of fsyncs. The shim counts them, but INFO does not.
    if scenario.fsync in _DURABLE and is_wanted(os.environ):
        needs |= {Need.SHIM}
    with prepared_fleet(
        needs, scenario.instances, scenario.fsync, binary, seed=scenario.seed
    ) as fleet:
        urls = fleet.urls
        if replicated:
            replicate(urls)
        disk = fdatasync_latency(fleet.folder)
        yield Servers(urls, ask(urls, allow_missing=False, replicated=replicated), fleet, disk)


def ask(
    urls: Sequence[str], *, allow_missing: bool, replicated: bool = False, channels: bool = False
) -> tuple[InstanceFacts, ...]:
    """Examine the instances and return facts about the instances.

    Raises EnvironmentNotReadyError if the instances cannot serve a load, and UsageError for a wrong
    URL.
    """
    facts = inspect(urls, allow_missing=allow_missing, channels=channels)
    if not replicated:
        require_independent(facts)
    there = sum(fact.unreachable is None for fact in facts)
    quorum = len(facts) // 2 + 1
    if there < quorum:
        raise EnvironmentNotReadyError(
            f"only {there} of {len(facts)} targets can be used, but a quorum needs {quorum}; "
            "start more targets"
        )
    return facts


def counted(
    urls: Sequence[str], before: Sequence[InfoSnapshot]
) -> tuple[list[InfoDelta], float | None]:
    """Return the counts of each instance since the snapshots `before`, and the sum of the CPU
    seconds of all instances.

    The CPU seconds are None unless the CPU time of every instance is known.
    """
    deltas = [delta(old, new) for old, new in zip(before, info_snapshot(urls), strict=True)]
    cpu_times_s = [change.cpu_s for change in deltas if change.cpu_s is not None]
    return deltas, sum(cpu_times_s) if len(cpu_times_s) == len(deltas) else None
