"""A lock that `lockbench judge` can ask. Put your own in its place.

lockbench calls `lock(urls)` once in each process, with the URLs of servers that it has started.
What `lock` returns must be one of these, synchronous or asynchronous:

    a callable from a name to a context manager      with lock("stock:42"): ...
    an object with acquire(name) and release(name)   acquire may return False for "no"

Then run:  lockbench judge THIS_FILE --quick
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import redis

# The servers end a lock by themselves after this time, in ms. Keep it below 30 s for the judge.
TTL_MS = 5_000
# The time between two attempts, in s.
REST_S = 0.01
# A release may only delete what is still ours.
RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""


def lock(urls: Sequence[str]) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    """Return the lock on the first of these servers."""
    client = redis.Redis.from_url(urls[0])

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        owner = uuid.uuid4().hex
        while not client.set(name, owner, nx=True, px=TTL_MS):
            time.sleep(REST_S)
        try:
            yield
        finally:
            client.eval(RELEASE, 1, name, owner)

    return held
