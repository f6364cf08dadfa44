"""The boards asked without Grafana: what stands for a variable, and what is refused."""

import pytest

from tests.dashboards.prometheus_answers import WatchedRun, read_boards, resolve

BOARDS = {board["uid"]: board for board in read_boards()}
SPAN = WatchedRun("7f3a90c1", 1000.0, 1030.4, 1.0)


def test_a_query_gets_the_runs_id_and_times_as_grafana_would_put_them_in() -> None:
    text = (
        'rate(x{run=~"$run", r=~"$recipe", port=~"$port", le="$slo"}[$__rate_interval]) + '
        "y[$__range]"
    )
    expected = 'rate(x{run=~"7f3a90c1", r=~".*", port=~".*", le="0.01"}[4s]) + y[31s]'
    assert resolve(text, BOARDS["lockbench-run-overview"], SPAN) == expected
    generator = BOARDS["lockbench-generator"]
    assert resolve("$baseline", generator, SPAN) == "", "a run against itself is no comparison"
    assert resolve("$baseline", generator, WatchedRun("a", 0, 1, 1.0, "b")) == "b"
    hour = WatchedRun("a", 0.0, 3600.0, 1.0)
    assert (hour.step_s, resolve("$__rate_interval", generator, hour)) == (15.0, "16s"), (
        "rates look back over a step"
    )


def test_a_variable_that_the_board_lacks_is_no_empty_string() -> None:
    with pytest.raises(KeyError, match="nobody"):
        resolve("$nobody", BOARDS["lockbench-fsync"], SPAN)
