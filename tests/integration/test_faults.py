"""Every kind of fault on real servers: whole before, broken while it lasts, whole after.

`SYMPTOMS` says for each what is seen. The same check fails for a fault that does nothing, for every
kind.
"""

import contextlib
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bench.measure.server_facts import ServerBinary
from bench.scenario import Fault
from bench.topology.faults import kinds
from bench.topology.faults.answers import SNAPSHOT_FILE
from bench.topology.faults.injection import Injection, prepared_fleet
from bench.topology.faults.kinds import KINDS, injection, needs_of, read_faults
from bench.topology.fleet import Fleet
from tests.integration.servers import SERVERS

pytestmark = pytest.mark.integration
NOT_SEEN = "the fault is not to be seen"
BROKEN_S = 0.25
WHOLE_S = 10.0
"""How long an answer may take before it counts as missing, and before the test gives up on one that
must come."""


class Wire:
    """A connection to an instance that shows what comes back, word for word."""

    def __init__(self, port: int, patience_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), patience_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *words: object) -> str:
        """The first line of the reply; "" when the connection is closed.

        Raises TimeoutError, ConnectionError.
        """
        encoded = [str(word).encode() for word in words]
        self._socket.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in encoded)
        )
        return self.line()

    def line(self) -> str:
        said = b""
        while not said.endswith(b"\r\n"):
            chunk = self._socket.recv(1)
            if not chunk:
                return ""
            said += chunk
        return said.decode().strip()

    def is_closed(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0]) and self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Scene:
    """One prepared fleet with every fault possible on it; faults strike instance 0."""

    fleet: Fleet
    fsync: str

    def port(self) -> int:
        """Where the load would connect."""
        return int(self.fleet.load_urls[0].rpartition(":")[2])

    def answer(self, patience_s: float, *words: object) -> str:
        """What instance 0 says through its proxy, or the name of what happened instead."""
        try:
            wire = Wire(self.port(), patience_s)
            try:
                return wire.ask(*words)
            finally:
                wire.close()
        except OSError as error:
            return type(error).__name__


Probe = Callable[[float], bool]
"""Given the patience for an answer, whether the symptom is there."""


def says(wanted: str, *words: object) -> Callable[[Scene], Probe]:
    """The symptom is an answer that matches `wanted` to a command."""
    return lambda scene: (
        lambda patience_s: re.search(wanted, scene.answer(patience_s, *words)) is not None
    )


SET = ("SET", "probe", "me", "PX", 60_000)
SILENT = says("^TimeoutError$", "PING")
GONE = says("^Connection(Reset|Refused)Error$|^$", "PING")


def writes_are_silent_while_reads_are_not(scene: Scene) -> Probe:
    return lambda patience_s: (
        scene.answer(patience_s, *SET) == "TimeoutError"
        and scene.answer(WHOLE_S, "PING") == "+PONG"
    )


def a_round_trip_takes_over_80_ms(scene: Scene) -> Probe:
    def probe(_patience_s: float) -> bool:
        wire = Wire(scene.port(), WHOLE_S)
        times = []
        for _ in range(5):
            began = time.monotonic()
            assert wire.ask("PING") == "+PONG"
            times.append(time.monotonic() - began)
        wire.close()
        return min(times) > 0.08

    return probe


def a_connection_was_closed(scene: Scene) -> Probe:
    wire = Wire(scene.fleet.instances[0].port, WHOLE_S)
    assert wire.ask("PING") == "+PONG"
    return lambda _patience_s: wire.is_closed()


def a_script_is_unknown(scene: Scene) -> Probe:
    wire = Wire(scene.port(), WHOLE_S)
    wire.ask("SCRIPT", "LOAD", "return 1")
    digest = wire.line()
    wire.close()
    return says("^-NOSCRIPT", "EVALSHA", digest, 0)(scene)


def a_live_lock_vanishes_while_sets_succeed(scene: Scene) -> Probe:
    """A lock with 20 s to live, then as many new keys with 60 s as would fill the room that is
    left."""

    def probe(_patience_s: float) -> bool:
        with contextlib.closing(Wire(scene.port(), WHOLE_S)) as wire:
            assert wire.ask("SET", "lock", "mine", "PX", 20_000) == "+OK"
            others = [
                wire.ask("SET", f"other:{number}", "x" * 400, "PX", 60_000) for number in range(200)
            ]
            wire.ask("UNLINK", *(f"other:{number}" for number in range(200)))
            return set(others) == {"+OK"} and wire.ask("UNLINK", "lock") == ":0"

    return probe


def its_clock_is_over_1000_s_ahead(scene: Scene) -> Probe:
    def probe(_patience_s: float) -> bool:
        with contextlib.closing(Wire(scene.port(), WHOLE_S)) as wire:
            assert wire.ask("TIME") == "*2"
            wire.line()
            return int(wire.line()) - time.time() > 1000

    return probe


def its_keys_live_half_as_long(scene: Scene) -> Probe:
    def probe(_patience_s: float) -> bool:
        with contextlib.closing(Wire(scene.port(), WHOLE_S)) as wire:
            assert wire.ask("SET", "short", "x", "PX", 400) == "+OK"
            began = time.monotonic()
            while wire.ask("EXISTS", "short") == ":1":
                # it tells only when asked
                time.sleep(0.002)
            return time.monotonic() - began < 0.3

    return probe


@dataclass(frozen=True)
class Case:
    """A fault and what is seen of it. `heals`: whether that goes when it ends."""

    kind: str
    params: dict[str, object]
    symptom: Callable[[Scene], Probe]
    fsync: str = "everysec"
    for_ms: float | None = None
    heals: bool = True

    def __str__(self) -> str:
        return "-".join([self.kind, *(str(value) for value in self.params.values())])

    def fault(self) -> Fault:
        return Fault(self.kind, 0.0, self.for_ms, ("instance:0",), "fixed", self.params)


CASES = [
    Case("kill", {}, GONE),
    Case("stop", {}, SILENT),
    Case("restart", {}, GONE),
    Case("proxy", {"delay": "50ms"}, a_round_trip_takes_over_80_ms),
    Case("proxy", {"delay": "90ms", "direction": "from"}, a_round_trip_takes_over_80_ms),
    Case("proxy", {"mode": "black-hole"}, SILENT),
    Case("proxy", {"mode": "black-hole", "direction": "to"}, SILENT),
    Case("proxy", {"mode": "reset"}, GONE),
    Case("client-pause", {}, writes_are_silent_while_reads_are_not),
    Case("client-kill", {}, a_connection_was_closed, heals=False),
    Case("script-flush", {}, a_script_is_unknown, heals=False),
    Case("maxmemory", {}, says("^-OOM", *SET)),
    Case("maxmemory", {"policy": "volatile-ttl"}, a_live_lock_vanishes_while_sets_succeed),
    Case("readonly", {}, says("^-READONLY", *SET)),
    Case("loading", {}, says("^-LOADING", *SET), for_ms=60_000),
    Case("misconf", {}, says("^-MISCONF", *SET)),
    Case("fsync-latency", {"delay": "600ms"}, says("^TimeoutError$", *SET), fsync="always"),
    Case(
        "fsync-error",
        {},
        lambda scene: lambda _: scene.answer(WHOLE_S, *SET) != "+OK",
        fsync="always",
    ),
    Case("clock-jump", {"by": "1h"}, its_clock_is_over_1000_s_ahead),
    Case("clock-rate", {"rate": 2.0}, its_keys_live_half_as_long),
    Case("power-cut", {}, GONE),
    Case("drop", {"direction": "both"}, SILENT),
    Case("drop", {"direction": "from"}, SILENT),
    Case("disk-full", {}, says("^-MISCONF", *SET)),
    Case("disk-full", {}, GONE, fsync="always"),
]
FOR_ROOT = {"drop"}
each_case = pytest.mark.parametrize("case", CASES, ids=str)


@contextlib.contextmanager
def scene(server: ServerBinary, fsync: str) -> Iterator[Scene]:
    with prepared_fleet(
        needs_of(read_faults(case.fault() for case in CASES)), 2, fsync, server
    ) as fleet:
        yield Scene(fleet, fsync)


@pytest.fixture(
    scope="module", params=SERVERS, ids=lambda server: f"{server.name}-{server.version}"
)
def scenes(request: pytest.FixtureRequest) -> Iterator[dict[str, Scene]]:
    """One fleet per policy, used by all cases: each leaves it as it was, or the next one fails."""
    with scene(request.param, "everysec") as everysec, scene(request.param, "always") as always:
        yield {"everysec": everysec, "always": always}


def check(case: Case, stage: Scene) -> Injection:
    """The symptom is not there, then it is, then it is gone."""
    (order,) = read_faults([case.fault()])
    fault = injection(stage.fleet, order)
    reason = fault.refusal()
    if reason is not None and case.kind in FOR_ROOT:
        pytest.skip(f"{case.kind}: {reason}")
    assert reason is None
    probe = case.symptom(stage)
    assert not probe(WHOLE_S), "it was broken before"
    fault.begin()
    try:
        assert probe(BROKEN_S), NOT_SEEN
    finally:
        fault.end()
    assert probe(WHOLE_S) != case.heals, "it is broken still, or does not show what should stay"
    assert stage.answer(WHOLE_S, *SET) == "+OK"
    assert stage.answer(WHOLE_S, "UNLINK", "probe") == ":1"
    return fault


@each_case
def test_it_is_whole_then_broken_then_whole(case: Case, scenes: dict[str, Scene]) -> None:
    check(case, scenes[case.fsync])


@each_case
def test_a_fault_that_does_nothing_is_noticed(
    case: Case, scenes: dict[str, Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        kinds.KINDS, case.kind, replace(KINDS[case.kind], begin=lambda _fault: None)
    )
    with pytest.raises(AssertionError, match=NOT_SEEN):
        check(case, scenes[case.fsync])


def test_an_aof_that_waits_for_its_disk_leaves_locks_no_room(
    scenes: dict[str, Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MiB that are in use and do not count for what evicts."""
    info = Fleet.info

    def waiting(fleet: Fleet, index: int) -> dict[str, Any]:
        said = info(fleet, index)
        waits = {
            name: said[name] + (4 << 20) for name in ("used_memory", "mem_not_counted_for_evict")
        }
        return {**said, **waits}

    monkeypatch.setattr(Fleet, "info", waiting)
    (case,) = [case for case in CASES if case.params == {"policy": "volatile-ttl"}]
    check(case, scenes[case.fsync])


def test_every_kind_is_tried() -> None:
    assert {case.kind for case in CASES} == set(KINDS)


def test_nothing_of_the_faults_is_left_on_the_servers(scenes: dict[str, Scene]) -> None:
    """Neither keys nor settings nor files, after all of the above."""
    for stage in scenes.values():
        # the negative controls end before they do it
        stage.fleet.command(0, "UNLINK", "probe")
        assert stage.fleet.command(0, "KEYS", "*") == []
        for name, value in {
            "maxmemory": "0",
            "save": "",
            "key-load-delay": "0",
            "rdbcompression": "yes",
        }.items():
            assert [text.decode() for text in stage.fleet.command(0, "CONFIG", "GET", name)] == [
                name,
                value,
            ]
        assert not (stage.fleet.instances[0].folder / SNAPSHOT_FILE).exists()
