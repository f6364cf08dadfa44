"""Asking a Prometheus on this machine: *PromQL, a time or a range → series, and its warnings*.

Rules: an answer that is an error, and a value that is no number (NaN), are told as such, never left out silently.
Source: Prometheus, "HTTP API" (/api/v1/query, /api/v1/query_range, /api/v1/status/buildinfo).
"""

from __future__ import annotations

import math
import urllib.error
import urllib.parse
import urllib.request

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.experiments.observe.result import Answer, Series
from bench.measure.reading import decoded
from bench.measure.section import Section

_ANSWER_S = 30.0


class _Found(Section, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str] | None = None  # of an instant query
    values: tuple[tuple[float, str], ...] = ()


class _Answered(Section, frozen=True):
    result: tuple[_Found, ...] = ()
    version: str = ""


class _Reply(Section, frozen=True):
    data: _Answered = _Answered()
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    error: str = ""


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
        return self._get("status/buildinfo", None).data.version

    def _ask(self, what: str, **parameters: str) -> Answer:
        reply = self._get(what, urllib.parse.urlencode(parameters).encode())
        series = tuple(_series(one) for one in reply.data.result)
        return Answer(error=reply.error, warnings=(*reply.warnings, *reply.infos), series=series)

    def _get(self, what: str, body: bytes | None) -> _Reply:
        url = f"{self.url}/api/v1/{what}"
        try:
            with urllib.request.urlopen(url, data=body, timeout=_ANSWER_S) as answer:  # noqa: S310 - on loopback
                return decoded(answer.read(), _Reply)
        except urllib.error.HTTPError as refusal:
            return _refused(refusal)
        except (OSError, msgspec.MsgspecError) as error:
            reason = getattr(error, "reason", error)
            raise EnvironmentNotReadyError(f"Prometheus at {self.url} does not answer: {reason}") from error


def _refused(refusal: urllib.error.HTTPError) -> _Reply:
    said = f"HTTP {refusal.code}"
    try:
        return _Reply(error=decoded(refusal.read(), _Reply).error or said)
    except msgspec.MsgspecError:
        return _Reply(error=said)


def _series(one: _Found) -> Series:
    points = one.values if one.value is None else (one.value,)
    return Series(labels=one.metric, points=tuple((time_s, _number(text)) for time_s, text in points))


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
