"""Pages in a real browser: no console error, every picture drawn, all of it in a phone's width, its
data saved."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, typed
from bench.report.html.page import page_of_several, render
from tests.bench.report.screen import stored
from tests.doubles.answers import page_of

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
# paper: 18 cm between the margins
LEAST_TEXT_PX = 11
PHONE_PX = 390
A4_PX = 680
RESULTS = sorted((Path(__file__).parents[3] / "histories" / "results").glob("*.json"))
# Runs in the page after its own script: clicks, keys, and what came of them, into the title.
PROBE = """
const seen = {name: location.pathname.split('/').pop(), hash: location.hash};
const texts = [...document.querySelectorAll('.picture svg text')]
  .filter((t) => t.getClientRects().length);
const zoom = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
const px = (t) => parseFloat(getComputedStyle(t).fontSize) * zoom(t.ownerSVGElement);
seen.least = Math.min(...texts.map(px));
seen.empty = [...document.querySelectorAll('[data-figure]')].filter((f) => {
  const marks = [...f.querySelectorAll('.line, .area, .lease, .dot, .ring')]
    .filter((m) => !m.closest('.keys'));
  const boxes = marks.map((m) => m.getBoundingClientRect());
  return !boxes.some((b) => b.width > 1 || b.height > 1);
}).map((f) => f.dataset.figure);
seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.paper = getComputedStyle(document.body).backgroundColor;
const isCut = (table) => table.scrollWidth > table.clientWidth + 1;
const tables = [...document.querySelectorAll('.table')];
seen.cut = tables.filter(isCut).map((table) => `${table.ariaLabel} ${table.scrollWidth}`);
const closed = () => document.querySelectorAll('.folded details:not([open])').length;
seen.folded = [closed()];
for (const name of ['beforeprint', 'afterprint']) {
  dispatchEvent(new Event(name));
  seen.folded.push(closed());
}
const first = document.querySelector('#figure-percentiles .picture svg');
if (first) {
  first.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true }));
  seen.readout = first.closest('figure').querySelector('.readout').textContent;
}
const holders = document.querySelector('.holders');
if (holders) {
  const classOf = (mark) => mark.getAttribute('class');
  const shapes = (place) => [...holders.querySelectorAll(`${place} :is(rect, path)`)];
  const classes = (place) => [...new Set(shapes(place).map(classOf))]
    .filter((c) => c !== 'grid').sort();
  const drawn = (marks) => holders.querySelectorAll(`:scope > svg ${marks}`).length;
  seen.bad = drawn('.lease.bad');
  seen.before = drawn('.lease');
  seen.legends = [[classes(':scope > svg'), classes('.keys')]];
  [...holders.querySelectorAll('button')].find((b) => b.textContent === 'Whole run').click();
  seen.whole = drawn('.lease');
  seen.legends.push([classes(':scope > svg'), classes('.keys')]);
  seen.address = location.hash;
}
const data = document.querySelector('#figure-percentiles details.data');
if (data) {
  data.open = true;
  data.dispatchEvent(new Event('toggle'));
  seen.rows = data.querySelectorAll('tbody tr').length;
  URL.createObjectURL = (blob) => { seen.saved = (seen.saved || 0) + blob.size; return 'data:,'; };
  for (const button of data.querySelectorAll('button')) button.click();
}
parent.postMessage(JSON.stringify(seen), '*');
"""
# A window cannot be as narrow as a phone, a frame can; what the probes saw becomes the title.
FRAME = """<title></title><style>iframe {{ width: {width}px; height: 2000px; border: 0 }}</style>
<script>const seen = []; addEventListener('message', (event) => {{ seen.push(event.data);
  if (seen.length === {count}) document.title = `SEEN[${{seen}}]`; }});</script>{frames}"""


def browsed(command):
    """What the browser says.

    One that hangs, as headless ones do now and then on a busy machine, is started again.
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=45, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def look(page, tmp_path, *, view="", **how):
    """What the probe saw of `page` at the address `view`, and the lines of the browser's
    console."""
    seen, console = look_at({"page": page}, tmp_path, view=view, **how)
    return seen["page"], console


def look_at(pages, tmp_path, *, width=1200, dark=False, view=""):
    """What the probe saw of each of the named `pages`, and the lines of the browser's console."""
    for name, page in pages.items():
        probed = page.replace("</body>", f"<script>{PROBE}</script></body>")
        (tmp_path / f"{name}.html").write_text(probed, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frames = "".join(f'<iframe src="{name}.html{view}"></iframe>' for name in pages)
    frame.write_text(FRAME.format(width=width, frames=frames, count=len(pages)), "utf-8")
    outcome = browsed(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width + 40},1000",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--dump-dom",
            frame.as_uri(),
        ]
    )
    found = re.search(r"<title>SEEN(.*?)</title>", outcome.stdout)
    assert found, outcome.stdout[-2000:] + outcome.stderr[-2000:]
    seen = {Path(one["name"]).stem: one for one in json.loads(html.unescape(found[1]))}
    return seen, re.findall(r"CONSOLE.*", outcome.stderr)


def test_a_safe_run_in_a_wide_window(safe, tmp_path):
    seen, console = look(render(page_of(safe)), tmp_path)
    assert console == []
    assert seen["empty"] == [], "pictures without a mark"
    assert seen["least"] >= LEAST_TEXT_PX
    assert seen["wide"] <= 0, "the page is wider than the window"
    assert seen["rows"] > 50
    assert seen["saved"] > 2_000
    assert re.match(r"percentile 99\.99\d+ % · acquire [\d.]+ ms", seen["readout"])
    assert seen["whole"] > seen["before"] > 0
    assert seen["folded"] == [3, 0, 3], "on paper the conditions are unfolded"


def test_a_violated_run_opens_at_its_violation_in_the_dark(violated, tmp_path):
    seen, console = look(render(page_of(violated)), tmp_path, dark=True)
    assert console == []
    assert seen["bad"] == 2, "both leases are in view and red"
    assert seen["before"] < 100 < seen["whole"], "and not much else"
    assert seen["paper"] == "rgb(16, 21, 28)"
    assert all(drawn == legend for drawn, legend in seen["legends"])
    assert seen["address"] == "#at=-1.000000,6.000000", "the view has an address"


def test_a_view_is_opened_by_its_address(violated, tmp_path):
    seen, console = look(render(page_of(violated)), tmp_path, view="#at=3,3.5")
    assert (console, seen["hash"], seen["bad"]) == ([], "#at=3.000000,3.500000", 0)


def test_a_legend_of_more_than_is_drawn_would_be_seen(violated, tmp_path):
    planted = render(page_of(violated)).replace("if (!found) continue;", "")
    seen, _ = look(planted, tmp_path)
    assert seen["legends"][0][0] != seen["legends"][0][1]


def test_every_kind_of_result_fits_a_phone(safe, violated, tmp_path):
    pages = {path.stem: render(page_of(stored(path))) for path in RESULTS}
    runs = {"safe": safe, "violated": violated}
    pages |= {name: render(page_of(run)) for name, run in runs.items()}
    pages["several"] = render(
        page_of_several([safe, violated] * 3, [f"20261123-{n}-run-name" for n in range(6)])
    )
    seen, console = look_at(pages, tmp_path, width=PHONE_PX)
    assert console == []
    assert {
        name: one for name, one in seen.items() if one["wide"] > 0 or one["cut"] or one["empty"]
    } == {}
    assert min(one["least"] or LEAST_TEXT_PX for one in seen.values()) >= LEAST_TEXT_PX
    planted = {"crash": pages["crash"].replace('class="cards"', "")}
    assert look_at(planted, tmp_path, width=PHONE_PX)[0]["crash"]["cut"], (
        "planted: tables that are no cards"
    )


def test_a_phone(violated, tmp_path):
    result = builtins_of(violated)
    long = "x" * 300
    result["scenario"]["recipe"] = result["instances"][0]["address"] = long
    result["warnings"] = [long]
    seen, console = look(render(page_of(typed(result, RunResult))), tmp_path, width=PHONE_PX)
    assert (console, seen["empty"]) == ([], [])
    assert seen["least"] >= LEAST_TEXT_PX, "pictures are read on a phone, too"
    assert seen["wide"] <= 0, "nothing is cut off"


def test_every_kind_of_result_fits_a_sheet_of_paper(safe, violated, tmp_path):
    pages = {path.stem: render(page_of(stored(path))) for path in RESULTS}
    pages |= {
        "violated": render(page_of(violated)),
        "two": render(page_of_several([safe, violated], ["one", "two"])),
    }
    printed = {
        name: re.sub("@media (.*)print {", r"@media \1all {", page) for name, page in pages.items()
    }
    seen, _ = look_at(printed, tmp_path, width=A4_PX)
    assert {
        name: one for name, one in seen.items() if one["wide"] > 0 or one["cut"] or one["empty"]
    } == {}
    assert min(one["least"] or LEAST_TEXT_PX for one in seen.values()) >= 10, "7.5 points"


@pytest.mark.slow
def test_several_runs(safe, violated, tmp_path):
    seen, console = look(render(page_of_several([safe, violated], ["a", "b"])), tmp_path)
    assert (console, seen["empty"]) == ([], [])


def test_the_browser_would_tell_of_an_error(safe, tmp_path):
    broken = render(page_of(safe)).replace(
        '"use strict";', '"use strict"; console.error("planted");', 1
    )
    _, console = look(broken, tmp_path)
    assert len(console) == 1
