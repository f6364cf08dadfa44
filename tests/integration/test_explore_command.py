"""`lockbench explore` as it is typed: what breaks which recipe, the same every time; refusals;
Ctrl-C."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from bench.experiments.explore import search
from bench.experiments.explore.keyspace import Keyspace, encoded
from bench.experiments.explore.result import Broken, ExploreResult
from bench.experiments.explore.search import Hunt, SearchOrder
from bench.measure.section import typed
from bench.recipes.fencing import FENCED_SET
from bench.recipes.registry import RECIPES
from bench.topology.child import Child
from bench.topology.fleet import Fleet, start_fleet
from lockcore.clock import monotonic_ns
from lockcore.rounds.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND
from tests.conftest import Ended
from tests.integration.locust_runs import ROOT, cut_short, result_in, started

pytestmark = pytest.mark.integration
Lockbench = Callable[..., Ended]
FLAWED = [name for name, entry in RECIPES.items() if not entry.about.safe]


def explored(lockbench: Lockbench, folder: Path, *words: object) -> tuple[Ended, list[Any]]:
    ended = lockbench("explore", "--out", folder, *words)
    return ended, result_in(folder, ExploreResult)["rows"]


def test_every_flawed_recipe_is_broken_within_ten_seconds_and_shown_in_few_steps(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    words = [word for name in FLAWED for word in ("--recipe", name)]
    ended, rows = explored(lockbench, tmp_path / "out", *words, "--budget", "60s", "--processes", 1)
    assert len(rows) == len(FLAWED) >= 10
    assert ended.returncode == 0
    for row in rows:
        assert row["broken"]["rule"].startswith("two leases were valid at the same time"), row
        assert len(row["broken"]["steps"]) - 1 <= 12, row
        # of a processor, to find it and to make it small
        assert row["took_s"] < 10, row
    again = {row["recipe"]: row["broken"]["replayed"] for row in rows}
    assert again.pop("replica-failover") == {
        "server": "",
        "plays": 0,
        "same": 0,
        "reason": "lockbench cannot force replication on real servers",
    }
    assert {one["plays"] for one in again.values()} == {3}
    # of 27; a busy machine may come late
    assert sum(one["same"] for one in again.values()) > 9, again
    assert "schedule" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_the_same_seed_finds_the_same_schedule_however_many_search(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    words = ("--recipe", "set-nx-fixed", "--budget", "60s")
    told = [
        explored(lockbench, tmp_path / str(place), *words, "--processes", processes)[1]
        for place, processes in enumerate((1, 2, 2))
    ]
    for rows in told:
        # in real time
        rows[0]["broken"].pop("replayed")
    assert told[0][0]["broken"] == told[1][0]["broken"] == told[2][0]["broken"]
    assert told[0][0]["broken"] is not None
    other = explored(lockbench, tmp_path / "other", *words, "--seed", 2)[1]
    assert other[0]["broken"] != told[0][0]["broken"]


def test_on_real_servers_a_schedule_breaks_the_recipe_it_was_found_for_and_no_other(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    _, [row] = explored(
        lockbench, tmp_path / "out", "--recipe", "set-nx-get-del", "--budget", "60s"
    )
    broken = typed(row["broken"], Broken, "the row")
    with start_fleet(1, "none") as fleet, Child("a search process", search.__name__) as searcher:
        ports = (fleet.instances[0].port,)
        for recipe, rule in (("set-nx-get-del", "two leases were valid"), ("set-nx-lua", "")):
            searcher.tell(SearchOrder(recipe, 1, 0, 0, again=broken, ports=ports))
            answer = searcher.hear(Hunt, 60.0)
            assert (answer.played, answer.raised) == (1, "")
            assert answer.rule.startswith(rule)
            assert bool(answer.rule) is bool(rule)
        fleet.kill(0)
        searcher.tell(SearchOrder("set-nx-get-del", 1, 0, 0, again=broken, ports=ports))
        assert "Error" in searcher.hear(Hunt, 60.0).raised


@pytest.mark.parametrize(
    "recipes, schedules",
    [
        (("set-nx-lua", "set-nx-blpop", "set-nx-pubsub", "redlock", "watchdog"), 300),
        # whose rounds are long: each schedule takes as much work as five
        (("redlock-sequential",), 150),
    ],
)
def test_recipes_that_must_hold_do(
    recipes: tuple[str, ...], schedules: int, lockbench: Lockbench, tmp_path: Path
) -> None:
    words = [word for recipe in recipes for word in ("--recipe", recipe)]
    ended, rows = explored(lockbench, tmp_path / "out", *words, "--schedules", schedules)
    assert ended.returncode == 0
    for recipe, row in zip(recipes, rows, strict=True):
        assert row["recipe"] == recipe
        assert (row["verdict"], row["broken"], row["schedules"]) == ("as expected", None, schedules)
    played = f"{schedules * len(recipes):,} schedules broke 0 of {len(recipes)} recipes"
    assert (f"{recipes[0]}: held" if len(recipes) == 1 else played) in ended.stdout


def test_exhaustive_plays_every_schedule_of_at_most_one_change(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    ended, [row] = explored(lockbench, tmp_path / "out", "--recipe", "redlock", "--exhaustive", 1)
    assert ended.returncode == 0
    assert row["whole"]
    assert row["schedules"] > 200
    assert "held, all of them" in ended.stdout
    ended, [row] = explored(
        lockbench, tmp_path / "cut", "--recipe", "redlock", "--exhaustive", 2, "--budget", "1s"
    )
    assert (ended.returncode, row["whole"], row["verdict"]) == (4, False, "not known"), (
        "a part of them is not all"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--schedules", 1_000_000), ("--exhaustive", 2, "--budget", "60m")]
)
def test_a_night_of_schedules_does_not_break_redlock(
    lockbench: Lockbench, tmp_path: Path, words: tuple[object, ...]
) -> None:
    ended, [row] = explored(lockbench, tmp_path / "out", "--recipe", "redlock", *words)
    assert (ended.returncode, row["broken"]) == (0, None), ended.stdout
    assert row["whole"] or row["schedules"] == 1_000_000
    print(ended.stdout)


@pytest.fixture
def fakes(tmp_path: Path) -> str:
    """PYTHONPATH with the fakes of another package in it."""
    metadata = tmp_path / "fake_locks-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-locks\nVersion: 1\n")
    names = {
        "always-yes": "AlwaysYes",
        "timer": "LetsGoByTimer",
        "thread": "LetsGoByThread",
        "gevent": "LateRelease",
        "arguments": "LetsGoByThreadWithArguments",
        "pool": "LetsGoByPool",
        "raises": "ThreadThatRaises",
    }
    points = [f"{name} = fake_locks:{class_name}" for name, class_name in names.items()]
    points.append("on-import = fake_import:StartsAThreadOnImport")
    (metadata / "entry_points.txt").write_text("\n".join(["[lockbench.recipes]", *points, ""]))
    return ":".join(map(str, (tmp_path, ROOT / "tests" / "plugins" / "fake-locks", ROOT)))


def test_another_packages_lock_that_claims_too_much_is_violated(tmp_path: Path, fakes: str) -> None:
    process = started(
        tmp_path, "explore", "--recipe", "always-yes", "--out", "out", PYTHONPATH=fakes
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert out.startswith("VIOLATED   always-yes: broken")
    assert "granted until" in out


def test_a_lock_that_lets_go_by_a_thread_of_its_own_is_violated_in_virtual_time(
    tmp_path: Path, fakes: str
) -> None:
    process = started(
        tmp_path, "explore", "--recipe", "arguments", "--out", "out", PYTHONPATH=fakes
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert out.startswith("VIOLATED   arguments: broken"), out


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("timer", "the recipe started a thread (Timer)"),
        ("thread", "the recipe started a thread"),
        ("gevent", "the recipe uses gevent"),
        ("pool", "the recipe started a pool of threads"),
        ("raises", "a thread of the recipe raised RuntimeError"),
        ("on-import", "the recipe started a thread"),
    ],
)
def test_of_a_lock_whose_timers_do_not_run_in_virtual_time_nothing_is_known(
    tmp_path: Path, fakes: str, recipe: str, why: str
) -> None:
    """Each of them lets go of what it holds, and none of that would happen here."""
    process = started(tmp_path, "explore", "--recipe", recipe, "--out", "out", PYTHONPATH=fakes)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert out.startswith("NOT KNOWN"), out
    assert why in " ".join(out.split()), out


def test_a_recipe_that_is_not_there_is_refused(lockbench: Lockbench, tmp_path: Path) -> None:
    ended = lockbench("explore", "--recipe", "redlok")
    assert (ended.returncode, "there is no recipe 'redlok'" in ended.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_was_searched_and_says_that_it_was_cut(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        "explore",
        "--out",
        "out",
        "--recipe",
        "get-set",
        "--recipe",
        "redlock",
        "--budget",
        "99s",
    )
    out = cut_short(process, "redlock: ")
    broken, cut = result_in(tmp_path / "out", ExploreResult)["rows"]
    assert (broken["recipe"], broken["verdict"]) == ("get-set", "as expected")
    assert (cut["recipe"], cut["verdict"], cut["broken"]) == ("redlock", "not known", None)
    assert cut["schedules"] > 0
    assert "it was cut after" in cut["reason"]
    assert out.startswith("INTERRUPTED")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_search_process_that_is_killed_costs_its_recipe_the_verdict_and_no_other(
    tmp_path: Path,
) -> None:
    words = ("--recipe", "redlock", "--recipe", "get-set", "--budget", "99s", "--processes", 2)
    process = started(tmp_path, "explore", "--out", "out", *words)
    assert process.stderr is not None
    assert any(line.startswith("redlock: ") for line in process.stderr)
    psutil.Process(process.pid).children()[-1].kill()
    process.communicate(timeout=120)
    assert process.returncode == 4
    lost, broken = result_in(tmp_path / "out", ExploreResult)["rows"]
    assert (lost["verdict"], lost["broken"], lost["schedules"] > 0) == ("not known", None, True)
    assert "a search process ended early (signal 9) after" in lost["reason"]
    assert broken["verdict"] == "as expected"


SCRIPTS = [
    script.source
    for script in (COMPARE_AND_DELETE, COMPARE_AND_EXTEND, COMPARE_AND_DELETE_MANY, FENCED_SET)
]
COMMANDS: list[tuple[object, ...]] = [
    ("SET", "k", "a", "NX", "PX", 90_000),
    ("SET", "k", "b", "NX", "PX", 90_000),
    ("GET", "k"),
    ("SETNX", "k", "c"),
    ("GETRANGE", "k", 0, 36),
    ("GETRANGE", "k", 1, 1),
    ("GETRANGE", "none", 0, 36),
    ("PEXPIRE", "k", 80_000),
    ("PEXPIRE", "none", 80_000),
    ("GETSET", "k", "d"),
    ("PTTL", "k"),
    ("PTTL", "none"),
    ("EXISTS", "k", "none"),
    ("SET", "k", "e", "PX", 90_000),
    ("DEL", "k", "none"),
    ("SETNX", "n", "1"),
    ("SET", "k", "a", "NX"),
    ("EVAL", SCRIPTS[0], 1, "k", "b"),
    ("EVAL", SCRIPTS[1], 1, "k", "a", 5_000),
    ("EVALSHA", "0" * 40, 0),
    ("EVAL", SCRIPTS[0], 1, "k", "a"),
    ("SET", "k2", "y"),
    ("EVAL", SCRIPTS[2], 2, "n", "k2", "1", "x"),
    ("EVAL", SCRIPTS[3], 2, "f", "count", "me", 9_000),
    ("EVAL", SCRIPTS[3], 2, "f", "count", "you", 9_000),
    ("HGET", "h", "y"),
    ("HSET", "h", "x", "1"),
    ("HGET", "h", "x"),
    ("INCR", "count"),
    ("SET", "k2", "z", "NEVER"),
    ("NOSUCH", "k"),
    ("EVAL", "return redis.call('NOSUCH')", 0),
]


def test_the_simulated_server_answers_as_a_real_one(fleet: Fleet) -> None:
    """Each command in turn; errors by their first word."""
    data = Keyspace(monotonic_ns, 1.0)
    with Redis.from_url(fleet.urls[0], protocol=2, driver_info=None) as server:
        server.flushall()
        server.script_flush()
        for command in COMMANDS:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
            try:
                reply = server.connection_pool.get_connection()
                reply.send_command(*words)
                answer: Any = reply.read_response()
                server.connection_pool.release(reply)
                real = b"+OK\r\n" if answer == b"OK" else encoded(answer)
            except ResponseError as error:
                server.connection_pool.release(reply)
                real = f"-{str(error).split()[0]}".encode()
            simulated = data.run(words)
            if real.startswith(b"-"):
                assert simulated.startswith(b"-"), command
            elif command[0] != "PTTL" or real == b":-2\r\n":
                assert simulated == real, command
