"""What `lockbench explore` says: *its result → a table of recipes, and a sequence diagram of what
broke each*."""

from collections.abc import Iterator

from bench.experiments.explore.result import Broken, ExploredRow, ExploreResult, Replayed
from bench.measure.expectation import NOT_KNOWN, ROW_WORDS
from bench.report.figures import count
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import Part, Sheet, made, sheet_of

HEAD = ("recipe", "size", "played", "tested", "per s", "steps", "came out", "verdict")
# The widest diagram. A terminal has 80 columns, and the times need the rest.
WIDEST = 72
_STYLES = {name: f"bold {word.colour}" for name, word in ROW_WORDS.items()}


def sheet(result: ExploreResult, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    conditions = result.conditions
    bound = (
        ""
        if conditions.exhaustive is None
        else f"every schedule of at most {conditions.exhaustive} changes"
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
    )


def _headline(result: ExploreResult) -> str:
    if len(result.rows) == 1:
        row = result.rows[0]
        return f"{row.recipe}: {_came_out(row)}" + (
            f" in {len(row.broken.steps) - 1} steps" if row.broken else ""
        )
    broken = sum(row.broken is not None for row in result.rows)
    played = sum(row.schedules for row in result.rows)
    return f"{broken} of {len(result.rows)} recipes broken by {count(played)} schedules"


def _came_out(row: ExploredRow) -> str:
    if row.broken:
        return "broken"
    if row.verdict == NOT_KNOWN:
        return NOT_KNOWN
    return "held, all of them" if row.whole else "held"


def _parts(result: ExploreResult) -> Iterator[Part]:
    cells = tuple(map(_row, result.rows))
    yield Part(
        "schedules",
        "what was played, and what came of it",
        HEAD,
        cells,
        frozenset({0, 6, 7}),
        styles=_STYLES,
    )
    for row in result.rows:
        if row.broken:
            yield diagram(row.recipe, row.broken)


def _row(row: ExploredRow) -> tuple[str, ...]:
    rate = f"{row.schedules / row.took_s:,.0f}" if row.took_s else "–"
    steps = str(len(row.broken.steps) - 1) if row.broken else "–"
    size = f"{row.clients} × {row.instances}"
    return (
        row.recipe,
        size,
        count(row.schedules),
        count(row.tested),
        rate,
        steps,
        _came_out(row),
        row.verdict,
    )


def diagram(recipe: str, broken: Broken) -> Part:
    """The steps as a table: a column for each client, one for the servers where something happens
    to them; or who and what, where that would be wider than a terminal."""
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
        f"schedule {broken.number:,} made smaller, {len(steps)} steps: "
        f"{rule.text}{_replayed(broken.replayed)}"
    )
    return Part(recipe, about, head, tuple(rows), frozenset(range(1, len(head))))


def _replayed(replayed: Replayed | None) -> str:
    if replayed is None:
        return ""
    if not replayed.plays:
        return f"; not on real servers: {replayed.reason}"
    same = f"{replayed.same} of {replayed.plays} plays" + (
        f" ({replayed.reason})" if replayed.reason else ""
    )
    return f"; the same on real servers ({replayed.server}): {same}"


def _lines(result: ExploreResult) -> Iterator[tuple[str, str]]:
    yield (
        "size",
        "clients × simulated instances; per s: schedules by a second of processor time, "
        "so on one core",
    )
    yield (
        "played",
        "schedules: what is late, paused, lost or restarted differs; the same seed, the same ones",
    )
    yield "tested", "schedules in which a command was sent while another client held a lock"
    if any(row.broken for row in result.rows):
        yield (
            "steps",
            "of the smallest schedule that breaks it; clean-ups that found nothing are not shown",
        )
    if any(row.safe and not row.broken for row in result.rows):
        yield "held", "no schedule played broke it: no proof, but for those played"


def suite(result: ExploreResult) -> Suite:
    """The recipes as JUnit cases."""
    cases = [
        Case(
            row.recipe,
            ROW_WORDS[row.verdict].status,
            f"{count(row.schedules)} schedules: {_came_out(row)}",
        )
        for row in result.rows
    ]
    return suite_of(result, cases)
