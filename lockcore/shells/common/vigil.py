"""Whether a loop stays awake for a reply: *what was sent, the next pass → look again, or sleep*.

Rules: a loop that sleeps runs again some 30 µs after the reply has come. A server nearby takes less
than that for the reply, so the loop looks for a moment instead (docs/lockcore/protocol.md, "A
lone caller's loop stays awake"). Each try in vain makes it rarer. Source: adaptive spinning, as
mutexes do it (Karlin et al., SODA 1990).
"""

import os

# About twice the time that being woken costs.
AWAKE_NS = 60_000

# Whatever else becomes ready meanwhile waits for about so long.
PASS_NS = 30_000

# It looks only while at most so many replies are in flight.
LONELY = 2

# So many sends are skipped at most between two tries in vain.
MOST_SKIPPED = 1024


# Where one caller is alone at a single instance, looking instead of sleeping took the acquire p50
# from 57 to 22 µs and the rate from 8,400 to 20,600 cycles/s, for 48 µs of CPU per cycle instead of
# 56 (gevent, compiled; docs/lab/lockcore.md). With two instances beside busy processes it was a
# loss (8,000 → 4,900 cycles/s), because what looks keeps a server from its core. So it is for a
# single instance and for more than one core. Without the doubling of the pauses a far server would
# cost 60 µs of CPU per round; with it 0.06 µs.
class Vigil:
    """The vigil of one loop. `is_kept`: the loop is awake for a reply."""

    def __init__(self, cores: int | None = None) -> None:
        self.is_kept = False
        # With one core it would keep a server from its core.
        self._is_of_use = (cores or _cores()) > 1
        self._until_ns = self._skip = self._misses = 0

    def begins(self, awaited: int, now_ns: int) -> bool:
        """Something was sent at `now_ns`, and `awaited` replies are awaited.

        True if the loop is to stay awake from now on.
        """
        was_kept = self.is_kept
        if was_kept:
            # The reply before has come in time.
            self._misses = 0
        elif self._skip:
            self._skip -= 1
            return False
        if awaited > LONELY or not self._is_of_use:
            return False
        self._until_ns = now_ns + AWAKE_NS
        self.is_kept = True
        return not was_kept

    def goes_on(self, awaited: int, now_ns: int) -> bool:
        """The loop makes its next pass: False lets it sleep."""
        if awaited and now_ns < self._until_ns:
            return True
        if awaited:
            self._misses = min(2 * self._misses or 1, MOST_SKIPPED)
            self._skip = self._misses
        self.is_kept = False
        return False


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
