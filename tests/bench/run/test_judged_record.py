"""What a record comes to when something goes wrong on the way: what was certain stays, and nothing
is called safe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import UsageError
from bench.measure.begun import Begun
from bench.measure.record import words_of
from bench.measure.recorder import Recorder
from bench.measure.workers import WorkerNote, write_note
from bench.run import conclude as conclude_module
from bench.run.conclude import Context, JudgedRecord, judge_record
from bench.run.kept import judge_kept
from bench.scenario import load
from tests.doubles.records import granted_earlier, legal_records

LEASES = 2_000


def record_in(folder: Path, *, violated: bool = False, **note: Any) -> Context:
    """The record of a run by one worker, and its context."""
    records = legal_records(LEASES, 4)
    if violated:
        granted_earlier(records, 104, records["release_sent_ns"][100] - 1)
    recorder = Recorder(folder, 0)
    begun = Begun(folder, 0)
    begun.place()
    for row in words_of(records).tolist():
        recorder.write(*row[:15])
    middle = (records["granted_ns"] + records["release_sent_ns"]) // 2
    for resource, time_ns in zip(records["resource"].tolist(), middle.tolist(), strict=True):
        begun.lost(resource, [time_ns])
    recorder.close()
    begun.close()
    pid = int(next(folder.glob("history-*")).name.split("-")[2].partition(".")[0])
    window_ns = int(records["start_ns"].min()), int(records["ended_ns"].max()) + 1
    facts: dict[str, Any] = {
        "spawned_ns": window_ns[0],
        "stopped_ns": window_ns[1],
        "recorded": LEASES,
        **note,
    }
    write_note(folder, WorkerNote(worker=0, pid=pid, phase="stopped", **facts))
    scenario = load(
        options={"users": "4", "ttl": "100ms", "wait": "1s", "duration": "5s", "warmup": "0s"}
    )
    return Context(scenario=scenario, window_ns=window_ns, commands=10 * LEASES)


def word_of(judged: JudgedRecord) -> tuple[str | None, int | None]:
    return judged.verdict.word, judged.verdict.exit_code


def test_a_whole_record_is_safe_or_violated(tmp_path: Path) -> None:
    for folder, violated, word in (
        (tmp_path / "held", False, "SAFE"),
        (tmp_path / "broke", True, "VIOLATED"),
    ):
        folder.mkdir()
        assert judge_record(folder, record_in(folder, violated=violated)).verdict.word == word


@pytest.mark.parametrize("part", ["Fold.add", "Holders.add", "leases_by_worker", "_touched"])
@pytest.mark.parametrize(("violated", "word"), [(True, ("VIOLATED", 5)), (False, ("INVALID", 4))])
def test_what_was_certain_survives_whatever_crashes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    violated: bool,
    word: tuple[str, int],
) -> None:
    """Planted: a part of the checker that raises."""
    context = record_in(tmp_path, violated=violated)

    def crash(*_: object, **__: object) -> None:
        raise ValueError("a duration of -5 ns was measured")

    name, _, method = part.partition(".")
    monkeypatch.setattr(
        getattr(conclude_module, name) if method else conclude_module, method or name, crash
    )
    judged = judge_record(tmp_path, context)
    assert word_of(judged) == word, judged.verdict.reasons
    assert judged.measured.safety.verdict == ("VIOLATED" if violated else "UNKNOWN")
    assert (
        any("could not be read to its end" in reason for reason in judged.verdict.reasons)
        or violated
    )


@pytest.mark.parametrize(("seen", "word"), [({}, "UNKNOWN"), ({"service_fault": 959}, "VIOLATED")])
def test_violations_that_were_on_the_screen_survive_a_judge_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: dict[str, int], word: str
) -> None:
    context = record_in(tmp_path)
    monkeypatch.setattr("bench.safety.rules.contested", lambda *_: 1 // 0)
    live = Context(scenario=context.scenario, window_ns=context.window_ns, seen_live=seen)
    safety = judge_record(tmp_path, live).measured.safety
    assert (safety.verdict, safety.service_faults) == (word, seen.get("service_fault", 0))


def test_what_was_seen_live_counts_only_where_the_judge_has_failed(tmp_path: Path) -> None:
    context = record_in(tmp_path)
    live = Context(
        scenario=context.scenario,
        window_ns=context.window_ns,
        commands=10 * LEASES,
        seen_live={"service_fault": 9},
    )
    assert judge_record(tmp_path, live).measured.safety.verdict == "SAFE"


def test_a_recipe_that_reports_nonsense_is_not_safe_and_is_named(tmp_path: Path) -> None:
    judged = judge_record(tmp_path, record_in(tmp_path, misreports={"a lease with no end": 12}))
    assert word_of(judged) == ("INCONCLUSIVE", 4)
    said = (
        "the recipe redlock reported 12 × a lease with no end, which is impossible; correct "
        "the recipe"
    )
    assert judged.verdict.reasons == (said,)
    assert (judged.measured.safety.verdict, judged.measured.safety.reason) == ("UNKNOWN", said)


@pytest.mark.parametrize(("raised", "word"), [(20, "SAFE"), (21, "INVALID")])
def test_a_run_in_which_more_than_one_percent_of_the_operations_raised_is_invalid(
    tmp_path: Path, raised: int, word: str
) -> None:
    """Planted: a recipe that raises. Of 2,000 operations 20 may."""
    errors = {
        "RuntimeError: no (mine.py:12 in attempt)": raised - 1,
        "OSError: later (mine.py:9 in attempt)": 1,
    }
    judged = judge_record(tmp_path, record_in(tmp_path, errors=errors))
    assert judged.verdict.word == word
    assert judged.measured.exceptions.operations == LEASES
    if word == "INVALID":
        assert judged.verdict.reasons == (
            "the load was not as requested: the recipe raised 21 exceptions in 2,000 "
            "operations (1.1%); at most 1% is allowed; the first exception: RuntimeError: no "
            "(mine.py:12 in attempt)",
        )


def test_acquires_that_raised_have_no_record_and_are_operations_all_the_same(
    tmp_path: Path,
) -> None:
    judged = judge_record(
        tmp_path, record_in(tmp_path, errors={"KeyError: 1 (mine.py:1 in f)": 3000}, cut=3000)
    )
    assert word_of(judged) == ("INVALID", 4)
    assert "3,000 exceptions in 5,000 operations (60.0%)" in judged.verdict.reasons[0]


def test_a_violation_is_certain_however_often_the_recipe_raised(tmp_path: Path) -> None:
    judged = judge_record(
        tmp_path, record_in(tmp_path, violated=True, errors={"KeyError: 1 (mine.py:1 in f)": 3000})
    )
    assert word_of(judged) == ("VIOLATED", 5)


def test_a_folder_of_several_kept_runs_is_refused_with_the_first_of_them(tmp_path: Path) -> None:
    """What `--repeat 2 --keep-history` leaves. It said that the runs had no record."""
    for number in "21":
        (tmp_path / number / "history").mkdir(parents=True)
        (tmp_path / number / "history" / "manifest.json").write_text("{}", "utf-8")
    with pytest.raises(
        UsageError, match=f"contains 2 runs; name one of them, such as {tmp_path}/1$"
    ):
        judge_kept(tmp_path)


@pytest.mark.parametrize("damage", [b"\x00\xff\x9f not json", b"", b"{}"])
def test_a_torn_note_is_unknown_and_no_crash(tmp_path: Path, damage: bytes) -> None:
    context = record_in(tmp_path)
    next(tmp_path.glob("worker-*.json")).write_bytes(damage)
    judged = judge_record(tmp_path, context)
    assert judged.measured.safety.verdict == "UNKNOWN"
    assert "damaged" in str(judged.measured.safety.reason)


def test_a_run_whose_releases_all_say_gone_is_unknown(tmp_path: Path) -> None:
    records = legal_records(LEASES, 4)
    recorder = Recorder(tmp_path, 0)
    code = 1 | 8 << 8
    for row in words_of(records).tolist():
        recorder.write(*row[:11], code, *row[12:15])
    recorder.close()
    context = Context(
        scenario=load(), window_ns=(int(records["start_ns"].min()), int(records["ended_ns"].max()))
    )
    safety = judge_record(tmp_path, context).measured.safety
    assert safety.verdict == "UNKNOWN"
    assert f"all {LEASES:,} releases returned GONE" in str(safety.reason)


def test_random_bytes_instead_of_a_record_raise_nothing(tmp_path: Path) -> None:
    context = record_in(tmp_path)
    rng = np.random.default_rng(5)
    for path in tmp_path.iterdir():
        path.write_bytes(rng.bytes(path.stat().st_size))
        judged = judge_record(tmp_path, context)
        assert judged.measured.safety.verdict == "UNKNOWN", path.name
