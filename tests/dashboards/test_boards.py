"""The boards are what their code says, and every panel can be read: a unit, a description, metrics
of the table."""

import json
import re
from math import inf

import pytest

from bench.telemetry.table import BOUNDS, BY_NAME, InstrumentKind
from tests.dashboards.prometheus_answers import FOLDER, panels_of

dashboards_main = pytest.importorskip(
    "dashboards.__main__", reason="grafana-foundation-sdk is not installed"
)
panels = pytest.importorskip("dashboards.panels")
queries = pytest.importorskip("dashboards.queries")

FILES = sorted(FOLDER.glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels_of(board)
]
EXPRS = [
    pytest.param(target["expr"], id=f"{param.id} {target['refId']}")
    for param in PANELS
    for target in param.values[0]["targets"]
]
_SERIES = {
    f"{one.prometheus}{suffix}": one
    for one in BY_NAME.values()
    for suffix in (
        ("", "_bucket", "_sum", "_count") if one.kind is InstrumentKind.HISTOGRAM else ("",)
    )
}
_SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")


def test_the_committed_boards_are_what_the_code_makes_byte_for_byte() -> None:
    assert {path.name for path in FILES} == set(dashboards_main.BOARDS)
    for path in FILES:
        built = dashboards_main.BOARDS[path.name]()
        assert built == path.read_text(encoding="utf-8"), (
            f"{path.name} is old: run python -m dashboards"
        )
        assert built == dashboards_main.BOARDS[path.name](), "made twice, it differs"


def test_there_are_the_four_boards_with_readable_uids() -> None:
    assert {board["uid"]: board["title"] for board in BOARDS.values()} == {
        "lockbench-run-overview": "lockbench: Run overview",
        "lockbench-quorum": "lockbench: Quorum and split-brain retries",
        "lockbench-fsync": "lockbench: Fsync trade-off",
        "lockbench-generator": "lockbench: Generator health and comparison",
        "lockbench-production": "lockbench: Locks in production",
    }


@pytest.mark.parametrize("name", sorted(set(BOARDS) - {"production"}))
def test_a_board_has_the_variables_and_annotations_that_all_share(name: str) -> None:
    board = BOARDS[name]
    variables = {one["name"]: one for one in board["templating"]["list"]}
    shared = ["datasource", "name", "started", "run", "recipe", "policy", "instance", "port"]
    assert list(variables)[:8] == shared
    assert variables["datasource"]["type"] == "datasource"
    assert all(
        variables[each]["multi"] and variables[each]["allValue"] == ".*"
        for each in list(variables)[1:6]
    )
    assert [one["name"] for one in board["annotations"]["list"]] == ["Faults", "Run start and end"]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(board)))
    assert used - {"__rate_interval", "__range", "__all"} <= set(variables)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_of_their_own_and_neither_overlap_nor_overflow(name: str) -> None:
    all_panels = BOARDS[name]["panels"]
    ids = [panel["id"] for panel in all_panels]
    assert all(isinstance(one, int) for one in ids)
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in all_panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        mine = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_title_unit_description_and_the_boards_data_source(panel: dict) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 10
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("expr", EXPRS)
def test_a_query_asks_for_metrics_and_labels_of_the_table_only(expr: str) -> None:
    selectors = _SELECTOR.findall(expr)
    assert selectors
    for name, matchers in selectors:
        assert name in _SERIES, name
        one = _SERIES[name]
        labels = re.findall(r"(\w+)=~?\"", matchers)
        own = {attribute.label for attribute in one.attributes}
        scope = (
            {"redlock_run_id", "job"}
            if "$service" in expr
            else {"redlock_run_id", "redlock_recipe", "redlock_fsync"}
        )
        assert scope <= set(labels)
        assert set(labels) <= own | scope | {"le"}
        assert ("server_address" in labels) == ("server_address" in own), (
            "narrowed by instance where it can be"
        )
        for bound in re.findall(r'le="([^"$]+)"', matchers):
            assert float(bound) in (*BOUNDS, inf)
        for label, value in re.findall(r'(\w+)="([^"$]+)"', matchers):
            known = next((at.values for at in one.attributes if at.label == label), ())
            assert not known or value in known, f"{label} is never {value}"


@pytest.mark.parametrize("expr", EXPRS)
def test_a_query_on_a_histogram_answers_on_a_native_one_too(expr: str) -> None:
    """Where a scrape converts them there is no `_bucket`, `_sum` or `_count`."""
    for name, _ in _SELECTOR.findall(expr):
        one = _SERIES[name]
        if one.kind is InstrumentKind.HISTOGRAM:
            assert f"{one.prometheus}{{" in expr, name


@pytest.mark.parametrize("expr", EXPRS)
def test_counters_are_rated_or_taken_whole_and_rates_use_the_rate_interval(expr: str) -> None:
    assert not re.search(r"\[\d", expr), "a fixed window"
    assert ":]" not in expr, (
        "a subquery without a step is empty at Prometheus's default evaluation interval"
    )
    for match in _SELECTOR.finditer(expr):
        one = _SERIES[match.group(1)]
        before = expr[: match.start()]
        after = expr[match.end() :]
        if one.kind is InstrumentKind.GAUGE:
            assert not re.search(r"(rate|increase)\($", before)
        elif before.endswith("rate("):
            assert after.startswith("[$__rate_interval]")
        else:
            assert before.endswith("last_over_time("), f"{match.group(1)} is a counter"
            assert after.startswith("[$__range]")


@pytest.mark.parametrize("panel", PANELS)
def test_a_panels_unit_is_that_of_its_metrics(panel: dict) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        expr = target["expr"]
        ones = [_SERIES[name] for name, _ in _SELECTOR.findall(expr)]
        if unit == "s":
            assert "s" in {one.unit for one in ones}
        elif unit == "bytes":
            assert {one.unit for one in ones} == {"By"}
        elif unit == "percentunit":
            assert " / " in expr or {one.unit for one in ones} == {"s"}
        elif unit == "none":
            assert {one.kind for one in ones} == {InstrumentKind.GAUGE}
        elif unit == "suffix:×":
            assert " / " in expr
        else:
            assert re.fullmatch(r"suffix:[a-z]+(/s|/lease)?", unit)
            # leases over seconds
            whole = "redlock_load_time" in expr
            rated = "rate(" in expr or all(one.unit.endswith("/s") for one in ones)
            assert unit.endswith("/s") == (
                whole
                or (
                    rated
                    and " / " not in expr
                    and "quantile(0.99" not in expr
                    and "quantile(0.01" not in expr
                )
            )


def test_an_index_and_a_state_have_no_unit_and_no_suffix_begins_with_a_space() -> None:
    """Grafana writes a space before a suffix. "0.99 indexs" was on a board."""
    units = {
        panel.values[0]["title"]: panel.values[0]["fieldConfig"]["defaults"]["unit"]
        for panel in PANELS
    }
    assert {title for title, unit in units.items() if unit == "none"} == {
        "Fairness among callers",
        "Faults",
        "Abstaining",
        "AOF rewrites",
        "Votes for its clients",
    }
    assert not [unit for unit in units.values() if ": " in unit]
    nouns = {
        unit.removeprefix("suffix:").partition("/")[0]
        for unit in units.values()
        if "suffix" in unit
    }
    known = (
        "acquires attempts callers commands connections errors fsyncs instances items "
        "leases locks restarts rounds "
        "turns violations votes ×"
    )
    assert nouns == set(known.split())


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_of_single_figures_says_in_words_that_there_is_none(panel: dict) -> None:
    """Grafana writes "No data" otherwise, which may be a fault of the stack or not."""
    words = panel["fieldConfig"]["defaults"].get("noValue")
    if panel["type"] not in ("stat", "bargauge"):
        assert words is None, "a graph without a line shows its time range"
        return
    assert re.fullmatch(r"(no|not|choose) [a-z ]+", words)


def test_a_missing_figure_is_not_blamed_on_a_run_or_service_that_may_be_in_view() -> None:
    """A ratio has no value while nothing happens, and what stands now has none once a run has
    ended."""
    words = {
        param.id: param.values[0]["fieldConfig"]["defaults"].get("noValue") for param in PANELS
    }
    assert {words[f"production: {title}"] for title in ("Failed", "Slow")} == {"no acquire lately"}
    assert words["quorum: Instances beyond the quorum"] == "not known now"


def test_a_board_opens_on_the_time_that_its_question_takes() -> None:
    spans = {name: (board["time"]["from"], board["refresh"]) for name, board in BOARDS.items()}
    one = ("now-3m", "5s")
    some = ("now-30m", "5s")
    assert spans == {
        "run-overview": one,
        "quorum": one,
        "fsync": some,
        "generator": some,
        "production": ("now-1h", "30s"),
    }


def test_every_instrument_that_a_run_has_is_on_a_board() -> None:
    """What nobody can see need not be exported; the few exceptions are only for those who ask for
    themselves."""
    shown = {
        _SERIES[name].name
        for param in PANELS
        for target in param.values[0]["targets"]
        for name, _ in _SELECTOR.findall(target["expr"])
    }
    # an annotation, a variable
    shown |= {"redlock.run.active", "redlock.run.info"}
    assert set(BY_NAME) - shown == {"redlock.extend.duration"}


@pytest.mark.parametrize(
    ("board", "title"),
    [
        ("run-overview", "Within the SLO"),
        ("quorum", "Latency skew"),
        ("generator", "Telemetry dropped"),
    ],
)
def test_what_no_metric_alone_asks_for_is_on_its_board(board: str, title: str) -> None:
    assert title in {panel["title"] for panel in panels_of(BOARDS[board])}


def test_a_metric_or_label_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(KeyError):
        queries.metric("redlock.no.such")
    with pytest.raises(KeyError, match="server_port"):
        queries.metric("redlock.votes", server_port="1")
    with pytest.raises(ValueError, match="is a histogram"):
        queries.metric("redlock.acquire.duration")
    with pytest.raises(ValueError, match="is a counter"):
        queries.metric("redlock.votes", "bucket")


def test_a_panel_of_two_units_or_without_description_is_refused() -> None:
    with pytest.raises(ValueError, match="one unit"):
        panels.lines(
            "mixed", "seconds and bytes", queries.Query("a", "s"), queries.Query("b", "By")
        )
    with pytest.raises(ValueError, match="description"):
        panels.lines("silent", "", queries.Query("a", "s"))
