"""What survives: kill, power cut and slow syncs under each fsync policy, told by the shim's ledger."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.topology.faults.injection import Injection, Need, Site, prepared_fleet
from bench.topology.fleet import wait_until
from bench.topology.server import ServerBinary
from bench.topology.shim import IGNORED, shim_library
from tests.integration.servers import SERVERS, fault

pytestmark = pytest.mark.integration
SHIM = frozenset({Need.SHIM})
FOREVER_NS = 3_600_000_000_000


class Rig:
    """A fleet of one under the shim."""

    def __init__(self, site: Site) -> None:
        self.site, self.fleet, self.control = site, site.fleet, site.control(0)

    def fault(self, kind: str, **params: object) -> Injection:
        return fault(self.site, kind, **params)

    def strike(self, kind: str, **params: object) -> Injection:
        """A fault from its begin to its end."""
        struck = self.fault(kind, **params)
        struck.begin()
        struck.end()
        return struck

    def set(self, *names: str) -> None:
        assert set(self.site.commands(0, [("SET", name, "x" * 100) for name in names])) == {True}

    def has(self, *names: str) -> int:
        return int(self.site.command(0, "EXISTS", *names))

    @property
    def aof(self) -> Path:
        (path,) = self.fleet.instances[0].folder.glob("appendonlydir/*.incr.aof")
        return path

    def until_synced(self) -> None:
        wait_until(lambda: self.control.synced(self.aof).durable_bytes >= self.aof.stat().st_size, 30, "not synced")


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    fsync, server = request.param
    with prepared_fleet(SHIM, 1, fsync, server) as site:
        yield Rig(site)


def under(*policies: str) -> pytest.MarkDecorator:
    cases = [pytest.param((fsync, server), id=f"{fsync}-{server.name}") for fsync in policies for server in SERVERS]
    return pytest.mark.parametrize("rig", cases, indirect=True)


@under("everysec", "no")
def test_a_kill_keeps_what_a_power_cut_loses(rig: Rig) -> None:
    """Both are acknowledged, and no sync comes to their help: the disk never answers."""
    rig.control.set_sync_delay(FOREVER_NS)
    rig.set("first")
    rig.strike("kill")
    assert rig.has("first") == 1
    cut = rig.strike("power-cut")
    assert rig.has("first") == 0
    assert cut.detail["lost_bytes"] >= 100


@under("everysec")
def test_a_power_cut_keeps_exactly_what_was_synced(rig: Rig) -> None:
    rig.set("synced")
    rig.until_synced()
    rig.control.set_sync_delay(FOREVER_NS)
    kept = rig.aof.stat().st_size
    rig.set("lost")
    cut = rig.fault("power-cut")
    cut.begin()
    assert rig.aof.stat().st_size == kept
    cut.end()
    assert (rig.has("synced"), rig.has("lost")) == (1, 0)
    (entry,) = [file for file in cut.detail["files"] if file["name"].endswith("incr.aof")]
    assert (entry["durable_bytes"], entry["kept_bytes"]) == (kept, kept)
    assert entry["size_bytes"] == kept + cut.detail["lost_bytes"]


@under("everysec")
def test_a_torn_tail_ends_anywhere_by_the_seed_and_is_survived(rig: Rig) -> None:
    rig.set("synced")
    rig.until_synced()
    rig.control.set_sync_delay(FOREVER_NS)
    durable = rig.aof.stat().st_size
    rig.set(*(f"lost:{number}" for number in range(100)))
    size = rig.aof.stat().st_size
    cut = rig.fault("power-cut", torn=True)
    cut.begin()
    kept = {file["name"]: file["kept_bytes"] for file in cut.detail["files"]}
    assert kept[f"appendonlydir/{rig.aof.name}"] == rig.aof.stat().st_size
    assert durable < rig.aof.stat().st_size < size
    cut.end()
    assert rig.has("synced") == 1
    assert 0 < rig.has(*(f"lost:{number}" for number in range(100))) < 100


@under("always")
def test_the_ledger_follows_a_rewrite_of_the_file(rig: Rig) -> None:
    """A new base by a child, a new increment, a new manifest; then the power goes."""
    rig.set("before")
    first = rig.aof.name
    rig.site.command(0, "BGREWRITEAOF")
    rig.site.until(
        0, lambda info: info["aof_rewrite_in_progress"] == 0 and not info["aof_rewrite_scheduled"], "rewrite"
    )
    rig.set("after")
    assert rig.aof.name != first
    cut = rig.strike("power-cut")
    assert rig.has("before", "after") == 2
    assert cut.detail["lost_bytes"] == 0


@under("everysec")
def test_failing_syncs_make_everysec_refuse_writes_and_are_got_over(rig: Rig) -> None:
    broken = rig.fault("fsync-error", error="EIO")
    broken.begin()
    rig.set("lost")
    rig.site.until(0, lambda info: info["aof_last_write_status"] != "ok", "notice")
    with pytest.raises(EnvironmentNotReadyError, match="MISCONF"):
        rig.set("refused")
    broken.end()
    rig.set("again")
    rig.until_synced()


@under("everysec")
def test_the_clock_stays_wrong_over_a_restart(rig: Rig) -> None:
    rig.fault("clock-jump", by="1h").begin()
    rig.fleet.restart(0)
    assert rig.site.command(0, "TIME")[0] - time.time() > 3000


@pytest.mark.parametrize("fsync, reason", [("none", "fsync = none"), ("no", "fsync = no leaves syncing to the kernel")])
def test_slow_syncs_where_nothing_is_synced_are_skipped_with_that_reason(fsync: str, reason: str) -> None:
    with prepared_fleet(SHIM, 1, fsync) as site:
        for kind in ("fsync-latency", "fsync-error"):
            with pytest.raises(UsageError, match=reason):
                fault(site, kind).why_not()
        assert fault(site, "power-cut").why_not() is None


def test_a_server_that_ignores_the_shim_is_noticed(tmp_path: Path) -> None:
    """As a statically linked or setuid one would: the wrapper takes the shim, the server behind it does not."""
    path = tmp_path / "ignoring-server"
    path.write_text(f"#!/bin/sh\nexec env -u LD_PRELOAD '{SERVERS[0].path}' \"$@\"\n")
    path.chmod(0o755)
    ignoring = ServerBinary(str(path), "redis", SERVERS[0].version, "", False, "evalsha", "test")
    with prepared_fleet(SHIM, server=ignoring) as site:
        assert fault(site, "power-cut").why_not() == IGNORED
        assert fault(site, "kill").why_not() is None


def test_without_a_compiler_the_fleet_starts_and_the_faults_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.topology.shim.shim_library", shim_library.__wrapped__)  # forgets what it compiled
    monkeypatch.setattr("bench.topology.shim.find_compiler", lambda: None)
    with prepared_fleet(SHIM) as site:
        assert "needs a C compiler" in str(fault(site, "power-cut").why_not())
        assert site.command(0, "PING") is True


def test_the_shim_works_from_a_folder_with_a_space_beside_another_preload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setenv("LD_PRELOAD", "")
    with prepared_fleet(SHIM, base_folder=folder) as site:
        assert fault(site, "power-cut").why_not() is None
    assert list(folder.iterdir()) == []
