"""Asking a Prometheus on this machine: *PromQL, a time or a range → series, and its warnings*.

Rules: an answer that is an error, and a value that is no number (NaN), are told as such, never left out silently.
Source: Prometheus, "HTTP API" (/api/v1/query, /api/v1/query_range, /api/v1/status/buildinfo).
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import EnvironmentNotReadyError

_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels, and (seconds since the epoch, value) with None for NaN and infinity."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float | None], ...]

    @property
    def last(self) -> float | None:
        """The last value that is a number."""
        return next((value for _, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `error` is empty when the query could be answered."""

    series: tuple[Series, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""

    @property
    def has_data(self) -> bool:
        """Whether there is at least one number."""
        return any(one.last is not None for one in self.series)


class Prometheus:
    """A Prometheus at `url` (http://host:port)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def at(self, query: str, time_s: float) -> Answer:
        """The answer at one time (seconds since the epoch). Raises EnvironmentNotReadyError when nobody answers."""
        return self._ask("query", query=query, time=f"{time_s:.3f}")

    def over(self, query: str, start_s: float, end_s: float, step_s: float) -> Answer:
        """The answer over a range, a value every `step_s`. Raises EnvironmentNotReadyError when nobody answers."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return self._ask("query_range", query=query, **times)

    def version(self) -> str:
        """Its version."""
        return str(self._get("status/buildinfo", None)["data"]["version"])

    def _ask(self, what: str, **parameters: str) -> Answer:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            document = self._get(what, body)
        except urllib.error.HTTPError as refusal:
            return Answer(error=_reason(refusal))
        told = (*document.get("warnings", ()), *document.get("infos", ()))
        return Answer(tuple(_series(one) for one in document["data"]["result"]), told)

    def _get(self, what: str, body: bytes | None) -> Any:
        url = f"{self.url}/api/v1/{what}"
        try:
            with urllib.request.urlopen(url, data=body, timeout=_ANSWER_S) as answer:  # noqa: S310 - on loopback
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise EnvironmentNotReadyError(f"Prometheus at {self.url} does not answer: {reason}") from error


def _reason(refusal: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(refusal)["error"])
    except (ValueError, KeyError):
        return f"HTTP {refusal.code}"


def _series(one: Mapping[str, Any]) -> Series:
    points = one["values"] if "values" in one else [one["value"]]
    return Series(one["metric"], tuple((float(time), _number(text)) for time, text in points))


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
