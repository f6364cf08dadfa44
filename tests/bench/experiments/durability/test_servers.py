"""Whose servers are measured: permission to set a policy, without a server."""

from collections.abc import Sequence
from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.durability import servers as fsync_ground
from bench.experiments.durability.servers import UserServers, lent
from bench.measure.server_facts import InstanceFacts

URLS = ("redis://127.0.0.1:1", "redis://127.0.0.1:2")


def these(monkeypatch: pytest.MonkeyPatch, *facts: dict[str, Any]) -> None:
    made = tuple(
        InstanceFacts(index, f"127.0.0.1:{index + 1}", False, **fact)
        for index, fact in enumerate(facts)
    )
    monkeypatch.setattr(fsync_ground, "inspect", lambda _urls, **_how: made)


@pytest.mark.parametrize(
    "present, wanted, needed",
    [
        (("always", "always"), ["always"], False),
        (("everysec", "everysec"), ["waitaof", "everysec"], False),
        (("always", "everysec"), ["always"], True),
        (("always", "everysec"), ["everysec", "always"], True),
        (("always", "always"), ["everysec", "always"], True),
        ((None, None), ["always"], True),
    ],
)
def test_permission_is_needed_unless_every_server_has_the_one_policy_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, present: Sequence[str | None], wanted: list[str], needed: bool
) -> None:
    """Two servers with two policies have "both", and yet neither is what either cell asks for."""
    these(
        monkeypatch,
        *({"fsync": policy, "server": "valkey", "version": "9.1.2"} for policy in present),
    )
    if not needed:
        UserServers(URLS, wanted, allow_config=False).close()
        return
    with pytest.raises(
        UsageError, match="add --allow-config, so that lockbench changes appendfsync"
    ):
        UserServers(URLS, wanted, allow_config=False)


def test_a_setting_that_could_not_be_put_back_hides_nothing_that_went_wrong_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    these(monkeypatch, {"fsync": "always"})
    monkeypatch.setattr(UserServers, "close", lambda _self: "set it by hand")
    monkeypatch.setattr(fsync_ground, "Leash", lambda *_what, **_how: None)
    monkeypatch.setattr(fsync_ground, "_policy_of", lambda _target: "always")
    with (
        pytest.raises(EnvironmentNotReadyError, match="^the server is gone; set it by hand$"),
        lent(UserServers(URLS[:1], ["no"], allow_config=True)),
    ):
        raise EnvironmentNotReadyError("the server is gone")
    with (
        pytest.raises(EnvironmentNotReadyError, match="^set it by hand$"),
        lent(UserServers(URLS[:1], ["no"], allow_config=True)),
    ):
        raise KeyboardInterrupt
