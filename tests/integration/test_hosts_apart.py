"""One leader, two workers, servers: four networks, clocks hours apart, delay and loss between them,
the truth known.

The clock of a time namespace is ahead by seconds that we choose, so where each lease of the
histories really lay on the leader's clock is known to the nanosecond, and with it how long each
overlap of two leases was. Delays are a relay's, as this machine may have no netem; the loss is
real, by nft.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bench.measure.clocks import LOST_NS, Integers, read_clocks
from bench.measure.history import History, read_history
from bench.measure.outcomes import acquired
from bench.measure.record import (
    CALLERS_PER_WORKER,
    OUTCOMES,
    RECORD_DTYPE,
    TIMES,
    Records,
    records_of,
)
from bench.measure.run_result import RunResult
from bench.safety.judge import judge
from bench.topology.server import find_server
from tests.integration.locust_runs import CALM, ROOT, result_in, until
from tests.integration.test_distributed import LEAD, answer, hosts, run, urls
from tests.integration.test_hosts import HOURS, ahead, left, workers

__all__ = ["hosts", "urls"]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nft", "unshare"))),
        reason="networks, loss and other clocks need root, ip, nft and unshare",
    ),
]
Hosts = dict[str, tuple[str, ...]]
PORT = 5557
TTL_MS = 10_000
S = 10**9
# ε is at most half of the shortest round trip × this + so many seconds, on a busy machine, too
NEAR = 1.1, 0.0002
# ten minutes: ten million operations
MANY_S = int(os.environ.get("LOCKBENCH_TEST_MANY_S", "120"))
OPTIONS = ("--bind", "0.0.0.0", "--protected-mode", "no", "--save", "")
RELAY = """
import asyncio, selectors, sys
host, delay_s = sys.argv[1], float(sys.argv[2])

async def pump(reader, writer):
    later = asyncio.get_running_loop().call_later
    while data := await reader.read(1 << 16):
        later(delay_s, writer.write, data)
    later(delay_s, writer.close)

async def link(reader, writer):
    try:
        there = await asyncio.open_connection(host, 5557)
    except OSError:
        return writer.close()
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(link, "127.0.0.1", 5557) as server:
        await server.serve_forever()

loop = lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
with asyncio.Runner(loop_factory=loop) as runner:
    runner.run(main())  # its timers count microseconds, epoll's whole milliseconds
"""


def lossy(host: tuple[str, ...]) -> None:
    """From now on one packet of a hundred that comes to `host` is lost."""
    for words in (
        "add table ip lossy",
        "add chain ip lossy in { type filter hook prerouting priority 0; }",
        "add rule ip lossy in numgen random mod 100 < 1 drop",
    ):
        run(*host, "nft", words)


@dataclass(frozen=True)
class Seen:
    """A run led over three hosts, and the files that it judged."""

    code: int
    result: dict[str, Any]
    said: str
    files: Path


def nothing() -> None:
    """Nothing happens meanwhile."""


def led(
    folder: Path,
    hosts: Hosts,
    delay_ms: float,
    loss: bool,
    *words: object,
    meanwhile: Callable[[], object] = nothing,
    ends_s: float = 150,
) -> Seen:
    """Run to the end, and do something when it measures; the files that are judged stay linked."""
    files = folder / "files"
    files.mkdir()
    if loss:
        lossy(hosts["lead"])
    relay = (sys.executable, "-c", RELAY, LEAD, str(delay_ms / 1000))
    relays = [
        subprocess.Popen((*hosts[host], *relay), stderr=subprocess.DEVNULL)
        for host in ("one", "two")
    ]
    lead = (*hosts["lead"], sys.executable, "-m", "bench", "run", *map(str, words), "--out", "out")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    try:
        with (
            (folder / "said").open("w") as said,
            workers(
                folder,
                PORT,
                *(
                    (*hosts[host], *ahead(hour))
                    for host, hour in zip(("one", "two"), HOURS, strict=True)
                ),
            ),
        ):
            leader = subprocess.Popen(
                (*lead, "--expect-workers", "2", "--bind", LEAD),
                cwd=folder,
                env=environ,
                stdout=said,
                stderr=said,
            )
            until(
                lambda: "\nmeasuring" in (folder / "said").read_text() or leader.poll() is not None,
                "load",
                60,
            )
            meanwhile()
            until(
                lambda: _link(folder, files) or leader.poll() is not None, "the run's end", ends_s
            )
    finally:
        for relayed in relays:
            relayed.kill()
            relayed.wait()
    log = (folder / "said").read_text()
    assert "Traceback" not in log, log
    return Seen(leader.returncode, result_in(folder / "out", RunResult), log, files)


def _link(folder: Path, files: Path) -> None:
    for path in folder.glob("lockbench-run-*/*.bin"):
        with suppress(FileExistsError, FileNotFoundError):
            os.link(path, files / path.name)


def in_truth(files: Path) -> tuple[History, History]:
    """The history with its bounds, as it was judged, and as it really was on the leader's clock."""
    judged = read_history(files)
    clocks = read_clocks(files)
    ahead_ns = {
        worker: round((clock.ours(0) / -S) / 3600) * 3600 * S
        for (worker, _), clock in clocks.items()
    }
    assert sorted(ahead_ns.values()) == sorted(hour * S for hour in HOURS)
    raw_files = files / "raw"
    raw_files.mkdir()
    for path in files.glob("*.bin"):
        if not path.name.startswith("clock"):
            os.link(path, raw_files / path.name)
    raw = read_history(raw_files)
    ours = _times(raw.records).copy()
    shift = np.array([ahead_ns[worker] for worker in raw.records["caller"] // CALLERS_PER_WORKER])
    ours[:, :TIMES] -= np.where(ours[:, :TIMES] != 0, shift[:, None], 0)
    return judged, History(records_of(ours.view(RECORD_DTYPE).reshape(-1)), 0, 0)


def _times(records: Records) -> Integers:
    return np.ascontiguousarray(records).view("<i8").reshape(len(records), -1)


def overlaps_ns(records: Records) -> Integers:
    """How long each lease was granted while an earlier one of its resource was valid (0: it was
    not)."""
    rows = records[acquired(records) & (records["granted_ns"] < records["valid_until_ns"])]
    ends = np.where(
        rows["release_sent_ns"] > 0, np.minimum(rows["valid_until_ns"], rows["release_sent_ns"]), 0
    )
    ends = np.where(ends > 0, ends, rows["valid_until_ns"])
    found = []
    for resource in np.unique(rows["resource"]):
        mine = np.flatnonzero(rows["resource"] == resource)
        mine = mine[np.argsort(rows["granted_ns"][mine], kind="stable")]
        latest = np.maximum.accumulate(ends[mine])[:-1]
        found.append(np.minimum(latest, ends[mine][1:]) - rows["granted_ns"][mine][1:])
    return np.concatenate(found).clip(0)


def check_bounds(judged: History, truth: History) -> None:
    """Every time that was judged lies within its bounds."""
    assert judged.early is not None
    assert judged.late is not None
    early, true, late = (
        _times(one)[:, :TIMES] for one in (judged.early, truth.records, judged.late)
    )
    happened = true != 0
    assert (early <= true)[happened].all()
    assert (true <= late)[happened].all()
    assert (late - early)[happened].max() < LOST_NS


@pytest.mark.parametrize("delay_ms, loss", [(0, False), (0.25, True), (1, True), (20, True)])
def test_overlaps_longer_than_the_bounds_are_found_and_none_that_is_none_is_claimed(
    tmp_path: Path, hosts: Hosts, urls: list[str], delay_ms: float, loss: bool
) -> None:
    """A lock of check-then-set: two callers who both looked before either wrote hold it
    together."""
    until(lambda: answer(hosts, urls[0], "PING") == "True", "an answer across the namespaces")
    hold_ms = int(max(5, 8 * delay_ms))
    seen = led(
        tmp_path,
        hosts,
        delay_ms,
        loss,
        "--recipe",
        "get-set",
        "--target",
        urls[0],
        "--users",
        16,
        "--resources",
        4,
        "--hold",
        f"exp:{hold_ms}ms",
        "--pause",
        f"after-get:{hold_ms}ms:0.5",
        "--ttl",
        "10s",
        "--warmup",
        "500ms",
        "--duration",
        "8s",
        *CALM,
    )
    assert (seen.code, seen.result["verdict"]["word"]) == (5, "VIOLATED"), seen.said
    judged, truth = in_truth(seen.files)
    check_bounds(judged, truth)
    found = judge(judged, TTL_MS)
    true = judge(truth, TTL_MS)
    errors_s = [worker["clock_error_max_s"] for worker in seen.result["workers"]]
    sure_ns = 2 * sum(errors_s) * S
    lengths = overlaps_ns(truth.records)
    long = int((lengths > sure_ns).sum())
    usual_ms, floor_ms = (
        max(worker[name] for worker in seen.result["workers"]) * 1e3
        for name in ("clock_error_s", "round_trip_s")
    )
    floor_ms /= 2
    print(
        f"delay {delay_ms} ms, loss {loss}: half of the shortest round trip {floor_ms:.2f} ms, "
        f"error {usual_ms:.2f} ms, at most {max(errors_s) * 1e3:.2f} ms; overlaps "
        f"{true.service_faults}, longer than {sure_ns / 1e6:.2f} ms {long}, found "
        f"{found.service_faults}"
    )
    assert long > 10
    assert long <= found.service_faults <= true.service_faults
    assert found.service_faults == seen.result["safety"]["service_faults"]
    for worker in seen.result["workers"]:
        floor_s = worker["round_trip_s"] / 2
        assert floor_s > 0.9 * delay_ms / 1000, "there is a delay"
        assert worker["clock_error_s"] < NEAR[0] * floor_s + NEAR[1], "as near as round trips allow"
    assert left(tmp_path) == []


def test_a_lock_that_holds_is_never_called_violated_beside_loss_and_a_server_that_pauses(
    tmp_path: Path, hosts: Hosts, urls: list[str]
) -> None:
    until(
        lambda: all(answer(hosts, url, "PING") == "True" for url in urls),
        "answers across the namespaces",
    )
    targets = [word for url in urls for word in ("--target", url)]
    seen = led(
        tmp_path,
        hosts,
        1,
        True,
        "--recipe",
        "redlock",
        *targets,
        "--users",
        16,
        "--resources",
        4,
        "--hold",
        "exp:5ms",
        "--warmup",
        "500ms",
        "--duration",
        "8s",
        *CALM,
        meanwhile=lambda: answer(hosts, urls[0], "CLIENT", "PAUSE", "2000", "ALL"),
    )
    assert seen.result["safety"]["service_faults"] == 0, seen.said
    judged, truth = in_truth(seen.files)
    check_bounds(judged, truth)
    assert judge(truth, TTL_MS).service_faults == 0
    totals = seen.result["totals"]
    assert len(truth.records) == sum(
        value for name, value in totals.items() if name in OUTCOMES[1:6]
    ), "all, exactly"
    assert (seen.code, seen.result["verdict"]["word"]) in ((0, "SAFE"), (0, "NOT TESTED")), (
        seen.said
    )
    print(
        f"{len(truth.records)} operations, {seen.result['safety']['tested_leases']} tested leases"
    )


def server_of(port: int) -> psutil.Process:
    """Ours on host `data`."""
    named = (
        process
        for process in psutil.process_iter(["cmdline"])
        if f":{port}" in " ".join(process.info["cmdline"] or ())
    )
    return next(
        process for process in named if "redis" in process.name() or "valkey" in process.name()
    )


MANY = (
    "--recipe redlock --allow-missing --ttl 2s --max-ttl 2s --users 320 "
    f"--resources 250 --hold exp:10ms --warmup 1s --duration {MANY_S}s"
)


def test_many_million_operations_while_a_minority_is_stopped_and_killed(
    tmp_path: Path, hosts: Hosts, urls: list[str]
) -> None:
    """Every twenty seconds one of three servers stands still for three, or is killed and comes back
    empty."""
    until(
        lambda: all(answer(hosts, url, "PING") == "True" for url in urls),
        "answers across the namespaces",
    )
    targets = [word for url in urls for word in ("--target", url)]
    again = list[subprocess.Popen[bytes]]()

    def hurt() -> None:
        for turn, due_s in enumerate(range(20, MANY_S - 20, 20)):
            until(lambda due_s=due_s: time.monotonic() - begun_s > due_s, "its turn", 40)
            port = 7000 + turn % 3
            victim = server_of(port)
            if turn % 2:
                victim.kill()
                time.sleep(3)
                command = (*hosts["data"], find_server().path, "--port", str(port), *OPTIONS)
                again.append(subprocess.Popen(command))
            else:
                victim.suspend()
                time.sleep(3)
                victim.resume()

    begun_s = time.monotonic()
    try:
        seen = led(
            tmp_path,
            hosts,
            1,
            True,
            *MANY.split(),
            *targets,
            meanwhile=hurt,
            ends_s=MANY_S + 600,
        )
    finally:
        for process in again:
            process.kill()
            process.wait()
    safety = seen.result["safety"]
    totals = seen.result["totals"]
    print(
        f"{sum(totals.values()):,} operations, {totals['acquired']:,} leases, "
        f"{safety['tested_leases']:,} tested, "
        f"judged {safety['judged_ratio']:.0%}, {safety['verdict']}"
    )
    assert (safety["service_faults"], safety["granted_invalid"], safety["foreign_deletes"]) == (
        0,
        0,
        0,
    ), seen.said
    assert safety["verdict"] == "SAFE", seen.said
    assert sum(totals.values()) > 100_000
    assert left(tmp_path) == []
