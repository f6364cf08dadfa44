"""The timestamp lock whose takeover is a SET: *GET an ended lock; SET it*. Flawed, on purpose: do not copy it.

Its fault: two clients that both read the ended lock both take it over. Source: the table in the README of this folder.
"""

from __future__ import annotations

from dataclasses import replace

from bench.recipes.timestamp_getset import TimestampGetset


class TimestampSet(TimestampGetset):
    """As timestamp-getset, but nobody looks what the takeover replaced."""

    about = replace(
        TimestampGetset.about,
        how="as timestamp-getset, but an ended lock is taken over by SET",
        flaw="two winners at a takeover; needs synchronised clocks",
    )

    def take_over(self, key: str, seen: bytes, end_ms: int) -> bool:
        """Whoever comes takes it."""
        self.ask("SET", key, end_ms)
        return True
