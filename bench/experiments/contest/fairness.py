"""How evenly callers were served: *leases per caller → Jain's index*.

Source: Jain, Chiu and Hawe, DEC-TR-301 (1984).
"""

from __future__ import annotations

from collections.abc import Sequence


def jains_index(amounts: Sequence[float]) -> float | None:
    """(Σx)² ÷ (n · Σx²): 1 when all got the same, 1/n when one got all; None when nobody got anything."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None
