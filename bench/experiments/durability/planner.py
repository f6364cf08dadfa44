"""Contains the planner, which shows the speed of each option next to its losses: *rows of
`lockbench fsync` and a result of `lockbench crash` → the planner's page*. All functions are pure.

An option has four settings: the number of instances, the policy, the time of a crashed instance's
restart, and the behaviour of clients. Clients either trust a restarted instance or let it abstain.
Two figures describe the speed of an option. The first figure is the maximum rate. The second figure
is p99 at 80 % of the maximum rate. Both figures come from the reference load, which is the load
with the most measured options. The losses of an option are the losses of its worst power cut. This
power cut may have a torn tail.

The planner does not interpolate, so a figure that was not measured is null. There are several
measured prices of `always`. The page shows the lowest price and the highest price. The planner
quotes a ratio only if the ratio has an interval and is not just a bound. The module `advice.py`
writes the advice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict, replace

from bench.errors import UsageError
from bench.experiments.durability.advice import answer, choices, seconds_text
from bench.experiments.durability.loss_result import CrashResult, CrashRow, Losses
from bench.experiments.durability.policies import POLICIES, RESTARTS, Policy
from bench.experiments.durability.price_judge import (
    always_costs,
    disk_of,
    find_rows,
    findings_of,
    judge_fsync,
)
from bench.experiments.durability.price_result import (
    AlwaysCost,
    CostRange,
    FsyncConditions,
    FsyncResult,
    FsyncRow,
    PlannerOption,
    PlannerPage,
    Setup,
)
from bench.measure import verdict as words
from bench.measure.environment import Environment
from bench.measure.verdict import Evidence, Verdict, conclude

# Each way needs this many cuts. Fewer cuts may hide a fault that occurs in one of seven cuts (rule
# of three).
CUTS = 20
# Two results that are shown together may be at most this many days apart.
MOST_DAYS = 31
MACHINE = ("cpu_model", "cores", "memory_bytes", "kernel")
# If a disk is slower by this factor, it counts as a different disk. Below half a millisecond, all
# disks count as equally fast.
UNLIKE = 3.0
LEAST_MS = 0.5
POWER_CUTS = ("power-cut", "power-cut-torn")

Rows = Sequence[FsyncRow]


def plan_page(
    rows: Rows, crash: CrashResult | None, longest_ttl_ms: float | None = None
) -> PlannerPage:
    """Return the planner's page, with the advice that follows from its figures.

    `longest_ttl_ms` is the user's longest TTL, or None if the user named no TTL.
    """
    reference = _reference(rows)
    costs = always_costs(rows)
    known_costs = [cost for cost in costs if cost.is_known]
    options = tuple(_options(rows, crash, reference))
    shown = _most_complete(options)
    here = (cost for cost in known_costs if (cost.setup, cost.instances) == (reference, shown))
    page = PlannerPage(
        reference=reference,
        options=options,
        always_costs=CostRange.of(known_costs) if known_costs else None,
        always_here=next(here, None),
        shown_instances=shown,
        longest_ttl_ms=longest_ttl_ms,
        disk_fdatasync_s=disk_of(row.disk_fdatasync_s for row in rows),
        ttl_ms=None,
        crash_locks_per_s=None,
    )
    if crash is not None:
        page = replace(
            page,
            ttl_ms=crash.conditions.ttl_ms,
            crash_locks_per_s=crash.conditions.locks_per_s,
            warnings=tuple(_doubts({row.instances for row in rows}, crash)),
        )
    advice = (answer(page), *(text for _, text in choices(page)))
    return replace(page, advice=advice, unmeasured=tuple(_unmeasured(page, rows, costs, crash)))


def _most_complete(options: Sequence[PlannerOption]) -> int | None:
    """Count the complete options for each number of instances, and return the number of instances
    with the highest count. An option is complete if its speed and its losses are known. If two
    numbers of instances have the same count, return the larger number of instances."""
    counts = Counter(one.instances for one in options)
    whole = Counter(one.instances for one in options if one.crash and one.acquired_per_s)
    return max(counts, key=lambda count: (whole[count], count), default=None)


def judged(rows: Rows, conditions: FsyncConditions, *, interrupted: bool) -> dict[str, Any]:
    """Return the sections of a result that follow from its rows. These sections are the costs, the
    findings, the planner's page and the verdict."""
    findings = findings_of(rows)
    verdict = judge_fsync(
        findings,
        rows,
        planned=conditions.visits_planned,
        done=conditions.visits_done,
        interrupted=interrupted,
    )
    return {
        "costs": tuple(always_costs(rows)),
        "findings": tuple(findings),
        "planner": plan_page(rows, None),
        "verdict": verdict,
    }


def earned(result: FsyncResult) -> FsyncResult:
    """Judge the rows of a stored `result` again, and return the result with the new verdict.
    Figures about crashes come from another result, so the returned planner's page does not contain
    them. The function `price_words.beside` adds figures about crashes to a result."""
    return replace(result, **judged(result.rows, result.conditions, interrupted=result.interrupted))


def apart(speed: FsyncResult, losses: CrashResult) -> str:
    """Return the reason why a page must not show these two results together. Return "" if there is
    no such reason. Both results must have the verdict AS EXPECTED. Both results must come from the
    same machine and the same server version, at most MOST_DAYS days apart. The processor, the
    memory and the kernel identify the machine, because results do not store the name of the
    machine."""
    for name, result in (("speed", speed), ("losses", losses)):
        verdict = result.verdict
        if verdict.word != words.AS_EXPECTED.text:
            why = f": {verdict.reasons[0]}" if verdict.reasons else ""
            return f"the verdict of the {name} of {result.started_at[:10]} is {verdict.word}{why}"
    unlike = [
        f"{name} {_text(one)} and {_text(other)}"
        for name in MACHINE
        if (one := getattr(speed.environment, name)) != (other := getattr(losses.environment, name))
    ]
    if unlike:
        return (
            f"the speed and the losses were measured on two different machines: {', '.join(unlike)}"
        )
    servers = [_servers_of(speed), {f"{losses.fleet.server.name} {losses.fleet.server.version}"}]
    if servers[0] != servers[1]:
        names = [" and ".join(sorted(some)) or "servers that did not say" for some in servers]
        return f"the speed was measured on {names[0]}, but the losses on {names[1]}"
    days = abs((_date(speed.started_at) - _date(losses.started_at)).days)
    if days > MOST_DAYS:
        return (
            f"{days} days lie between the speed ({speed.started_at[:10]}) and the losses "
            f"({losses.started_at[:10]})"
        )
    return ""


def machine_text(measured: Environment, here: Environment) -> str:
    """Return a text about the machine on which the figures were measured. If this machine is not
    the machine `here`, the text advises the user to measure again."""
    other = any(getattr(measured, name) != getattr(here, name) for name in MACHINE)
    where = f"{measured.cpu_model}, {measured.cores} cores, kernel {measured.kernel}"
    return f"measured on {where}" + (
        "; lockbench now runs on another machine, so measure again here" if other else ""
    )


def judge_page(page: PlannerPage) -> Verdict:
    """Return the verdict on a page. The verdict is RECOMMENDED if enough crashes of safe options
    were made, and if the page has no warnings."""
    safe = [option.crash.cuts for option in page.options if option.crash and option.crash.is_safe]
    evidence = [Evidence("crashes of safe options", sum(safe), CUTS)]
    return conclude(words.RECOMMENDED, evidence, {words.NOT_KNOWN: page.warnings})


def _servers_of(speed: FsyncResult) -> set[str]:
    if (server := speed.fleet.server) is not None:
        return {f"{server.name} {server.version}"}
    return {f"{one.server} {one.version}" for one in speed.fleet.instances or () if one.server}


def _date(text: str) -> datetime:
    """Parse a time. Raises UsageError if the text is not a time."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"started_at {text!r} is not a point in time; the result was changed or is damaged"
        ) from None


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _doubts(counts: set[int], crash: CrashResult) -> Iterator[str]:
    """Yield a warning if there were too few crashes, or if a number of instances was not crashed.

    `counts` holds the numbers of instances whose speed is known.
    """
    if (cuts := crash.conditions.cuts_per_cell) < CUTS:
        yield (
            f"the losses come from only {cuts} cuts per cell; {CUTS} cuts are needed to "
            "exclude rare losses"
        )
    if uncrashed := sorted(counts - {*crash.conditions.instances}):
        yield (
            f"lockbench made no crash at N={', '.join(map(str, uncrashed))}, so the losses at "
            "this N are unknown"
        )


def _unmeasured(
    page: PlannerPage, rows: Rows, costs: Sequence[AlwaysCost], crash: CrashResult | None
) -> Iterator[str]:
    if crash is not None:
        yield from _of_slow_disks(page, crash)
    if missing := [policy for policy in POLICIES if all(row.policy != policy for row in rows)]:
        yield (
            f"the cost of {', '.join(missing)}; to measure this cost, run lockbench fsync --fsync "
            f"{','.join(missing)}"
        )
    if uncut := dict.fromkeys(
        f"{one.policy} at N={one.instances}" for one in page.options if one.crash is None
    ):
        where = f" under {', '.join(uncut)}" if any(option.crash for option in page.options) else ""
        yield f"the losses of a crash{where}; run lockbench crash --quick, then lockbench planner"
    for why, unknown in (
        (
            "the load process reached its limit",
            [cost for cost in costs if cost.generator_bound],
        ),
        (
            "there were fewer than six pairs of visits",
            [cost for cost in costs if not cost.is_known and not cost.generator_bound],
        ),
    ):
        if unknown:
            yield (
                "the cost of the policy `always` with "
                f"{'; '.join(cost.place for cost in unknown)}: {why}"
            )


def _of_slow_disks(page: PlannerPage, crash: CrashResult) -> Iterator[str]:
    """Yield sentences about missing measurements. Measurements may be missing for other disks or
    for the user's TTL. The losses are known only for the disk on which the crashes were made. On a
    slower disk, the losses and the price would be different."""
    crashed_on = crash.conditions.disk
    reference = page.reference
    crash_disk = crash.fleet.fdatasync_s
    price_disk = page.disk_fdatasync_s
    crashed_ms = crash_disk.p50_s * 1000 if crash_disk else None
    priced_ms = price_disk.p50 * 1000 if price_disk else None
    if reference is not None:
        added = (reference.injected_ms, crash.conditions.latency_ms)
        if added[0] != added[1] or _is_unlike(
            added[0] + (priced_ms or 0), added[1] + (crashed_ms or 0)
        ):
            again = f" --latency {added[0]:g}ms" if added[0] else ""
            yield (
                "the losses of everysec on the disk of the cost measurements "
                f"({_disk_text(reference.disk, priced_ms)}), because lockbench made the crashes "
                f"at another disk speed ({_disk_text(crashed_on, crashed_ms)}); a slower disk can "
                f"lose more locks, so run lockbench crash --quick{again}"
            )
    slow = [
        one for one in crash.groups if one.kind == "kill-slow-fsync" and one.policy == "everysec"
    ]
    windows_s = [one.lost_window_s.max for one in slow if one.lost_window_s.max is not None]
    if windows_s:
        yield (
            "a disk that sometimes stalls. With fsyncs of 1.5 s under everysec, even kill -9 lost "
            f"locks that were up to {max(windows_s):.2f} s old. lockbench made no crash with an "
            f"fsync time between 1.5 s and that of the tested disk ({crashed_on})"
        )
    if page.longest_ttl_ms and page.ttl_ms and page.longest_ttl_ms != page.ttl_ms:
        yield (
            f"a crash with your TTL of {seconds_text(page.longest_ttl_ms)}; lockbench made its "
            f"crashes with a TTL of {seconds_text(page.ttl_ms)}"
        )


def _is_unlike(one_ms: float, other_ms: float) -> bool:
    """Return whether two fsync times are very different. This is true if the longer time is more
    than UNLIKE times the shorter time."""
    return max(one_ms, other_ms) > UNLIKE * max(min(one_ms, other_ms), LEAST_MS)


def _disk_text(disk: str, fdatasync_ms: float | None) -> str:
    measured = (
        "fdatasync not measured" if fdatasync_ms is None else f"fdatasync p50 {fdatasync_ms:.3g} ms"
    )
    return f"{disk}, {measured}"


def _reference(rows: Rows) -> Setup | None:
    """Return the load with the most measured combinations of a policy and a number of instances. If
    several loads have equally many combinations, the function prefers an added delay of 2 ms. If
    this rule leaves several loads, the function prefers a slower disk, then a load with at most 256
    callers, and then more callers."""
    of_policies = [row for row in find_rows(rows) if row.policy != "none"] or find_rows(rows)
    counts = Counter(row.setup for row in of_policies)

    def rank(load: Setup) -> tuple[float, ...]:
        return (
            counts[load],
            load.injected_ms == 2.0,
            load.injected_ms,
            load.callers <= 256,
            load.callers,
        )

    return max(counts, key=rank, default=None)


def _options(
    rows: Rows, crash: CrashResult | None, reference: Setup | None
) -> Iterator[PlannerOption]:
    """Yield all options. The options are sorted by the number of instances, then by the policy, and
    then by the time of the restart. If no crash was made for an option, the way of the option is
    None."""
    cells = crash.rows if crash else ()
    pairs = {(row.instances, row.policy) for row in rows}
    pairs |= {(cell.instances, cell.policy) for cell in cells}
    for instances, policy in sorted(pairs, key=lambda pair: (pair[0], POLICIES.index(pair[1]))):
        option = _speed(rows, instances, policy, reference)
        crashed: dict[tuple[int, bool], list[CrashRow]] = {}
        for cell in cells:
            if (cell.instances, cell.policy) == (instances, policy):
                crashed.setdefault((RESTARTS.index(cell.restart), cell.abstention), []).append(cell)
        if crash is None or not crashed:
            yield option
            continue
        for (restart, abstention), ends in sorted(crashed.items()):
            # The worst crash is a power cut. Only `none` has no power cuts.
            power_cuts = [cell for cell in ends if cell.kind in POWER_CUTS]
            yield replace(
                option,
                restart=RESTARTS[restart],
                abstention=abstention,
                crash=Losses.of(power_cuts or ends, crash.groups),
            )


def _speed(rows: Rows, instances: int, policy: Policy, reference: Setup | None) -> PlannerOption:
    """Return an option with its speed under the reference load. Two figures describe the speed.
    They are the maximum rate, and p99 at 80 % of the maximum rate."""
    load: dict[str, object] = {"instances": instances, "policy": policy}
    if reference is not None:
        load |= asdict(reference)
    if policy == "none":
        load["injected_ms"] = 0.0
    option = PlannerOption(instances=instances, policy=policy)
    for fastest in find_rows(rows, **load)[:1]:
        option = replace(
            option,
            acquired_per_s=fastest.acquired_per_s,
            rate_interval=fastest.rate_interval,
            generator_bound=fastest.generator.bound,
        )
    for loaded in find_rows(rows, "80%", **load)[:1]:
        option = replace(
            option,
            p99_s=loaded.acquire_s.p99 if loaded.kept_up else None,
            sustained=loaded.sustained,
        )
    return option
