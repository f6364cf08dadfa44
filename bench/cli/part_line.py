"""What is done now, on stderr: *a sentence that opens with the part of the work → one line*.

Rules: redrawn in place on a terminal, elsewhere one line per part; nothing when quiet. Source: README's `--quiet`.
"""

from __future__ import annotations

import sys


class PartLine:
    """Shows sentences like `schedule: row 3 of 64`; what stands before the colon is the part."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._redraws, self._part = quiet, sys.stderr.isatty(), ""

    def __call__(self, text: str) -> None:
        """Show `text`."""
        part = text.partition(":")[0]
        if self._quiet or (part == self._part and not self._redraws):
            return
        self._part = part
        begin, end = ("\r\x1b[2K", "") if self._redraws else ("", "\n")
        print(f"{begin}{text}", end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Give the line back."""
        if self._redraws and self._part:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
