"""A service whose work a lock guards, and its telemetry: `python app.py PORT URL…`; its last line
is its own view."""

import json
import sys
import threading
from time import monotonic, sleep

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from page import reader_of

from lockcore import Redlock
from lockcore.otel import instrument

metrics.set_meter_provider(MeterProvider([reader_of(int(sys.argv[1]))]))
lock = Redlock.connect(sys.argv[2:], max_ttl_ms=2000, rejoin="trust-first")
instrument(lock, slow_s=0.02, class_of=lambda resource: resource.partition(":")[0])
# nobody gives these back
_, late = (lock.acquire(f"stock:{name}", ttl_ms=200) for name in ("forgotten", "late"))
over = threading.Event()
seen = []


def work(resource: str) -> None:
    while not over.is_set():
        at_s = monotonic()
        got = lock.try_acquire(resource, 2000, wait_ms=20)
        got_s = monotonic()
        if got:
            sleep(0.002)
        back = lock.try_release(got).value if got else ""
        seen.append(
            (
                resource,
                got.outcome.value,
                got.attempts,
                got.split_votes,
                back,
                at_s,
                got_s,
                monotonic(),
            )
        )


threads = [
    threading.Thread(target=work, args=(f"order:{number % 3}" if number else "stock:1",))
    for number in range(7)
]
list(map(threading.Thread.start, threads))
sys.stdin.readline()
# and this one is asked for, when it has run out
lock.try_extend(late)
sys.stdin.readline()
over.set()
list(map(threading.Thread.join, threads))
print(
    json.dumps((seen, [(one.address, one.commands, dict(one.errors)) for one in lock.instances])),
    flush=True,
)
sys.stdin.readline()
