"""Limits of this machine during a measurement: *two looks at the kernel's counters → the section
`limits`*.

A container may use less CPU than the machine has cores: its cgroup has a quota, and the kernel
stops all of its threads for the rest of each period once the quota is used up (throttling). A
virtual machine loses time to its neighbours (steal). A laptop or a paused machine does not run at
all (suspend). None of this shows in the load's own figures.

Rules: a counter that cannot be read is None, never 0. The tightest quota of the cgroup and of those
above it counts, and so does the cgroup with most throttled periods. Sources: cgroups(7);
Documentation of Linux, admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and scheduler/sched-bwc.rst
(version 1); proc(5), /proc/stat; clock_gettime(2).
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from bench.measure.section import Amount, Count, Section, Share, says

# If the quota throttles a larger share of the periods, a figure measures the quota and not the
# lock.
THROTTLED_MOST: Final = 0.05
# From this share of the machine's CPU time on, steal is worth a warning.
STEAL_MUCH: Final = 0.05
SUSPENDED_LEAST_S: Final = 0.1
_ROOT = Path("/")


class Limits(Section, frozen=True, kw_only=True):
    """The reasons why this machine or container did not run during parts of the measurement. null:
    not known."""

    cpu_quota_cores: Annotated[
        float | None,
        says("cores that the CPU quota allows; null if there is no quota or it is unknown"),
    ] = None
    periods: Annotated[Count | None, says("how many quota periods passed")] = None
    throttled_periods: Annotated[
        Count | None, says("periods in which the quota stopped this container")
    ] = None
    throttled_s: Annotated[
        Amount | None, says("how long the quota stopped this container, summed over its cores")
    ] = None
    steal_ratio: Annotated[
        Share | None, says("share of this machine's CPU time that its host gave to others")
    ] = None
    suspended_s: Annotated[Amount | None, says("how long the machine was suspended")] = None

    @property
    def throttled_ratio(self) -> float:
        """The share of the quota's periods in which this container was stopped (0…1)."""
        return (self.throttled_periods or 0) / self.periods if self.periods else 0.0

    def invalidities(self) -> list[str]:
        """The reasons why no figure counts, one sentence each."""
        reasons = []
        if self.throttled_ratio > THROTTLED_MOST:
            quota = "" if self.cpu_quota_cores is None else f" of {self.cpu_quota_cores:g} cores"
            reasons.append(
                f"the CPU quota{quota} throttled this container in {self.throttled_periods:,} of "
                f"{self.periods:,} periods, so latencies and rates are unknown; give it more CPU, "
                "or lower the load"
            )
        if (self.suspended_s or 0.0) >= SUSPENDED_LEAST_S:
            reasons.append(
                f"the machine was suspended for {self.suspended_s:.1f} s, so the figures are "
                "unknown; run again"
            )
        return reasons

    def warnings(self) -> list[str]:
        """Warnings for a reader if the figures still count."""
        sentences = []
        if self.throttled_periods and self.throttled_ratio <= THROTTLED_MOST:
            sentences.append(
                f"the CPU quota throttled this container in {self.throttled_periods:,} of "
                f"{self.periods:,} periods; this may explain the slowest operations"
            )
        if (self.steal_ratio or 0.0) >= STEAL_MUCH:
            sentences.append(
                f"this machine's host gave {self.steal_ratio:.0%} of its CPU time to others "
                "(steal), so rates are lower bounds"
            )
        return sentences


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters at one moment; None: not readable.

    `cpu_ticks`: the ticks of all states together.
    """

    periods: int | None
    throttled_periods: int | None
    throttled_ns: int | None
    steal_ticks: int | None
    cpu_ticks: int | None
    suspended_ns: int


def read_counters(root: Path = _ROOT) -> Counters:
    """The counters now. `root`: where /proc and /sys lie, for tests."""
    steal, total = _cpu_ticks(root)
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    groups = [_throttled(group) for group in _groups(root)]
    if not groups:
        return Counters(None, None, None, steal, total, suspended_ns)
    periods, throttled, throttled_ns = max(groups, key=lambda group: group[1])
    return Counters(periods, throttled, throttled_ns, steal, total, suspended_ns)


def limits_between(before: Counters, after: Counters, quota_cores: float | None) -> Limits:
    """What limited this machine from `before` to `after`.

    `quota_cores`: as `quota_cores` returns it.
    """

    def increase(name: str) -> int | None:
        first = getattr(before, name)
        last = getattr(after, name)
        return None if first is None or last is None else max(last - first, 0)

    periods = increase("periods")
    throttled_ns = increase("throttled_ns")
    steal = increase("steal_ticks")
    ticks = increase("cpu_ticks")
    throttled_periods = None
    if periods is not None:
        throttled_periods = min(increase("throttled_periods") or 0, periods)
    throttled_s = None if throttled_ns is None else throttled_ns / 1e9
    steal_ratio = None if steal is None or not ticks else min(steal / ticks, 1.0)
    return Limits(
        cpu_quota_cores=quota_cores,
        periods=periods,
        throttled_periods=throttled_periods,
        throttled_s=throttled_s,
        steal_ratio=steal_ratio,
        suspended_s=max(after.suspended_ns - before.suspended_ns, 0) / 1e9,
    )


def quota_cores(root: Path = _ROOT) -> float | None:
    """How many cores the CPU quota allows (> 0); None without a quota. The tightest quota of the
    cgroup and the cgroups above it counts."""
    quotas = [quota for group in _groups(root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def usable_cores(root: Path = _ROOT) -> float:
    """How many cores this process may use: the cores in its affinity mask, or fewer if a quota
    allows fewer."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = quota_cores(root)
    return cores if quota is None else min(cores, quota)


def _groups(root: Path) -> Iterator[Path]:
    """The existing folders of this process's CPU cgroup and of the cgroups above it, for versions 1
    and 2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        is_second = controllers == ""
        if not is_second and "cpu" not in controllers.split(","):
            continue
        mount, below = _mounted(root, is_second=is_second)
        if mount is None:
            continue
        # In a container the mount shows the container's own group, whose full path it does not
        # have.
        inner = path.removeprefix(below) if below != "/" else path
        group = mount / inner.strip("/")
        while True:
            if group.is_dir():
                yield group
            if group == mount or mount not in group.parents:
                break
            group = group.parent


def _mounted(root: Path, *, is_second: bool) -> tuple[Path | None, str]:
    """The mount point of this version's CPU cgroups, and the cgroup that the mount shows (proc(5),
    mountinfo)."""
    for line in _lines(root / "proc/self/mountinfo"):
        fields = line.split()
        if "-" not in fields:
            continue
        kind, *_, options = fields[fields.index("-") + 1 :]
        matches = (
            kind == "cgroup2" if is_second else kind == "cgroup" and "cpu" in options.split(",")
        )
        if matches:
            return root / fields[4].lstrip("/"), fields[3]
    return None, "/"


def _quota(group: Path) -> float | None:
    """The quota of one cgroup in cores, None without one."""
    # Version 2 of cgroups: "15000 100000" or "max 100000".
    words = (_text(group / "cpu.max") or "").split()
    if not words:
        # Version 1 of cgroups: -1 means no quota.
        words = [_text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _throttled(group: Path) -> tuple[int, int, int]:
    """The periods, throttled periods and throttled nanoseconds of one cgroup; zeros if it has no
    quota."""
    counters = dict(line.split() for line in _lines(group / "cpu.stat") if len(line.split()) == 2)
    try:
        periods = int(counters.get("nr_periods", 0))
        throttled = int(counters.get("nr_throttled", 0))
        in_microseconds = int(counters.get("throttled_usec", 0))
        in_nanoseconds = int(counters.get("throttled_time", 0))
    except ValueError:
        return 0, 0, 0
    return periods, throttled, in_nanoseconds or 1_000 * in_microseconds


def _cpu_ticks(root: Path) -> tuple[int | None, int | None]:
    """The ticks of steal and the ticks of all states, summed over all cores."""
    first = next(iter(_lines(root / "proc/stat")), "")
    try:
        # The columns: user nice system idle iowait irq softirq steal.
        ticks = [int(word) for word in first.split()[1:9]]
    except ValueError:
        return None, None
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else (None, None)


def _lines(path: Path) -> list[str]:
    return (_text(path) or "").splitlines()


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return None
