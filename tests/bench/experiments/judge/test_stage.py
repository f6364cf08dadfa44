"""A client of a judged lock that hangs, or that starts others; and what a lock is refused for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import psutil
import pytest
from msgspec import structs

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.judge.clients.lock import ClientOrder
from bench.experiments.judge.contention import _cpu_s
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import CutError, HangsError, Party, Said
from bench.experiments.judge.stage import CommandParty, JudgeStage, driver_of
from bench.experiments.judge.subject import Subject
from bench.measure.record import OperationFacts
from bench.topology.child import is_alive
from bench.topology.fleet import wait_until

LONG_S = 60.0


@contextmanager
def client(script: str, folder: Path, cut: Event | None = None) -> Iterator[CommandParty]:
    """A client that is this script of the shell."""
    driver = driver_of(Subject("mine", "mine", ("sh", "-c", script)))
    order = ClientOrder("mine", ())
    with CommandParty(driver, order, os.environ, folder, cut) as party:
        yield party


def test_nobody_waits_for_a_command_once_the_judge_is_cut(tmp_path: Path) -> None:
    cut = Event()
    # It writes half a line, which must not hide the wish to end.
    with client("printf o; sleep 5", tmp_path, cut) as party:
        cut.set()
        with pytest.raises(CutError):
            party.hear(Said, LONG_S)


def test_a_command_that_gives_no_answer_is_told_to_flush(tmp_path: Path) -> None:
    with (
        client("sleep 5", tmp_path) as party,
        pytest.raises(EnvironmentNotReadyError, match="and flush stdout"),
    ):
        party.hear(Said, 0.2)


def test_an_answer_that_came_with_the_one_before_is_heard_at_once(tmp_path: Path) -> None:
    with client("echo ok; echo no; sleep 5", tmp_path) as party:
        assert [party.hear(Said, LONG_S).ok, party.hear(Said, LONG_S).ok] == [True, False]


# `timeout` gives the process that it starts a process group of its own.
@pytest.mark.parametrize(
    ("started", "has_own_group"), [("sleep", False), ("timeout 60 sleep", True)]
)
def test_a_command_is_frozen_and_ends_with_what_it_has_started(
    started: str, has_own_group: bool, tmp_path: Path
) -> None:
    with client(f"{started} 60 & echo $!; wait", tmp_path) as party:
        pid = int(party.read_line(LONG_S))
        wait_until(lambda: (os.getpgid(pid) == pid) is has_own_group, LONG_S, "no process group")
        party.pause()
        wait_until(lambda: psutil.Process(pid).status() == "stopped", 5.0, "it was not frozen")
    wait_until(lambda: not is_alive(pid), 5.0, "what a client had started outlived it")


def test_the_cpu_of_what_a_command_has_started_counts(tmp_path: Path) -> None:
    with client("while :; do :; done & wait", tmp_path) as party:
        wait_until(lambda: _cpu_s([party]) > 0.1, 20.0, "no CPU was counted")


def test_a_lock_that_hangs_while_it_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def acquire(self) -> Said:
            raise HangsError("no answer within 8 s")

    monkeypatch.setattr(JudgeStage, "party", lambda _stage: Hanging())
    monkeypatch.setattr(JudgeStage, "name", "mine.py")
    stage = object.__new__(JudgeStage)
    with pytest.raises(UsageError, match=r"mine\.py hangs while nobody else has its lock"):
        stage.learn()


def party(step: str, *, asked_ns: int = 0, lease: OperationFacts | None = None) -> Party:
    """A client at this step, whose keys end at 100 ns."""
    client = object.__new__(CommandParty)
    client._step = step
    client._asked_ns = asked_ns
    client.operations = [lease] if lease else []
    client.until_ns = 100
    return client


LEASE = OperationFacts(
    start_ns=0,
    attempt_ns=0,
    ended_ns=1,
    resource=0,
    caller=0,
    sequence=1,
    outcome="acquired",
    granted_ns=1,
    valid_until_ns=100,
)
RELEASED = structs.replace(LEASE, release_sent_ns=20)
REFUSED = structs.replace(LEASE, outcome="contended", granted_ns=0)


@pytest.mark.parametrize(
    ("step", "asked_ns", "lease", "is_waiting"),
    [
        ("acquire", 50, LEASE, True),
        ("hold", 50, LEASE, True),
        # the lock had ended, had been released, or nobody had got it
        ("acquire", 100, LEASE, False),
        ("acquire", 50, RELEASED, False),
        ("acquire", 50, REFUSED, False),
        ("acquire", 50, None, False),
        ("release", 50, LEASE, False),
    ],
)
def test_a_client_waits_if_it_asks_for_a_lock_that_is_held(
    step: str, asked_ns: int, lease: OperationFacts | None, is_waiting: bool
) -> None:
    other = party("acquire", lease=lease)
    client = party(step, asked_ns=asked_ns)
    assert client._waits([other, client]) is is_waiting


def test_a_holder_that_forks_waits_for_its_own_lease() -> None:
    client = party("fork", asked_ns=50, lease=LEASE)
    assert client._waits([client])


def test_a_client_that_hangs_says_at_which_step(tmp_path: Path) -> None:
    with client("sleep 5", tmp_path) as hanging:
        hanging.note = lambda _step: None
        hanging._words = driver_of(Subject("mine", "mine")).words
        hanging.begin_acquire()
        with pytest.raises(HangsError, match="no answer within 0 s") as raised:
            hanging.acquired(0.2)
        assert raised.value.is_waiting([party("acquire", lease=LEASE)]) is False
        assert raised.value.is_waiting([]) is False


@pytest.mark.parametrize(
    ("has_waited", "fault"), [(False, "a lease was granted after its end"), (True, "")]
)
def test_a_lease_without_a_stated_end_may_be_granted_late_after_a_wait(
    has_waited: bool, fault: str
) -> None:
    stage = Stage.__new__(Stage)
    stage.parties = [party("acquire", lease=structs.replace(LEASE, ended_ns=150, granted_ns=150))]
    assert stage.broken(has_waited=has_waited) == fault


def test_modules_on_the_users_own_path_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/the/users/own")
    path = driver_of(Subject("package:lock", "package:lock")).environment["PYTHONPATH"]
    assert "/the/users/own" in path.split(os.pathsep)


@pytest.mark.parametrize(("ttl_ms", "patience_s"), [(2000, 1.0), (10_000, 2.0), (None, 2.0)])
def test_the_end_of_a_short_lease_does_not_look_like_a_release(
    ttl_ms: int | None, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Stage, "until_lockable", lambda _, seconds: waited.append(seconds))
    stage = JudgeStage.__new__(JudgeStage)
    stage.ttl_ms = ttl_ms
    stage.until_lockable(2.0)
    assert waited == [patience_s]
