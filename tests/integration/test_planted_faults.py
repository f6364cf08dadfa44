"""Negative controls of the whole chain: a fault planted in a lock that is safe turns its row of the
safety matrix red, and a lock that does not lock is never SAFE, whatever the hold and however many
processes. An oracle that is blind: test_recipes."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.explore import search
from bench.experiments.explore.search import Hunt, SearchOrder
from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.experiment import look_at_rules
from bench.experiments.safety_matrix.leases import SKIPPED, RowSetup
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, VIOLATED
from bench.topology.fleet import Fleet, start_fleet
from lockcore.engine import engine
from lockcore.rounds import awaited, claims
from tests.conftest import Ended as Typed
from tests.integration.locust_runs import ROOT

pytestmark = pytest.mark.integration
NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def ground() -> RowSetup:
    return RowSetup(1, True, None, None)  # type: ignore[arg-type]


# -- a lock that is safe, made unsafe --------------------------------------------------------------


def two_sides(fleet: Fleet) -> bool:
    """Whether two leases are valid when one client reaches the first instance only, the other the
    rest."""
    first, *rest = fleet.urls
    with (
        leases.connect([first, NOBODY, "redis://127.0.0.1:2"]) as one,
        leases.connect([NOBODY, *rest]) as other,
    ):
        return leases.double_grant(one.acquire("sides", 10_000), other.acquire("sides", 10_000))


def test_a_quorum_off_by_one_is_found_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited, "quorum_of", lambda instances: instances // 2)
    assert two_sides(fleet)


def test_with_the_right_quorum_one_of_them_does_not_even_connect(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="quorum"):
        two_sides(fleet)


def test_an_ignored_drift_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "WITHIN", (0.995, 1.009))
    monkeypatch.setattr(claims, "drift_ns", lambda _ttl_ms, _factor: 0)
    # a TTL of 2 s: 18 ms of overlap
    finding = leases.drift(leases.WITHIN, replace(ground, quick=False))
    if finding.verdict in (SKIPPED, NOT_KNOWN):
        pytest.skip(f"not known here: {finding.reason}")
    assert finding.verdict == VIOLATED, finding.figures


class SearchHere:
    """A search process that is this one, with its planted faults."""

    def tell(self, order: SearchOrder) -> None:
        self.order = order

    def hear(self, *_told: object) -> Hunt:
        return search.answer(self.order)


@pytest.mark.parametrize(
    "place, name, planted",
    [
        (awaited, "quorum_of", lambda instances: instances // 2),
        (engine.Engine, "clean_up", lambda *_: None),
    ],
)
def test_a_broken_rule_refutes_what_is_claimed_of_it(
    place: object, name: str, planted: object, ground: RowSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(ground, searcher=SearchHere())  # type: ignore[arg-type]
    whole = look_at_rules({"granted": 30}, here)
    assert (whole.verdict, whole.figures["broken_rules"]) == (AS_EXPECTED, 0), whole
    assert look_at_rules({"never seen": 1}, here).verdict == NOT_KNOWN
    monkeypatch.setattr(place, name, planted)
    found = look_at_rules({"granted": 30}, here)
    assert (found.verdict, found.figures["broken_rules"]) == (VIOLATED, 1), found


# -- locks that do not lock, through the whole command: never SAFE ---------------------------------


FAKES = ROOT / "tests" / "plugins" / "fake-locks"
POINTS = {
    "always-yes": "AlwaysYes",
    "yes-to-every-second": "YesToEverySecond",
    "late-release": "LateRelease",
    "foreign-delete": "ForeignDelete",
    "silent": "Silent",
    "never-releases": "NeverReleases",
    "yes-after-the-end": "YesAfterTheEnd",
    "never-yes": "NeverYes",
    "granted-later": "GrantedLater",
    "honest": "Honest",
    "returns-late": "ReturnsLate",
    "hands-out-ended": "HandsOutEnded",
    "one-lease": "OneLease",
    "invents-attempts": "InventsAttempts",
    "nonsense": "Nonsense",
    "leaves-keys": "LeavesKeys",
    "raises-often": "RaisesOften",
    "slow-redlock": "SlowRedlock",
}
HOLDS = ("0", "50us", "1ms")
CASES = [
    (recipe, hold, processes)
    for recipe in list(POINTS)[:4]
    for hold in HOLDS
    for processes in (1, 2)
]
# each recipe, hold and number of processes; the others are of test-long
OFTEN = (
    ("always-yes", "0", 2),
    ("yes-to-every-second", "1ms", 1),
    ("late-release", "50us", 1),
    ("foreign-delete", "1ms", 2),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that offers the fakes."""
    site = tmp_path_factory.mktemp("site")
    about = site / "fake_locks-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fake-locks\nVersion: 1\n", "utf-8"
    )
    lines = [f"{name} = fake_locks:{class_name}" for name, class_name in POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[lockbench.recipes]", *lines, ""]), "utf-8")
    return site


@pytest.fixture(scope="module")
def alone() -> Iterator[Fleet]:
    """One server for all."""
    with start_fleet(1, "none") as started:
        yield started


class Ended:
    """A `lockbench run` of a fake, with a threshold on safety."""

    def __init__(self, done: Typed, folder: Path) -> None:
        assert done.returncode in (0, 4, 5), done.stderr
        self.code = done.returncode
        self.word = done.stdout.partition("   ")[0]
        self.headline = done.stdout.partition("\n")[0]
        self.result: dict[str, Any] = json.loads(
            (folder / "result" / "result.json").read_text("utf-8")
        )
        self.safety = self.result["safety"]

    @property
    def said(self) -> tuple[Any, ...]:
        safety = self.safety
        verdict = self.result["verdict"]
        return (
            self.word,
            self.code,
            safety["verdict"],
            safety["tested_leases"],
            safety["violations"],
            verdict["reasons"],
        )


@pytest.fixture
def served(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes are installed."""
    for place in (FAKES, site):
        monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{FAKES}:{ROOT}")


@pytest.fixture
def run(
    lockbench: Callable[..., Typed], served: None, alone: Fleet, tmp_path: Path
) -> Callable[..., Ended]:
    """`lockbench run` of a recipe."""
    load = (
        "--warmup",
        "0",
        "--users",
        "16",
        "--resources",
        "1",
        "--threshold",
        "safety.violations == 0",
    )

    def once(recipe: str, *options: str) -> Ended:
        words = ("--recipe", recipe, "--target", alone.urls[0], *options, *load, "--out", "result")
        return Ended(lockbench("run", *words), tmp_path)

    return once


@pytest.mark.parametrize(
    ("recipe", "hold", "processes"),
    [
        pytest.param(
            *case, marks=() if case in OFTEN else pytest.mark.slow, id="-".join(map(str, case))
        )
        for case in CASES
    ],
)
def test_a_lock_that_does_not_lock_is_never_safe(
    run: Callable[..., Ended], recipe: str, hold: str, processes: int
) -> None:
    load = ("--duration", "300ms", "--hold", hold, "--processes", str(processes))
    ended = run(recipe, *load)
    assert ended.safety["verdict"] in ("VIOLATED", "NOT TESTED"), ended.said
    assert ended.code == (5 if ended.safety["verdict"] == "VIOLATED" else 4), ended.said
    assert ended.word != "SAFE"
    assert ended.word == ended.result["verdict"]["word"]
    assert ended.code == ended.result["verdict"]["exit_code"]
    if hold == "0":
        assert ended.safety["tested_leases"] == 0, ended.said


@pytest.mark.parametrize(
    ("recipe", "processes", "verdict"),
    [
        # two processes, as nobody said how many
        ("silent", "", "VIOLATED"),
        ("silent", "1", "NOT TESTED"),
        pytest.param("never-releases", "1", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("never-yes", "1", "NOT TESTED", marks=pytest.mark.slow),
        pytest.param("yes-after-the-end", "1", "VIOLATED", marks=pytest.mark.slow),
    ],
)
def test_a_lock_that_only_seems_to_work_is_never_safe(
    run: Callable[..., Ended], recipe: str, processes: str, verdict: str
) -> None:
    ended = run(
        recipe,
        "--duration",
        "400ms",
        "--hold",
        "1ms",
        *(("--processes", processes) if processes else ()),
    )
    assert ended.result["scenario"]["processes"] == int(processes or 2)
    assert ended.safety["verdict"] == verdict, ended.said
    assert ended.code == (5 if verdict == "VIOLATED" else 4), ended.said


def test_a_lock_that_says_it_was_granted_later_than_it_was_is_found_out(
    run: Callable[..., Ended],
) -> None:
    """It would shrink what the oracle sees.

    Such a lease counts from when it was returned, and the recipe is named.
    """
    ended = run("granted-later", "--duration", "300ms", "--hold", "1ms")
    assert ended.code in (4, 5), ended.said
    assert ended.word in ("VIOLATED", "INCONCLUSIVE", "INVALID"), ended.said
    (said,) = ended.result["safety"]["misreports"]
    assert (
        "a lease whose start or grant is outside the time of its acquire, which is impossible; "
        "correct the recipe" in said
    )


def test_a_lock_that_returns_later_than_it_says_is_as_slow_as_it_is(
    run: Callable[..., Ended],
) -> None:
    ended = run(
        "returns-late", "--processes", "1", "--duration", "1s", "--hold", "1ms", "--resources", "64"
    )
    assert ended.result["latency_s"]["acquire"]["p50"] >= 0.02, ended.said


def test_a_lock_that_hands_out_leases_after_their_end_is_violated(
    run: Callable[..., Ended],
) -> None:
    ended = run(
        "hands-out-ended",
        "--processes",
        "1",
        "--duration",
        "600ms",
        "--ttl",
        "30ms",
        "--hold",
        "1ms",
        "--resources",
        "64",
    )
    assert (ended.word, ended.code) == ("VIOLATED", 5), ended.said
    assert ended.safety["granted_invalid"] > 0


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("one-lease", "the same Lease object for two callers at once"),
        ("nonsense", "an acquire that returned bool instead"),
    ],
)
def test_a_recipe_that_reports_nonsense_is_named_and_its_run_has_a_result(
    run: Callable[..., Ended], recipe: str, sentence: str
) -> None:
    """It was a fault of lockbench itself, exit 3, and no result."""
    ended = run(
        recipe, "--processes", "1", "--duration", "500ms", "--hold", "1ms", "--resources", "8"
    )
    assert ended.code in (4, 5), ended.said
    assert ended.word in ("INCONCLUSIVE", "VIOLATED", "INVALID"), ended.said
    assert any(sentence in one for one in ended.safety["misreports"]), ended.safety["misreports"]


def test_a_lock_that_raises_often_makes_its_run_invalid(run: Callable[..., Ended]) -> None:
    """Its callers rest and go on, and its last note tells all of it, also what closing raised."""
    ended = run("raises-often", "--processes", "1", "--duration", "300ms", "--hold", "1ms")
    assert (ended.word, ended.code) == ("INVALID", 4), ended.said
    exceptions = ended.result["exceptions"]
    said = ended.said[-1][0]
    assert exceptions["operations"] / 10 < exceptions["raised"] <= exceptions["operations"] + 1, (
        exceptions
    )
    assert exceptions["first"].startswith("Timeout: 1 second (fake_locks.py:")
    assert f"the recipe raised {exceptions['raised']:,} exceptions in " in said
    assert said.endswith(f"at most 1% is allowed; the first exception: {exceptions['first']}")
    assert any("RuntimeError: closed twice" in one for one in ended.result["warnings"]), (
        ended.result["warnings"]
    )


def test_a_lock_that_invents_attempts_has_not_asked(run: Callable[..., Ended]) -> None:
    ended = run(
        "invents-attempts",
        "--processes",
        "1",
        "--duration",
        "500ms",
        "--hold",
        "1ms",
        "--resources",
        "8",
    )
    assert ended.safety["tested_leases"] == 0, ended.said
    assert "fewer commands than the recipe reported" in str(ended.safety["reason"]), ended.said
    assert ended.code == 4, ended.said


def test_keys_left_under_other_names_are_on_the_screen(
    lockbench: Callable[..., Typed], served: None, tmp_path: Path
) -> None:
    """Planted: keys of ten names, on a server of our own."""
    words = (
        "--recipe",
        "leaves-keys",
        "--instances",
        "1",
        "--fsync",
        "none",
        "--users",
        "8",
        "--warmup",
        "0",
    )
    done = lockbench("run", *words, "--duration", "500ms", "--out", "result")
    result = json.loads((tmp_path / "result" / "result.json").read_text("utf-8"))
    (left,) = [one["other_keys"] for one in result["instances"]]
    assert 0 < left <= 16, done.stdout
    assert f"keys left  {left} under other names: {left} on #0" in done.stdout, done.stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_lock_that_never_yields_is_ended_with_a_sentence(
    lockbench: Callable[..., Typed], served: None, alone: Fleet, processes: str
) -> None:
    """`silent` asks nobody, so without a hold its caller would keep the process for itself, and the
    run, for ever."""
    words = (
        "--recipe",
        "silent",
        "--target",
        alone.urls[0],
        "--users",
        "4",
        "--processes",
        processes,
    )
    began = time.monotonic()
    done = lockbench("run", *words, "--duration", "2s", "--out", "result")
    # 5: two processes hold what they asked nobody for
    assert done.returncode in (3, 4, 5), done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "the recipe silent has blocked all other callers for 2 s; an acquire" in said
    # on a busy machine; else 7
    assert time.monotonic() - began < 60


def test_the_same_lock_without_the_fault_is_safe_where_it_was_tested(
    run: Callable[..., Ended],
) -> None:
    """Else the fakes would prove nothing: it is their fault that is found, not their make."""
    ended = run("honest", "--duration", "1s", "--hold", "1ms", "--processes", "1")
    alone = [line for line in ended.result["warnings"] if "all callers ran in one process" in line]
    assert ended.safety["within_one_process"]
    assert (
        len(alone)
        == ("within one process" in ended.headline)
        == (ended.safety["verdict"] == "SAFE")
    ), ended.said
    assert ended.safety["violations"] == ended.safety["foreign_deletes"] == 0, ended.said
    assert ended.safety["tested_leases"] > 0, ended.said
    if ended.safety["tested_leases"] >= 100 and ended.result["generator"]["verdict"] == "VALID":
        assert (ended.word, ended.code) == ("SAFE", 0), ended.said


def test_a_library_whose_acquire_became_slow_is_seen_to_be_slow(run: Callable[..., Ended]) -> None:
    """Callers of every recipe ask by the public method, as an application does."""
    ended = run("slow-redlock", "--processes", "1", "--duration", "500ms", "--hold", "0")
    assert ended.result["latency_s"]["acquire"]["p50"] >= 0.02, ended.said
