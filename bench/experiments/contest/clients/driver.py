"""One Python contestant, alone in its process: *an order on stdin → its answer on stdout*.

Rules: what a library writes to stdout goes to stderr, so that the answer stands alone. Source: order.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict

from bench.experiments.contest.clients import locks
from bench.experiments.contest.clients.loops import Run, by_greenlets, by_tasks, by_threads
from bench.experiments.contest.clients.order import ClientOrder, DriverAnswer

DRIVERS: dict[str, Run] = {
    "lockcore gevent": by_greenlets(locks.Lockcore.blocking("gevent")),
    "lockcore threads": by_threads(locks.Lockcore.blocking("threads")),
    "lockcore asyncio": by_tasks(locks.Lockcore.connect),
    "lockcore uvloop": by_tasks(locks.Lockcore.connect, uvloop=True),
    "redis-py Lock": by_threads(locks.RedisPy),
    "redis.asyncio Lock": by_tasks(locks.RedisAsyncio.connect),
    "python-redis-lock": by_threads(locks.PythonRedisLock),
    "redlock-py": by_threads(locks.RedlockPy),
    "pottery": by_threads(locks.Pottery),
    "pottery asyncio": by_tasks(locks.AsyncPottery.connect),
    "aioredlock": by_tasks(locks.Aioredlock.connect),
    "redis-py by hand": by_threads(locks.RedisPyByHand),
}


def _replay(order: ClientOrder) -> DriverAnswer:
    from bench.experiments.contest.clients.wire import replay

    return replay(order)


def _raw(order: ClientOrder) -> DriverAnswer:
    from bench.experiments.contest.clients.wire import Raw

    return by_threads(Raw)(order)


OURS: dict[str, Run] = {"replay": _replay, "raw": _raw}  # they need lockcore, which peers' environments have not


def main() -> None:
    """Run the order on stdin."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    order = ClientOrder(**json.load(sys.stdin))
    json.dump(asdict((DRIVERS | OURS)[order.name](order)), answer)
    answer.flush()
    os._exit(0)  # threads of a library that still wait for a stopped server have nothing more to say


if __name__ == "__main__":
    main()
