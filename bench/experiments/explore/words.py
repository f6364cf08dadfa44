"""Turns a result of `lockbench explore` into a table of recipes, and a sequence diagram for each
broken recipe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.experiments.explore.figures import courses
from bench.experiments.explore.result import Broken, ExploredRow, ExploreResult, Replayed
from bench.measure.expectation import NOT_KNOWN, ROW_WORDS
from bench.report.figures import count
from bench.report.html.plot import Figure, Measure, Panel, harm, panels
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    not_measured,
    sheet_of,
    table_of,
    to_do,
)

# The width of the widest diagram. A terminal has 80 columns, and the times need the rest.
WIDEST = 72
_TERMS = {
    "played": "number of schedules. Each schedule disturbs different messages, clients or "
    "servers. The same seed gives the same schedules",
    "tested": "schedules in which a command was sent while another client held a lock",
    "schedules /s": "schedules per second of processor time, which is the rate of one core",
    "steps": "number of steps of the smallest schedule that breaks the recipe. Clean-ups that "
    "found no key do not count",
}
_STYLES = {name: f"bold {word.colour}" for name, word in ROW_WORDS.items()}


def sheet(result: ExploreResult, place: str = "") -> Sheet:
    """Return the sheet that shows `result`. `place` is the path of the stored result, or ""."""
    conditions = result.conditions
    bound = (
        ""
        if conditions.exhaustive is None
        else f"every schedule with at most {conditions.exhaustive} changes"
    )
    return sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=filter(
            None, (bound, "virtual time", f"{conditions.processes} processes", *made(result)[1:])
        ),
        parts=_parts(result),
        lines=_lines(result),
        tables_first=True,
        keys=_keys(result.rows),
    )


def _headline(result: ExploreResult) -> str:
    if len(result.rows) == 1:
        row = result.rows[0]
        return f"{row.recipe}: {row.outcome}" + (f" in {row.steps} steps" if row.steps else "")
    broken = sum(row.broken is not None for row in result.rows)
    played = sum(row.schedules for row in result.rows)
    return f"{count(played)} schedules broke {broken} of {len(result.rows)} recipes"


def _keys(rows: Sequence[ExploredRow]) -> Iterator[KeyFigure]:
    for is_safe, name in ((True, "must hold"), (False, "known flaws")):
        of_kind = [row for row in rows if row.safe is is_safe]
        word = "held" if is_safe else "broken"
        count_of_word = sum(row.outcome.startswith(word) for row in of_kind)
        bound = "no proof beyond these" if is_safe else ""
        if of_kind:
            yield KeyFigure(name, f"{count_of_word} of {len(of_kind)} recipes {word}", bound)
    tested = sum(row.tested for row in rows)
    at_stake = (
        f"in {count(tested)} schedules, a client sent a command while another client held the lock"
    )
    yield KeyFigure("schedules", count(sum(row.schedules for row in rows)), at_stake)


def _parts(result: ExploreResult) -> Iterator[Part]:
    about = "size: clients × simulated instances"
    played = table_of(ExploredRow, "schedules", about, result.rows)
    yield replace(played, styles=_STYLES, terms=_TERMS)
    for row in result.rows:
        if row.broken:
            yield diagram(row.recipe, row.broken)


def figures(result: ExploreResult) -> list[Figure]:
    """Return a picture of all recipes, and a picture of each schedule that breaks a recipe.

    For each recipe, the first picture shows the number of steps in the smallest schedule that
    breaks the recipe. The first picture also shows the number of played schedules.
    """
    groups = []
    for is_safe, heading in ((True, "must hold"), (False, "known to be flawed")):
        rows = [(row.recipe, _measures(row)) for row in result.rows if row.safe is is_safe]
        if rows:
            groups.append((heading, rows))
    heads = [
        Panel("steps of the smallest", "schedule that breaks it"),
        Panel("schedules", "played"),
    ]
    about = (
        "The search for a recipe ends when 5 schedules have broken the recipe, or when one "
        "schedule of at most 12 steps has broken the recipe"
    )
    title = _headline(result)
    overview = [panels("explored", title, about, heads=heads, groups=groups)] if groups else []
    return [*overview, *courses(result.rows)]


def _measures(row: ExploredRow) -> list[Measure]:
    steps = None if row.outcome == NOT_KNOWN else row.steps or 0
    broken = harm(steps, str(row.steps or row.outcome), some="broken", none="held")
    return [broken, Measure(row.schedules, count(row.schedules), "c1", "schedules played")]


def diagram(recipe: str, broken: Broken) -> Part:
    """Return the steps of a broken schedule as a table.

    Each client has a column. If a fault affects servers, the servers have a column, too. If this
    table would be wider than a terminal, the table has only two columns, which are the client and
    the step.
    """
    steps = broken.steps[:-1]
    rule = broken.steps[-1]
    clients = max((step.who for step in broken.steps), default=0) + 1
    names = [f"client {number + 1}" for number in range(clients)]
    names += ["server"] if any(step.who < 0 for step in steps) else []
    columns = [[step.text for step in steps if names[step.who] == name] for name in names]
    widths = [
        max(map(len, [name, *column])) + 1 for name, column in zip(names, columns, strict=True)
    ]
    if sum(widths) <= WIDEST:
        head = ("ms", *names)
        cells = [["" if name != names[step.who] else step.text for name in names] for step in steps]
    else:
        head = ("ms", "who", "step")
        cells = [[names[step.who], step.text] for step in steps]
    rows = [(f"{step.ms:.2f}", *row) for step, row in zip(steps, cells, strict=True)]
    about = (
        f"schedule {broken.number:,}, reduced to {len(steps)} steps: "
        f"{rule.text}{_replayed(broken.replayed)}"
    )
    return Part(recipe, about, head, tuple(rows), frozenset(range(1, len(head))))


def _replayed(replayed: Replayed | None) -> str:
    if replayed is None:
        return ""
    if not replayed.plays:
        return f"; not played on real servers: {replayed.reason}"
    same = f"{replayed.same} of {replayed.plays} plays" + (
        f" ({replayed.reason})" if replayed.reason else ""
    )
    return f"; on real servers ({replayed.server}), the schedule broke the same rule in {same}"


def _lines(result: ExploreResult) -> Iterator[Sentence]:
    held = [row.recipe for row in result.rows if row.outcome.startswith("held")]
    broken = [row.recipe for row in result.rows if row.broken]
    if broken:
        instead = f"; these recipes did not break: {', '.join(held)}" if held else ""
        yield to_do(
            f"do not use {', '.join(broken)} where two holders cause harm{instead}", "avoid"
        )
    yield to_do("lockbench judge mine.py tests your own lock with real faults")
    if held:
        yield not_measured(
            "schedules that were not played, so the search does not prove that a recipe is safe"
        )


def suite(result: ExploreResult) -> Suite:
    """Return the recipes as JUnit cases."""
    cases = [
        Case(
            row.recipe,
            ROW_WORDS[row.verdict].status,
            f"{count(row.schedules)} schedules: {row.outcome}",
        )
        for row in result.rows
    ]
    return suite_of(result, cases)
