"""Converts values that users write: *text or TOML value → number with its unit, distribution,
fault, URL*. The module also converts such values back to text.

Rules: a duration always names its unit, except `0`. If a value is wrong, the functions of this
module raise ValueError. The loader adds the place of the value to the error's text. The mask learns
the secrets of a URL before any message mentions the URL.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from bench.errors import UsageError, secrets

_UNIT_MS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m|h)")
THRESHOLD = re.compile(
    r"(?P<name>[a-z][a-z0-9_]*(\.[a-z0-9_]+)*)\s*(?P<operator><=|>=|==|!=|<|>)"
    r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|us|µs|ms|s|/s)?"
)


def says(sentence: str) -> Meta:
    """Return the meaning of a field, for the schema of results."""
    return Meta(description=sentence)


@dataclass(frozen=True, slots=True)
class Delay:
    """The distribution of a hold or think time.

    `kind`: fixed, exp or lognormal. `ms`: the constant, the mean or the median. `sigma`: the sigma
    of lognormal.
    """

    kind: Annotated[str, says("distribution of the time: fixed, exp or lognormal")] = "fixed"
    ms: Annotated[
        float,
        says(
            "time in ms: the constant time of fixed, the mean time of exp, or the median time of "
            "lognormal"
        ),
    ] = 0.0
    sigma: Annotated[
        float, says("sigma of a lognormal distribution; 0 for other distributions")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Skew:
    """The distribution with which callers choose resources.

    `kind`: uniform, own, zipf or hot. `value`: the exponent for the kind zipf, or the share of
    resource 0 for the kind hot.
    """

    kind: Annotated[str, says("how callers choose resources: uniform, own, zipf or hot")] = (
        "uniform"
    )
    value: Annotated[
        float,
        says("for zipf, the exponent; for hot, the share of the operations that use resource 0"),
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause at a pause point of a recipe.

    `share`: the probability (0 to 1) that a caller pauses when the caller reaches this point.
    """

    point: Annotated[str, says("name of a pause point of the recipe")]
    ms: Annotated[float, says("length of the pause")]
    share: Annotated[
        float, says("probability from 0 to 1 that a caller pauses when it reaches the point")
    ]


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault of a `kind` on a `target`.

    The fault begins `at_ms` after the start of the measured window and lasts `for_ms` (None: to the
    end).
    """

    kind: Annotated[str, says("kind of the fault, such as stop")]
    at_ms: Annotated[
        float, says("start of the fault, counted from the start of the measured window")
    ]
    for_ms: Annotated[
        float | None, says("duration of the fault; null means until the end of the window")
    ]
    target: Annotated[tuple[str, ...], says("targets of the fault, such as instance:0 or worker:0")]
    phase: Annotated[
        str,
        says(
            "`fixed`: the fault begins at `at_ms`; `random`: the seed delays the fault by up to 1 s"
        ),
    ]
    params: Annotated[Mapping[str, Any], says("further settings of this kind of fault")]


def parse_duration(raw: object) -> float:
    """Return the milliseconds of a duration such as `5ms`, `1.5s`, `1m`, `2h`, `250us` or 0."""
    if raw in (0, "0") and not isinstance(raw, bool):
        return 0.0
    match = _DURATION.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None:
        raise ValueError(f"{raw!r} is not a duration (write it like 5ms, 10s or 1m)")
    return float(match[1]) * _UNIT_MS[match[2]]


def duration_text(ms: float) -> str:
    """Return the shortest text for which `parse_duration` returns `ms` (2000.0 → 2s)."""
    for unit in ("h", "m", "s", "ms"):
        count = ms / _UNIT_MS[unit]
        if ms and count == int(count):
            return f"{int(count)}{unit}"
    return f"{ms:g}ms" if ms else "0"


def parse_delay(raw: object) -> Delay:
    """Return the distribution that a text describes.

    The forms are `0`, `5ms`, `fixed:5ms`, `exp:5ms` (mean) and `lognormal:5ms,1.0` (median, sigma).
    """
    forms = "write 0, fixed:5ms, exp:5ms or lognormal:5ms,1.0"
    kind, colon, rest = str(raw).partition(":")
    if not colon:
        kind = "fixed"
        rest = str(raw)
    median, comma, sigma = rest.partition(",")
    if kind not in ("fixed", "exp", "lognormal") or bool(comma) != (kind == "lognormal"):
        raise ValueError(f"{raw!r} is not a time distribution ({forms})")
    return Delay(
        kind, parse_duration(median), parse_share(sigma, 0.0, 10.0, "sigma") if comma else 0.0
    )


def delay_text(delay: Delay) -> str:
    """Return a text for which `parse_delay` returns `delay`."""
    if not delay.ms:
        return "0"
    return f"{delay.kind}:{duration_text(delay.ms)}" + (
        f",{delay.sigma:g}" if delay.kind == "lognormal" else ""
    )


def parse_skew(raw: object) -> Skew:
    """Return the `Skew` that a text describes. A `Skew` decides how often callers choose each
    resource.

    The forms are `uniform`, `own`, `zipf:1.1` (exponent) and `hot:0.9` (share of resource 0).
    """
    kind, _, value = raw.partition(":") if isinstance(raw, str) else ("", "", "")
    if raw in ("uniform", "own"):
        return Skew(raw)
    if kind == "zipf":
        return Skew(kind, parse_share(value, 0.0, 10.0, "exponent"))
    if kind == "hot":
        return Skew(kind, parse_share(value, 0.0, 1.0, "share"))
    raise ValueError(f"{raw!r} is not a skew (write uniform, own, zipf:1.1 or hot:0.9)")


def skew_text(skew: Skew) -> str:
    """Return a text for which `parse_skew` returns `skew`."""
    return skew.kind if skew.kind in ("uniform", "own") else f"{skew.kind}:{skew.value:g}"


def parse_share(raw: str, above: float, most: float, name: str) -> float:
    """Return the number in the text `raw`. The number must be greater than `above` and at most
    `most`.

    `name`: the name of the number in the error message.
    """
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not above < value <= most:
        raise ValueError(f"the {name} {raw!r} is not a number above {above:g} and up to {most:g}")
    return value


def parse_pause(raw: object) -> Pause:
    """Return the pause that a text such as `after-get:100ms:0.03` describes. The form is
    `point:duration:share`."""
    parts = raw.split(":") if isinstance(raw, str) else []
    if len(parts) != 3 or not parts[0]:
        raise ValueError(
            f"{raw!r} is not a pause (write point:how long:share, like after-get:100ms:0.03)"
        )
    return Pause(parts[0], parse_duration(parts[1]), parse_share(parts[2], 0.0, 1.0, "share"))


def parse_threshold(raw: object) -> str:
    """Check an expression such as `acquire.p99 < 10ms`, and return it stripped."""
    if not isinstance(raw, str) or not THRESHOLD.fullmatch(raw.strip()):
        raise ValueError(
            f"{raw!r} is not a threshold (write it like acquire.p99 < 10ms or "
            "safety.violations == 0)"
        )
    return raw.strip()


_Victim = Annotated[str, Meta(pattern=r"^(instance|worker):[0-9]+$")]


class _WrittenFault(Struct, forbid_unknown_fields=True, rename={"for_": "for"}):
    """A fault in the form of its TOML table."""

    at: str | int
    kind: str
    target: _Victim | Annotated[tuple[_Victim, ...], Meta(min_length=1)]
    for_: str | int | None = None
    phase: Literal["fixed", "random"] = "fixed"
    params: dict[str, Any] = {}


def parse_fault(raw: object) -> Fault:
    """Return the fault that a TOML table describes.

    The table has the keys `at`, `kind` and `target`. The keys `for`, `phase` and `params` are
    optional.
    """
    try:
        fault = convert(raw, _WrittenFault)
    except ValidationError as error:
        example = '{at = "5s", kind = "stop", target = ["instance:0"]}'
        raise ValueError(f"{raw!r} is not a fault: {error} (write it like {example})") from None
    lasts_ms = None if fault.for_ is None else parse_duration(fault.for_)
    if lasts_ms == 0:
        raise ValueError(
            "`for` is 0, so the fault would end at once; remove `for` if the fault must last "
            "until the end of the run"
        )
    targets = (fault.target,) if isinstance(fault.target, str) else fault.target
    return Fault(fault.kind, parse_duration(fault.at), lasts_ms, targets, fault.phase, fault.params)


def parse_target(raw: object) -> str:
    """Check a URL, and return it unchanged.

    Raises ValueError if lockcore cannot use the URL. The error's text is one sentence without
    secrets.
    """
    # Imported here: redis-py takes long to load, and most scenarios name no target.
    from lockcore.bench.sockets import target_of

    secrets().learn(raw)
    target_of(str(raw), 1.0, "")
    return str(raw)


def toml_value(text: str) -> object:
    """Convert the text of an option to a value.

    If the text is a TOML value, return this value. If the text is only a Python number, such as
    `.5` or `007`, return the number. Return every other text unchanged, so users can write a text
    without quotes.
    """
    for read in (lambda text: tomllib.loads(f"value = {text}")["value"], int, float):
        with suppress(ValueError):
            return read(text)
    return text


def require_known(noun: str, requested: Iterable[str], names: Iterable[str]) -> None:
    """Raise UsageError for the first name in `requested` that is not in `names`.

    The message suggests the most similar name. If no name is similar, the message lists all names.
    """
    choices = list(names)
    for name in requested:
        if name not in choices:
            meant = nearest(name, choices) or f"; the {noun}s are {', '.join(choices)}"
            raise UsageError(f"there is no {noun} {name!r}{meant}")


def nearest(wrong: object, names: Iterable[str]) -> str:
    """Return `; did you mean X?` with the most similar of `names`, or an empty text."""
    plain = {name.replace("-", "_"): name for name in names}
    best = difflib.get_close_matches(str(wrong).lower().replace("-", "_"), plain, n=1, cutoff=0.55)
    return f"; did you mean {plain[best[0]]}?" if best else ""
