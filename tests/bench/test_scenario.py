"""The scenario: what people write becomes one resolved value, or one sentence that names its
place."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.measure.section import builtins_of, typed
from bench.scenario import Delay, Scenario, Skew, load
from bench.scenario.quantity import (
    delay_text,
    duration_text,
    parse_delay,
    parse_duration,
    parse_skew,
    skew_text,
)
from tests.conftest import Ended

READY = Path(__file__).parents[2] / "bench" / "scenarios"


def from_toml(tmp_path: Path, text: str, **options: object) -> Scenario:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, {name.replace("__", "."): value for name, value in options.items()})


def refusal(tmp_path: Path, text: str, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        from_toml(tmp_path, text, **options)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message, "one sentence, one line"
    return message.replace(str(tmp_path) + "/", "")


def test_no_file_and_no_option_gives_the_documented_defaults() -> None:
    scenario = load()
    assert (scenario.recipe, scenario.instances, scenario.fsync, scenario.users) == (
        "redlock",
        5,
        "everysec",
        64,
    )
    assert (scenario.duration_ms, scenario.warmup_ms, scenario.rate_per_s) == (20_000, 2_000, None)
    assert (scenario.ttl_ms, scenario.wait_ms, scenario.instance_timeout_ms) == (10_000, 1_000, 50)
    assert (scenario.retry.policy, scenario.retry.window_ms, scenario.retry.attempts) == (
        "full-jitter",
        5,
        None,
    )


@pytest.mark.parametrize(
    ("toml", "field", "expected"),
    [
        ('duration = "1m"', "warmup_ms", 6_000.0),
        ('duration = "5s"', "warmup_ms", 2_000.0),
        ('warmup = "0"', "warmup_ms", 0.0),
        ('ttl = "100ms"', "instance_timeout_ms", 25.0),
        ('ttl = "100ms"\ninstance_timeout = "25ms"', "instance_timeout_ms", 25.0),
        ("rate = 2000", "rate_per_s", 2000.0),
        ('skew = "hot:0.9"', "skew", Skew("hot", 0.9)),
        ('hold = "lognormal:5ms,1.0"', "hold", Delay("lognormal", 5.0, 1.0)),
        ('think = "3ms"', "think", Delay("fixed", 3.0)),
        ('targets = ["redis://a", "redis://b", "redis://c"]', "instances", 3),
        ("faults = []\nthresholds = []", "faults", ()),
    ],
)
def test_a_key_is_resolved_with_its_unit(
    tmp_path: Path, toml: str, field: str, expected: object
) -> None:
    assert getattr(from_toml(tmp_path, toml), field) == expected


def test_an_option_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    scenario = from_toml(
        tmp_path, 'users = 8\nseed = 7\nretry = { window = "9ms" }', users="16", retry__attempts="3"
    )
    assert (scenario.users, scenario.seed, scenario.resources) == (16, 7, 1000)
    assert (scenario.retry.window_ms, scenario.retry.attempts) == (9, 3)


@pytest.mark.parametrize(
    ("name", "written", "is_read_as"),
    [
        ("rate", ".5", 0.5),
        ("rate", "5.", 5.0),
        ("seed", "007", 7),
        ("recipe", '"redlock"', "redlock"),
    ],
)
def test_an_option_is_read_as_people_write_it(name: str, written: str, is_read_as: object) -> None:
    assert (
        getattr(load(None, {name: written}), "rate_per_s" if name == "rate" else name) == is_read_as
    )


def test_targets_given_as_options_take_the_place_of_the_files_fleet(tmp_path: Path) -> None:
    scenario = from_toml(
        tmp_path, 'instances = 3\nfsync = "always"', targets=["redis://a:1", "redis://b:2"]
    )
    assert (scenario.instances, scenario.targets) == (2, ("redis://a:1", "redis://b:2"))
    assert from_toml(tmp_path, 'targets = ["redis://a"]', instances="7").targets == ()


# What people write wrong → the sentence they get. The place (file and key) is part of it.
REFUSALS = [
    ("usres = 3", "bad.toml, key `usres`: there is no such key; did you mean users?"),
    (
        "[retry]\nwindw = 1",
        "bad.toml, key `retry.windw`: there is no such key; did you mean retry.window?",
    ),
    (
        "instance-timeout = '1ms'",
        "bad.toml, key `instance-timeout`: there is no such key; did you mean instance_timeout?",
    ),
    ("retry = 'fixed'", "key `retry`: 'fixed' is not a table"),
    ("users = " + 20_000 * "[", "bad.toml: lists or tables are nested too deeply"),
    ("users = ", "bad.toml: is not TOML: Invalid value (at end of document)"),
    ("users = '64'", "key `users`: '64' is not a whole number from 1 to 100000"),
    ("users = true", "key `users`: True is not a whole number from 1 to 100000"),
    ("users = 1.5", "key `users`: 1.5 is not a whole number from 1 to 100000"),
    ("users = 0", "key `users`: 0 is not a whole number from 1 to 100000"),
    ("seed = -1", "key `seed`: -1 is not a whole number from 0 to 9223372036854775807"),
    ("rate = 0", "key `rate`: 0 is not a number above 0 and up to 10000000"),
    ("rate = -3.5", "key `rate`: -3.5 is not a number above 0 and up to 10000000"),
    ("rate = nan", "key `rate`: nan is not a number above 0 and up to 10000000"),
    ("rate = '5k'", "key `rate`: '5k' is not a number above 0 and up to 10000000"),
    ("duration = 20", "key `duration`: 20 is not a duration (write it like 5ms, 10s or 1m)"),
    ("duration = '-5s'", "'-5s' is not a duration"),
    ("duration = '0'", "key `duration`: '0' is outside 100ms to 24h"),
    ("ttl = '1.5ms'", "key `ttl`: '1.5ms' is outside 5ms to 24h"),
    ("ttl = '10.5ms'", "key `ttl`: '10.5ms' is not a whole number of milliseconds"),
    ("wait = false", "key `wait`: False is not a duration"),
    (
        "fsync = 'evrysec'",
        "'evrysec' is none of none, no, everysec, always; did you mean everysec?",
    ),
    ("rejoin = 'delayed'", "'delayed' is none of trust-first, delay, trust; did you mean delay?"),
    ("retry.window = '0'", "key `retry.window`: '0' is outside 0.1ms to 1h"),
    ("recipe = ''", "key `recipe`: '' is not a name"),
    ("skew = 'zipf'", "the exponent '' is not a number above 0 and up to 10"),
    ("skew = 'hot:1.5'", "the share '1.5' is not a number above 0 and up to 1"),
    ("skew = 3", "3 is not a skew (write uniform, own, zipf:1.1 or hot:0.9)"),
    ("skew = 'flat'", "'flat' is not a skew"),
    ("hold = 'gauss:5ms'", "'gauss:5ms' is not a time distribution"),
    ("hold = 'exp:5ms,2'", "'exp:5ms,2' is not a time distribution"),
    ("hold = 'exp:5'", "'5' is not a duration"),
    ("targets = 'redis://a'", "key `targets`: 'redis://a' is not a list"),
    ("targets = [1]", "'1' is not an instance URL"),
    ("targets = []", "targets is empty"),
    (
        "targets = ['localhost:6379']",
        "'localhost:6379' is not an instance URL: use redis://host:port",
    ),
    (
        "targets = ['redis://a:99999']",
        "'redis://a:99999' is not a usable instance URL: the port must be a number from 1 to 65535",
    ),
    ("targets = ['redis://a', 'redis://a']", "targets contains one instance twice"),
    ("thresholds = ['p99']", "'p99' is not a threshold (write it like acquire.p99 < 10ms"),
    ("pause = ['after-get']", "'after-get' is not a pause"),
    ("pause = ['after-get:1ms:2']", "the share '2' is not a number above 0 and up to 1"),
    (
        "[[faults]]\nkind = 'stop'\ntarget = 'instance:0'",
        "is not a fault: Object missing required field `at` (write",
    ),
    (
        "[[faults]]\nat = '1s'\nkind = 'stop'\ntarget = 'node:0'",
        "is not a fault: Expected `str` matching regex",
    ),
    (
        "[[faults]]\nat = '1s'\nkind = 'stop'\ntarget = []",
        "is not a fault: Expected `array` of length >= 1",
    ),
    (
        "[[faults]]\nat = '1s'\nkind = 'stop'\ntarget = 'instance:0'\nwhen = 3",
        "contains unknown field `when`",
    ),
    (
        "[[faults]]\nat = '1s'\nkind = 'stop'\ntarget = 'instance:0'\nphase = 'x'",
        "is not a fault: Invalid enum value 'x'",
    ),
    (
        "[[faults]]\nat = '1s'\nkind = 'stop'\ntarget = 'instance:0'\nparams = 4",
        "is not a fault: Expected `object`, got `int` - at `$.params`",
    ),
    (
        "[[faults]]\nat = '1s'\nfor = '0s'\nkind = 'stop'\ntarget = 'instance:0'",
        "`for` is 0",
    ),
    ("faults = 'stop'", "'stop' is not a list"),
]
CONTRADICTIONS = [
    (
        "instances = 3\ntargets = ['redis://a']",
        "key `instances`: instances is only for servers that lockbench starts",
    ),
    (
        "fsync = 'always'\ntargets = ['redis://a']",
        "key `fsync`: fsync is only for servers that lockbench starts",
    ),
    ("ttl = '20s'", "key `ttl`: the ttl of 20s is above the max_ttl of 10s"),
    ("max_ttl = '5s'", "key `max_ttl`: the ttl of 10s is above the max_ttl of 5s"),
    (
        "ttl = '100ms'\ninstance_timeout = '26ms'",
        "key `instance_timeout`: 26ms is too long for a ttl of 100ms; set at most",
    ),
    (
        "users = 2\nprocesses = 3",
        "key `processes`: 3 processes are more than 2 users",
    ),
    ("capacity = 2\nshared = true", "key `shared`: capacity and shared cannot be combined"),
    ("users = 3\ncapacity = 3", "key `capacity`: capacity is 3, so none of the 3 users"),
    ("fencing = true\ncapacity = 2", "key `capacity`: fencing needs a capacity of 1"),
    ("fencing = true\nshared = true", "key `shared`: readers do not write"),
    ("arrivals = 'fixed'", "key `arrivals`: the key arrivals needs a rate"),
    ("rate = 100\nthink = '1ms'", "key `think`: think times are only possible without a rate"),
    ("retry = { policy = 'none', window = '5ms' }", "key `retry.window`: retry.policy is none"),
    ("retry = { policy = 'none', attempts = 5 }", "key `retry.attempts`: retry.policy is none"),
    ("skew = 'hot:0.5'\nresources = 1", "key `skew`: a hot skew needs at least two resources"),
    (
        "[[faults]]\nat = '30s'\nkind = 'stop'\ntarget = 'instance:0'",
        "stop at 30s is not before the end of the run (20s)",
    ),
    (
        "[[faults]]\nat = '3s'\nkind = 'stop'\ntarget = 'instance:5'",
        "instance:5 does not exist; this run has 5 instances",
    ),
    (
        "[[faults]]\nat = '3s'\nkind = 'kill'\ntarget = 'worker:1'",
        "worker:1 does not exist; this run has 1 workers",
    ),
]


@pytest.mark.parametrize(("toml", "expected"), REFUSALS + CONTRADICTIONS)
def test_bad_input_is_refused_in_one_sentence_with_its_place(
    tmp_path: Path, toml: str, expected: str
) -> None:
    message = refusal(tmp_path, toml)
    assert expected in message
    assert message.startswith("bad.toml")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"users": "many"}, "option --users: 'many' is not a whole number from 1 to 100000"),
        ({"instance_timeout": "never"}, "option --instance-timeout: 'never' is not a duration"),
        ({"targets": ["localhost"]}, "option --target: 'localhost' is not an instance URL"),
        ({"ttl": "1m"}, "option --ttl: the ttl of 1m is above the max_ttl of 10s"),
        ({"faults": ["nonsense"]}, "option --fault: 'nonsense' is not a fault"),
    ],
)
def test_a_bad_option_is_refused_with_its_own_name(
    options: dict[str, object], expected: str
) -> None:
    with pytest.raises(UsageError, match="^option ") as caught:
        load(None, options)
    assert expected in str(caught.value)


def test_a_contradiction_between_file_and_option_names_the_one_that_was_written(
    tmp_path: Path,
) -> None:
    assert "option --processes" in refusal(tmp_path, "users = 2", processes="4")
    assert "option --ttl" in refusal(tmp_path, "max_ttl = '10s'", ttl="11s")


def test_a_ready_scenario_is_found_by_its_name_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path("hot-key")) == load(Path("bench/scenarios/hot-key.toml")) != load()
    # a folder of results, perhaps
    Path("hot-key").mkdir()
    assert load(Path("hot-key")) == load(Path("bench/scenarios/hot-key.toml"))
    Path("hot-key.toml").write_text("users = 3")
    assert load(Path("hot-key.toml")).users == 3, "one's own file comes first"
    with pytest.raises(
        UsageError,
        match=r"ready scenarios: everyday, hot-key, .*zipf; `lockbench init` writes a new one",
    ):
        load(Path("elsewhere/hot-key.toml"))


def test_a_missing_a_binary_and_a_folder_scenario_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere.toml: no scenario file has this name"):
        load(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="binary.toml: cannot be read .it is not UTF-8"):
        load(tmp_path / "binary.toml")
    with pytest.raises(UsageError, match="cannot be read .Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5ms", 5),
        ("10s", 10_000),
        ("1m", 60_000),
        ("2h", 7_200_000),
        ("1.5s", 1500),
        ("250us", 0.25),
        ("0", 0),
        (0, 0),
    ],
)
def test_a_duration_reads_in_its_unit_and_back(text: object, ms: float) -> None:
    assert parse_duration(text) == pytest.approx(ms)
    assert parse_duration(duration_text(ms)) == pytest.approx(ms)


@pytest.mark.parametrize("text", ["0", "fixed:5ms", "exp:250ms", "lognormal:5ms,1.5", "fixed:1s"])
def test_a_delay_and_a_skew_read_back_from_their_own_text(text: str) -> None:
    assert delay_text(parse_delay(text)) == text
    for skew in ("uniform", "zipf:1.1", "hot:0.9"):
        assert skew_text(parse_skew(skew)) == skew


def test_the_number_of_instances_is_the_recipes_unless_somebody_says_it() -> None:
    def usual(recipe: str) -> int:
        return {"redlock": 5, "set-nx-lua": 1}[recipe]

    assert load(None, {"recipe": "set-nx-lua"}, usual).instances == 1
    assert load(None, {}, usual).instances == 5
    assert load(None, {"recipe": "set-nx-lua", "instances": "3"}, usual).instances == 3
    assert load(None, {"targets": ["redis://a", "redis://b"]}, usual).instances == 2


def test_the_number_of_processes_is_the_recipes_unless_somebody_says_it(tmp_path: Path) -> None:
    def usual(recipe: str) -> int:
        return {"redlock": 1, "of-another-package": 2}[recipe]

    theirs = {"recipe": "of-another-package"}
    file = tmp_path / "one.toml"
    file.write_text('recipe = "of-another-package"\nprocesses = 1\n', "utf-8")
    assert load(None, {}, None, usual).processes == 1
    assert load(None, theirs, None, usual).processes == 2
    assert load(None, {**theirs, "users": "1"}, None, usual).processes == 1
    assert load(None, {**theirs, "processes": "1"}, None, usual).processes == 1
    assert load(file, {}, None, usual).processes == 1
    assert load(file, {"processes": "3"}, None, usual).processes == 3
    assert load(None, theirs).processes == 1, "who asks for no usual number gets the default"


def test_json_carries_every_field_and_no_secret() -> None:
    scenario = load(
        None,
        {"targets": ["redis://:hunter2@a:1", "redis://b:2"], "skew": "zipf:1.2", "hold": "exp:3ms"},
    )
    text = json.dumps(builtins_of(scenario.shown()))
    assert "hunter2" not in text
    again = typed(json.loads(text), Scenario)
    assert again == dataclasses.replace(scenario, targets=("redis://:***@a:1", "redis://b:2"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "everyday",
            "hot-key",
            "hot-key-many-processes",
            "long-hold",
            "many-waiters",
            "open-loop",
            "uncontended",
        ),
        "zipf",
    ],
)
def test_every_ready_scenario_says_what_it_is_for_holds_its_locks_and_lets_callers_meet(
    name: str,
) -> None:
    """Else a run of it could not test whether the lock holds."""
    path = READY / f"{name}.toml"
    assert path.read_text(encoding="utf-8").startswith("# ")
    scenario = load(path)
    assert scenario.hold.ms > 0
    assert scenario.skew.kind != "own"
    assert scenario.users > 1


def test_of_files_that_are_not_there_the_nearest_beside_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"did you mean .*/mine\.toml\?"):
        load(tmp_path / "mien.toml", {})


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_text("users = 3\n", encoding="utf-8-sig")
    assert load(path).users == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "users = 2\nusers = 3\n",
            "bom.toml, line 2: key `users` is given twice; remove one of the two",
        ),
        (
            "users = 2\nretry.window = '5ms'\n retry.window  = '6ms'",
            "line 3: key `retry.window` is given twice",
        ),
        (
            "pause = [\n]\npause = [\n'a:1ms:0.5',\n]\nusers = 2\n",
            "line 3: key `pause` is given twice; remove one of the two",
        ),
        (
            "[retry]\npolicy = 'none'\n[retry]\n",
            r"line 3: table \[retry\] is given twice; remove one of the two",
        ),
        ("retry = { policy = 'none', policy = 'poll' }\n", "'policy'"),
    ],
)
def test_a_key_that_is_given_twice_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bom.toml"
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(UsageError, match=says):
        load(path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("capacity", "--slo", "acquire.p99 < 1s", "--target-rate", "2k"),
            "'2k' is not a number (write it in digits",
        ),
        (("run", "--repeat", "2k"), "'2k' is not a whole number (write it in digits)"),
        (("fleet", "--instances", "x"), "'x' is not a whole number (write it in digits)"),
        (("crash", "--rate", "1.5"), "'1.5' is not a whole number (write it in digits)"),
        (("safety", "--seed", "x"), "'x' is not a whole number (write it in digits)"),
    ],
)
def test_a_wrong_number_is_refused_in_words_of_ours(
    lockbench: Callable[..., Ended], words: tuple[str, ...], says: str
) -> None:
    done = lockbench(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "range" not in done.stderr
