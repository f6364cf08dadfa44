"""What a terminal of 80 columns, or a CI's log, shows of a result: no figure cut, the verdict first
and last."""

from pathlib import Path

import pytest

from bench.report.sheet import Part, Sheet
from tests.bench.report.screen import sheet_text, stored
from tests.doubles.answers import sheet_of_its_kind

STORED = sorted((Path(__file__).parents[2] / "histories" / "results").glob("*.json"))
HEAD = ("metric", *(f"figure {number}" for number in range(10, 22)))
ROW = ("acquire.p50", *(f"{number},234,567" for number in range(10, 22)))


def test_a_table_that_is_too_wide_comes_in_pieces_behind_its_first_column() -> None:
    text = sheet_text(Sheet("PASS", "good", "all of it", "", (Part("", "", HEAD, (ROW,)),), ()), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert [text.count(figure) for figure in ROW[1:]] == [1] * 12
    assert [text.count(name) for name in HEAD[1:]] == [1] * 12
    assert text.count("acquire.p50") == text.count("metric") > 1


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
@pytest.mark.parametrize("width", [80, 100])
def test_no_figure_of_a_stored_result_is_cut_and_the_verdict_is_the_last_line_too(
    path: Path, width: int
) -> None:
    sheet = sheet_of_its_kind(stored(path))
    lines = sheet_text(sheet, width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(sheet.verdict)
    assert lines[-1].startswith(sheet.verdict)
    assert not [
        line for line in lines if any(word.endswith("…") and word != "…" for word in line.split())
    ]
