"""The limits of this machine during a measurement. The section `limits` is the difference between
two readings of the kernel's counters.

The cgroup of a container may have a CPU quota. When the quota of a period is used up, the kernel
stops all threads of the container until the next period (throttling). Other virtual machines on the
same host can take CPU time from a virtual machine (steal). A closed laptop or a paused virtual
machine stops completely (suspend). The figures of the load do not show throttling, steal or
suspend.

If a counter cannot be read, its value is None and never 0. The process's cgroup and each cgroup
above it may have a quota. This module uses the lowest of these quotas. The figures about throttling
come from the cgroup with the most throttled periods. Sources: cgroups(7); Documentation of Linux,
admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and scheduler/sched-bwc.rst (version 1); proc(5),
/proc/stat; clock_gettime(2).
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from bench.measure.section import Amount, Count, Section, Share, says

# If the quota throttles a larger share of the periods, the figures measure the quota and not the
# lock.
THROTTLED_MOST: Final = 0.05
# From this share of the machine's CPU time on, steal is worth a warning.
STEAL_MUCH: Final = 0.05
SUSPENDED_LEAST_S: Final = 0.1
_ROOT = Path("/")


class Limits(Section, frozen=True, kw_only=True):
    """The reasons why this machine or container did not run during parts of the measurement. An
    unknown value is null."""

    cpu_quota_cores: Annotated[
        float | None,
        says("number of cores that the CPU quota allows; null if no quota is known"),
    ] = None
    periods: Annotated[
        Count | None, says("number of periods of the CPU quota during the measurement")
    ] = None
    throttled_periods: Annotated[
        Count | None, says("number of periods in which the CPU quota stopped this container")
    ] = None
    throttled_s: Annotated[
        Amount | None,
        says("seconds for which the CPU quota stopped this container, summed over its cores"),
    ] = None
    steal_ratio: Annotated[
        Share | None,
        says("share of this machine's CPU time that the host gave to other machines (steal)"),
    ] = None
    suspended_s: Annotated[Amount | None, says("seconds for which the machine was suspended")] = (
        None
    )

    @property
    def throttled_ratio(self) -> float:
        """The share (0…1) of periods in which the quota stopped this container."""
        return (self.throttled_periods or 0) / self.periods if self.periods else 0.0

    def invalidities(self) -> list[str]:
        """Return the reasons why all figures of the measurement are worthless. Each returned reason
        is a sentence."""
        reasons = []
        if self.throttled_ratio > THROTTLED_MOST:
            quota = "" if self.cpu_quota_cores is None else f" of {self.cpu_quota_cores:g} cores"
            reasons.append(
                f"the CPU quota{quota} throttled this container in {self.throttled_periods:,} of "
                f"{self.periods:,} periods, so latencies and rates are unknown; give the "
                "container more CPU, or lower the load"
            )
        if (self.suspended_s or 0.0) >= SUSPENDED_LEAST_S:
            reasons.append(
                f"the machine was suspended for {self.suspended_s:.1f} s, so the figures are "
                "unknown; run again"
            )
        return reasons

    def warnings(self) -> list[str]:
        """Return warnings for people who read the figures. A warning does not make the figures
        worthless."""
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
    """The kernel's counters at one moment. A counter is None if it cannot be read.

    `cpu_ticks` is the sum of the ticks of all CPU states.
    """

    periods: int | None
    throttled_periods: int | None
    throttled_ns: int | None
    steal_ticks: int | None
    cpu_ticks: int | None
    suspended_ns: int


def read_counters(root: Path = _ROOT) -> Counters:
    """Return the current counters. `root` is the folder that contains /proc and /sys. Only tests
    use another folder than the default."""
    steal, total = _cpu_ticks(root)
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    groups = [_throttled(group) for group in _groups(root)]
    if not groups:
        return Counters(None, None, None, steal, total, suspended_ns)
    periods, throttled, throttled_ns = max(groups, key=lambda group: group[1])
    return Counters(periods, throttled, throttled_ns, steal, total, suspended_ns)


def limits_between(before: Counters, after: Counters, quota_cores: float | None) -> Limits:
    """Return the limits of this machine in the time between two readings, `before` and `after`.

    The parameter `quota_cores` is the CPU quota, which the function `quota_cores` returns.
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
    """Return how many cores the CPU quota allows (> 0), or None if there is no quota.

    This process's cgroup and each cgroup above it may have a quota. The function returns the lowest
    of these quotas.
    """
    quotas = [quota for group in _groups(root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def usable_cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may use. The result is the CPU quota or the number of
    cores in the affinity mask, whichever is lower."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = quota_cores(root)
    return cores if quota is None else min(cores, quota)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the existing folders of this process's CPU cgroup and of the cgroups above it. This
    works for versions 1 and 2 of cgroups."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        is_second = controllers == ""
        if not is_second and "cpu" not in controllers.split(","):
            continue
        mount, below = _mounted(root, is_second=is_second)
        if mount is None:
            continue
        # In a container, the mount point shows only the container's own group. The path below the
        # mount point therefore lacks the prefix of the full path.
        inner = path.removeprefix(below) if below != "/" else path
        group = mount / inner.strip("/")
        while True:
            if group.is_dir():
                yield group
            if group == mount or mount not in group.parents:
                break
            group = group.parent


def _mounted(root: Path, *, is_second: bool) -> tuple[Path | None, str]:
    """Return the mount point of the CPU cgroups of one version. Also return which cgroup is mounted
    at this mount point (proc(5), mountinfo)."""
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
    """Return the quota of one cgroup in cores, or None without a quota."""
    # Version 2 of cgroups has a text such as "15000 100000" or "max 100000".
    words = (_text(group / "cpu.max") or "").split()
    if not words:
        # Version 1 of cgroups has two files. A quota of -1 means no quota.
        words = [_text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _throttled(group: Path) -> tuple[int, int, int]:
    """Return the periods, throttled periods and throttled nanoseconds of one cgroup. If the cgroup
    has no quota, the function returns 0 for all three numbers."""
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
    """Return two sums over all cores. The first sum is the ticks of the CPU state steal. The second
    sum is the ticks of all CPU states."""
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
