"""Whether a loop stays awake for a reply: *what was sent, the loop's next turn → look again at
once, or sleep*.

Rules: a loop that sleeps runs again some 30 µs after the reply has come, which is longer than a
server nearby takes for it; so it looks for a moment instead (README, "A lone caller's loop stays
awake"). Each try in vain makes it rarer. Source: adaptive spinning, as mutexes do it (Karlin et
al., SODA 1990).
"""

import os

AWAKE_NS = 60_000  # about twice what being woken costs
TURN_NS = 30_000  # what else becomes ready meanwhile waits about so long
LONELY = 2  # replies in flight
MOST_SKIPPED = 1024  # between two tries in vain


class Vigil:
    """One loop's. `is_kept`: it is awake for a reply."""

    def __init__(self, cores: int | None = None) -> None:
        self.is_kept = False
        self._is_of_use = (cores or _cores()) > 1  # else it would keep a server from its core
        self._until_ns = self._skip = self._misses = 0

    def begins(self, awaited: int, now_ns: int) -> bool:
        """Something was sent at `now_ns`; so many replies are awaited. True if the loop is to stay
        awake from now."""
        was_kept = self.is_kept
        if was_kept:  # the reply before has come in time
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
        """The loop's next turn: False lets it sleep."""
        if awaited and now_ns < self._until_ns:
            return True
        if awaited:
            self._misses = min(2 * self._misses or 1, MOST_SKIPPED)
            self._skip = self._misses
        self.is_kept = False
        return False


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
