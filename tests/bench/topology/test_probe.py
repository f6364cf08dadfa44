"""Which instances may stand beside each other; INFO deltas: values with their units, and None
instead of a guess."""

from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.measure.server_facts import InstanceFacts
from bench.topology.probe import InfoSnapshot, delta, inspect, require_independent
from tests.doubles.peer import PONG, UNKNOWN, Serve, bulk, http, listening, replying, reset


def test_what_is_unknown_passes() -> None:
    """A foreign instance that may not tell is not refused: lockcore asks again in its own way."""
    require_independent([InstanceFacts(0, "a:1", False), InstanceFacts(1, "b:2", False)])


BEFORE: dict[str, Any] = {
    "run_id": "a",
    "used_cpu_sys": 1.0,
    "used_cpu_user": 2.0,
    "total_commands_processed": 100,
    "expired_keys": 1,
    "evicted_keys": 0,
    "aof_enabled": 1,
    "aof_delayed_fsync": 2,
    "aof_current_size": 10,
    "aof_last_write_status": "ok",
    "cmdstat_set": {"calls": 10, "usec": 20, "usec_per_call": 2.0},
    "cmdstat_info": {"calls": 1, "usec": 90, "usec_per_call": 90.0},
}
AFTER = BEFORE | {
    "used_cpu_sys": 1.25,
    "used_cpu_user": 2.5,
    "total_commands_processed": 160,
    "expired_keys": 4,
    "evicted_keys": 2,
    "aof_delayed_fsync": 5,
    "aof_current_size": 999,
    "cmdstat_set": {"calls": 40, "usec": 65, "usec_per_call": 1.6},
    "cmdstat_evalsha": {"calls": 30, "usec": 75, "usec_per_call": 2.5},
}


def snapshot(
    values: dict[str, Any] | None, taken_ns: int = 0, missing: str | None = None
) -> InfoSnapshot:
    return InfoSnapshot("host:1", taken_ns, values, missing)


def test_every_counter_is_the_increase() -> None:
    change = delta(snapshot(BEFORE), snapshot(AFTER, 2_500_000_000))
    assert (change.address, change.warning, change.elapsed_s) == ("host:1", None, 2.5)
    assert change.cpu_s == 0.75
    assert change.commands_processed == 60
    assert change.expired_keys == 3
    assert change.calls == {"set": 30, "evalsha": 30}, "a command that did not run is absent"
    assert change.aof == {
        "aof_delayed_fsync": 3,
        "aof_current_size": 999,
        "aof_enabled": 1,
        "aof_last_write_status": "ok",
    }


@pytest.mark.parametrize(
    "before, after, warning",
    [
        (
            snapshot(None, missing="this user may not call INFO"),
            snapshot(AFTER),
            "this user may not call INFO",
        ),
        (snapshot(BEFORE), snapshot(None, missing="no answer within 1 s"), "no answer within 1 s"),
        (snapshot(BEFORE), snapshot(AFTER | {"run_id": "b"}), "restarted"),
    ],
)
def test_what_is_unknown_is_none_with_a_warning(
    before: InfoSnapshot, after: InfoSnapshot, warning: str
) -> None:
    change = delta(before, after)
    assert warning in str(change.warning)
    assert (change.cpu_s, change.commands_processed, change.calls, change.aof) == (
        None,
        None,
        {},
        {},
    )


def test_a_server_that_lacks_a_field_leaves_only_that_unknown() -> None:
    old = {name: value for name, value in BEFORE.items() if name != "used_cpu_sys"}
    change = delta(snapshot(old), snapshot(AFTER))
    assert change.cpu_s is None
    assert change.commands_processed == 60


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (
            replying({**PONG, "INFO": UNKNOWN.format("info", "").encode()}),
            "the command INFO.*; the address may belong to a proxy",
        ),
        (
            replying({**PONG, "INFO": None}),
            "the server answers PING, but closes the connection .*; the address may belong to a "
            "proxy",
        ),
        (
            replying(
                {
                    **PONG,
                    "INFO": bulk("redis_mode:sentinel\r\n"),
                    "CONFIG": b"-ERR unknown command\r\n",
                }
            ),
            "a Sentinel",
        ),
        (
            replying({}, b":1\r\n"),
            "the server's answer to the handshake is not an answer of Redis; the address may "
            "belong to a proxy",
        ),
        (
            reset,
            "the server accepts connections and closes them without an answer; if the port "
            "belongs to a proxy",
        ),
        (http, "the server speaks HTTP instead of the Redis protocol; correct the port in the URL"),
    ],
    ids=["INFO unknown", "hangs up at INFO", "Sentinel", "nonsense", "dead port", "HTTP"],
)
def test_what_is_no_server_is_refused_before_the_run_with_its_cause(
    serve: Serve, says: str
) -> None:
    with (
        listening(serve) as port,
        pytest.raises(
            EnvironmentNotReadyError,
            match=f"lockbench cannot use 1 of 1 targets: 127.0.0.1:{port} .*{says}",
        ),
    ):
        inspect([f"redis://127.0.0.1:{port}"])
