"""Judges recipes, claims about Redlock, and claims about persistence. Each recipe and each claim
gets one judged row.

The rows of the recipes come before the rows of the claims. If a property must hold in all
circumstances, simulated schedules test the property, as in `lockbench explore`. The finding names
the rule that a schedule broke. If a claim needs real time and real clocks, leases.py tests the
claim on servers that lockbench starts on loopback. If another command measures a claim, the matrix
names this command. A signal ends the matrix at once. The interrupted row is dropped, and all rows
that ended before the signal are judged and stored. After the end of the matrix, no process and no
temporary file of the matrix remains. Source: the section "Performance, crash recovery and fsync" of
"Distributed Locks with Redis" in the Redis documentation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs
from redis.exceptions import RedisError

from bench.errors import BenchError
from bench.experiments.explore import search
from bench.experiments.explore.experiment import explored
from bench.experiments.explore.result import ExploredRow, ExplorePlan
from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.judge import ELSEWHERE, judge_rows
from bench.experiments.safety_matrix.leases import SKIPPED, RowSetup, cannot, confirmed
from bench.experiments.safety_matrix.result import (
    Finding,
    MatrixPart,
    SafetyPlan,
    SafetyResult,
    SafetyRow,
)
from bench.measure.expectation import NOT_KNOWN
from bench.measure.fleet_facts import OwnFleet
from bench.recipes.registry import RECIPES, WITHDRAWN, find_recipe
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.scenario.quantity import require_known
from bench.topology.child import Child
from bench.topology.server import find_server
from lockcore.bench import LockcoreError

# If an exception of these types ends the test of a row, the row is "not known".
BROKEN_OFF = (BenchError, LockcoreError, RedisError, TimeoutError, AssertionError)
# A row that is "not known" gets at most this many tries. A machine that was busy during one try may
# be idle during the next try.
TRIES = 3
# How many schedules test a recipe that must hold, and the claims about lockcore.
QUICK_SCHEDULES = 250
FULL_SCHEDULES = 2_000
# A recipe with a known flaw gets at most this many schedules. The search ends when the flaw shows.
# The flaw of `set-nx-get-del` is the rarest. A schedule shows this flaw with a probability of
# 1/150. With 12 seeds, the first schedule with the flaw had a number from 1 to 386. So 3,000
# schedules miss the flaw for 2 of 10⁹ seeds. 250 schedules missed the flaw for one seed in six.
SCHEDULES_OF_A_FLAW = 3_000
ABOUT = (
    "two leases were valid at the same time; run `lockbench explore --recipe …` to see the schedule"
)


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of the plan.

    `look` is the function that tests the row. If lockbench knows the finding without a test, `look`
    is the finding itself.
    """

    part: MatrixPart
    recipe: str
    fault: str
    expected: str
    about: str
    look: Callable[[RowSetup], Finding] | Finding


def look_at_recipe(recipe: str, setup: RowSetup) -> Finding:
    """Explore `recipe`, and return the finding.

    The finding says how many schedules were played. If schedules broke the recipe, the finding also
    contains the number of steps in the smallest of these schedules.
    """
    row, _ = _explored(recipe, setup)
    figures: dict[str, float | None] = {"schedules": row.schedules, "tested": row.tested}
    if row.broken:
        figures["steps"] = len(row.broken.steps) - 1
    outcome = "the flaw" if row.broken else "no flaw"
    if row.verdict == NOT_KNOWN:
        outcome = NOT_KNOWN
    reason = row.reason or None
    if reason is None and row.broken:
        reason = row.broken.rule
    return Finding(outcome, row.verdict, figures, reason)


def look_at_rules(required: Mapping[str, int], setup: RowSetup) -> Finding:
    """Explore lockcore, and return the finding. No schedule may break a rule of lockcore.

    `required` maps the name of an event to a number. If the event happened fewer times than this
    number, the result is "not known".
    """
    row, counts = _explored("redlock", setup)
    figures = {
        "schedules": row.schedules,
        **{name.replace(" ", "_"): counts.get(name, 0) for name in required},
    }
    figures["broken_rules"] = int(row.broken is not None)
    needs = {
        f"at least {least} × {name}": counts.get(name, 0) >= least
        for name, least in required.items()
    }
    needs["the schedules were played"] = row.broken is not None or row.verdict != NOT_KNOWN
    rule = row.broken.rule if row.broken else row.reason
    return confirmed(True, figures, needs, broken=row.broken is not None, reason=rule)


def _explored(recipe: str, setup: RowSetup) -> tuple[ExploredRow, Mapping[str, int]]:
    """Explore a recipe. Return the row of the recipe, and the number of events of each kind."""
    schedules = QUICK_SCHEDULES if setup.quick else FULL_SCHEDULES
    if not find_recipe(recipe).about.safe:
        schedules = SCHEDULES_OF_A_FLAW
    plan = ExplorePlan((recipe,), 0.0, schedules, None, 1, setup.seed)
    total = search.Hunt()
    return explored(recipe, plan, [setup.searcher], lambda _progress: None, total), total.counts


_SPLITS = "`lockbench split-votes` measures this and compares it with the closed form"
_RESTARTS = (
    "`lockbench crash` measures this for each vote margin, AOF policy, kind of "
    "restart and abstention"
)
_POWER = "`lockbench crash` measures this, with power cuts at random moments"
# A faulty lock may grant one lease in ten after the lease's end. To notice such a lock with 95 %
# certainty, the test needs this many grants.
_GRANTED = 30
_DISKS = "`lockbench fsync` measures this cost for several disks, numbers of clients and pipelines"
# Each claim has a name, a meaning and a test. If there is a text in place of the test, the text
# names the command that measures the claim.
CLAIMS: tuple[tuple[str, str, Callable[[RowSetup], Finding] | str], ...] = (
    ("owner-tokens", "owner tokens of many processes never collide", leases.owner_tokens),
    (
        "votes",
        "a lock needs N/2+1 votes, and no lock is granted after its validity has ended",
        partial(look_at_rules, {"granted": _GRANTED, "too late": 1}),
    ),
    (
        "validity-drift",
        "leases never overlap if clocks differ by less than the drift factor",
        partial(leases.drift, leases.WITHIN),
    ),
    (
        "split-vote-window",
        "sending to all instances at once shortens the time in which nobody can win",
        _SPLITS,
    ),
    (
        "retry-delay",
        "split votes end if callers wait a random delay before the next attempt",
        _SPLITS,
    ),
    (
        "release-to-all",
        "a release goes to all instances, even to those that granted nothing",
        partial(look_at_rules, {"late votes": 1}),
    ),
    (
        "extension",
        "an extension needs a quorum before the lease ends, and the number of "
        "extensions is limited",
        partial(look_at_rules, {"extended": 1, "not extended": 1}),
    ),
    (
        "restart-margin",
        "without persistence, one restart can lose a lock whose vote margin is 0",
        _RESTARTS,
    ),
    (
        "clean-shutdown",
        "a clean SHUTDOWN with an AOF loses no lock, and TTLs continue while the server is down",
        _RESTARTS,
    ),
    (
        "delayed-restart",
        "a restart after the longest TTL is safe, but no lock is granted during this wait",
        _RESTARTS,
    ),
    (
        "partition-ttl",
        "if a holder loses its connection, the next caller waits until the TTL ends",
        leases.partition,
    ),
    (
        "clock-drift",
        "leases can overlap if server clocks run 10 % too fast, because Redlock "
        "assumes a small drift",
        partial(leases.drift, leases.BEYOND),
    ),
    ("everysec-loses", "the policy everysec can lose the key in a power cut", _POWER),
    ("always-is-slow", "the policy always is safe but slow", f"{_POWER}; {_DISKS}"),
)


def all_cases() -> Iterator[PlannedRow]:
    """Yield all rows, the recipes first."""
    for recipe, entry in RECIPES.items():
        expected = "no flaw" if entry.about.safe else "the flaw"
        yield PlannedRow(
            "schedule", recipe, "explored", expected, ABOUT, partial(look_at_recipe, recipe)
        )
    for recipe, why in WITHDRAWN.items():
        yield PlannedRow("schedule", recipe, "none", "nothing", why, cannot(SKIPPED, why))
    for name, about, how in CLAIMS:
        yield PlannedRow(
            "claim",
            "redlock",
            name,
            "confirmed",
            about,
            cannot(ELSEWHERE, how) if isinstance(how, str) else how,
        )


def choose_cases(recipes: Sequence[str] = (), claims: Sequence[str] = ()) -> list[PlannedRow]:
    """Return the rows of these recipes and claims, or all rows if no name is listed.

    Raises UsageError for a wrong name, and suggests the most similar name.
    """
    cases = list(all_cases())
    require_known("recipe", recipes, (*RECIPES, *WITHDRAWN))
    require_known("claim", claims, [name for name, _, _ in CLAIMS])
    if not recipes and not claims:
        return cases
    return [
        case
        for case in cases
        if (case.fault in claims if case.part == "claim" else case.recipe in recipes)
    ]


def look(case: PlannedRow, setup: RowSetup) -> SafetyRow:
    """Test `case`, and return its row. If the verdict is "not known", repeat the test, up to TRIES
    times in all.

    BROKEN_OFF holds types of exceptions. If the test raises such an exception, the verdict on the
    row is "not known". The function does not catch other exceptions. A complete search of schedules
    is not repeated, because a second search with the same seed would play the same schedules.
    """
    for _ in range(TRIES):
        ended_early = False
        try:
            finding = case.look if isinstance(case.look, Finding) else case.look(setup)
        except BROKEN_OFF as error:
            ended_early = True
            finding = Finding("it went wrong", NOT_KNOWN, reason=f"{type(error).__name__}: {error}")
        is_repeatable = ended_early or case.part != "schedule"
        if finding.verdict != NOT_KNOWN or not is_repeatable or setup.is_over():
            break
    return SafetyRow(
        **structs.asdict(finding),
        part=case.part,
        recipe=case.recipe,
        fault=case.fault,
        expected=case.expected,
        about=case.about,
    )


def run_safety(order: ExperimentOrder[SafetyPlan], show: Show) -> Done[SafetyResult]:
    """Test all rows, and store and return the result.

    Raises BenchError. Raises KeyboardInterrupt if the user interrupts the matrix before the end of
    the first row.
    """
    plan = order.plan
    rows = list[SafetyRow]()
    server = find_server(order.server)
    planned = choose_cases(plan.recipes, plan.claims)
    with Experiment(order) as experiment:
        # An interrupted row does not count.
        with Child("a search process", search.__name__) as searcher, experiment.cuttable():
            setup = RowSetup(
                plan.seed, plan.quick, order.server, searcher, lambda: experiment.is_over
            )
            for number, one in enumerate(planned, 1):
                show(f"{one.part}: row {number} of {len(planned)}, {one.recipe}, {one.fault}")
                rows.append(look(one, setup))
                if experiment.is_over:
                    # Ctrl-C came during the row, but code in the row suppressed the exception.
                    break
        experiment.require(rows)
        result = SafetyResult(
            **experiment.header(seed=plan.seed, interrupted=len(rows) < len(planned)),
            fleet=OwnFleet(server=server),
            conditions=plan,
            rows=tuple(rows),
            # The warnings name every row that was not measured here, with its reason.
            warnings=tuple(
                f"{row.recipe}, {row.fault}: {row.verdict}: {row.reason}"
                for row in rows
                if row.verdict == SKIPPED
            ),
            verdict=judge_rows(rows, len(planned)),
        )
        return experiment.store(result)
