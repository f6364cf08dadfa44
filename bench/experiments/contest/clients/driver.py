"""One Python contestant of `make peers`, alone in its process: *an order on stdin → its tally on stdout*.

Rules: what a library writes to stdout goes to stderr, so that the answer stands alone. Source: order.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from bench.experiments.contest.clients import locks
from bench.experiments.contest.clients.loops import Run, by_greenlets, by_tasks, by_threads, by_uvloop
from bench.experiments.contest.clients.order import Order

DRIVERS: dict[str, Run] = {
    "lockcore gevent": by_greenlets(lambda order: locks.Lockcore(order, "gevent")),
    "lockcore threads": by_threads(lambda order: locks.Lockcore(order, "threads")),
    "lockcore asyncio": by_tasks(locks.AsyncLockcore.connect),
    "lockcore uvloop": by_uvloop(locks.AsyncLockcore.connect),
    "redis-py Lock": by_threads(locks.RedisPy),
    "redis.asyncio Lock": by_tasks(locks.RedisAsyncio.connect),
    "python-redis-lock": by_threads(locks.PythonRedisLock),
    "redlock-py": by_threads(locks.RedlockPy),
    "pottery": by_threads(locks.Pottery),
    "pottery asyncio": by_tasks(locks.AsyncPottery.connect),
    "aioredlock": by_tasks(locks.Aioredlock.connect),
}


def main() -> None:
    """Run the order on stdin."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    order = Order(**json.load(sys.stdin))
    json.dump(DRIVERS[order.name](order).to_json(), answer)
    answer.flush()
    os._exit(0)  # threads of a library that still wait for a stopped server have nothing more to say


if __name__ == "__main__":
    main()
