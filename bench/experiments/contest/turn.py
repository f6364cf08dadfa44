"""One contestant's turn: *a contestant, servers, a load → its figures*, also with a server stopped in the middle.

Rules: a process of its own, killed when it does not end; what it does not answer becomes an error among the figures.
Commands are counted by the servers, only those that a client sends. Source: bench.experiments.contest.clients.order.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.experiments.contest.clients.order import BIN_S, Order, middle_us
from bench.experiments.contest.fairness import jains_index
from bench.experiments.contest.installed import Contestant
from bench.topology.fleet import Fleet
from bench.topology.probe import delta, info_snapshot
from bench.topology.target import parse_targets

TTL_MS, WAIT_MS = 10_000, 10_000
PATIENCE_S = 45.0  # beyond the load's time
SENT_BY_CLIENTS = ("set", "setnx", "eval", "evalsha", "delifeq", "delex", "blpop", "fcall")
BEFORE_S, STOPPED_S, AFTER_S = 3.0, 5.0, 4.0
EDGE_S = 0.5  # around a change that belongs to neither side
SETTLE_S = 1.5

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """`own`: a resource per caller; else one for all, held for `hold_s`."""

    instances: int
    callers: int
    own: bool
    seconds: float
    hold_s: float = 0.0


def contest(contestant: Contestant, fleet: Fleet, load: Load) -> Figures:
    """The figures of one turn: rates, latencies in µs, CPU per cycle in µs, failures."""
    before = info_snapshot(fleet.urls[: load.instances])
    with _running(contestant, _order(contestant, fleet, load, warmup_s=0.3)) as process:
        answer = _answer(process, load.seconds)
    counts = [delta(*pair) for pair in zip(before, info_snapshot(fleet.urls[: load.instances]), strict=True)]
    sent = sum(sum(change.calls.get(name, 0) for name in SENT_BY_CLIENTS) for change in counts)
    _forget(fleet)
    return figures_of(answer, sent)


def contest_stopped(contestant: Contestant, fleet: Fleet, load: Load) -> Figures:
    """The rates before, while and after the first of the instances stands still (SIGSTOP), and the keys left then."""
    whole_s = BEFORE_S + STOPPED_S + AFTER_S
    load = Load(load.instances, load.callers, load.own, whole_s)
    with _running(contestant, _order(contestant, fleet, load, warmup_s=0.0)) as process:
        complaints, process.stderr = process.stderr, None
        assert complaints is not None
        for line in complaints:
            if line.startswith(b"begin"):
                break
        threading.Thread(target=complaints.read, daemon=True).start()  # a full pipe would stop it
        time.sleep(BEFORE_S)
        fleet.stop(0)
        try:
            time.sleep(STOPPED_S)
        finally:
            fleet.cont(0)
        answer = _answer(process, whole_s)
    time.sleep(SETTLE_S)
    left = sum(_forget(fleet))
    bins = {int(number): int(count) for number, count in answer["bins"].items()}
    before = rate_between(bins, EDGE_S, BEFORE_S)
    stopped = rate_between(bins, BEFORE_S + EDGE_S, BEFORE_S + STOPPED_S)
    after = rate_between(bins, BEFORE_S + STOPPED_S + EDGE_S, whole_s)
    return {
        "before_per_s": before,
        "stopped_per_s": stopped,
        "after_per_s": after,
        "kept_ratio": stopped / ((before + after) / 2) if before + after else None,
        "keys_left": left,
        "cycles": answer["all_cycles"],
        "gave_up": answer["gave_up"],
        "errors": answer["errors"],
    }


def rate_between(bins: Mapping[int, int], from_s: float, until_s: float) -> float:
    """Completed cycles/s between two times after the begin; whole tenths of a second."""
    first, last = round(from_s / BIN_S), round(until_s / BIN_S)
    return sum(bins.get(number, 0) for number in range(first, last)) / ((last - first) * BIN_S)


def figures_of(answer: Mapping[str, Any], sent: int) -> Figures:
    """From a driver's tally and the `sent` commands that the servers counted."""
    cycles, times, failed = answer["cycles"], answer["acquires"], answer["failed"]
    return {
        "cycles_per_s": cycles / answer["seconds"],
        "p50_us": _percentile(times, failed, 0.50),
        "p99_us": _percentile(times, failed, 0.99),
        "failed": failed,
        "client_us": answer["client_us"] / cycles if cycles else None,
        "server_us": answer["server_us"] / cycles if cycles else None,
        "jain": jains_index(answer["leases_by_caller"]),
        "commands_per_lease": sent / answer["all_cycles"] if answer["all_cycles"] else None,
        "gave_up": answer["gave_up"],
        "leases": answer["all_cycles"],
        "errors": answer["errors"],
    }


def _percentile(times: Mapping[str, int], failed: int, share: float) -> float | None:
    """Of all that were begun; an acquire that was never granted took for ever, so that None may be among them."""
    left = int((sum(times.values()) + failed) * share)
    for bucket, count in sorted((int(name), count) for name, count in times.items()):
        left -= count
        if left < 0:
            return middle_us(bucket)
    return None


def _order(contestant: Contestant, fleet: Fleet, load: Load, *, warmup_s: float) -> Order:
    instances = fleet.instances[: load.instances]
    return Order(
        name=contestant.peer.name,
        urls=[instance.url for instance in instances],
        pids=[instance.pid for instance in instances],
        seconds=load.seconds,
        warmup_s=warmup_s,
        callers=load.callers,
        own=load.own,
        hold_s=load.hold_s,
        ttl_ms=TTL_MS,
        wait_ms=WAIT_MS,
    )


@contextmanager
def _running(contestant: Contestant, order: Order) -> Iterator[subprocess.Popen[bytes]]:
    """The contestant's process, told what to do; killed at the end, whatever happened."""
    process = subprocess.Popen(
        contestant.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **contestant.environment},
        start_new_session=True,  # Ctrl-C is ours to tell
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(order)).encode())
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.wait()


def _answer(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """What it wrote; an empty tally with the error's name when that is none."""
    try:
        out, complaint = process.communicate(timeout=seconds + PATIENCE_S)
        answer: dict[str, Any] = json.loads(out)
    except subprocess.TimeoutExpired:
        return _nothing(seconds, "did not end")
    except ValueError:
        lines = (complaint or b"").decode(errors="replace").strip().splitlines()
        return _nothing(seconds, (lines or ["no answer"])[-1][:120])
    return answer


def _nothing(seconds: float, error: str) -> dict[str, Any]:
    empty = {"cycles": 0, "leases_by_caller": [], "bins": {}, "gave_up": 0, "all_cycles": 0}
    return {
        **empty,
        "acquires": {},
        "failed": 0,
        "seconds": seconds,
        "errors": {error: 1},
        "client_us": 0.0,
        "server_us": 0.0,
    }


def _forget(fleet: Fleet) -> list[int]:
    """Empty our throw-away servers; how many keys each still had."""
    counts = []
    for target in parse_targets(fleet.urls):
        client = target.client(5.0)
        counts.append(int(client.dbsize()))
        client.flushall()
        client.close()
    return counts
