"""A Python lock under load, alone in its process: *an order on stdin → its answer on stdout*.

Rules: the locks are those that the audit plays with, by the same calls; here are two more, by hand.
What a library writes to stdout goes to stderr. Threads of a library may still wait for a stopped
server at the end. They have nothing more to say, so nobody waits for them.
"""

import json
import logging
import os
import sys
from importlib import import_module

from bench.experiments.audit.clients.driver import LIBRARIES
from bench.experiments.judge.clients.lock import KEY_PREFIX, PUSH, ClientOrder, Lock
from bench.experiments.judge.clients.steps import BLOCKING
from tests.contest.clients.loops import (
    DriverAnswer,
    LoadOrder,
    raw,
    replay,
    run_blocking,
    run_tasks,
)


def redis_by_hand(order: ClientOrder) -> Lock:
    """The commands of Redlock by redis-py, one instance after the other."""
    redis = import_module("redis")
    clients = [redis.Redis.from_url(url) for url in order.urls]
    source = import_module("lockcore.rounds.commands").COMPARE_AND_DELETE.source
    scripts = [client.register_script(source) for client in clients]

    def acquire(resource: str, ttl_ms: int, _wait_ms: int) -> str:
        for client in clients:
            client.set(KEY_PREFIX + resource, "owner", nx=True, px=ttl_ms)
        return KEY_PREFIX + resource

    def release(key: str) -> None:
        for script in scripts:
            script(keys=[key], args=["owner"])

    return Lock(acquire, release)


CONNECTED = LIBRARIES | {"redis-py by hand": ("threads", redis_by_hand), "raw": ("threads", raw)}


def drive(order: LoadOrder) -> DriverAnswer:
    """Have its callers lock and release until the time is over."""
    if order.name == "replay":
        return replay(order)
    how, connect = CONNECTED[order.name.removesuffix(PUSH)]
    if how in BLOCKING:
        return run_blocking(connect, order, greenlets=how == "gevent")
    answer: DriverAnswer = import_module(how).run(run_tasks(connect, order))
    return answer


def main() -> None:
    """Run the order on stdin."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    answer.write(json.dumps(vars(drive(LoadOrder(**json.load(sys.stdin))))) + "\n")
    answer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
