"""What leads a run over several hosts, and what is refused before anything starts."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from bench.errors import UsageError
from bench.frame.hosts import led
from bench.program import execute
from bench.scenario import load
from bench.screen import note
from tests.doubles.peer import banner, http, listening, reset

TARGETS = {"targets": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}


def test_the_expected_workers_are_the_processes_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {"expect_workers": 3, "bind": ("10.0.0.9", 6000), "quiet": False}
    (scenario,), bind = led([load(options=TARGETS)], values)
    assert (scenario.processes, bind) == (3, ("10.0.0.9", 6000))
    assert "lockbench worker --master 10.0.0.9:6000" in capsys.readouterr().err
    assert led([load()], {"expect_workers": None, "bind": None, "quiet": True}) == ([load()], None)


@pytest.mark.parametrize(
    "options, values, said",
    [
        (TARGETS, {"bind": ("10.0.0.9", 6000)}, "--expect-workers"),
        ({}, {"expect_workers": 2}, "--target"),
        ({**TARGETS, "processes": 2}, {"expect_workers": 2}, "set --processes 1"),
    ],
)
def test_what_cannot_be_led_is_refused(
    options: dict[str, object], values: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        led(
            [load(options=options)], {"expect_workers": None, "bind": None, "quiet": True, **values}
        )


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf", "0"])
def test_a_budget_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKBENCH_BYTES_PER_S", text)
    with pytest.raises(UsageError, match="LOCKBENCH_BYTES_PER_S"):
        led([load(options=TARGETS)], {"expect_workers": 2, "bind": None, "quiet": True})


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 80])
def test_a_leader_that_cannot_be_found_is_one_sentence_before_locust_starts(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.workloads.launch.join", lambda *_: pytest.fail("Locust was started"))
    assert execute(["worker", "--master", host]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lockbench: the leading host {host} cannot be found (")


GREETING = banner(b"\xff" + bytes(8) + b"\x7f\x03")


@pytest.mark.parametrize("serve", [None, banner(b"-ERR no\r\n"), http, reset])
def test_a_leader_that_is_not_there_is_one_sentence_in_bounded_time(
    serve: Callable[[socket.socket], None] | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.workloads.launch.join", lambda *_: pytest.fail("Locust was started"))
    monkeypatch.setattr("bench.hosts.joining._CONNECT_S", 0.05)
    with listening(serve or reset) as port:
        master = f"127.0.0.1:{port if serve else 1}"
        assert execute(["worker", "--master", master, "--wait", "1ms"]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"lockbench: no leader answers at {master} (")
    assert last.endswith("or wait longer with --wait")


def test_a_leader_that_comes_later_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:
        port = kept.getsockname()[1]
    joined = []

    class Ended:
        returncode = 0

        def poll(self) -> int:
            return 0

    def join(*place: object) -> Ended:
        joined.append(place[:2])
        return Ended()

    def note_it(line: str) -> None:
        note(line)
        was_noted.set()

    def lead() -> None:
        assert was_noted.wait(30)
        with socket.create_server(("127.0.0.1", port)) as leader:
            connection, _ = leader.accept()
            with connection, suppress(OSError):
                GREETING(connection)

    was_noted = threading.Event()
    monkeypatch.setattr("bench.hosts.joining.note", note_it)
    monkeypatch.setattr("bench.workloads.launch.join", join)
    leading = threading.Thread(target=lead, daemon=True)
    leading.start()
    assert execute(["worker", "--master", f"127.0.0.1:{port}"]) == 0
    assert joined == [("127.0.0.1", port)]
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == f"lockbench: no leader answers at 127.0.0.1:{port} yet (connection refused); waiting "
        "30 s"
    )
    leading.join(10)
