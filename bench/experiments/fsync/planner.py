"""Speed beside losses: *rows of `lockbench fsync`, a result of `lockbench crash` → the planner's page*. Pure.

One option = N × policy × how a crashed instance comes back. Speed: the maximum, and p99 at 80 % of it, of one reference
load measured for most options. Losses: the worst of that option's power cuts, whole or torn, with clients that trust a
restarted instance. Nothing is interpolated: a figure that was not measured is null. What a policy costs is the whole
range over everything measured; only ratios with an interval are quoted, never a bound.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec.structs import asdict, replace

from bench.errors import UsageError
from bench.experiments.crash.result import RESTARTS, CrashGroup, CrashResult, CrashRow, Restart
from bench.experiments.fsync.judge import always_costs, disk_of, find_rows, findings_of, judge_fsync, rate_interval
from bench.experiments.fsync.result import (
    POLICIES,
    AlwaysCost,
    CostRange,
    FsyncResult,
    FsyncRow,
    LossesSeen,
    Most,
    Option,
    PlannerPage,
    Policy,
    Setup,
)  # fmt: skip
from bench.measure import verdict as words
from bench.measure.environment import Environment
from bench.measure.verdict import Evidence, Verdict, conclude

CUTS = 20  # of each way; in fewer a fault that shows in one of seven may stay unseen (rule of three)
MOST_DAYS = 31  # between two results that are read together
MACHINE = ("cpu_model", "cores", "memory_bytes", "kernel")
POWER_CUTS = ("power-cut", "power-cut-torn")

Rows = Sequence[FsyncRow]


def plan_page(rows: Rows, crash: CrashResult | None) -> PlannerPage:
    """The section `planner`, its advice made from its figures."""
    reference, costs = _reference(rows), always_costs(rows)
    known = sorted((cost for cost in costs if cost.is_known), key=lambda cost: cost.ratio)
    page = PlannerPage(
        reference=reference,
        options=tuple(_options(rows, crash, reference)),
        always_costs=CostRange(least=known[0], most=known[-1]) if known else None,
        disk_fdatasync_s=disk_of(row.disk_fdatasync_s for row in rows),
        ttl_ms=crash.conditions.ttl_ms if crash else None,
        crash_locks_per_s=crash.conditions.locks_per_s if crash else None,
        warnings=tuple(_doubts({row.instances for row in rows}, crash)) if crash else (),
    )
    return replace(page, advice=tuple(_advice(page)), unmeasured=tuple(_unmeasured(page, rows, costs)))


def earned(result: FsyncResult) -> FsyncResult:
    """Return a stored `result` with the costs, findings, page and verdict that its rows earn. What its page says of
    crashes is left out: it came from another result, which has to be there to be believed (`words.beside`)."""
    rows, conditions, findings = result.rows, result.conditions, findings_of(result.rows)
    verdict = judge_fsync(
        findings,
        rows,
        planned=conditions.visits_planned,
        done=conditions.visits_done,
        interrupted=result.interrupted,
    )
    return replace(
        result,
        costs=tuple(always_costs(rows)),
        findings=tuple(findings),
        planner=plan_page(rows, None),
        verdict=verdict,
    )


def apart(speed: FsyncResult, losses: CrashResult) -> str:
    """Return why the two may not be read together, "" = they may: each must say what it was to show, of one machine and
    one server, within a month. What a machine is called nobody stored; its processor, memory and kernel tell."""
    for name, result in (("speed", speed), ("losses", losses)):
        verdict = result.verdict
        if verdict.word != words.AS_EXPECTED.text:
            why = f": {verdict.reasons[0]}" if verdict.reasons else ""
            return f"the {name} of {result.started_at[:10]} say {verdict.word}{why}"
    unlike = [
        f"{name} {_text(one)} and {_text(other)}"
        for name in MACHINE
        if (one := getattr(speed.environment, name)) != (other := getattr(losses.environment, name))
    ]
    if unlike:
        return f"the speed and the losses are of two machines: {', '.join(unlike)}"
    servers = [_servers_of(speed), {f"{losses.fleet.server.name} {losses.fleet.server.version}"}]
    if servers[0] != servers[1]:
        names = [" and ".join(sorted(some)) or "servers that did not say" for some in servers]
        return f"the speed is that of {names[0]}, the losses are those of {names[1]}"
    days = abs((_date(speed.started_at) - _date(losses.started_at)).days)
    if days > MOST_DAYS:
        return f"{days} days lie between the speed ({speed.started_at[:10]}) and the losses ({losses.started_at[:10]})"
    return ""


def machine_text(measured: Environment, here: Environment) -> str:
    """Return which machine the figures are of, and whether that is another one than `here`."""
    other = any(getattr(measured, name) != getattr(here, name) for name in MACHINE)
    where = f"{measured.cpu_model}, {measured.cores} cores, kernel {measured.kernel}"
    return f"measured on {where}" + (": another machine than this one, so measure anew here" if other else "")


def judge_page(page: PlannerPage) -> Verdict:
    """Return the word of a page: it recommends a way that was crashed often enough and never led to a double grant."""
    safe = [option.crash.cuts for option in page.options if option.crash and option.crash.is_safe]
    evidence = [Evidence("crashes of ways that were safe", sum(safe), CUTS)]
    return conclude(words.RECOMMENDED, evidence, {words.NOT_KNOWN: page.warnings})


def _servers_of(speed: FsyncResult) -> set[str]:
    if (server := speed.fleet.server) is not None:
        return {f"{server.name} {server.version}"}
    return {f"{one.server} {one.version}" for one in speed.fleet.instances or () if one.server}


def _date(text: str) -> datetime:
    """Return the moment. Raises UsageError for what is none."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"started_at {text!r} is no moment; the result was changed or is damaged") from None


def _text(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _doubts(counts: set[int], crash: CrashResult) -> Iterator[str]:
    """What must be known of losses that stand beside the speed. `counts`: the Ns whose speed is known."""
    if (cuts := crash.conditions.cuts_per_cell) < CUTS:
        yield f"the losses rest on {cuts} of {CUTS} cuts per cell: too few to rely on what they did not show"
    if uncrashed := sorted(counts - {*crash.conditions.instances}):
        yield f"no crash was made at N={', '.join(map(str, uncrashed))}: what others lose says nothing of it"


def _unmeasured(page: PlannerPage, rows: Rows, costs: Sequence[AlwaysCost]) -> Iterator[str]:
    if missing := [policy for policy in POLICIES if all(row.policy != policy for row in rows)]:
        yield f"what {', '.join(missing)} costs: lockbench fsync --fsync {','.join(missing)}"
    if uncut := dict.fromkeys(f"{one.policy} at N={one.instances}" for one in page.options if one.crash is None):
        where = f" under {', '.join(uncut)}" if any(option.crash for option in page.options) else ""
        yield f"what a crash loses{where}: lockbench crash --quick, then lockbench planner"
    for why, unknown in (
        ("the load process was the limit there", [cost for cost in costs if cost.generator_bound]),
        ("fewer than six pairs of visits", [cost for cost in costs if not cost.is_known and not cost.generator_bound]),
    ):
        if unknown:
            yield f"what always costs with {'; '.join(map(_place, unknown))}: {why}"


def _reference(rows: Rows) -> Setup | None:
    """The load that most N and policies share; of equals the one with the slowest disk, then the most callers."""
    of_policies = [row for row in find_rows(rows) if row.policy != "none"] or find_rows(rows)
    counts = Counter(row.setup for row in of_policies)

    def rank(load: Setup) -> tuple[float, ...]:
        return counts[load], load.injected_ms == 2.0, load.injected_ms, load.callers <= 256, load.callers

    return max(counts, key=rank, default=None)


def _options(rows: Rows, crash: CrashResult | None, reference: Setup | None) -> Iterator[Option]:
    """By N, policy and restart; that is None where no crash was made."""
    cells = [cell for cell in crash.rows if not cell.abstention] if crash else []
    found = {(row.instances, row.policy) for row in rows} | {(cell.instances, cell.policy) for cell in cells}
    for instances, policy in sorted(found, key=lambda pair: (pair[0], POLICIES.index(pair[1]))):
        wanted: dict[str, object] = {"instances": instances, "policy": policy}
        if reference is not None:
            wanted |= asdict(reference) | ({"injected_ms": 0.0} if policy == "none" else {})
        fastest = next(iter(find_rows(rows, **wanted)), None)
        loaded = next(iter(find_rows(rows, "80%", **wanted)), None)
        crashed: dict[Restart, list[CrashRow]] = {}
        for cell in cells:
            if (cell.instances, cell.policy) == (instances, policy):
                crashed.setdefault(cell.restart, []).append(cell)
        for restart in sorted(crashed, key=RESTARTS.index) or (None,):
            yield Option(
                instances=instances,
                policy=policy,
                restart=restart,
                acquired_per_s=fastest.acquired_per_s if fastest else None,
                rate_interval=rate_interval(fastest) if fastest else None,
                generator_bound=fastest.generator.bound if fastest else None,
                p99_s=loaded.acquire_s.p99 if loaded and loaded.sustained and not loaded.generator.reason else None,
                sustained=loaded.sustained if loaded else None,
                crash=_losses(crashed[restart], crash.groups) if crash and restart else None,
            )


def _losses(cells: Sequence[CrashRow], groups: Sequence[CrashGroup]) -> LossesSeen:
    """The worst of some cells: margins share their cuts, which count once; `groups` know the losses of all margins."""
    cells = [cell for cell in cells if cell.kind in POWER_CUTS] or cells
    cuts = {cell.key: cell.cuts for cell in cells}
    whole = [group for group in groups if group.key in cuts] or cells
    return LossesSeen(
        cuts=sum(cuts.values()),
        lost_per_cut=Most(max=max(group.lost_per_cut.max or 0 for group in whole)),
        double_grants=sum(cell.double_grants for cell in cells),
        unavailable_s=Most(max=max(cell.unavailable_s.max or 0.0 for cell in cells)),
    )


Way = tuple[Policy, Restart | None]


def _advice(page: PlannerPage) -> Iterator[str]:
    """Sentences, the recommendation first. Every number in them stands in the page."""
    costs, crashed = page.always_costs, dict[Way, list[LossesSeen]]()
    for option in page.options:
        if option.crash:
            crashed.setdefault((option.policy, option.restart), []).append(option.crash)
    if crashed:
        yield _recommended(costs, crashed)
        for way in sorted(crashed, key=lambda way: (POLICIES.index(way[0]), way[1] == "delayed")):
            yield f"{_name(way)}: {_seen(crashed[way])}"
    else:
        yield "nothing is recommended yet: run lockbench crash --quick, then lockbench planner"
    if costs and costs.least == costs.most:
        yield f"always costs {costs} of everysec's locks/s: {_place(costs.most)}"
    elif costs:
        yield (
            f"always costs {costs} of everysec's locks/s, depending on callers and disk: "
            f"least with {_place(costs.least)}; most with {_place(costs.most)}"
        )


def _recommended(costs: CostRange | None, crashed: Mapping[Way, Sequence[LossesSeen]]) -> str:
    """Of the ways that were safe at every N tried, the cheapest durable one, and its alternative."""
    safe = [way for way, losses in crashed.items() if all(one.is_safe for one in losses)]
    if not safe:
        return "nothing that was crashed is safe: every policy led to double grants"
    parts = []
    if delayed := [way for way in safe if way[1] == "delayed"]:
        best = next((way for way in delayed if way[0] == "everysec"), delayed[-1])
        waits_s = max(one.unavailable_s.max for one in crashed[best])
        parts.append(
            f"take {_name(best)} ({_tried(crashed[best])}), if a crash may cost up to {waits_s:.1f} s without new locks"
        )
    if at_once := [way for way in safe if way[1] == "at-once"]:
        best = next((way for way in at_once if way[0] == "always"), at_once[-1])
        price = f": it costs {costs} of the locks/s" if costs else ": what it costs is not known here"
        price = price if best[0] == "always" else ""
        parts.append(f"take {_name(best)} ({_tried(crashed[best])}){', if it may not' if parts else ''}{price}")
    return "; ".join(parts)


def _tried(losses: Sequence[LossesSeen]) -> str:
    return f"0 double grants in {sum(one.cuts for one in losses):,} crashes"


def _name(way: Way) -> str:
    return f"{way[0]} with delayed restart" if way[1] == "delayed" else f"{way[0]}, restarted at once"


def _seen(losses: Sequence[LossesSeen]) -> str:
    cuts, grants = sum(one.cuts for one in losses), sum(one.double_grants for one in losses)
    bound = f" (95 % sure: fewer than 1 in {cuts // 3:,})" if not grants and cuts >= 3 else ""
    lost, waits_s = max(one.lost_per_cut.max for one in losses), max(one.unavailable_s.max for one in losses)
    locks = f"up to {lost:,.0f} locks" if lost else "no lock"
    return (
        f"{grants:,} double grants in {cuts:,} cuts{bound}, {locks} lost per crash, {waits_s:.1f} s unavailable at most"
    )


def _place(cost: AlwaysCost) -> str:
    return f"{cost.shape} callers, N={cost.instances}, {cost.disk}"
