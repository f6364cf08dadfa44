"""A figure that says its words once is in every table, line, limit, CSV line and schema."""

from typing import Annotated

import pytest

from bench.gates.threshold import metrics, shown_at
from bench.measure.latency import Latency
from bench.measure.section import Amount, Count, Section, Share, says, schema_of
from bench.measure.statistics import Interval, Spread
from bench.measure.words import fields_in
from bench.report.figures import in_words
from bench.report.html.plot import Column, data_of
from bench.report.sheet import facts_of, table_of


class Cache(Section, frozen=True, kw_only=True):
    hits_ratio: Annotated[
        Share | None, says("found there", label="hits", shown="table line data several")
    ]
    name: Annotated[str, says("whose it is", shown="table")] = "near"


class Sampled(Section, frozen=True, kw_only=True):
    """A result of this test alone."""

    took_s: Annotated[
        Amount | None,
        says("how long a look-up took", label="look-up", shown="table line data several"),
    ] = None
    looked_per_s: Annotated[Amount, says("look-ups", shown="table", metric="looks")] = 0.0
    steps: Annotated[Count, says("of all look-ups", shown="line")] = 0
    cache: Annotated[
        Cache | None, says("what remembers", shown="table:hits_ratio data:hits_ratio")
    ] = None
    wait_s: Annotated[Latency | None, says("waits", shown="table:p99")] = None
    chance: Annotated[Interval, says("that it is there", shown="table")] = Interval(0.5, 0.25, 0.75)

    @property
    def step_us(self) -> Annotated[float, says("of one step", shown="table")]:
        """A figure that follows from others."""
        return 1e6 * (self.took_s or 0.0) / (self.steps or 1)


SAMPLE = Sampled(took_s=0.0125, looked_per_s=1234.56, steps=100, cache=Cache(hits_ratio=0.875))


def test_a_figure_is_a_column_with_its_unit_in_the_head() -> None:
    part = table_of(Sampled, "samples", "", [SAMPLE, Sampled()])
    assert part.head == (
        "look-up\nms",
        "looked\n/s",
        "cache\nhits",
        "wait\np99 ms",
        "chance",
        "step µs",
    )
    assert part.rows[0] == ("12.5", "1,235", "87.50 %", "–", "0.500 .250–.750", "125")
    assert part.rows[1][:4] == ("–", "0", "–", "–")
    assert part.left == {4}


class Course(Section, frozen=True, kw_only=True):
    sampled: Annotated[Sampled, says("one of it", label="")] = SAMPLE
    rates: Annotated[Spread, says("over its repeats", unit="per_s")] = Spread.of((1.0, 20.4, 70.0))
    away_s: Annotated[Amount, says("out of reach", unit="seconds")] = 1.5

    @property
    def shown(self) -> Annotated[str, says("a figure in words", unit="per_s")]:
        return "≥ 7"


def test_a_table_names_its_columns_and_their_words_come_from_the_fields() -> None:
    columns = ("away_s", "shown", "sampled.cache.name", ("own", str), "sampled.wait_s.p99", "rates")
    part = table_of(Course, "", "", [Course()], columns)
    assert part.head == ("away s", "shown\n/s", "cache\nname", "own", "wait\np99 ms", "rates\n/s")
    assert part.rows[0][:3] == ("1.50", "≥ 7", "near")
    assert part.rows[0][4:] == ("–", "20")
    assert part.left == {2}, "words stand on the left"
    with pytest.raises(KeyError, match="nothing"):
        table_of(Course, "", "", [], ("sampled.nothing",))


def test_a_figure_is_a_row_of_its_sections_facts_and_part_of_its_line() -> None:
    assert facts_of(SAMPLE)[0] == ("look-up", "12.5")
    assert list(in_words(SAMPLE)) == ["look-up 12.5 ms", "steps 100"]
    assert list(in_words(Sampled())) == []


def test_a_figure_is_data_of_a_picture() -> None:
    assert data_of(Sampled, [SAMPLE]) == (
        [Column("took_s", "s", "look-up"), Column("cache_hits_ratio", "ratio", "cache hits")],
        [[0.0125, 0.875]],
    )


def test_a_figure_is_a_metric_with_its_unit_and_a_column_of_several_results() -> None:
    known = metrics(Sampled)
    assert {path: (one.name, one.unit) for path, one in known.items() if "wait" not in path} == {
        "took_s": ("took_s", "s"),
        "looked_per_s": ("looks", "per_s"),
        "steps": ("steps", "count"),
        "cache.hits_ratio": ("cache.hits_ratio", "ratio"),
        "step_us": ("step_us", "us"),
    }
    assert known["wait_s.p99"].unit == "s", "of the section that it stands in"
    assert [one.name for one in shown_at("several", kind=Sampled)] == ["took_s", "cache.hits_ratio"]
    assert known["cache.hits_ratio"].value(SAMPLE) == 0.875
    assert known["wait_s.p99"].value(SAMPLE) is None


def test_a_figure_has_its_sentence_in_the_schema() -> None:
    schema = schema_of(Sampled, "urn:test")
    assert schema["properties"]["took_s"]["description"] == "how long a look-up took"
    assert schema["$defs"]["Cache"]["properties"]["hits_ratio"]["description"] == "found there"


def test_a_section_shows_only_the_figures_that_are_named_and_their_labels_follow_its_own() -> None:
    (hits,) = [one for one in fields_in(Sampled, "table") if one.path[-1] == "hits_ratio"]
    assert (hits.label, hits.own_label) == ("cache hits", "hits")
    assert "name" not in [one.path[-1] for one in fields_in(Sampled, "table")]
