"""The request for telemetry: *the standard `OTEL_*` variables → TelemetrySettings, or None*.

Rules
- Telemetry needs an endpoint or an explicit exporter. If both the endpoint and the exporter are
  missing, lockbench does not import OpenTelemetry. In this case, lockbench writes and sends no
  telemetry.
- This module reads only the variables that decide *whether* and *how often* to export.
  OpenTelemetry's own exporters read the other variables.
- If lockbench cannot use the value of a setting, lockbench shows a warning or an error. lockbench
  never replaces a value without a message. Messages never show a value that may hold a secret.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from bench.errors import UsageError
from lockcore.bench import shown

HTTP = "http/protobuf"
GRPC = "grpc"
SIGNALS = ("METRICS", "TRACES")
# The standard interval is 60 s. That is longer than most runs.
INTERVAL_S = 1.0
ONE_IN = 1000

_SAMPLERS = ("always_on", "always_off", "traceidratio")
# Exporters in other languages support this protocol. If a user sets it, lockbench uses `HTTP`
# instead.
_JSON = "http/json"
_AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_EXPONENTIAL = "base2_exponential_bucket_histogram"
# Other values are ignored, with a warning.
_KNOWN = {
    "OTEL_METRICS_EXPORTER": ("otlp", "prometheus", "none"),
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    **{
        f"OTEL_EXPORTER_OTLP{signal}_PROTOCOL": (HTTP, GRPC)
        for signal in ("", "_METRICS", "_TRACES")
    },
    "OTEL_TRACES_SAMPLER": (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)),
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": ("cumulative",),
    "OTEL_METRICS_EXEMPLAR_FILTER": ("always_on", "always_off", "trace_based"),
    _AGGREGATION: ("explicit_bucket_histogram", _EXPONENTIAL),
}

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The settings of an export.

    `metrics`, `traces`: the OTLP protocol (None: the signal is not sent over OTLP). `page`: host
    and port of /metrics. `one_in`: if `one_in` is n, one of n ordinary operations is traced. If
    `one_in` is 0, no ordinary operation is traced. `exponential`: if true, OTLP gets exponential
    histograms instead of histograms with the table's bounds. `endpoint`: the address of the
    collector without secrets, as messages show it.
    """

    metrics: str | None = None
    traces: str | None = None
    page: tuple[str, int] | None = None
    interval_s: float = INTERVAL_S
    one_in: int = ONE_IN
    exponential: bool = False
    exemplars: bool = True
    endpoint: str = ""
    service_name: str = "lockbench"
    warnings: tuple[str, ...] = ()


def is_wanted(environ: Environ) -> bool:
    """Return whether any export is requested. This function takes little time and does not import
    OpenTelemetry."""
    off = _word(environ, "OTEL_SDK_DISABLED") == "true"
    return not off and any(_exporters(environ, signal) for signal in SIGNALS)


def settings_of(environ: Environ) -> TelemetrySettings | None:
    """Return the settings, or None if no export is requested.

    Raises UsageError for a value that cannot be read.
    """
    if not is_wanted(environ):
        return None
    metrics, traces = (_protocol(environ, signal) for signal in SIGNALS)
    # If a value is wrong, it is refused before any work starts.
    endpoints_of(environ)
    one_in = _one_in(environ)
    page = _page(environ) if "prometheus" in _exporters(environ, "METRICS") else None
    return TelemetrySettings(
        metrics=metrics,
        traces=None if one_in < 0 else traces,
        page=page,
        interval_s=max(
            _number(environ, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_S * 1000) / 1000, 0.1
        ),
        one_in=max(one_in, 0),
        exponential=_word(environ, _AGGREGATION) == _EXPONENTIAL,
        exemplars=_word(environ, "OTEL_METRICS_EXEMPLAR_FILTER") != "always_off",
        endpoint=_endpoint(environ, metrics or traces or HTTP),
        service_name=_service_name(environ),
        warnings=tuple(_ignored(environ)),
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address to which a signal is sent.

    `variable`: the name of the variable that holds the address. `url`: the address, split into its
    parts. A gRPC address may have no scheme.
    """

    variable: str
    url: SplitResult
    protocol: str
    insecure: bool


def endpoints_of(environ: Environ) -> list[Endpoint]:
    """Return the OTLP addresses in the variables, each address once.

    Raises UsageError for an address that can never work.
    """
    endpoints: dict[tuple[str, str], Endpoint] = {}
    if not is_wanted(environ):
        return []
    for signal in SIGNALS:
        protocol = _protocol(environ, signal)
        names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        variable = next((name for name in names if environ.get(name, "").strip()), None)
        if protocol is None or variable is None:
            continue
        insecure = any(
            _word(environ, name) == "true"
            for name in (f"OTEL_EXPORTER_OTLP_{signal}_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE")
        )
        url = _url(variable, environ[variable].strip(), protocol)
        endpoints[variable, protocol] = Endpoint(variable, url, protocol, insecure)
    return list(endpoints.values())


def _url(variable: str, text: str, protocol: str) -> SplitResult:
    """Split an address, and return its parts.

    The text may hold a password, so a message shows at most the host and port.
    """
    example = f"http://127.0.0.1:{4317 if protocol == GRPC else 4318}"
    has_scheme = "://" in text
    try:
        url = urlsplit(text if has_scheme else f"//{text}")
        host = url.hostname
        port = url.port
    except ValueError:
        raise UsageError(
            f"{variable} is not an address (its host or port cannot be read); write {example}"
        ) from None
    if protocol == GRPC:
        if not host and url.scheme in ("http", "https", ""):
            raise UsageError(f"{variable} names no host; write {example}")
        return url
    if not has_scheme:
        meant = example
        if host:
            # An IPv6 address needs brackets.
            name = f"[{host}]" if ":" in host else host
            meant = f"http://{name}:{port or 4318}"
        raise UsageError(
            f"{variable} has no scheme; write {meant}, or the same address with https://"
        )
    if url.scheme not in ("http", "https"):
        raise UsageError(
            f"{variable} has the scheme {url.scheme}://, but OTLP over HTTP does not use it; "
            f"write {example}"
        )
    if not host:
        raise UsageError(f"{variable} names no host; write {example}")
    return url


def _word(environ: Environ, name: str) -> str:
    return environ.get(name, "").strip().lower()


def _words(environ: Environ, name: str) -> set[str]:
    return {word.strip() for word in _word(environ, name).split(",")} - {""}


def _ignored(environ: Environ) -> Iterator[str]:
    for name, choices in _KNOWN.items():
        if unknown := _words(environ, name) - set(choices):
            ignored = f"lockbench ignores {', '.join(sorted(unknown))} in {name}"
            yield f"telemetry: {ignored}; the possible values are {', '.join(choices)}"


def _exporters(environ: Environ, signal: str) -> set[str]:
    """Return the names of the exporters for a signal, as the variables request them.

    If the variables name an endpoint but no exporter, the only exporter is `otlp`. If the variables
    name neither an endpoint nor an exporter, the result is empty.
    """
    if named := _words(environ, f"OTEL_{signal}_EXPORTER"):
        return named - {"none"}
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return {"otlp"} if any(_word(environ, name) for name in endpoints) else set()


def _protocol(environ: Environ, signal: str) -> str | None:
    if "otlp" not in _exporters(environ, signal):
        return None
    names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((name for name in names if _word(environ, name)), "")
    named = _word(environ, variable) or HTTP
    if named not in (HTTP, GRPC, _JSON):
        raise UsageError(
            f"{variable} is {named[:30]!r}, which is not a protocol of OTLP; set {HTTP} or {GRPC}"
        )
    return GRPC if named == GRPC else HTTP


def _endpoint(environ: Environ, protocol: str) -> str:
    names = [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        *(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT" for signal in SIGNALS),
    ]
    usual = f"http://localhost:{4317 if protocol == GRPC else 4318}"
    return shown(next((environ[name] for name in names if environ.get(name)), usual)).partition(
        "?"
    )[0]


def _one_in(environ: Environ) -> int:
    """Return the number n if one of n ordinary operations is traced.

    If n is 0, no ordinary operation is traced. If n is −1, there are no traces at all.
    """
    match _word(environ, "OTEL_TRACES_SAMPLER").removeprefix("parentbased_"):
        case "always_on":
            return 1
        case "always_off":
            return -1
        case "traceidratio":
            ratio = _number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0)
            return round(1 / ratio) if ratio > 0 else 0
    return ONE_IN


def _service_name(environ: Environ) -> str:
    pairs = (pair.partition("=") for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    named = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    return environ.get("OTEL_SERVICE_NAME") or named.get("service.name") or "lockbench"


def _page(environ: Environ) -> tuple[str, int]:
    port = _number(environ, "OTEL_EXPORTER_PROMETHEUS_PORT", 9464)
    if not 0 <= port <= 65535:
        raise UsageError(
            f"OTEL_EXPORTER_PROMETHEUS_PORT is {port:g}, which is not a port number; use a "
            "number from 1 to 65535, or 0 for any free port"
        )
    return environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "127.0.0.1", int(port)


def _number(environ: Environ, name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} is {text!r}, which is not a number; correct it or unset it")
    return number
