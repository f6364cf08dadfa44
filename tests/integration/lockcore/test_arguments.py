"""What makes no sense is refused with one sentence before anything is sent.

On every way of waiting.
"""

from collections.abc import Callable
from typing import Any

import pytest

from lockcore import LagCap, RetryPolicy, Settings
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TTL_MS, Connect, Shell

pytestmark = pytest.mark.integration
INF = float("inf")
NAN = float("nan")
NO_NUMBER = (None, "1", True, False, [], b"1", 1j)
NO_WAIT = (*NO_NUMBER, INF, -INF, NAN, -1, -0.001, 1e300, 86_400_001)
NO_TTL = (*NO_NUMBER, INF, NAN, 10.5, 10_000.0, 0, -1, 10**30)
NO_RESOURCE = (None, "", b"stock", 5, [], {}, "x" * 131_073, "ä" * 65_537, "\udcff")
NO_LEASE = (None, "stock", object(), True)


def refused(use: Callable[[], Any], *names: str) -> None:
    """Raises, and says one of the names."""
    with pytest.raises((TypeError, ValueError)) as raised:
        use()
    assert any(name in str(raised.value) for name in names), raised.value


def test_arguments_of_every_operation(shell: Shell, connect: Connect, instances: Instances) -> None:
    lock = connect(instances.urls, instance_timeout_ms=2_500)
    lease = lock.acquire("stock", TTL_MS)
    cases: list[tuple[str, tuple[Any, ...], Callable[[Any], Any]]] = [
        (
            "extensions must",
            (*NO_NUMBER, INF, NAN, 1.5, 0, -1),
            lambda no: lock.keep_alive(lease, extensions=no),
        ),
        (
            "every_ms must",
            (*NO_NUMBER[1:], INF, NAN, 0, TTL_MS),
            lambda no: lock.keep_alive(lease, every_ms=no),
        ),
        ("on_gone must", ("tell me",), lambda no: lock.keep_alive(lease, on_gone=no)),
        # looked up when called
        ("lease must", NO_LEASE, lambda no: lock.keep_alive(no)),  # noqa: PLW0108
        (
            "observe_every must",
            (*NO_NUMBER, INF, NAN, 0, -1, 1.5),
            lambda no: lock.observe_every(no),  # noqa: PLW0108
        ),
        ("drain_s must", (*NO_NUMBER, INF, NAN, -1), lambda no: lock.close(no)),  # noqa: PLW0108
    ]
    for acquire in (
        lock.try_acquire,
        lock.acquire,
        lambda *arguments: lock.hold(*arguments).__enter__(),
    ):
        cases += [
            ("wait_ms must", NO_WAIT, lambda no, use=acquire: use("other", TTL_MS, no)),
            ("ttl_ms must", NO_TTL, lambda no, use=acquire: use("other", no, 0)),
            ("resource must", NO_RESOURCE, lambda no, use=acquire: use(no, TTL_MS)),
        ]
    for extend in (lock.try_extend, lock.extend):
        # None: the lease's own
        cases.append(("ttl_ms must", NO_TTL[1:], lambda no, use=extend: use(lease, no)))
    for use in (lock.try_release, lock.release, lock.try_extend, lock.extend):
        cases.append(("lease must", NO_LEASE, use))
    for words, values, use in cases:
        for value in values:
            refused(lambda: use(value), words)  # noqa: B023 - called at once
    shell.until(lambda: not lease.tally.undecided, "every vote")
    assert [instance.kinds() for instance in instances] == [["set"]] * 3
    lock.release(lease)


@pytest.mark.parametrize("cls", [Settings, RetryPolicy, LagCap])
def test_settings_of_every_kind(cls: type[Any]) -> None:
    """None of them takes what is no number for a number, or leaves it to a later operation."""
    for field, made in cls.__dataclass_fields__.items():
        default = getattr(cls(), field)
        for value in ("nonsense", INF, NAN, -1, [], b"1", 1j, object()):
            if isinstance(default, str) and isinstance(value, str) and field == "key_prefix":
                continue
            names = (field, field.replace("_", " "), "policy")
            refused(lambda: cls(**{made.name: value}), *names)  # noqa: B023
        if type(default) in (int, float):
            refused(lambda: cls(**{made.name: True}), field)  # noqa: B023


def test_urls(shell: Shell) -> None:
    for urls in (
        None,
        5,
        "redis://127.0.0.1",
        [],
        [None],
        [b"redis://127.0.0.1"],
        {"redis://127.0.0.1"},
    ):
        refused(lambda: shell.connect(urls), "URL", "urls")  # type: ignore[arg-type]  # noqa: B023
