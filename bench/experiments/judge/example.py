"""An example of a lock that `lockbench judge` can test. Replace the code of this lock by your own
code.

lockbench calls `lock(urls)` once in each process, with the URLs of servers that it has started. The
function `lock` must return one of the following objects. Its calls may be synchronous or
asynchronous.

    a callable from a name to a context manager      with lock("stock:42"): ...
    an object with acquire(name) and release(name)   acquire may return False or None for "no"
    an object with acquire(name) and release(token)  acquire returns the token

Then run `lockbench judge THIS_FILE --quick`.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# The servers end a lock by themselves after this time, in s. Keep it below 30 s for the judge.
TTL_S = 5.0
# The time between two attempts, in s.
REST_S = 0.01
# A release may delete only a key that still holds our own token.
RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""


def lock(urls: Sequence[str]) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    """Return the lock on the first of these servers."""
    # The client must not repeat a command. If it sends a SET twice, the second SET may be refused
    # because the first SET took the key.
    client = redis.Redis.from_url(urls[0], socket_timeout=1.0, retry=Retry(NoBackoff(), 0))

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        owner = uuid.uuid4().hex
        try:
            while not _taken(client, name, owner):
                time.sleep(REST_S)
        except BaseException:
            # The server may have executed the SET even though the reply did not arrive.
            client.eval(RELEASE, 1, name, owner)
            raise
        try:
            yield
        finally:
            was_ours = client.eval(RELEASE, 1, name, owner)
        if not was_ours:
            raise RuntimeError(f"the lock {name!r} ended before its holder released it")

    return held


def _taken(client: redis.Redis, name: str, owner: str) -> bool:
    """Return whether this caller got the lock. If the grant took at least 90 % of the TTL, release
    the lock and return False.
    """
    begun_s = time.monotonic()
    if not client.set(name, owner, nx=True, px=int(TTL_S * 1000)):
        return False
    if time.monotonic() - begun_s < 0.9 * TTL_S:
        return True
    client.eval(RELEASE, 1, name, owner)
    return False
