"""Ends of runs over hosts, each message scripted; run by test_beside_locust.py in a child, which
loads Locust first."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.pool import Group
from locust.event import Events
from locust.runners import STATE_MISSING, STATE_RUNNING, MasterRunner, WorkerNode, WorkerNodes

from bench.hosts import leader as hosting
from bench.hosts.away import FOLDED, NOTE, PACKED, PIECE, TAKEN, WANT, Away
from bench.hosts.ending import Progress
from bench.hosts.leader import Hosts
from bench.measure.environment import clock_name, versions
from bench.measure.recorder import Recorder
from bench.measure.workers import WorkerNote, is_ending, read_workers, write_note
from bench.scenario import load
from bench.workloads import conductor as conducting
from bench.workloads.conductor import Conductor
from bench.workloads.member import FINISH, FINISHED
from bench.workloads.plan import PLAN_VARIABLE, Plan
from tests.doubles.records import MS

ORIGIN_NS = 10**12
SCENARIO = load(options={"users": "4", "warmup": "0s", "duration": "1s"})
# messages from the leader to one worker in an end: finish, two questions, two files, taken
STEPS = 6


@dataclass
class ScriptedWorker:
    """A worker whose answers about its history are those of the real one.

    It is dead from its message number `dies_at` on; `when_dead`: what happens then, None: its
    heartbeats are missed; `repeats`: everything is heard and said twice.
    """

    name: str
    folder: Path
    master: "ScriptedMaster"
    dies_at: int | None = None
    when_dead: Callable[["ScriptedWorker"], None] | None = None
    repeats: bool = False
    heard: list[tuple[object, ...]] = field(default_factory=list)
    dismissed: str = ""

    def __post_init__(self) -> None:
        self.folder.mkdir()
        recorder = Recorder(self.folder, self.place)
        for at in range(20):
            start = ORIGIN_NS + at * 10 * MS
            times = (
                start,
                start,
                start,
                start + 10,
                start + 99 * MS,
                start + 20,
                start + 20,
                start + 30,
                start + 10,
            )
            recorder.write(*times, at, self.place << 20, 1 | 7 << 8, 5, 1, at)
        recorder.close()
        self.pid = int(next(self.folder.glob("history-*")).name.split("-")[2].split(".")[0])
        self.away = Away(
            SimpleNamespace(register_message=lambda *_, **__: None, send_message=self.say)
        )
        self.away._folder = self.folder
        self.away._scenario = SCENARIO
        self.away._remove = self.taken  # type: ignore[method-assign]
        self.note("stopped")

    @property
    def place(self) -> int:
        return list(self.master.worker_indexes).index(self.name)

    def note(self, phase: str) -> None:
        about = WorkerNote(
            worker=self.place, pid=self.pid, phase=phase, recorded=20, spawned_ns=ORIGIN_NS
        )  # type: ignore[arg-type]
        write_note(self.folder, about)

    def say(self, kind: str, data: object = None) -> None:
        self.master.hear(self.name, kind, data)
        if self.repeats:
            self.master.hear(self.name, kind, data)

    def taken(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.away._folder = None

    def go_missing(self) -> None:
        self.master.clients[self.name].state = STATE_MISSING

    def leave(self) -> None:
        self.master.clients._worker_nodes.pop(self.name, None)

    def read(self, kind: str, data: Any) -> None:
        message = (kind, data.get("name"), data.get("at")) if kind == WANT else (kind,)
        # it is asked again when it is slow
        if message not in self.heard:
            self.heard.append(message)
        if self.dies_at is not None and len(self.heard) > self.dies_at:
            (self.when_dead or ScriptedWorker.go_missing)(self)
            return
        for _ in range(1 + self.repeats):
            self.answer(kind, data)

    def answer(self, kind: str, data: Any) -> None:
        if kind == FINISH:
            self.say(FINISHED)
        elif kind == TAKEN:
            self.away._note_taken(SimpleNamespace(data=data))
            self.dismissed = self.away._unwanted
        else:
            gevent.spawn(self.away._give, SimpleNamespace(data=data))


class ScriptedMaster(MasterRunner):
    """One without sockets: its messages reach scripted workers."""

    def __init__(self) -> None:
        self.custom_messages = {}
        self.clients = WorkerNodes()
        self.greenlet = Group()
        self.worker_indexes = {}
        self.worker_index_max = 0
        self.state = STATE_RUNNING
        self.workers = {}
        self.quits = 0

    def send_message(self, kind: str, data: Any = None, client_id: str | None = None) -> None:
        assert client_id is not None
        gevent.spawn(self.workers[client_id].read, kind, data)

    def hear(self, node: str, kind: str, data: Any = None) -> None:
        listener, _ = self.custom_messages[kind]
        listener(environment=None, msg=SimpleNamespace(node_id=node, type=kind, data=data))

    def stop(self, *_: object, **__: object) -> None: ...

    def quit(self) -> None:
        self.quits += 1


@dataclass
class Scene:
    """A leader and its workers, when all have worked."""

    folder: Path
    master: ScriptedMaster
    conductor: Conductor
    workers: dict[str, ScriptedWorker]

    @property
    def progress(self) -> dict[str, Progress | None]:
        ending = self.conductor._run.ending
        assert ending is not None
        return {name: ending.progress(name) for name in self.workers}

    def end(self) -> None:
        with gevent.Timeout(20):
            self.conductor._finish()

    def assert_all_is_well_but_for(self, *lost: str) -> None:
        phases = {note.worker: note.phase for note in read_workers(self.folder)}
        for name, worker in self.workers.items():
            history = list(self.folder.glob(f"history-{worker.place}-*.bin"))
            if name in lost:
                assert self.progress[name] is Progress.LOST
                assert not history, "all of a worker, or nothing"
                assert not list(self.folder.glob(f"fold-{worker.place}-*"))
                assert phases.get(worker.place, "lost") == "lost"
            else:
                assert self.progress[name] is Progress.HERE
                assert history
                assert not list(worker.folder.iterdir()), "it was told that its history is here"
                assert phases[worker.place] == "stopped"
        assert not list(self.folder.glob("arriving-*"))
        assert is_ending(self.folder)
        assert self.conductor._run.over.is_set()


LOOK = Hosts._look
Make = Callable[..., Scene]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a scene of so many workers, one of which is special."""
    monkeypatch.setenv(PLAN_VARIABLE, "led by lockbench run")
    # LOOK is what it does
    monkeypatch.setattr(Hosts, "_look", lambda _: None)
    monkeypatch.setattr(hosting, "AGAIN_S", 0.02)
    monkeypatch.setattr(conducting, "LOOK_S", 0.001)
    number = iter(range(1_000))

    def made(count: int = 2, **special: Any) -> Scene:
        folder = tmp_path / f"{next(number)}"
        (folder / "leader").mkdir(parents=True)
        master = ScriptedMaster()
        environment = SimpleNamespace(
            events=Events(), stop_timeout=0.5, parsed_options=None, web_ui=None
        )
        conductor = Conductor(environment, master)  # type: ignore[arg-type]
        bind = ("127.0.0.1", 1)
        plan = Plan(
            "7f3a", ("redis://a",), "x:", SCENARIO, folder / "leader", timed=True, bind=bind
        )
        conductor._run.plan = plan
        conductor._is_running = True
        conductor._run.stop_ns = ORIGIN_NS + 10**9
        hosts = conductor._hosts
        assert hosts is not None
        hosts.begin(plan.workdir)
        for name in ("one", "two", "three")[:count]:
            master.clients[name] = WorkerNode(name, STATE_RUNNING)
            master.get_worker_index(name)
            worker = ScriptedWorker(
                name, folder / name, master, **(special if name == "one" else {})
            )
            master.workers[name] = worker
            facts = {"pid": worker.pid, "host": name, "clock": clock_name(), "about": versions()}
            hosts.note_here(name, facts)
            hosts.known[name].theirs_ns = ORIGIN_NS
            worker.say(NOTE, {"note": next(worker.folder.glob("worker-*.json")).read_bytes()})
        hosts._origin_ns = ORIGIN_NS
        return Scene(folder / "leader", master, conductor, master.workers)

    return made


def test_without_an_accident_everything_is_brought_here(make: Make) -> None:
    scene = make(3)
    scene.end()
    scene.assert_all_is_well_but_for()
    gevent.sleep(0.01)
    assert len(scene.workers["one"].heard) == STEPS, scene.workers["one"].heard


def test_a_kill_at_every_message_of_the_end_costs_the_others_nothing(make: Make) -> None:
    for count, deaths in ((2, range(STEPS - 1)), (3, (1, 3))):
        for dies_at in deaths:
            scene = make(count, dies_at=dies_at)
            scene.end()
            scene.assert_all_is_well_but_for("one")
    # it dies when its history is here
    last = make(2, dies_at=STEPS - 1)
    last.end()
    assert last.progress["one"] is Progress.HERE


def test_a_kill_of_all_at_every_message_ends_the_run(make: Make) -> None:
    for dies_at in range(STEPS - 1):
        scene = make(2, dies_at=dies_at)
        scene.workers["two"].dies_at = dies_at
        scene.end()
        scene.assert_all_is_well_but_for("one", "two")


def test_a_worker_that_says_nothing_more_but_lives_is_waited_for_no_longer_than_its_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dies_at in range(1, STEPS - 1):
        scene = make(2, dies_at=dies_at, when_dead=lambda _worker: None)

        def monotonic(scene: Scene = scene) -> float:
            progress = scene.progress
            return 2 * hosting.WORK_S if (progress["two"] or 0) > (progress["one"] or 0) else 0.0

        monkeypatch.setattr(hosting, "time", SimpleNamespace(monotonic=monotonic))
        scene.end()
        scene.assert_all_is_well_but_for("one")


def test_a_worker_that_leaves_in_the_middle_is_lost_and_the_others_are_not(make: Make) -> None:
    """Its message `quit` has come: Locust knows it no more."""
    for dies_at in (0, 1, 3):
        scene = make(2, dies_at=dies_at, when_dead=ScriptedWorker.leave)
        scene.end()
        scene.assert_all_is_well_but_for("one")


def test_messages_that_come_twice_change_nothing(make: Make) -> None:
    scene = make(3, repeats=True)
    scene.end()
    scene.assert_all_is_well_but_for()


def test_messages_that_come_after_the_end_change_nothing(make: Make) -> None:
    for dies_at in (0, 1, 3):
        scene = make(2, dies_at=dies_at)
        scene.end()
        worker = scene.workers["one"]
        worker.note("running")
        worker.say(FINISHED)
        worker.say(NOTE, {"note": next(worker.folder.glob("worker-*.json")).read_bytes()})
        worker.say(PIECE, {"name": "packed", "at": 0, "files": {}, "notes": []})
        scene.assert_all_is_well_but_for("one")


def test_a_worker_that_was_lost_is_told_so_should_it_come_back(make: Make) -> None:
    scene = make(2, dies_at=0)
    scene.end()
    worker = scene.workers["one"]
    worker.dies_at = None
    gevent.sleep(0.01)
    assert worker.heard[-1] == (TAKEN,), "it lies in its socket"


def test_a_worker_whose_history_nobody_wants_answers_without_a_traceback(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was lost and has come back: the folder goes while questions still lie in its socket."""
    worker = make(1).workers["one"]
    said: list[Any] = []
    worker.say = lambda _kind, data=None: said.append(data)  # type: ignore[method-assign]
    worker.away._runner.send_message = worker.say
    for path in worker.folder.iterdir():
        path.unlink()
    for name in (FOLDED, PACKED, "history-0-1.pack"):
        question = {"name": name, "at": 0, "window_ns": (0, 1), "budget": 1.0}
        worker.away._give(SimpleNamespace(data=question))
    assert ["failed" in answer for answer in said] == [True] * 3
    worker.away._unwanted = "it was lost"
    worker.away._give(
        SimpleNamespace(data={"name": FOLDED, "at": 1, "window_ns": (0, 1), "budget": 1.0})
    )
    assert len(said) == 3
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_clock_that_is_told_after_the_run_was_judged_is_no_error(
    make: Make, tmp_path: Path
) -> None:
    """Locust's page leads on when a run is over, its folder is gone, and workers still answer."""
    hosts = make(1).conductor._hosts
    assert hosts is not None
    host = hosts.known["one"]
    host.same_clock = False
    answer = {"asked": 1, "there": 2, "slewed": 0}
    folder = tmp_path / "judged"
    folder.mkdir()
    hosts._folder = folder
    hosts._note_clock(SimpleNamespace(node_id="one", data=answer))
    (written,) = folder.iterdir()
    written.unlink()
    folder.rmdir()
    hosts._note_clock(SimpleNamespace(node_id="one", data=answer))
    assert len(host.trips) == 2
    assert not folder.exists()


def test_whoever_wants_locust_to_quit_waits_for_an_end_that_has_begun(make: Make) -> None:
    scene = make(2)
    master = scene.master
    conductor = scene.conductor
    master.quit()
    assert master.quits == 1, "no end has begun"
    slow = scene.workers["one"]
    answers = slow.answer
    held = deque[tuple[str, Any]]()
    slow.answer = lambda kind, data: held.append((kind, data))  # type: ignore[method-assign]
    end = gevent.spawn(scene.end)
    gevent.sleep(0.01)
    quits = [gevent.spawn(master.quit) for _ in range(3)]
    # the greenlet that reads messages goes on
    master.greenlet.spawn(master.quit).join(1)
    gevent.sleep(0.01)
    assert (master.quits, conductor._run.over.is_set()) == (1, False)
    slow.answer = answers  # type: ignore[method-assign]
    while held:
        answers(*held.popleft())
    gevent.joinall([end, *quits], timeout=10)
    gevent.sleep(0.01)
    assert master.quits == 5
    scene.assert_all_is_well_but_for()


def test_a_second_end_does_not_begin(make: Make) -> None:
    scene = make(2)
    ends = [gevent.spawn(scene.end) for _ in range(2)]
    gevent.joinall(ends, timeout=10)
    scene.assert_all_is_well_but_for()
    gevent.sleep(0.01)
    assert scene.workers["one"].heard.count((FINISH,)) == 1


def test_two_hosts_of_one_name_have_names_of_their_own(make: Make) -> None:
    """By their addresses, or where these are the same by numbers; processes of one host share its
    name."""
    hosts = make(1).conductor._hosts
    assert hosts is not None
    hosts.begin(None)
    facts = {"pid": 7, "about": versions()}
    machines = {
        "a": ("web", "10.0.0.7", "boot 1"),
        "b": ("web", "10.0.0.7", "boot 1"),
        "c": ("db", "10.0.0.8", "boot 2"),
    }
    for node, (host, address, clock) in machines.items():
        hosts.note_here(node, {**facts, "host": host, "address": address, "clock": clock})
    assert [one.name for one in hosts.known.values()] == ["web", "web", "db"]
    hosts.note_here("d", {**facts, "host": "web", "address": "10.0.0.9", "clock": "boot 3"})
    assert [one.name for one in hosts.known.values()] == ["web at 10.0.0.7"] * 2 + [
        "db",
        "web at 10.0.0.9",
    ]
    hosts.note_here("e", {**facts, "host": "db", "address": "10.0.0.8", "clock": "boot 4"})
    hosts.note_here("f", {**facts, "host": "old", "clock": "boot 5"})
    hosts.note_here("g", {**facts, "host": "old", "clock": "boot 6"})
    names = [one.name for one in hosts.known.values()]
    assert names[2] == "db at 10.0.0.8, no. 1"
    assert names[4:] == ["db at 10.0.0.8, no. 2", "old, no. 1", "old, no. 2"]


def test_a_clock_is_asked_for_rarely_once_its_bound_has_settled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make(1)
    hosts = scene.conductor._hosts
    assert hosts is not None
    host = hosts.known["one"]
    asked: list[int] = []
    looks = iter(range(100))

    def look(_seconds: float) -> None:
        if next(looks, None) is None:
            raise StopIteration

    monkeypatch.setattr(hosts, "_ask_clock", lambda _node: asked.append(1))
    monkeypatch.setattr(hosting.gevent, "sleep", look)
    for settled, times in ((False, 101), (True, 21)):
        asked.clear()
        looks = iter(range(100))
        host.trips[:] = [(0, 5, 10, 0)] * (hosting.RECENT if settled else 1)
        with pytest.raises(StopIteration):
            LOOK(hosts)
        assert len(asked) == times
    host.add_trip(0, 4, 9, 0)
    assert host.is_settled is False, "a shorter round trip may be followed by still shorter ones"
