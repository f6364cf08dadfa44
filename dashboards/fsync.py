"""The board "Fsync trade-off": *instruments → what each AOF policy costs and what it loses, side by side*.

Rules: a policy is a run (or several); all is by `redlock.fsync`, so the runs to compare must be in the time range.
Source: README's fsync policies.
"""

from dashboards.panels import (
    INSTANCE,
    POLICY,
    acquire_quantile,
    bars,
    board,
    line,
    lines,
    now,
    quantile,
    rate,
    ratio,
    row,
    total,
    typical,
)

UID = "lockbench-fsync"
_BY = (POLICY,)


_p50, _p99 = (acquire_quantile(q, _BY, whole=True) for q in (0.5, 0.99))
_stalls = total("redis.aof.delayed_fsyncs", _BY)
_PRICE = row(
    "The price, by policy",
    line(
        6,
        bars(
            "Typical rate",
            "Leases per second: the median over a run's seconds, averaged over its runs.",
            typical("redlock.load.achieved", _BY),
        ),
        bars("Acquire p50", "Of all leases of the runs, from the intended start.", _p50),
        bars("Acquire p99", "Of all leases of the runs, from the intended start.", _p99),
        bars(
            "Fsyncs",
            "Calls of fsync and fdatasync over all instances, where the fault shim counts them.",
            total("redis.aof.fsyncs", _BY),
        ),
        bars("Stalls", "Writes postponed since a sync was still under way (aof_delayed_fsync).", _stalls),
    ),
)


_broken = total("redlock.safety.violations", _BY, redlock_violation_kind="service_fault")
_window = quantile(0.99, "redlock.crash.lost_window", _BY, whole=True)
_LOSS = row(
    "The loss, by policy",
    line(
        6,
        bars(
            "Locks lost in crashes",
            "Acknowledged locks that an instance forgot.",
            total("redlock.crash.lost_locks", _BY),
        ),
        bars("Lost window, p99", "How far back before a crash acknowledged locks were lost.", _window),
        bars(
            "Double grants", "Leases valid beside another one after a crash.", total("redlock.crash.double_grants", _BY)
        ),
        bars(
            "Safety violations",
            "Leases on one resource valid at the same time. Must be 0; no data: no oracle ran.",
            _broken,
        ),
    ),
)


_cpu, _commands = rate("redis.cpu.time", _BY), rate("redis.commands.processed", _BY)
_by = (*INSTANCE, POLICY)
_SERVERS = row(
    "Servers",
    line(
        7,
        lines("CPU per command", "Server CPU time over commands processed, by policy.", ratio(_cpu, _commands, "s")),
        lines("AOF size", "By instance.", now("redis.aof.size", _by)),
        lines("AOF rewrites", "1 while an instance rewrites its AOF.", now("redis.aof.rewrite_in_progress", _by)),
    ),
)


def fsync() -> str:
    """The board as JSON."""
    about = "What each AOF policy costs and what it loses. Run the same scenario with --fsync none, everysec, always."
    return board("lockbench: Fsync trade-off", UID, about, (_PRICE, _LOSS, _SERVERS))
