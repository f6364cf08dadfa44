"""Decides whether a loop stays awake until a reply arrives.

Input: the time of each send, and the time at the end of each pass of the loop. Output: the decision
whether the loop looks again or sleeps.

Rules: a sleeping loop runs again about 30 µs after the reply has arrived. A nearby server replies
in less than 30 µs. So the loop stays awake for a moment and looks for the reply
(docs/lockcore/protocol.md, "A lone caller's loop stays awake"). After a vigil without a reply, the
loop sends without vigils for some time. After each further vigil without a reply, this time is
longer. Source: adaptive spinning of mutexes (Karlin et al., SODA 1990).
"""

import os

# The length of a vigil, which is about twice the time of a wake-up.
AWAKE_NS = 60_000

# A vigil delays other ready work by about this time.
PASS_NS = 30_000

# The loop stays awake only while at most this many replies are in flight.
LONELY = 2

# After a try without a reply, at most this many sends are skipped.
MOST_SKIPPED = 1024


# With one caller and one instance, a vigil reduced the acquire p50 from 57 to 22 µs. The rate rose
# from 8,400 to 20,600 cycles/s, and the CPU per cycle fell from 56 to 48 µs (gevent, compiled;
# docs/lab/lockcore.md). With two instances and other busy processes the rate fell from 8,000 to
# 4,900 cycles/s, because the awake loop takes the core that a server needs. So a vigil needs a
# single instance and more than one core. With a far server, a vigil would cost 60 µs of CPU per
# round. Because the pauses double, the cost is only 0.06 µs.
class Vigil:
    """A vigil is a short time for which a loop stays awake. This object begins and ends the vigils
    of one loop.

    `is_kept` is True during a vigil.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.is_kept = False
        # With one core, an awake loop would take the core that a server needs.
        self._is_of_use = (cores or _cores()) > 1
        self._until_ns = self._skip = self._misses = 0

    def begins(self, awaited: int, now_ns: int) -> bool:
        """Decide after a send at `now_ns` whether a vigil starts.

        `awaited` is the number of missing replies. Returns True if the loop should stay awake from
        now on.
        """
        was_kept = self.is_kept
        if was_kept:
            # The previous reply came in time.
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
        """True if the loop stays awake after this pass. False lets the loop sleep."""
        if awaited and now_ns < self._until_ns:
            return True
        if awaited:
            self._misses = min(2 * self._misses or 1, MOST_SKIPPED)
            self._skip = self._misses
        self.is_kept = False
        return False


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
