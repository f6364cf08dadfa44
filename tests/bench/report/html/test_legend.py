"""Every ring, band and dash that a page draws is in the legend beside it, and nothing else is."""

import re
from pathlib import Path

import pytest

from bench.report.html.page import page_of_several, render
from tests.bench.report.screen import stored
from tests.doubles.answers import page_of

RESULTS = sorted((Path(__file__).parents[3] / "histories" / "results").glob("*.json"))
# whose words stand on the picture
LABELLED = {"grid", "axis"}


def mark_classes(markup: str) -> set[str]:
    """The classes of what is drawn, texts aside; a point between two gaps belongs to its line."""
    found = re.findall(r'<(?:path|rect|circle)\b[^>]*?class="([^"]+)"', markup)
    lines = (re.sub(r"^alone ", "line ", name) for name in found)
    return {re.sub(r"^line .*faint$", "line faint", name) for name in lines} - LABELLED


def disagreements(page: str) -> dict[str, set[str]]:
    """By figure: the classes that only its picture or only its legend has."""
    found = {}
    for name, figure in re.findall(r'<figure id="figure-([^"]+)"(.*?)</figure>', page, re.DOTALL):
        picture = re.search(r'<div class="picture">(.*?)</div>', figure, re.DOTALL)
        legend = "".join(re.findall(r'<ul class="keys">(.*?)</ul>', figure, re.DOTALL))
        if picture and (apart := mark_classes(picture[1]) ^ mark_classes(legend)):
            found[name] = apart
    return found


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_legends_of_stored_results(path: Path) -> None:
    assert disagreements(render(page_of(stored(path)))) == {}


def test_the_legends_of_runs_with_faults_and_violations(safe, violated, cut):
    pages = [render(page_of(run)) for run in (safe, violated, cut)]
    assert [disagreements(page) for page in pages] == [{}, {}, {}]
    assert disagreements(render(page_of_several([safe, violated], ["a", "b"]))) == {}
    swatches = re.findall(r'<svg class="key".*?</svg>', pages[0])
    assert any('class="fault-edge"' in swatch for swatch in swatches)
    assert any('class="line faint"' in swatch for swatch in swatches)


def test_an_entry_that_is_missing_or_too_many_is_seen(safe):
    page = render(page_of(safe))
    (entry,) = re.findall(r"<li>(?:(?!</li>).)*faint.*?</li>", page)[:1]
    assert {"line faint"} in disagreements(page.replace(entry, "")).values()
    planted = page.replace(
        '<ul class="keys">', '<ul class="keys"><li><svg><circle class="ring c1"/></svg>x</li>', 1
    )
    assert {"ring c1"} in disagreements(planted).values()
