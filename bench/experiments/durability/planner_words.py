"""Writes the texts of `lockbench planner`: *the planner's page → the answer, tables and a picture*.
`lockbench fsync` shows a part of this page, too. Tables fit 80 columns. A table shows an en dash if
a figure was not measured or has no interval."""

from collections.abc import Iterator, Sequence

from bench.experiments.durability.advice import choices, key_figures, tried_ways, wait_s, wait_text
from bench.experiments.durability.loss_result import Losses
from bench.experiments.durability.planner import judge_page
from bench.experiments.durability.policies import Restart, terms
from bench.experiments.durability.price_result import (
    AlwaysCost,
    DiskFigures,
    FsyncResult,
    PlannerOption,
    PlannerPage,
)
from bench.measure.server_facts import servers_text
from bench.measure.verdict import word_of
from bench.report.figures import count, latency, percent
from bench.report.html.chapters import Chapter, Page
from bench.report.html.plot import Figure, Measure, Panel, harm, panels
from bench.report.sheet import (
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    not_measured,
    table_of,
    to_do,
)

CARRY_OVER = (
    "the rates differ on another machine, disk or client, but the order of the policies stays "
    "the same. Use the row with the latency nearest to your own disk (lockbench doctor measures "
    "your disk)"
)
# An fdatasync of a file in memory takes less than this (s).
MEMORY_S = 5e-6
# How the picture names each way of restart.
_WAYS: dict[tuple[Restart | None, bool], str] = {
    ("delayed", False): "Restart after the longest TTL",
    ("at-once", True): "Restart at once; clients ignore the restarted server for the longest TTL",
    ("at-once", False): "Restart at once; clients trust the restarted server",
}


def planner_sheet(result: FsyncResult, sources: Sequence[str] = ()) -> Sheet:
    """Return the summary of the planner's page. The advice comes first in this summary.

    `sources` names the results that the page uses.
    """
    page = result.planner
    verdict = judge_page(page)
    word = word_of("planner", verdict)
    scenario = result.conditions.scenario
    lines = (
        *(Sentence("because", reason) for reason in verdict.reasons),
        *advice_lines(page),
        *(Sentence("made of", source) for source in sources),
        *([Sentence("scenario", scenario)] if scenario else []),
    )
    return Sheet(
        word.text,
        word.colour,
        page.advice[0],
        f"{servers_of(result)} · p99 from the intended start",
        (options(page), prices(result)),
        tuple(dict.fromkeys(lines)),
        keys=tuple(KeyFigure(*figure) for figure in key_figures(page)),
    )


def planner_page(result: FsyncResult, sources: Sequence[str] = (), repeat: str = "") -> Page:
    """Return the planner's HTML page, with the answer, a picture of price against loss, advice and
    tables."""
    sheet = planner_sheet(result, sources)
    drawn = choice_figure(result.planner)
    pictures = (Chapter("Price against loss", (drawn,)),) if drawn else ()
    tables = (Chapter(part.name, (), (part,), "sheet") for part in sheet.parts)
    title = f"{sheet.verdict} · planner · {result.started_at[:16].replace('T', ' ')}"
    return Page(title, sheet, (*pictures, *tables), repeat)


def servers_of(result: FsyncResult) -> str:
    """Return a text that names the measured servers."""
    if server := result.fleet.server:
        return f"{server.name} {server.version}"
    instances = result.fleet.instances or ()
    names = servers_text(instances)
    return f"{len(instances)} of your servers" + (f" ({names})" if names else "")


def disk_text(disk: DiskFigures | None) -> str:
    """Return a text about the speed of the disk, with an explanation."""
    if disk is None:
        return "not known: fdatasync can only be measured on the host of the servers' files"
    like = "the files are in memory instead of on a disk; " if disk.p50 < MEMORY_S else ""
    cloud = (
        "an fsync on a cloud volume takes 0.5–10 ms, and the added delays simulate a cloud volume"
    )
    return f"fdatasync p50 {latency(disk.p50)}, p99 {latency(disk.p99)}; {like}{cloud}"


def advice_lines(page: PlannerPage) -> Iterator[Sentence]:
    """Yield sentences in this order: warnings, advice, missing measurements, and explanations of
    the figures."""
    yield from (Sentence("warning", text) for text in page.warnings)
    advice = choices(page) or [("next", page.advice[0])]
    yield from (to_do(text, label) for label, text in advice)
    yield from map(not_measured, page.unmeasured)
    yield Sentence("disk", disk_text(page.disk_fdatasync_s))
    yield Sentence("carries over", CARRY_OVER)
    if page.ttl_ms:
        text = (
            "largest number of valid locks that were lost in one power cut at "
            f"{count(page.crash_locks_per_s)} locks/s; at a higher rate, a power cut loses more "
            "locks"
        )
        yield Sentence("locks lost", text)


def prices(result: FsyncResult) -> Part:
    """Return a table with the prices of `always`. The table has one row per load."""
    about = (
        "the times are (locks/s with everysec) ÷ (locks/s with always), measured in time slices "
        "on the same servers; the pairs are the compared pairs of time slices"
    )
    if not all(cost.is_known for cost in result.costs):
        about += "; – means that there is no interval, or that the load process was at its limit"
    columns = ("instances", "callers", "held", "disk", "times", "interval", "pairs")
    words = terms("disk", "appendfsync")
    return table_of(AlwaysCost, "What always costs", about, result.costs, columns, terms=words)


def options(page: PlannerPage) -> Part:
    """Return a table with the price and the losses of each option."""
    load = page.reference
    at = f"speed: {load.load_text}, disk {load.disk}; " if load else ""
    about = (
        f"{at}the losses are those of the worst power cut, or of the worst crash if the "
        "policy is none"
    )
    columns: Columns[PlannerOption] = (
        "instances",
        "policy",
        "back",
        "rate_text",
        "p99_s",
        "crash.lost_per_cut.max",
        "crash.granted_twice",
        "crash.cuts",
        "crash.unavailable_s.max",
    )
    return table_of(
        PlannerOption,
        "The price and the losses of each choice",
        about,
        page.options,
        columns,
        terms=terms("appendfsync", "restart", "clients abstain", "granted twice"),
    )


def choice_figure(page: PlannerPage) -> Figure | None:
    """Return a picture of price against loss. For each way, the picture shows the share of locks
    that were granted twice, the time without new locks after a crash, and the speed."""
    shown = [
        (one, one.crash)
        for one in page.options
        if one.instances == page.shown_instances and one.crash and one.restart
    ]
    if not shown:
        return None
    ways = tried_ways(page)
    safe = sum(losses.is_safe for losses in ways.values())
    title = (
        f"{safe} of {len(ways)} choices never granted a lock twice; each of these choices "
        "costs speed or a wait after a crash"
    )
    load = page.reference
    speed = f"speed with {load.load_text}, disk {load.disk}" if load else "speed not known"
    about = (
        f"N={page.shown_instances}; the losses are those of power cuts, or of all crashes if the "
        f"policy is none; {speed}"
    )
    heads = [
        Panel("granted twice", "% of locks"),
        Panel("no new locks", "s, at most"),
        Panel("speed", "acquires/s"),
    ]
    groups = []
    for key, heading in _WAYS.items():
        of_way = [
            (one.policy, _choice_measures(page, one, losses))
            for one, losses in shown
            if (one.restart, one.abstention) == key
        ]
        if of_way:
            groups.append((heading, of_way))
    return panels("choices", title, about, heads=heads, groups=groups)


def _choice_measures(page: PlannerPage, one: PlannerOption, losses: Losses) -> list[Measure]:
    """Return three figures of the option `one`. The first figure is the share of locks that were
    granted twice. The second figure is the time without new locks after a crash. The third figure
    is the speed of the option."""
    assert one.way is not None
    twice = losses.double_grants / losses.asked if losses.asked else 0.0
    text = percent(twice, 0) if twice else "none"
    shown = harm(twice, text, some="locks granted twice", none="no lock granted twice")
    waited = wait_text(page, one.way, losses, "TTL+").removesuffix(" s")
    speed = one.acquired_per_s.median if one.acquired_per_s else None
    return [
        shown,
        Measure(wait_s(page, one.way, losses), waited, "c3", "time without new locks"),
        Measure(speed, one.rate_text, "c1", "speed"),
    ]
