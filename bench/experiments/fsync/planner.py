"""Speed beside losses: *rows of `lockbench fsync`, a result of `lockbench crash` → the planner's page*. Pure.

    one option = N × policy × how a crashed instance comes back (at once, or only after the longest TTL)
    speed      maximum and p99 at 80 % of it, of one reference load measured for most options
    losses     worst of the crash groups of that option: locks lost per crash, double grants, seconds unavailable

Rules
- Nothing is interpolated: a figure that was not measured is null, and a crash result may be missing altogether.
- A double grant is counted with clients that trust a restarted instance; a power cut, whole or with a torn tail, is the
  crash that counts. An option is called safe when cuts were made and none led to a double grant.
- What a policy costs is the whole range over everything measured, because no single ratio is true.

Source: README, "Choosing an fsync policy"; figures_of.py and the judge of crash for the figures.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.experiments.fsync.figures_of import Row, costs_of_pair, find_rows

POLICIES = ("none", "no", "everysec", "always", "waitaof")
RESTARTS = ("at-once", "delayed")
POWER_CUTS = ("power-cut", "power-cut-torn")
REFERENCE_LOAD = "80%"
RULE_OF_THREE = 3.0

Crash = Mapping[str, Any]


def plan_page(rows: Sequence[Row], crash: Crash | None, fsync_id: str, server: Mapping[str, Any] | None = None) -> Row:
    """The section `planner`: options, costs, disk, and what is advised, in sentences made from these figures.

    `server`: the program that was measured, None = not known.
    """
    reference = _reference(rows)
    cells, groups = (crash["rows"], crash.get("groups", [])) if crash else ([], [])
    options = [_option(rows, cells, groups, reference, key) for key in _keys(rows, cells)]
    page = {
        "reference": reference,
        "options": options,
        "always_costs": _always_costs(rows),
        "disk_fdatasync_s": _disk(rows),
        "sources": {"fsync": fsync_id, "crash": crash["id"] if crash else None},
        "ttl_ms": crash["conditions"].get("ttl_ms") if crash else None,
        "warnings": _unlike(server, crash["fleet"]["server"]) if crash else [],
        "crash_locks_per_s": crash["conditions"].get("locks_per_s") if crash else None,
    }
    return {**page, "advice": list(_advice(page))}


def _unlike(measured: Mapping[str, Any] | None, crashed: Mapping[str, Any] | None) -> list[str]:
    """Speed and losses of unlike servers may stand on one page, but not without a word."""
    names = [f"{one['name']} {one['version']}" if one else "servers of another kind" for one in (measured, crashed)]
    return [] if names[0] == names[1] else [f"the speed is that of {names[0]}, the losses are those of {names[1]}"]


def _reference(rows: Sequence[Row]) -> Row | None:
    """The load that most N and policies share; of equals the one with the slowest disk, then the most callers."""
    counts: Counter[tuple[int, int, float]] = Counter()
    for row in find_rows(rows):
        if row["policy"] != "none":
            counts[row["clients"], row["pipeline"], row["injected_ms"]] += 1
    if not counts:
        shapes = {(row["clients"], row["pipeline"], 0.0): 1 for row in find_rows(rows)}
        counts = Counter(shapes)
    if not counts:
        return None
    best = max(counts, key=lambda key: (counts[key], key[2] == 2.0, key[2], key[0] * key[1] <= 256, key[0] * key[1]))
    return {"clients": best[0], "pipeline": best[1], "injected_ms": best[2], "load": REFERENCE_LOAD}


def _keys(rows: Sequence[Row], cells: Sequence[Crash]) -> list[tuple[int, str, str | None]]:
    """N, policy and restart of every option; restart None where no crash was made."""
    measured = {(row["instances"], row["policy"]) for row in rows}
    crashed = {(cell["instances"], cell["policy"], cell["restart"]) for cell in cells}
    bare = {(*pair, None) for pair in measured if not any(key[:2] == pair for key in crashed)}
    return sorted(
        {*crashed, *bare}, key=lambda key: (key[0], POLICIES.index(key[1]), RESTARTS.index(key[2]) if key[2] else -1)
    )


def _option(
    rows: Sequence[Row],
    cells: Sequence[Crash],
    groups: Sequence[Crash],
    reference: Row | None,
    key: tuple[int, str, str | None],
) -> Row:
    instances, policy, restart = key
    shape = {} if reference is None else {name: reference[name] for name in ("clients", "pipeline")}
    delay = {} if policy == "none" or reference is None else {"injected_ms": reference["injected_ms"]}
    fastest = find_rows(rows, instances=instances, policy=policy, **shape, **delay)
    loaded = find_rows(rows, REFERENCE_LOAD, instances=instances, policy=policy, **shape, **delay)
    same = [cell for cell in cells if (cell["instances"], cell["policy"], cell["restart"]) == key]
    return {
        "instances": instances,
        "policy": policy,
        "restart": restart,
        "acquired_per_s": fastest[0]["acquired_per_s"] if fastest else None,
        "generator_bound": fastest[0]["generator"]["bound"] if fastest else None,
        "p99_s": loaded[0]["acquire_s"]["p99"] if loaded and loaded[0]["sustained"] else None,
        "sustained": loaded[0]["sustained"] if loaded else None,
        "crash": _losses([cell for cell in same if cell["kind"] in POWER_CUTS], groups) or _losses(same, groups),
    }


def _losses(cells: Sequence[Crash], groups: Sequence[Crash]) -> Row | None:
    """The worst of some groups of cuts; None without any. Margins and abstention share their cuts, so those count
    once; a cell knows the losses of one margin, `groups` those of all."""
    if not cells:
        return None
    cuts: dict[tuple[str, int], int] = {}
    for cell in cells:
        key = cell["kind"], cell["crashed"]
        cuts[key] = max(cuts.get(key, 0), cell["cuts"])
    total = sum(cuts.values())
    whole = [group for group in groups if any(_is_same_crash(group, cell) for cell in cells)] or cells
    trusting = [cell for cell in cells if not cell["abstention"]]
    abstaining = [cell for cell in cells if cell["abstention"]]
    grants = sum(cell["double_grants"] for cell in trusting)
    windows = [cell["lost_window_s"]["max"] for cell in cells if cell["lost_window_s"]["max"] is not None]
    return {
        "kinds": sorted({cell["kind"] for cell in cells}),
        "cuts": total,
        "lost_per_cut": {
            "median": max(group["lost_per_cut"]["median"] or 0 for group in whole),
            "max": max(group["lost_per_cut"]["max"] or 0 for group in whole),
        },
        "lost_window_max_s": max(windows) if windows else None,
        "double_grants": grants if trusting else None,
        "asked": sum(cell["asked"] for cell in trusting),
        "double_grants_abstaining": sum(cell["double_grants"] for cell in abstaining) if abstaining else None,
        "double_grant_upper_bound_95": RULE_OF_THREE / total if total and trusting and not grants else None,
        "unavailable_s": {
            "median": statistics.median(cell["unavailable_s"]["median"] or 0.0 for cell in trusting or cells),
            "max": max(cell["unavailable_s"]["max"] or 0.0 for cell in trusting or cells),
        },
    }


def _is_same_crash(one: Crash, other: Crash) -> bool:
    return all(one[name] == other[name] for name in ("instances", "policy", "kind", "crashed", "restart"))


def _always_costs(rows: Sequence[Row]) -> Row | None:
    """everysec ÷ always over everything measured: least and most, each with where."""
    costs = costs_of_pair(rows, "everysec", "always")
    if not costs:
        return None
    by_ratio = sorted(costs, key=lambda cost: float(cost["ratio"]))
    return {"least": by_ratio[0], "most": by_ratio[-1]}


def _disk(rows: Iterable[Row]) -> Row | None:
    disks = [row["disk_fdatasync_s"] for row in rows if row["disk_fdatasync_s"]]
    if not disks:
        return None
    p99s = [disk["p99"] for disk in disks if disk["p99"] is not None]
    return {
        "p50": statistics.median(disk["p50"] for disk in disks),
        "p99": statistics.median(p99s) if p99s else None,
        "max": max(disk["max"] for disk in disks),
    }


# -- advice ------------------------------------------------------------------------------------------------------------


def is_safe(option: Row) -> bool:
    """Whether cuts were made and none led to a double grant."""
    crash = option["crash"]
    return bool(crash and crash["cuts"] and crash["double_grants"] == 0)


def _advice(page: Row) -> Iterator[str]:
    """Sentences, the recommendation first. Every number in them stands in the page."""
    options = page["options"]
    crashed = [option for option in options if option["crash"]]
    if not crashed:
        yield "no crash result beside these figures: run lockbench crash; speed alone chooses nothing"
    else:
        yield _recommended(page, crashed)
        for policy in POLICIES:
            for restart in RESTARTS:
                same = [option for option in crashed if (option["policy"], option["restart"]) == (policy, restart)]
                if same:
                    yield f"{_name(policy, restart)}: {_seen(same)}"
    costs = page["always_costs"]
    if costs:
        depending = ", depending on callers and disk" if costs["least"] != costs["most"] else ""
        yield f"always costs {_cost(costs)}{depending}: {_range(costs)}"


def _recommended(page: Row, crashed: Sequence[Row]) -> str:
    """Of the (policy, restart) pairs that were safe at every N tried, the cheapest durable one, and its alternative."""
    pairs = list(dict.fromkeys((option["policy"], option["restart"]) for option in crashed))
    of_pair = {pair: [option for option in crashed if (option["policy"], option["restart"]) == pair] for pair in pairs}
    safe = [pair for pair in pairs if all(map(is_safe, of_pair[pair]))]
    if not safe:
        return "nothing that was crashed is safe: every policy led to double grants"
    at_once = [pair for pair in safe if pair[1] == "at-once"]
    delayed = [pair for pair in safe if pair[1] == "delayed"]
    parts = []
    if delayed:
        best = next((pair for pair in delayed if pair[0] == "everysec"), delayed[-1])
        waits_s = max(option["crash"]["unavailable_s"]["max"] for option in of_pair[best])
        parts.append(f"take {_name(*best)}, if a crash may cost up to {waits_s:.1f} s without new locks")
    if at_once:
        best = next((pair for pair in at_once if pair[0] == "always"), at_once[-1])
        costs = page["always_costs"]
        price = f": it costs {_cost(costs)} of the locks/s" if costs and best[0] == "always" else ""
        parts.append(f"take {_name(*best)}{', if it may not' if parts else ''}{price}")
    return "; ".join(parts)


def _name(policy: str, restart: str) -> str:
    return f"{policy} with delayed restart" if restart == "delayed" else f"{policy}, restarted at once"


def _seen(options: Sequence[Row]) -> str:
    crashes = [option["crash"] for option in options]
    cuts = sum(crash["cuts"] for crash in crashes)
    known = [crash["double_grants"] for crash in crashes if crash["double_grants"] is not None]
    grants = f"{sum(known):,} double grants in {cuts:,} cuts" if known else f"{cuts:,} cuts, double grants not sought"
    bound = f" (95 % sure: fewer than 1 in {cuts // 3:,})" if known and not sum(known) and cuts >= 3 else ""
    lost = max(crash["lost_per_cut"]["max"] for crash in crashes)
    waits_s = max(crash["unavailable_s"]["max"] for crash in crashes)
    return f"{grants}{bound}, {_locks(lost)} lost per crash, {waits_s:.1f} s unavailable at most"


def _locks(most: float) -> str:
    return f"up to {most:,} locks" if most else "no lock"


def _times(cost: Row) -> str:
    ratio = float(cost["ratio"])
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _cost(costs: Row) -> str:
    most = _times(costs["most"])
    if costs["most"]["ratio"] <= 1:
        return "nothing measurable"
    if costs["least"]["ratio"] < 1:
        return f"between nothing measurable and {most}×"
    least = _times(costs["least"])
    return f"{most}×" if least == most else f"{least}–{most}×"


def _range(costs: Row) -> str:
    if costs["least"] == costs["most"]:
        return _place(costs["most"])
    return "; ".join(f"{name} with {_place(costs[name])}" for name in ("least", "most"))


def _place(cost: Row) -> str:
    disk = f"+{cost['injected_ms']:g} ms" if cost["injected_ms"] else "raw disk"
    bound = ", where the load process was the limit" if cost["generator_bound"] else ""
    return f"{cost['clients']}×{cost['pipeline']} callers, N={cost['instances']}, {disk}{bound}"
