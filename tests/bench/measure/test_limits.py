"""What limited a machine: a quota, a neighbour, a suspended hour; read as the kernel writes it, in
both versions."""

from pathlib import Path

import pytest

from bench.measure.limits import (
    Counters,
    Limits,
    limits_between,
    quota_cores,
    read_counters,
    usable_cores,
)

SECOND = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
FIRST = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def second_version(root: Path, **groups: str) -> Path:
    return written(
        root,
        {"proc/self/cgroup": "0::/pod/app\n", "proc/self/mountinfo": SECOND}
        | {
            f"sys/fs/cgroup/{name.replace('__', '/').replace('_max', '.max')}": text
            for name, text in groups.items()
        },
    )


def test_the_tightest_quota_above_this_process_counts(tmp_path: Path) -> None:
    root = second_version(tmp_path, pod__app__cpu_max="200000 100000", pod__cpu_max="15000 100000")
    assert quota_cores(root) == 0.15
    assert usable_cores(root) == 0.15


def test_no_quota_is_none_and_leaves_the_cores_of_the_scheduler(tmp_path: Path) -> None:
    root = second_version(tmp_path, pod__app__cpu_max="max 100000")
    assert quota_cores(root) is None
    assert usable_cores(root) >= 1


def test_the_quota_of_version_1_is_read_where_a_container_sees_only_its_own_group(
    tmp_path: Path,
) -> None:
    root = written(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "proc/self/mountinfo": "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup "
            "rw,cpu,cpuacct\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 218\nnr_throttled 206\nthrottled_time "
            "19000000000\n",
            "proc/stat": "cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 1 1 1 1 1 1 1\n",
        },
    )
    assert quota_cores(root) == 0.5
    counters = read_counters(root)
    assert (counters.periods, counters.throttled_periods, counters.throttled_ns) == (
        218,
        206,
        19_000_000_000,
    )
    assert (counters.steal_ticks, counters.cpu_ticks) == (35, 1000)


def test_a_group_in_which_nothing_can_be_read_is_not_known_and_no_fault(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None
    counters = read_counters(tmp_path)
    assert (counters.periods, counters.steal_ticks, counters.cpu_ticks) == (None, None, None)
    limits = limits_between(counters, counters, None)
    assert (limits.periods, limits.throttled_ratio, limits.steal_ratio) == (None, 0.0, None)
    assert limits.invalidities() == limits.warnings() == []


@pytest.mark.parametrize("text", ["", "max", "x y", "0 100000", "15000 0", "-1 100000"])
def test_a_quota_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    assert quota_cores(second_version(tmp_path, pod__app__cpu_max=text)) is None


def at(
    periods: int = 0, throttled: int = 0, steal: int = 0, ticks: int = 0, suspended_s: float = 0
) -> Counters:
    return Counters(
        periods, throttled, throttled * 50_000_000, steal, ticks, int(suspended_s * 1e9)
    )


def test_throttled_periods_beyond_a_twentieth_make_every_figure_not_known() -> None:
    limits = limits_between(at(100, 40), at(318, 246), 0.15)
    assert (limits.periods, limits.throttled_periods, limits.throttled_s) == (218, 206, 10.3)
    assert (
        "the CPU quota of 0.15 cores throttled this container in 206 of 218 periods"
        in limits.invalidities()[0]
    )
    assert "unknown" in limits.invalidities()[0]
    assert limits.warnings() == []


def test_a_few_throttled_periods_are_a_warning() -> None:
    limits = limits_between(at(), at(200, 10), 2.0)
    assert limits.invalidities() == []
    assert "in 10 of 200 periods" in limits.warnings()[0]


def test_a_machine_that_was_suspended_measured_nothing() -> None:
    assert "suspended for 3.0 s" in limits_between(at(), at(suspended_s=3), None).invalidities()[0]
    assert limits_between(at(), at(suspended_s=0.01), None).invalidities() == []


def test_time_that_the_host_gave_to_others_is_a_warning() -> None:
    assert (
        "gave 12% of its CPU time"
        in limits_between(at(), at(steal=12, ticks=100), None).warnings()[0]
    )
    assert limits_between(at(), at(steal=1, ticks=100), None).warnings() == []


def test_counters_that_run_backwards_are_no_negative_time() -> None:
    limits = limits_between(at(100, 50, 9, 90, 5), at(1, 1, 1, 1, 1), 1.0)
    assert (limits.periods, limits.throttled_periods, limits.suspended_s) == (0, 0, 0.0)


def test_this_machine_can_be_read() -> None:
    before = read_counters()
    limits = limits_between(before, read_counters(), quota_cores())
    assert isinstance(limits, Limits)
    assert limits.suspended_s is not None
    assert limits.suspended_s < 0.1
    assert usable_cores() > 0
