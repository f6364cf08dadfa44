"""The standard OTEL_* variables: what each means here, and what is said of those that cannot be
honoured."""

import pytest

from bench.errors import UsageError
from bench.telemetry.settings import GRPC, HTTP, TelemetrySettings, is_wanted, settings_of

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {
            "OTEL_SERVICE_NAME": "x",
            "OTEL_RESOURCE_ATTRIBUTES": "a=b",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        },
        {**ENDPOINT, "OTEL_SDK_DISABLED": "true"},
        {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_there_is_no_telemetry(environ: dict[str, str]) -> None:
    assert not is_wanted(environ)
    assert settings_of(environ) is None


def settings(**variables: str) -> TelemetrySettings:
    found = settings_of({**ENDPOINT, **variables})
    assert found is not None
    return found


def test_an_endpoint_is_enough_and_speaks_http_protobuf() -> None:
    found = settings()
    assert (found.metrics, found.traces, found.page) == (HTTP, HTTP, None)
    assert (found.interval_s, found.one_in, found.warnings) == (1.0, 1000, ())


def test_signals_have_endpoints_exporters_and_protocols_of_their_own() -> None:
    only_traces = settings_of({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://tempo:4318/v1/traces"})
    assert only_traces is not None
    assert (only_traces.metrics, only_traces.traces) == (None, HTTP)
    assert settings(OTEL_METRICS_EXPORTER="none").metrics is None
    assert settings(OTEL_EXPORTER_OTLP_PROTOCOL="grpc").traces == GRPC
    mixed = settings(OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="grpc")
    assert (mixed.metrics, mixed.traces) == (GRPC, HTTP)


def test_the_page_is_on_loopback_unless_somebody_asks_for_more() -> None:
    page = settings_of({"OTEL_METRICS_EXPORTER": "prometheus"})
    assert page is not None
    assert (page.page, page.metrics, page.traces) == (("127.0.0.1", 9464), None, None)
    both = settings(
        OTEL_METRICS_EXPORTER="otlp,prometheus",
        OTEL_EXPORTER_PROMETHEUS_PORT="9999",
        OTEL_EXPORTER_PROMETHEUS_HOST="0.0.0.0",
    )
    assert (both.page, both.metrics) == (("0.0.0.0", 9999), HTTP)


@pytest.mark.parametrize(
    "sampler, argument, traces, one_in",
    [
        ("always_on", "", HTTP, 1),
        ("parentbased_always_on", "", HTTP, 1),
        ("always_off", "", None, 0),
        ("traceidratio", "0.01", HTTP, 100),
        ("parentbased_traceidratio", "0", HTTP, 0),
    ],
)
def test_samplers_say_how_many_ordinary_operations_are_traced(
    sampler: str, argument: str, traces: str | None, one_in: int
) -> None:
    found = settings(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    assert (found.traces, found.one_in) == (traces, one_in)


@pytest.mark.parametrize(
    "name, value",
    [
        ("OTEL_METRICS_EXPORTER", "otlp,console"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "drop"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "seldom"),
    ],
)
def test_what_cannot_be_honoured_is_said(name: str, value: str) -> None:
    (warning,) = settings(**{name: value}).warnings
    assert f"lockbench ignores {value.rpartition(',')[2]} in {name}" in warning


def test_histograms_are_exponential_where_the_standard_variable_says_so() -> None:
    name = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    assert settings(**{name: " BASE2_Exponential_Bucket_Histogram"}).exponential
    assert not settings(**{name: "explicit_bucket_histogram"}).exponential
    assert not settings().exponential


@pytest.mark.parametrize("text", ["soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["OTEL_METRIC_EXPORT_INTERVAL", "OTEL_EXPORTER_PROMETHEUS_PORT"])
def test_what_is_no_number_is_refused_in_one_sentence(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is '{text}'"):
        settings(**{name: text, "OTEL_METRICS_EXPORTER": "prometheus"})


def test_the_endpoint_is_shown_without_its_password() -> None:
    found = settings(
        OTEL_EXPORTER_OTLP_ENDPOINT="https://ann:hunter2@collector:4318/?token=hunter2"
    )
    assert "hunter2" not in found.endpoint
    assert "collector:4318" in found.endpoint


def test_the_interval_is_in_milliseconds_and_never_a_busy_loop() -> None:
    assert settings(OTEL_METRIC_EXPORT_INTERVAL="5000").interval_s == 5.0
    assert settings(OTEL_METRIC_EXPORT_INTERVAL="0").interval_s == 0.1


@pytest.mark.parametrize(
    "variables, name",
    [
        ({}, "lockbench"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team=a, service.name=of%20us"}, "of us"),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs"}, "mine"),
    ],
)
def test_the_service_is_named_by_the_standard_variables(
    variables: dict[str, str], name: str
) -> None:
    assert settings(**variables).service_name == name
