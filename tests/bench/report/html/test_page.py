"""The page says what the result says, to the digit, needs nothing but itself, and survives any
result."""

import html
import json
import re
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.histogram import Histogram
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, typed
from bench.report.figures import count, latency, percent
from bench.report.html.page import page_of_several, render, write_page
from bench.report.html.plot import LEFT
from bench.report.summary import sheet
from tests.bench.report.screen import stored
from tests.doubles.answers import of_its_kind, page_of

MOST_BYTES = 500_000
FIGURES = {
    "percentiles",
    "latency-over-time",
    "rate",
    "outcomes",
    "votes",
    "holders",
    *(f"reply_{n}" for n in range(5)),
}


def text_of(page: str) -> str:
    """What a reader sees of a document, without scripts, styles and markup."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def data_of(page: str) -> dict:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


def figures_of(page: str) -> set[str]:
    return set(re.findall(r'data-figure="([^"]+)"', page))


def test_figures_are_those_of_the_result_to_the_digit(safe):
    text = text_of(render(page_of(safe, "here/result.json")))
    acquire = safe["latency_s"]["acquire"]
    rate = safe["rate"]
    for wanted in (
        f"half took at most {latency(acquire['p50'])}, 99 % {latency(acquire['p99'])}",
        f"the slowest {latency(acquire['max'])}",
        f"{count(rate['achieved_per_s'])} leases/s in closed loop",
        f"acquired {percent(safe['outcome_shares']['acquired'])}",
        f"in {count(safe['safety']['tested_leases'])} tested leases",
        "here/result.json",
        "Again: lockbench run 'hot key.toml'",
    ):
        assert wanted in text
    for row in sheet(safe).parts[0].rows:
        assert " ".join(row[1:-1]) in text


def test_every_picture_is_there_and_has_its_data(safe):
    page = render(page_of(safe))
    assert figures_of(page) == FIGURES == set(data_of(page))
    for name, data in data_of(page).items():
        assert data["rows"], name
        assert all(len(row) == len(data["columns"]) for row in data["rows"]), name
        assert not data["cursor"] or len(data["cursor"]) == len(data["rows"]), name


def test_the_data_of_the_pictures_are_the_figures_of_the_result(safe):
    data = data_of(render(page_of(safe)))
    over = builtins_of(safe)["over_time"]
    assert [row[1] for row in data["rate"]["rows"]] == over["granted"]
    assert [row[3] for row in data["latency-over-time"]["rows"]] == over["acquire"]["p99_s"]
    assert [row[0] for row in data["outcomes"]["rows"]] == over["start_s"]
    curve = {row[0]: row[1] for row in data["percentiles"]["rows"]}
    assert curve["90.0000 %"] == safe["latency_s"]["acquire"]["p90"]
    assert curve["99.0000 %"] == safe["latency_s"]["acquire"]["p99"]
    assert data["percentiles"]["rows"][-1][1] == safe["latency_s"]["acquire"]["max"]


def test_each_instance_has_a_picture_of_its_replies_on_the_axes_of_all(safe):
    result = builtins_of(safe)
    result["instances"][0]["reply_s"] |= {"max": 0.9}
    page = render(page_of(typed(result, RunResult)))
    assert data_of(page)["reply_0"]["rows"][-1][1] == 0.9
    assert page.count(">1 s</text>") >= 5, "the slowest makes the axis of each"


def test_faults_are_bands_with_a_name_and_rows_with_times(safe):
    page = render(page_of(safe))
    assert len(re.findall("<title>stop #1, #2", page)) == 4, (
        "one band, of both instances, in each picture over time"
    )
    assert "stop #1, #2" in page
    assert "faults stop #1 2.00–3.50 s, #2 2.00–3.50 s" in text_of(page)


def test_a_fault_of_many_instances_is_named_as_far_as_there_is_room(safe):
    result = builtins_of(safe)
    result["faults"] = [
        result["faults"][0] | {"target": f"instance:{index}"} for index in range(30)
    ]
    names = re.findall(
        '<text x="([0-9.]+)"[^>]*>(stop #0, #1, [^<]*)…<', render(page_of(typed(result, RunResult)))
    )
    assert len(names) == 4
    assert all(float(x) > LEFT for x, _ in names)


def test_a_violation_is_told_with_its_operations_and_open_loop_with_what_was_offered(violated):
    page = render(page_of(violated))
    drawn = data_of(page)["holders"]["drawn"]
    assert sum(row[-1] for lane in drawn["lanes"] for row in lane["rows"]) == 2
    (mark,) = drawn["marks"]
    assert mark["resource"] == drawn["lanes"][0]["resource"]
    text = text_of(page)
    assert "1. two leases valid at once unexplained" in text
    assert (
        text.index("VIOLATED")
        < text.index("because 1 × service fault")
        < text.index("How long it took")
    )
    assert "/s of 700/s offered" in text


def test_one_of_something_is_no_plural_and_times_are_as_in_a_scenario(safe):
    result = builtins_of(safe)
    result["scenario"] |= {"users": 1, "resources": 1}
    first = result["instances"][0]
    result["instances"] = [{**first, "reply_s": {**first["reply_s"], "p99": None}}]
    text = text_of(render(page_of(typed(result, RunResult))))
    assert "1 user · 1 resource" in text
    assert "1 resources" not in text
    assert "#0 " in text.partition("Did the lock hold?")[2]
    assert "hold exp:5ms think 0" in text, "conditions"


def test_every_header_cell_says_something_and_every_part_is_a_landmark(safe, violated):
    for page in (
        render(page_of(violated)),
        render(page_of_several([safe, violated], ["one", "two"])),
    ):
        assert not re.search(r"<th[^>]*>\s*</th>", page)
        assert re.search(r'<th scope="col"[^>]*>[^<]', page)
        assert re.search(r'<th scope="row"[^>]*>[^<]', page)
        assert re.search(r'<section[^>]* aria-label="[^"]+">\s*(<h2>[^<]+</h2>\s*)?<dl', page)


def test_every_sentence_has_its_label_beside_it_and_none_after_a_heading_that_says_it(safe):
    """A sentence that goes on with the one before has an empty label, which keeps its place."""
    page = render(page_of(safe))
    (notes,) = re.findall(r'<section id="notes".*?</section>', page, re.DOTALL)
    assert notes.count("<dt>") == notes.count("<dd>") > notes.count("<dt></dt>") > 0
    result = stored(Path(__file__).parents[3] / "histories" / "results" / "crash.json")
    (advice,) = re.findall(r'<div class="advice">.*?</section>', render(page_of(result)), re.DOTALL)
    assert "<dt>not measured</dt>" not in advice


RESULTS = sorted((Path(__file__).parents[3] / "histories" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_page_answers_before_it_explains(path: Path) -> None:
    page = render(page_of(stored(path)))
    head = page.split("</header>")[0]
    assert 1 <= head.count('<dd class="value">') <= 3, "key figures"
    order = ['id="main"', "data-figure=", "<h2>What to do", "<h2>What was not measured", "<table"]
    if path.stem == "judge":
        order.remove("data-figure=")
    places = [page.find(mark, page.index("<body>")) for mark in order]
    assert -1 not in places
    assert places == sorted(places)


def test_the_page_of_a_run_says_what_to_do_next(safe, violated):
    assert "look at both holders in the timeline" in text_of(render(page_of(violated)))
    page = text_of(render(page_of(safe)))
    assert "look at both holders in the timeline" not in page
    assert "lockbench capacity --slo" in page.split("What to do")[1].split("What was not")[0]
    untested = builtins_of(safe)
    untested["safety"] |= {"verdict": "NOT TESTED"}
    assert "--hold 5ms" in text_of(render(page_of(typed(untested, RunResult))))


def test_no_heading_of_a_table_is_turned_and_tables_have_the_full_width():
    css = (Path(__file__).parents[4] / "bench" / "report" / "html" / "page.css").read_text("utf-8")
    assert "writing-mode" not in css
    assert "table.cards { width: 100%; }" in css


def test_nothing_is_fetched_and_nothing_is_large(safe):
    page = render(page_of(safe))
    assert len(page.encode()) < MOST_BYTES
    assert not re.search(
        r"""\b(?:src|href|action)\s*=\s*["']?(?!["'#]|data:,)""", page.split("<script", 1)[0]
    )
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in page


def test_what_a_result_says_cannot_become_markup(safe):
    nasty = "</script><img src=x onerror=alert(1)>"
    result = builtins_of(safe)
    result["warnings"] = [nasty]
    result["instances"][0]["address"] = nasty
    result["scenario"]["recipe"] = nasty
    result["faults"][0]["kind"] = nasty
    page = render(page_of(typed(result, RunResult)))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert nasty in text_of(page)


def test_a_run_cut_off_as_its_window_began_has_a_page(cut):
    assert {"rate", "holders"} & figures_of(render(page_of(cut))) == set()
    assert "2 RUNS" in render(page_of_several([cut, cut], ["a", "b"]))


def test_a_run_in_which_nothing_was_acquired_has_a_page(safe):
    empty = builtins_of(safe)
    nothing = dict.fromkeys(("mean", "p50", "p90", "p99", "p999", "p9999", "max")) | {"count": 0}
    empty["latency_s"] = dict.fromkeys(empty["latency_s"], nothing | {"failed": 0, "infinite": []})
    empty["histograms"] = dict.fromkeys(empty["histograms"], Histogram().encode())
    empty["outcomes"] = dict.fromkeys(empty["outcomes"], 0)
    empty["outcome_shares"] = dict.fromkeys(empty["outcomes"])
    empty["votes"]["margin"] = {}
    empty["safety"]["holders"] = []
    empty["rate"]["achieved_per_s"] = 0.0
    empty["verdict"] = {
        "status": "inconclusive",
        "reasons": ["no lease was granted in the measured window"],
    }
    over = empty["over_time"]
    zero = [0] * len(over["start_s"])
    none = [None] * len(over["start_s"])
    over |= {
        "granted": zero,
        "outcomes": dict.fromkeys(over["outcomes"], zero),
        "margin": {},
        "split_votes": zero,
    }
    over["acquire"] = dict.fromkeys(over["acquire"], none)
    assert "No lease was acquired" in text_of(render(page_of(typed(empty, RunResult))))


def test_several_runs_stand_side_by_side_and_say_what_differs(safe, violated):
    page = render(page_of_several([safe, violated], ["one", "two"]))
    text = text_of(page)
    assert figures_of(page) == {"percentiles"}
    assert "A: one B: two verdict SAFE VIOLATED" in text
    assert "rate_per_s – 700" in text
    assert (
        text.index("Acquire p99: A") < text.index("A: one B: two verdict") < text.rindex("In words")
    )
    assert "seed" not in text.split("What differs")[1].split("Written by")[0]
    assert "Nothing differs" in text_of(render(page_of_several([safe, safe], ["one", "two"])))


def test_only_runs_stand_side_by_side(lockbench):
    results = Path(__file__).parents[3] / "histories" / "results"
    done = lockbench("report", results / "run.json", results / "safety.json")
    assert done.returncode == 2
    assert "can only show results of lockbench run, but" in done.stderr
    assert "is a result of lockbench safety; leave this result out" in done.stderr


def test_a_kind_nobody_knows_is_refused_by_its_name():
    with pytest.raises(
        UsageError, match="a result of lockbench sorcery, which this lockbench does not know"
    ):
        of_its_kind({"kind": "sorcery"}, "x")


def test_a_device_is_written_to_and_never_replaced(cut, tmp_path: Path) -> None:
    place = tmp_path / "full"
    # not the device itself: root could replace it
    place.symlink_to("/dev/full")
    with pytest.raises(EnvironmentNotReadyError, match="name another file"):
        write_page(page_of(cut), place)
    assert place.is_char_device()
    assert list(tmp_path.iterdir()) == [place]


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", css))


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it."""

    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return sum(
            weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
        )

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_and_marks_stand_out_in_light_in_dark_and_on_paper(cut):
    css = render(page_of(cut)).split("<style>")[1].split("</style>")[0]
    light, dark, paper = (
        colours(block) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    for theme in (light, dark, light | paper | dict.fromkeys(("paper", "raised"), "#ffffff")):
        for ground in ("paper", "raised"):
            for text in ("ink", "quiet", "good", "bad", "warning", "c1"):
                assert contrast(theme.get(text, "#000000"), theme[ground]) >= 4.5, (text, ground)
        for mark in ("c2", "c3", "c4", "c5"):
            assert contrast(theme[mark], theme["paper"]) >= 3
    assert contrast("#000000", "#ffffff") == 21


def test_every_picture_says_what_it_shows_and_takes_the_focus(safe):
    page = render(page_of(safe)).split("<script", 1)[0]
    for head in re.findall(r"<svg [^>]*>", page):
        assert 'aria-hidden="true"' in head or re.search(
            r'role="img" tabindex="0" aria-label="[^"]{20,}"', head
        ), head
    assert page.count('role="img"') == len(FIGURES) - 1
