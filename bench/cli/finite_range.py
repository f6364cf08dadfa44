"""A number within bounds on the command line: *text → float; "nan" and "inf" are refused like any wrong number*.

Rules: click.FloatRange lets nan through, as no comparison with it fails; what is measured with it fails late, without a
word that names the option. Source: IEEE 754, click.FloatRange.
"""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """click.FloatRange for numbers that are some."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails with the sentence of a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
