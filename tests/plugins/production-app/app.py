"""A service whose work is guarded by a lock, with its telemetry: `python app.py PORT URL…`, until a line of stdin.

Its page is http://127.0.0.1:PORT/metrics; what it did by its own count is its last line."""

import sys
import threading
import time

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from page import PageReader
from prometheus_client import start_http_server

from lockcore import Redlock
from lockcore.otel import instrument

metrics.set_meter_provider(MeterProvider([PageReader()]))
start_http_server(int(sys.argv[1]), "127.0.0.1")
lock = Redlock.connect(sys.argv[2:], max_ttl_ms=2000, rejoin="trust-first")
instrument(lock, slow_s=0.02, class_of=lambda resource: resource.partition(":")[0])
over, counting, done = threading.Event(), threading.Lock(), {"acquired": 0, "denied": 0}


def work(number: int) -> None:
    while not over.is_set():
        lease = lock.try_acquire(f"order:{number % 3}" if number else "stock:1", 2000, wait_ms=20)
        with counting:
            done["acquired" if lease else "denied"] += 1
        if lease:
            time.sleep(0.002)
            lock.try_release(lease)


threads = [threading.Thread(target=work, args=(number,)) for number in range(7)]
list(map(threading.Thread.start, threads))
sys.stdin.readline()
over.set()
list(map(threading.Thread.join, threads))
print(done["acquired"], done["denied"], flush=True)
sys.stdin.readline()
